"""Clocks, power states and isolation of CPUs: what decides the longest interruption of a vCPU."""

from __future__ import annotations

import re

from worldswitch.host.checks.changes import Pair, another_kernel, by_hand
from worldswitch.host.checks.terms import INFO, NOTICE, OK, WARNING, by, fine, integer, kvm_works, unreadable
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    Amount,
    BootParameter,
    Change,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    Run,
    Write,
    check,
    unknown_gain,
)

CPUS = "/sys/devices/system/cpu"
CLOCK = "/sys/devices/system/clocksource/clocksource0"
SLOW_CLOCKS = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
TUNED = "https://github.com/redhat-performance/tuned, profile realtime"
_DEADLINES = unknown_gain("it depends on what else the host does; cyclictest or oslat in a guest tells")


@check(
    id="clocksource",
    rule="arch/x86/kvm/x86.c, gtod_is_based_on_tsc",
    about="the host's clock: without the TSC behind it, guests' clocks are slow too",
)
def clocksource(host: Host, profile: Profile) -> Found:
    """KVM gives guests a stable kvm-clock only where the host's own clock is read from the TSC."""
    path, now = f"{CLOCK}/current_clocksource", host.clocksource
    if not kvm_works(host):
        return None
    if now is None:
        return unreadable(host, "clocksource", path, "what clock the host reads")
    if now in ("tsc", "hyperv_clocksource_tsc_page"):
        return fine(host, "clocksource", f"the host's clock is {now}", path)
    slow = now in SLOW_CLOCKS
    severity = WARNING if slow else by(profile, NOTICE, realtime=WARNING)
    seen = (host.evidence(path), host.evidence(f"{CLOCK}/available_clocksource"))
    what = "each reading asks a device, and " if slow else ""
    title = f"the host's clock is {now}: {what}guests get no stable kvm-clock"
    gain = unknown_gain("no table of clock readings by source was published")
    if "tsc" in host.clocksources:
        fix = Change(
            "Read the TSC, now and at each boot.",
            (Write(path, "tsc"), BootParameter("clocksource=tsc")),
        )
        undo = Change(f"Read {now} again.", (Write(path, now), BootParameter("clocksource=tsc", remove=True)))
    else:
        fix, undo = by_hand(
            "The kernel found the TSC unstable or missing: look for the reason in its log (dmesg | grep -i tsc); "
            "firmware, or the hypervisor below, has to be changed.",
            "Nothing was changed.",
        )
    risk = "Where the TSC really is unstable, time jumps; the kernel falls back by itself if it notices."
    return Finding("clocksource", severity, title, seen, gain, fix, undo, risk)


@check(
    id="preempt-rt",
    rule="Documentation/core-api/real-time/index.rst",
    about="a kernel with PREEMPT_RT, and for whom",
)
def preempt_rt(host: Host, profile: Profile) -> Found:
    """Wanted for deadlines, dear for all else."""
    if host.preempt_rt is None:
        return None
    seen = (host.evidence("/proc/sys/kernel/version"),)
    if profile is Profile.REALTIME:
        if host.preempt_rt:
            return Finding("preempt-rt", OK, "the kernel has PREEMPT_RT", seen)
        change = another_kernel("Boot a kernel with PREEMPT_RT (mainline has it from 6.12 on).")
        title = "the kernel has no PREEMPT_RT: whatever it does can keep a vCPU waiting until it is done"
        return Finding("preempt-rt", WARNING, title, seen, _DEADLINES, *change, risk="Throughput falls.")
    if not host.preempt_rt:
        return None
    change = another_kernel("Boot a kernel without PREEMPT_RT, unless guests have deadlines.")
    title = "the kernel has PREEMPT_RT, which costs throughput"
    gain = unknown_gain("it depends on the load")
    return Finding("preempt-rt", INFO, title, seen, gain, *change, risk="Guests with deadlines miss them.")


