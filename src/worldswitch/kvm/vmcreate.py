"""What KVM_CREATE_VM, the first KVM_RUN and moves between control groups do besides their own work: threads and locks.

What makes KVM_CREATE_VM slow is the thread that recovers split huge pages: as a kthread it attaches itself to its
creator's control groups, under locks whose writers may have to wait for an RCU grace period
(:mod:`worldswitch.kvm.rcu_sync`). :func:`create_vm_steps` and :func:`first_run_steps` say what a call is made of; what
each step takes is no knowledge of KVM's (:mod:`worldswitch.costs.create_vm`). Standard library, Python 3.9.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.errors import UnknownNameError
from worldswitch.kvm.rules import rule

if TYPE_CHECKING:
    from typing import Protocol

    class Host(Protocol):
        """What decides; a :class:`worldswitch.kvm.policy.Policy` is one."""

        @property
        def nx_huge_pages(self) -> str:
            """As the kernel understands what was set."""

        @property
        def favordynmods(self) -> bool:
            """The v2 hierarchy is mounted so."""

        def has(self, fact: str) -> bool:
            """Whether *fact* holds of the kernel."""


class Thread(enum.Enum):
    """What kind of thread recovers split huge pages."""

    KTHREAD = "kthread"  # a child of kthreadd, kvm-nx-lpage-recovery-<pid>
    VHOST_TASK = "vhost_task"  # a thread of the VMM process


class When(enum.Enum):
    """Which call creates it."""

    CREATE_VM = "KVM_CREATE_VM"
    FIRST_RUN = "the first KVM_RUN"
    FIRST_SPLIT = "the first split page"  # in no kernel: proposed when never came


class Cgroup(enum.Enum):
    """Where the creator is: with the kernel's own threads, or in control groups of its own, a cpuset among them."""

    ROOT = "root"
    OWN = "own"

    @classmethod
    def of(cls, word: str) -> Cgroup:
        """The one *word* names.

        Raises:
            UnknownNameError: None.
        """
        if word not in (known := [one.value for one in cls]):
            raise UnknownNameError("control group", word, known, "say cgroup=root or cgroup=own")
        return cls(word)


class Lock(enum.Enum):
    """Locks whose write side attaching takes."""

    THREADGROUP = "cgroup_threadgroup_rwsem"
    CPUSET = "cpuset_rwsem"
    PROCESS = "signal_struct.cgroup_threadgroup_rwsem"


class RecoveryThread(NamedTuple):
    """The recovery thread of one VM: its kind, and who creates it."""

    kind: Thread
    created_by: When


class CreateVm(NamedTuple):
    """What one KVM_CREATE_VM waits for.

    Attributes:
        thread: The VM's recovery thread, None if it gets none.
        waits_for_thread: KVM_CREATE_VM returns only when the thread runs.
        waits_for_rcu: While it does, the thread waits for an RCU grace period, unless one was waited for just before.
        locks: The locks it waits on so, in this order; a grace period for each.
    """

    thread: RecoveryThread | None
    waits_for_thread: bool
    waits_for_rcu: bool
    locks: tuple[Lock, ...] = ()


@rule(
    id="nx-recovery-thread",
    sentence="Each VM gets a thread that recovers split huge pages, also where the mitigation is off, but not with "
    "nx_huge_pages=never.",
    depends=("nx-recovery-lazy", "nx-recovery-vhost-task", "nx-never", "nx-recovery-thread"),
    tested="tests/kvm/test_vmcreate.py::test_the_recovery_thread_of_each_kernel",
)
def recovery_thread(host: Host) -> RecoveryThread | None:
    """The recovery thread of a VM (mmu.c, kvm_mmu_post_init_vm); None if there is none."""
    if not host.has("nx-recovery-thread") or (host.nx_huge_pages == "never" and host.has("nx-never")):
        return None
    kind = Thread.VHOST_TASK if host.has("nx-recovery-vhost-task") else Thread.KTHREAD
    if host.has("nx-recovery-when-needed"):
        return RecoveryThread(kind, When.FIRST_SPLIT)
    return RecoveryThread(kind, When.FIRST_RUN if host.has("nx-recovery-lazy") else When.CREATE_VM)


@rule(
    id="cgroup-attach-wait",
    sentence="A kthread that attaches itself to its creator's cgroups waits for an RCU grace period, unless "
    "favordynmods is on.",
    depends=("cgroup-favordynmods",),
    tested="tests/kvm/test_vmcreate.py::test_only_6_1_waits_and_only_without_a_remedy",
)
def attach_waits(host: Host) -> bool:
    """Whether cgroup_attach_task_all waits for a grace period (kernel/cgroup, cgroup_threadgroup_rwsem)."""
    return host.has("cgroup-favordynmods") and not host.favordynmods


