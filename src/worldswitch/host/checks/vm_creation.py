"""What makes KVM_CREATE_VM slow on this host, and what a burst of VMs runs into."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import Pair, another_kernel, parameter, sysctl
from worldswitch.host.checks.nx import PARAMETER
from worldswitch.host.checks.terms import (
    INFO,
    NOTICE,
    OK,
    UNKNOWN,
    WARNING,
    by,
    fine,
    integer,
    kernel_evidence,
    kvm_works,
    multihit,
    vendor_module,
)
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    Amount,
    ByHand,
    Change,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    Write,
    check,
)
from worldswitch.kvm.vmcreate import Cgroup, CreateVm, create_vm, grace_period

if TYPE_CHECKING:
    from worldswitch.kvm.facts import Kernel

THREADS_PER_VM, VMS_PER_CPU = 4, 100
"""A microVM's own: VMM, vCPU, API, recovery; and how many VMs a FaaS host starts for each CPU, by that thread."""


class Setting(NamedTuple):
    """A host as the rules of VM creation see it."""

    kernel: Kernel
    nx_huge_pages: str
    favordynmods: bool

    def has(self, fact: str) -> bool:
        """Whether *fact* holds of the kernel."""
        return self.kernel.has(fact)


def setting(host: Host) -> Setting | None:
    """This host's; None if its kernel is not known."""
    if host.kernel is None:
        return None
    value = "never" if host.parameter("kvm", PARAMETER) == "never" else "auto"
    return Setting(host.kernel, value, bool(host.favordynmods))


def may_never(host: Host) -> bool:
    """``never`` is there and gives up nothing: the processor does not have the bug."""
    return multihit(host) is False and host.kernel is not None and host.kernel.has("nx-never")


@check(
    id="nx-recovery-thread",
    rule="nx-recovery-thread",
    about="the thread that each KVM_CREATE_VM, or each first KVM_RUN, makes and may wait for",
)
def nx_recovery_thread(host: Host, profile: Profile) -> Found:
    """A wait for an RCU grace period in each KVM_CREATE_VM is what bursts of VMs suffer from."""
    here = setting(host)
    if not kvm_works(host):
        return None
    if here is None:
        return kernel_unknown(host, "nx-recovery-thread", "whether KVM_CREATE_VM waits for a thread")
    now = create_vm(here, Cgroup.OWN)
    path = host.parameter_path("kvm", PARAMETER)
    seen = (*kernel_evidence(host), host.evidence(path))
    if now.thread is None:
        title = "VMs get no recovery thread (nx_huge_pages=never)"
        return Finding("nx-recovery-thread", OK, title, seen)
    allowed = may_never(host) and profile is not Profile.HARDENED and host.parameter("kvm", PARAMETER) is not None
    if not now.waits_for_rcu:
        return _without_wait(host, profile, now, seen, allowed)
    if allowed:
        fix, undo = _never(host)
        return Finding(
            "nx-recovery-thread",
            by(profile, NOTICE, faas=WARNING, realtime=INFO),
            "each KVM_CREATE_VM makes a thread and waits for an RCU grace period, for a mitigation that is not needed",
            seen,
            creation_gain(host, now),
            fix,
            undo,
            "The mitigation cannot be switched on again until kvm is reloaded; this processor does not need it.",
            "nx-recovery-thread",
        )
    if not here.has("cgroup-favordynmods") or host.favordynmods:
        return Finding(
            "nx-recovery-thread",
            by(profile, INFO, faas=WARNING),
            "each KVM_CREATE_VM by a process in a cpuset of its own waits for an RCU grace period (cpuset_rwsem)",
            seen,
            _cpuset_gain(host),
            *another_kernel(
                "Boot a kernel without cpuset_rwsem: 5.10.193, 5.15.129 or 6.1.50 of their lines, or 6.5 on."
            ),
            risk="Another kernel differs in more than this.",
            rule="cgroup-cpuset-wait",
        )
    why = "this profile keeps the mitigation within reach" if may_never(host) else "never is no remedy here"
    title = f"each KVM_CREATE_VM makes a thread and waits for an RCU grace period; {why}, favordynmods is one"
    severity = by(profile, INFO, faas=NOTICE)
    told = Gain("What that gains, favordynmods tells.", unknown="it is told there")
    return Finding("nx-recovery-thread", severity, title, seen, told)


def _without_wait(host: Host, profile: Profile, now: CreateVm, seen: tuple[Evidence, ...], allowed: bool) -> Finding:
    assert now.thread is not None
    call = now.thread.created_by.value
    title = f"each VM gets a recovery thread in {call}, without a wait for an RCU grace period"
    if not allowed or profile is not Profile.FAAS:
        return Finding("nx-recovery-thread", OK, title, seen)
    fix, undo = _never(host)
    return Finding(
        "nx-recovery-thread",
        INFO,
        f"{title}; on this processor it has nothing to do",
        seen,
        Gain(
            "One thread less per VM, and one creation less in its first KVM_RUN.",
            "threads here - threads with never",
            (("threads here", "1", "rule nx-recovery-thread"), ("threads with never", "0", "rule nx-recovery-thread")),
            "model",
            Amount(1, 1, 1, "threads per VM"),
        ),
        fix,
        undo,
        "The mitigation cannot be switched on again until kvm is reloaded; this processor does not need it.",
    )