@check(
    id="isolated-cpus",
    rule="Documentation/admin-guide/kernel-parameters.txt, isolcpus, nohz_full and rcu_nocbs",
    about="CPUs kept free for vCPUs, with the timer tick and RCU's work kept off them",
)
def isolated_cpus(host: Host, profile: Profile) -> Found:
    """Isolation without nohz_full leaves a tick of CONFIG_HZ times a second."""
    if profile is not Profile.REALTIME:
        return None
    isolated, full = host.cpus("isolated"), host.cpus("nohz_full")
    if isolated is None or not re.fullmatch(r"[0-9,-]*", isolated):
        return unreadable(host, "isolated-cpus", f"{CPUS}/isolated", "which CPUs are isolated")
    seen = (host.evidence(f"{CPUS}/isolated", isolated or "none"), host.evidence(f"{CPUS}/nohz_full", full or "none"))
    if not isolated:
        fix, undo = by_hand(
            "Isolate the CPUs that vCPUs are to be pinned to: isolcpus=managed_irq,domain,LIST nohz_full=LIST "
            "rcu_nocbs=LIST on the kernel's command line, or cgroup v2 cpuset partitions.",
            "Take these parameters from the command line again.",
        )
        title = "no CPU is isolated: the scheduler may put anything beside a vCPU"
        risk = "Isolated CPUs run nothing but what is pinned to them."
        return Finding("isolated-cpus", WARNING, title, seen, _DEADLINES, fix, undo, risk, TUNED)
    if full and full != "(null)":
        return Finding("isolated-cpus", OK, f"CPUs {isolated} are isolated, {full} without a timer tick", seen)
    hz = integer(host.config("HZ"))
    gain = _DEADLINES
    if hz:
        gain = Gain(
            f"Up to {hz} timer interrupts a second less on each isolated CPU.",
            "CONFIG_HZ - 0",
            (("CONFIG_HZ", str(hz), host.config_path or "the kernel's configuration"),),
            "this host",
            Amount(0, hz, hz, "timer interrupts per second and CPU"),
        )
    new = (f"nohz_full={isolated}", f"rcu_nocbs={isolated}")
    if host.config("NO_HZ_FULL") == "n":
        change = another_kernel("Boot a kernel with CONFIG_NO_HZ_FULL, and nohz_full= for these CPUs.")
    else:
        change = Pair(
            Change("Add them to the kernel's command line; after a reboot.", tuple(map(BootParameter, new)), True),
            Change("Take them away again.", tuple(BootParameter(one, remove=True) for one in new), True),
        )
    title = f"CPUs {isolated} are isolated, but their timer tick goes on"
    return Finding(
        "isolated-cpus",
        WARNING,
        title,
        seen,
        gain,
        *change,
        risk="Entries to the kernel become dearer on these CPUs; one CPU at least has to keep its tick.",
    )


@check(
    id="irq-affinity",
    rule="Documentation/core-api/irq/irq-affinity.rst",
    about="interrupts of devices that may go to isolated CPUs",
)
def irq_affinity(host: Host, profile: Profile) -> Found:
    """New interrupts go where /proc/irq/default_smp_affinity says."""
    isolated = _cpu_set(host.cpus("isolated") or "")
    path = "/proc/irq/default_smp_affinity"
    text = host.text(path)
    if profile is not Profile.REALTIME or not isolated or not re.fullmatch(r"[0-9a-fA-F,]{1,4096}", text or ""):
        return None
    text = text or ""
    mask = int(text.replace(",", "") or "0", 16)
    shared = sorted(cpu for cpu in isolated if mask >> cpu & 1)
    if not shared:
        return fine(host, "irq-affinity", "interrupts of devices keep away from isolated CPUs", path)
    width = len(text.replace(",", ""))
    new = f"{mask & ~sum(1 << cpu for cpu in isolated):0{width}x}"
    new = ",".join(new[max(0, end - 8) : end] for end in range(len(new) % 8 or 8, len(new) + 1, 8))
    fix = Change("Keep new interrupts from isolated CPUs, until the next boot (irqaffinity= keeps them for good).",
                 (Write(path, new),))  # fmt: skip
    undo = Change("Let them go everywhere again.", (Write(path, text),))
    title = f"interrupts of devices may go to isolated CPUs {','.join(map(str, shared))}"
    risk = "The other CPUs take all interrupts; those set up already stay where they are."
    return Finding("irq-affinity", NOTICE, title, (host.evidence(path),), _DEADLINES, fix, undo, risk, TUNED)