@rule(
    id="cgroup-cpuset-wait",
    sentence="A kthread that attaches itself to another cpuset than its own waits for an RCU grace period on kernels "
    "where a per-CPU lock guards cpusets, whatever favordynmods says.",
    depends=("cgroup-cpuset-rwsem",),
    tested="tests/kvm/test_vmcreate.py::test_5_4_waits_in_a_cpuset_of_its_own_and_only_there",
)
def cpuset_waits(host: Host, cgroup: Cgroup) -> bool:
    """Whether cpuset_can_attach waits for a grace period (kernel/cgroup/cpuset.c, cpuset_rwsem).

    Who stays in the same css_set is skipped before it (cgroup_migrate_prepare_dst), so in the root nobody waits.
    """
    return host.has("cgroup-cpuset-rwsem") and cgroup is Cgroup.OWN


@rule(
    id="cgroup-procs-lock",
    sentence="A write to cgroup.procs takes a lock that all processes share; from 6.18 on, with favordynmods, one of "
    "the process that is moved. A kthread that attaches itself takes the shared one always.",
    depends=("cgroup-per-process-rwsem",),
    tested="tests/kvm/test_vmcreate.py::test_only_writes_of_cgroup_procs_have_a_lock_of_the_process",
)
def procs_lock(host: Host) -> Lock:
    """The lock that cgroup_procs_write takes (kernel/cgroup/cgroup.c, cgroup_attach_lock)."""
    own = host.has("cgroup-per-process-rwsem") and host.favordynmods
    return Lock.PROCESS if own else Lock.THREADGROUP


@rule(
    id="cgroup-fork-slow-path",
    sentence="With favordynmods, and on kernels before it, every fork, exec and exit takes the slow path of "
    "cgroup_threadgroup_rwsem: memory barriers, and a look for writers.",
    depends=("cgroup-favordynmods",),
    tested="tests/kvm/test_vmcreate.py::test_forks_pay_for_writers_that_do_not_wait",
)
def forks_pay(host: Host) -> bool:
    """Whether readers of the lock are off their fast path for good (percpu_down_read, percpu_up_read: 6.1.192)."""
    return not attach_waits(host)


@rule(
    id="nx-recovery-thread-end",
    sentence="Destroying a VM waits until its recovery kthread has attached itself to kthreadd's cgroups again, under "
    "the same locks as at its creation.",
    depends=("nx-recovery-thread-moves-back", "nx-recovery-vhost-task"),
    tested="tests/kvm/test_vmcreate.py::test_from_5_18_on_a_kthread_moves_back_before_it_ends",
)
def end_attaches(host: Host) -> bool:
    """Whether destroying a VM takes those locks too (kvm_vm_worker_thread, after its loop)."""
    thread = recovery_thread(host)
    return thread is not None and thread.kind is Thread.KTHREAD and host.has("nx-recovery-thread-moves-back")


class Dynmods(NamedTuple):
    """What the mounts of a running host have brought it to.

    Attributes:
        favored: Writers of cgroup_threadgroup_rwsem wait for nothing; what the mount options show.
        per_process: Writes to cgroup.procs take a lock of the process.
    """

    favored: bool = False
    per_process: bool = False


@rule(
    id="favordynmods-remount",
    sentence="Each remount of the v2 hierarchy sets favordynmods anew: without the option it is turned off, unless the "
    "kernel was booted or built with it on; the locks of processes, once in use, stay.",
    depends=("cgroup-per-process-rwsem", "cgroup-favordynmods"),
    tested="tests/kvm/test_vmcreate.py::test_a_remount_without_the_option_turns_it_off_but_not_the_locks_of_processes",
)
def remounted(host: Host, before: Dynmods, favordynmods: bool) -> Dynmods:
    """The state after a remount with or without the option (apply_cgroup_root_flags, cgroup_favor_dynmods).

    The kernel's own default counts as the option: cgroup_init_fs_context sets it before options are read.
    """
    if not host.has("cgroup-favordynmods"):
        return before
    per_process = before.per_process or (favordynmods and host.has("cgroup-per-process-rwsem"))
    return Dynmods(favordynmods, per_process)


