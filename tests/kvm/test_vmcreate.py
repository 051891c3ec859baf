"""KVM_CREATE_VM. Expected: KVM source of each kernel, and the times below.

Medians of six KVM_CREATE_VM in a row, in microseconds of an emulator (Bochs 3.0) whose clock counts instructions,
real kvm.ko of Debian's cloud kernels, recorded 2026-11-30: with nx_huge_pages=auto and never.
"""

from __future__ import annotations

import pytest

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vmcreate import RecoveryThread, Thread, When, attach_waits, create_vm, recovery_thread

MEDIAN_US = {
    "5.10.223": (5179, 5179),
    "6.1.190": (15754, 4585),
    "6.12.117": (4385, 4410),
    "7.2.13": (4071, 4074),
    "7.3-rc7": (4103, 4097),
}


@pytest.mark.parametrize("kernel", MEDIAN_US)
def test_the_wait_is_where_never_makes_a_difference(kernel: str) -> None:
    usual, never = MEDIAN_US[kernel]
    assert create_vm(Policy.of(kernel)).waits_for_rcu == (usual > 2 * never)
    assert not create_vm(Policy.of(kernel, settings=["nx_huge_pages=never"])).waits_for_rcu


@pytest.mark.parametrize(
    ("kernel", "kind", "created_by"),
    [
        ("5.10", Thread.KTHREAD, When.CREATE_VM),
        ("6.1", Thread.KTHREAD, When.CREATE_VM),
        ("6.13.0", Thread.VHOST_TASK, When.CREATE_VM),
        ("6.12.13", Thread.VHOST_TASK, When.CREATE_VM),
        ("6.12", Thread.VHOST_TASK, When.FIRST_RUN),
        ("7.2", Thread.VHOST_TASK, When.FIRST_RUN),
    ],
)
def test_the_recovery_thread_of_each_kernel(kernel: str, kind: Thread, created_by: When) -> None:
    """Rule nx-recovery-thread."""
    assert recovery_thread(Policy.of(kernel)) == RecoveryThread(kind, created_by)


def test_it_is_created_even_where_the_mitigation_is_off() -> None:
    assert recovery_thread(Policy.of("6.1", settings=["nx_huge_pages=off"])) is not None


def test_never_means_none_where_the_kernel_knows_it() -> None:
    assert recovery_thread(Policy.of("6.1", settings=["nx_huge_pages=never"])) is None
    assert recovery_thread(Policy.of("5.10", settings=["nx_huge_pages=never"])) is not None


def test_only_6_1_waits_and_only_without_a_remedy() -> None:
    """Rule cgroup-attach-wait: favordynmods is the other way out (mail of June 2023)."""
    assert attach_waits(Policy.of("6.1"))
    assert not attach_waits(Policy.of("6.1", settings=["favordynmods=1"]))
    assert not attach_waits(Policy.of("5.10"))
    assert not create_vm(Policy.of("6.13.0")).waits_for_rcu