def _never(host: Host) -> Pair:
    """It can be written while no VM exists; only loading kvm anew takes it back."""
    to = "to make no recovery threads on this processor"
    used = host.module_users.get(vendor_module(host) or "", 0) > 0
    fix = parameter(host, "kvm", PARAMETER, "never", "auto", live=not used, to=to).fix
    undo = parameter(host, "kvm", PARAMETER, "never", "auto", live=False, to=to).undo
    if host.parameter("kvm", PARAMETER) in ("Y", "1"):  # this processor has no bug, so auto gives N
        again = ByHand(f"if it was written by hand, then write force to {host.parameter_path('kvm', PARAMETER)}")
        undo = Change(undo.text.replace("to auto", "to force"), (*undo.steps, again), undo.needs_reboot)
    if used:
        return Pair(fix, undo)
    # Last, as it fails with EBUSY if a VM has come up since.
    steps = (*(step for step in fix.steps if not isinstance(step, Write)), fix.steps[0])
    return Pair(Change(f"{fix.text[:-1]}; while no VM exists (EBUSY otherwise).", steps), undo)


def _cpuset_gain(host: Host) -> Gain:
    saved = gains.CREATE_JAILED_MS - gains.CREATE_FREE_MS
    return Gain(
        f"About {saved:.0f} ms less for a KVM_CREATE_VM in a jail, as measured on 5.4.",
        "in its cgroups - in none, one grace period",
        (
            ("in its cgroups", f"{gains.CREATE_JAILED_MS} ms", gains.JAILED),
            ("in none", f"{gains.CREATE_FREE_MS} ms", gains.JAILED),
            *_grace_period_here(host),
        ),
        f"published: {gains.JAILED}",
        Amount(saved, saved, saved, "ms per KVM_CREATE_VM"),
    )


def _grace_period_here(host: Host) -> list[tuple[str, str, str]]:
    hz, cpus = integer(host.config("HZ")), host.cpu.processors
    if not hz or not cpus:
        return []
    bounds = grace_period(hz, cpus)
    text = f"{bounds.low / 1e6:.0f} ms if CPUs are quiet, {bounds.high / 1e6:.0f} ms if one has to be urged"
    return [("one grace period here", text, f"model: CONFIG_HZ={hz}, {cpus} CPUs")]


def creation_gain(host: Host, now: CreateVm) -> Gain:
    """What KVM_CREATE_VM takes less without its thread: as others measured, beside a grace period by the model."""
    waits = len(now.locks)
    with_thread, without = sorted(gains.CREATE_WITH_THREAD_MS), sorted(gains.CREATE_WITHOUT_MS)
    low, mid, high = (
        slow - fast
        for slow, fast in zip(with_thread, (without[2], without[1], without[0]))  # noqa: B905 - Python 3.9
    )
    inputs = [
        ("with", "23.567, 76.709, 109.109 ms", gains.STICKY),
        ("without", "0.518, 0.495, 0.513 ms", gains.STICKY),
        ("grace periods", str(waits), "rule cgroup-attach-wait"),
    ]
    inputs += _grace_period_here(host)
    return Gain(
        f"{low:.0f} to {high:.0f} ms less for a KVM_CREATE_VM that meets no other, as measured elsewhere; a burst of "
        "them queues up behind each other besides.",
        "with - without, one grace period",
        tuple(inputs),
        f"published: {gains.STICKY}",
        Amount(low, mid, high, "ms per KVM_CREATE_VM"),
    )


@check(
    id="thread-limits",
    rule="Documentation/admin-guide/sysctl/kernel.rst, pid_max and threads-max",
    about="whether a FaaS burst fits under kernel.pid_max and kernel.threads-max",
)
def thread_limits(host: Host, profile: Profile) -> Found:
    """Reckoned with 100 VMs per CPU of 4 threads each; for FaaS hosts only."""
    if profile is not Profile.FAAS or not host.cpu.processors:
        return None
    found = []
    wanted = host.cpu.processors * VMS_PER_CPU * THREADS_PER_VM
    for name in ("kernel.pid_max", "kernel.threads-max"):
        path = "/proc/sys/" + name.replace(".", "/")
        value = integer(host.text(path))
        if value is not None and value < wanted:
            new = 1 << (wanted - 1).bit_length()
            fix, undo = sysctl(name, str(new), str(value), to="so that a burst of VMs finds room")
            more = (wanted - value) / THREADS_PER_VM
            gain = Gain(
                f"{more:,.0f} more VMs fit.",
                "(CPUs * VMs per CPU * threads per VM - limit) / threads per VM",
                (
                    ("CPUs", str(host.cpu.processors), "/proc/cpuinfo"),
                    ("VMs per CPU", str(VMS_PER_CPU), gains.STICKY),
                    ("threads per VM", str(THREADS_PER_VM), "VMM, vCPU, API, recovery"),
                    ("limit", str(value), path),
                ),
                "this host",
                Amount(more, more, more, "VMs"),
            )
            title = f"{name} is {value}: {value // THREADS_PER_VM:,} microVMs of {THREADS_PER_VM} threads reach it"
            seen = (host.evidence(path),)
            risk = "More threads take more memory; a runaway process is stopped later."
            found.append(Finding(f"thread-limits.{name}", NOTICE, title, seen, gain, fix, undo, risk))
    return found or fine(host, "thread-limits", "a burst of 100 VMs per CPU fits", "/proc/sys/kernel/pid_max")


def kernel_unknown(host: Host, id: str, what: str) -> Finding:
    """That *what* cannot be told, since it is not known which kernel this is."""
    seen = Evidence("/proc/sys/kernel/osrelease", f"{host.release} ({host.kernel_why})")
    return Finding(id, UNKNOWN, f"it cannot be told {what}", (seen,), risk="")