@rule(
    id="virtualization-interrupts",
    sentence="The first VM enables virtualization on all other CPUs by interrupts, unless loading the module did; with "
    "xAPIC and no destination shorthand that is one after the other.",
    depends=("virt-at-load", "apic-ipi-shorthand"),
    tested="tests/kvm/test_vmcreate.py::test_interrupts_of_the_first_vm",
)
def first_vm_interrupts(host: Host, cpus: int, x2apic: bool) -> int:
    """APIC writes that the first KVM_CREATE_VM makes for it (hardware_enable_all, on_each_cpu).

    Args:
        cpus: CPUs that are online.
        x2apic: The APIC is in x2APIC mode, whose logical addresses reach up to 16 CPUs, a cluster, at once.
    """
    if host.has("virt-at-load") or cpus < 2:
        return 0
    if host.has("apic-ipi-shorthand"):
        return 1
    return -(-cpus // 16) if x2apic else cpus - 1


def create_vm(host: Host, cgroup: Cgroup = Cgroup.ROOT) -> CreateVm:
    """What KVM_CREATE_VM waits for on this host, called from *cgroup*."""
    thread = recovery_thread(host)
    here = thread is not None and thread.created_by is When.CREATE_VM
    by_kthread = here and thread is not None and thread.kind is Thread.KTHREAD
    locks = []
    if by_kthread and attach_waits(host):
        locks.append(Lock.THREADGROUP)
    if by_kthread and cpuset_waits(host, cgroup):
        locks.append(Lock.CPUSET)
    return CreateVm(thread, by_kthread, bool(locks), tuple(locks))


CREATE, FIRST_RUN, MOVE = "create-vm", "first-run", "move"
KTHREAD, VHOST_TASK, ATTACH, GRACE_PERIOD = "kthread", "vhost-task", "attach", "grace-period"
FORK = "fork-favordynmods"


class Step(NamedTuple):
    """One thing a call does: its cost's name, and why it is done."""

    cost: str
    why: str


def create_vm_steps(host: Host, cgroup: Cgroup = Cgroup.ROOT) -> tuple[Step, ...]:
    """What a KVM_CREATE_VM does that meets no other, in order."""
    found = create_vm(host, cgroup)
    steps = [Step(CREATE, "the VM itself: memory, MMU notifier, debugfs")]
    if found.waits_for_thread:
        steps.append(Step(KTHREAD, "kthreadd makes the recovery thread, and KVM_CREATE_VM waits until it runs"))
        steps.append(Step(ATTACH, "the thread attaches itself to the creator's cgroups under cgroup_mutex"))
        steps += [Step(GRACE_PERIOD, f"for that it write-locks {lock.value}") for lock in found.locks]
    elif found.thread is not None and found.thread.created_by is When.CREATE_VM:
        steps.append(Step(VHOST_TASK, "it makes the recovery thread, a thread of the VMM"))
    return tuple(steps)


def first_run_steps(host: Host) -> tuple[Step, ...]:
    """What a VM's first KVM_RUN does, in order."""
    thread = recovery_thread(host)
    steps = [Step(FIRST_RUN, "enter the guest and come back")]
    if thread is not None and thread.created_by is When.FIRST_RUN:
        steps.append(Step(VHOST_TASK, "it makes the recovery thread, a thread of the VMM"))
    return tuple(steps)


def move_steps(host: Host) -> tuple[Step, ...]:
    """What a write to cgroup.procs does that meets no other, in order; cpusets are not looked at."""
    steps = [Step(MOVE, "the work of moving, and of whoever moves")]
    if procs_lock(host) is Lock.THREADGROUP and attach_waits(host):
        steps.append(Step(GRACE_PERIOD, f"for that it write-locks {Lock.THREADGROUP.value}"))
    return tuple(steps)


class GracePeriod(NamedTuple):
    """How long a grace period is by the kernel's constants, in ns.

    Attributes:
        low: When idle CPUs are first looked for; only if all run, and report at their next tick, it may end sooner.
        high: When the last CPU is quiet that stays in the kernel until it is urged to leave. A CPU that disables
            preemption for longer takes longer.
    """

    low: float
    high: float


def grace_period(hz: int, cpus: int) -> GracePeriod:
    """How long a grace period is, with the boot parameters at their defaults.

    A wait for one can be longer: the grace period that is under way when it begins does not count. Sources, 6.1.192:
    kernel/rcu/tree.h, RCU_JIFFIES_TILL_FORCE_QS; tree.c, rcu_init_geometry, adjust_jiffies_till_sched_qs.

    Args:
        hz: CONFIG_HZ.
        cpus: CPUs that are possible.
    """
    first_look = 1 + (hz > 250) + (hz > 500) + cpus // 256
    urged = max(3 * first_look, hz // 10 + cpus // 256)
    # The timer may be a jiffy late, and the CPU that was urged gets a jiffy to act on it.
    return GracePeriod(first_look * 1e9 / hz, (urged + 2) * 1e9 / hz)
