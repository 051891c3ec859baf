"""What happens when a guest has nothing to do: polling on the host, polling in the guest, timers."""

from __future__ import annotations

from worldswitch.host.checks.changes import parameter
from worldswitch.host.checks.terms import INFO, NOTICE, WARNING, boot_words_of, by, fine, integer, kvm_works, unreadable
from worldswitch.host.facts import Host
from worldswitch.host.finding import Amount, Evidence, Finding, Found, Gain, Profile, check, unknown_gain

DEFAULT_POLL_NS, LONG_POLL_NS = 200_000, 1_000_000
"""x86's own maximum, and from where the documentation's warning of busy idle hosts is taken to hold."""
DEFAULT_TIMER_US = 200
STATISTICS = "/sys/kernel/debug/kvm"
CPUIDLE = "/sys/devices/system/cpu/cpuidle"
HALTPOLL = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"


@check(
    id="halt-poll",
    rule="Documentation/virt/kvm/halt-polling.rst",
    about="kvm.halt_poll_ns: how long the host polls for a halted vCPU",
)
def halt_poll(host: Host, profile: Profile) -> Found:
    """Polling buys wake-ups with CPU time; whether it pays, KVM's own statistics tell."""
    path, value = host.parameter_path("kvm", "halt_poll_ns"), integer(host.parameter("kvm", "halt_poll_ns"))
    if "kvm" not in host.modules:
        return None
    if value is None:
        return unreadable(host, "halt-poll", path, "whether the host polls for halted vCPUs")
    if value > LONG_POLL_NS and profile is not Profile.REALTIME:
        fix, undo = parameter(
            host, "kvm", "halt_poll_ns", str(DEFAULT_POLL_NS), str(value), live=True, to="to poll no longer than usual"
        )
        title = f"halted vCPUs are polled for up to {value / 1000:,.0f} us, which can keep an idle host busy"
        risk = "Wake-ups later than that take a round through the scheduler, a few microseconds."
        return Finding("halt-poll", NOTICE, title, (host.evidence(path),), _wasted(host), fix, undo, risk)
    if value == 0 and profile is Profile.REALTIME:
        fix, undo = parameter(
            host,
            "kvm",
            "halt_poll_ns",
            str(DEFAULT_POLL_NS),
            "0",
            live=True,
            to="to poll before the scheduler is asked",
        )
        title = "halted vCPUs go to sleep at once: each wake-up takes a round through the scheduler"
        gain = unknown_gain("halt-polling.rst says only that it is a few microseconds a wake-up")
        risk = "Isolated CPUs stay busy, and draw power, for up to 0.2 ms after each halt."
        return Finding("halt-poll", NOTICE, title, (host.evidence(path),), gain, fix, undo, risk)
    failed, succeeded = (host.debug_kvm.get(f"halt_poll_{how}_ns") for how in ("fail", "success"))
    if value and profile is not Profile.REALTIME and failed and succeeded is not None and failed > 3 * succeeded:
        new = "0" if profile is Profile.FAAS else str(value // 4)
        fix, undo = parameter(
            host, "kvm", "halt_poll_ns", new, str(value), live=True, to="as polling was mostly in vain"
        )
        share = failed / (failed + succeeded)
        seen = (
            host.evidence(path),
            Evidence(f"{STATISTICS}/halt_poll_fail_ns", str(failed)),
            Evidence(f"{STATISTICS}/halt_poll_success_ns", str(succeeded)),
        )
        title = f"{share:.0%} of the time that was polled for halted vCPUs was in vain"
        risk = "Wake-ups that polling would have caught take a few microseconds more."
        severity = by(profile, INFO, faas=NOTICE)
        return Finding("halt-poll", severity, title, seen, _wasted(host), fix, undo, risk)
    return fine(host, "halt-poll", f"halted vCPUs are polled for up to {value / 1000:g} us", path)


def _wasted(host: Host) -> Gain:
    failed = host.debug_kvm.get("halt_poll_fail_ns")
    if failed is None:
        return unknown_gain(f"{STATISTICS} could not be read, which says how much is polled in vain")
    seconds = failed / 1e9
    return Gain(
        f"Up to {seconds:,.1f} s of CPU time, as was spent in vain since the VMs of now were started.",
        "polled in vain",
        (("polled in vain", f"{failed} ns", f"{STATISTICS}/halt_poll_fail_ns"),),
        "this host",
        Amount(0, seconds, seconds, "s of CPU time since the VMs were started"),
    )


@check(
    id="guest-halt-poll",
    rule="Documentation/virt/guest-halt-polling.rst",
    about="this host, a guest itself, polls before it halts",
)
def guest_halt_poll(host: Host, profile: Profile) -> Found:
    """The guest's side of halt polling; only told of hosts that are KVM guests."""
    value = integer(host.text(HALTPOLL))
    governor = host.text(f"{CPUIDLE}/current_governor") or host.text(f"{CPUIDLE}/current_governor_ro")
    if value is None or host.hypervisor != "KVM" or governor != "haltpoll":
        return None
    title = f"before this host, a KVM guest, halts, it polls for up to {value / 1000:g} us itself"
    if not value:
        return fine(host, "guest-halt-poll", "this host, a KVM guest, halts at once (haltpoll is at 0)", HALTPOLL)
    return Finding("guest-halt-poll", INFO, title, (host.evidence(HALTPOLL),))


@check(
    id="paravirtual-guest",
    rule="Documentation/virt/kvm/x86/cpuid.rst",
    about="this host, a KVM guest itself, knows KVM's paravirtual helps",
)
def paravirtual_guest(host: Host, profile: Profile) -> Found:
    """A kernel without CONFIG_KVM_GUEST, or told to leave them, misses cheap clocks, wake-ups and flushes."""
    if host.hypervisor != "KVM":
        return None
    names = ("no-kvmclock", "nopv", "nopvspin", "no-steal-acc", "no-kvmapf")
    refused = [word for name in names for word in boot_words_of(host, name)]
    if host.config("KVM_GUEST") == "n":
        seen = (Evidence(host.config_path, "CONFIG_KVM_GUEST is not set"),)
        title = "this host is a KVM guest, but its kernel knows none of KVM's paravirtual helps"
        return Finding("paravirtual-guest", NOTICE, title, seen, unknown_gain("it depends on the hypervisor below"))
    if refused:
        title = f"this host is a KVM guest told to leave some of its paravirtual helps: {' '.join(refused)}"
        seen = (host.evidence("/proc/cmdline"),)
        return Finding("paravirtual-guest", INFO, title, seen, unknown_gain("it depends on the hypervisor below"))
    if host.config("KVM_GUEST") is None:
        return None
    seen = (Evidence(host.config_path, f"CONFIG_KVM_GUEST={host.config('KVM_GUEST')}"),)
    return fine(host, "paravirtual-guest", "this host, a KVM guest, knows KVM's paravirtual helps")._replace(
        evidence=seen
    )


@check(
    id="timer-period",
    rule="arch/x86/kvm/lapic.c and i8254.c, min_timer_period_us",
    about="kvm.min_timer_period_us: how short a periodic timer of a guest may be",
)
def timer_period(host: Host, profile: Profile) -> Found:
    """Below KVM's own limit a guest can keep a CPU of the host busy with its timer."""
    path, value = (
        host.parameter_path("kvm", "min_timer_period_us"),
        integer(host.parameter("kvm", "min_timer_period_us")),
    )
    if value is None or not kvm_works(host):
        return None
    if value >= DEFAULT_TIMER_US:
        return fine(host, "timer-period", f"periodic timers of guests fire each {value} us at most", path)
    fix, undo = parameter(
        host, "kvm", "min_timer_period_us", str(DEFAULT_TIMER_US), str(value), live=True, to="KVM's own limit"
    )
    rate = 1e6 / value if value else 0
    gain = unknown_gain("a limit of 0 has no rate to compare with")
    if value:
        saved = rate - 1e6 / DEFAULT_TIMER_US
        gain = Gain(
            f"At most {saved:,.0f} timer interrupts a second less for each periodic timer of a guest.",
            "1 / limit now - 1 / limit then",
            (("limit now", f"{value} us", path), ("limit then", f"{DEFAULT_TIMER_US} us", "the kernel's default")),
            "this host",
            Amount(0, saved, saved, "timer interrupts per second and timer"),
        )
    return Finding(
        "timer-period",
        by(profile, NOTICE, realtime=INFO, hardened=WARNING),
        f"a guest may have periodic timers of {value} us, and keep a CPU of the host busy with them",
        (host.evidence(path),),
        gain,
        fix,
        undo,
        "Guests that ask for shorter periods get 200 us.",
    )
