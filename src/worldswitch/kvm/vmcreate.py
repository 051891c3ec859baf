"""What KVM_CREATE_VM does besides making the VM: the thread that recovers split huge pages.

Its creation is what makes KVM_CREATE_VM slow in a burst of new VMs: as a kthread it attaches itself to the
creator's cgroups, and that waits for an RCU grace period unless the lock favours writers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.rules import rule


class Thread(enum.Enum):
    """What kind of thread recovers split huge pages."""

    KTHREAD = "kthread"  # a child of kthreadd, kvm-nx-lpage-recovery-<pid>
    VHOST_TASK = "vhost_task"  # a thread of the VMM process


class When(enum.Enum):
    """Which call creates it."""

    CREATE_VM = "KVM_CREATE_VM"
    FIRST_RUN = "the first KVM_RUN"


@dataclass(frozen=True, slots=True)
class RecoveryThread:
    """The recovery thread of one VM: its kind, and who creates it."""

    kind: Thread
    created_by: When


@dataclass(frozen=True, slots=True)
class CreateVm:
    """What one KVM_CREATE_VM waits for.

    Attributes:
        thread: The VM's recovery thread, None if it gets none.
        waits_for_thread: KVM_CREATE_VM returns only when the thread runs.
        waits_for_rcu: While it does, the thread waits for an RCU grace period (10 to 110 ms, by reports of
            June 2023).
    """

    thread: RecoveryThread | None
    waits_for_thread: bool
    waits_for_rcu: bool


@rule(
    id="nx-recovery-thread",
    sentence="Each VM gets a thread that recovers split huge pages, also where the mitigation is off, but not with "
    "nx_huge_pages=never.",
    depends=("nx-recovery-lazy", "nx-recovery-vhost-task", "nx-never", "nx-recovery-thread"),
    tested="tests/kvm/test_vmcreate.py::test_the_recovery_thread_of_each_kernel",
)
def recovery_thread(policy: Policy) -> RecoveryThread | None:
    """The recovery thread of a VM (mmu.c, kvm_mmu_post_init_vm); None if there is none."""
    if not policy.has("nx-recovery-thread") or policy.nx_huge_pages == "never":
        return None
    kind = Thread.VHOST_TASK if policy.has("nx-recovery-vhost-task") else Thread.KTHREAD
    return RecoveryThread(kind, When.FIRST_RUN if policy.has("nx-recovery-lazy") else When.CREATE_VM)


@rule(
    id="cgroup-attach-wait",
    sentence="A kthread that attaches itself to its creator's cgroups waits for an RCU grace period, unless "
    "favordynmods is on.",
    depends=("cgroup-favordynmods",),
    tested="tests/kvm/test_vmcreate.py::test_only_6_1_waits_and_only_without_a_remedy",
)
def attach_waits(policy: Policy) -> bool:
    """Whether cgroup_attach_task_all waits for a grace period (kernel/cgroup, cgroup_threadgroup_rwsem)."""
    return policy.has("cgroup-favordynmods") and not policy.favordynmods


def create_vm(policy: Policy) -> CreateVm:
    """What KVM_CREATE_VM waits for on this host."""
    thread = recovery_thread(policy)
    here = thread is not None and thread.created_by is When.CREATE_VM
    by_kthread = here and thread is not None and thread.kind is Thread.KTHREAD
    return CreateVm(thread, by_kthread, by_kthread and attach_waits(policy))