def _cpu_set(text: str) -> set[int]:
    """``1-3,8`` as numbers; nothing where it is none."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), min(int(last or first), 8191) + 1))
    return found


@check(
    id="cpu-governor",
    rule="Documentation/admin-guide/pm/cpufreq.rst",
    about="the governor that chooses frequencies",
)
def cpu_governor(host: Host, profile: Profile) -> Found:
    """Deadlines and short-lived guests end before a frequency has risen."""
    path = f"{CPUS}/cpu0/cpufreq/scaling_governor"
    now = host.text(path)
    if now is None or not re.fullmatch(r"[a-z_]{1,30}", now):
        return None
    if now == "performance":
        return fine(host, "cpu-governor", "frequencies do not follow the load (performance)", path)
    if profile not in (Profile.REALTIME, Profile.FAAS):
        return fine(host, "cpu-governor", f"frequencies follow the load ({now})", path)
    fix = Change(
        "Choose the governor performance, until the next boot (cpupower comes with the kernel's tools).",
        (Run(("cpupower", "frequency-set", "-g", "performance")),),
    )
    undo = Change("Choose the old governor again.", (Run(("cpupower", "frequency-set", "-g", now)),))
    severity = by(profile, OK, faas=INFO, realtime=WARNING)
    title = f"frequencies follow the load ({now}): work of a few milliseconds is over before they rise"
    gain = unknown_gain("it depends on the processor and its firmware")
    seen = (host.evidence(path),)
    return Finding("cpu-governor", severity, title, seen, gain, fix, undo, "The host draws more power and gets warmer.")


@check(
    id="deep-idle",
    rule="Documentation/admin-guide/pm/cpuidle.rst",
    about="idle states that take long to leave",
)
def deep_idle(host: Host, profile: Profile) -> Found:
    """A vCPU that wakes waits until its CPU has left the state; a latency request at run time cannot be seen here."""
    if profile is not Profile.REALTIME:
        return None
    folder = f"{CPUS}/cpu0/cpuidle"
    states = []
    for number in range(16):
        name = f"state{number}"
        latency, off = (integer(host.text(f"{folder}/{name}/{what}")) for what in ("latency", "disable"))
        if latency is not None and not off:
            states.append((latency, name))
    if not states:
        return None
    slowest, name = max(states)
    path = f"{folder}/{name}/latency"
    if slowest <= 20:
        return fine(host, "deep-idle", f"every idle state is left within {slowest} us", path)
    fix, undo = by_hand(
        "Hold a latency request open (tuned's force_latency, or /dev/cpu_dma_latency), or boot with "
        "intel_idle.max_cstate=1 or processor.max_cstate=1.",
        "Close the request, or take the parameter away.",
    )
    return Finding(
        "deep-idle",
        NOTICE,
        f"CPUs may enter an idle state that takes {slowest} us to leave, unless a latency request forbids it",
        (Evidence(path, str(slowest)),),
        Gain(
            f"Up to {slowest} us less until a vCPU runs again.",
            "latency of the deepest state - of the shallowest",
            (("deepest", f"{slowest} us", path), ("shallowest", f"{min(states)[0]} us", folder)),
            "this host",
            Amount(0, slowest - min(states)[0], slowest - min(states)[0], "us of a wake-up"),
        ),
        fix,
        undo,
        "The host draws more power, and busy cores may clock lower.",
    )
