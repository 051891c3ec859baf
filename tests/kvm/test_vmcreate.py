"""KVM_CREATE_VM. Expected: KVM source of each kernel, and the times below.

Medians of six KVM_CREATE_VM in a row, in microseconds of an emulator (Bochs 3.0) whose clock counts instructions,
real kvm.ko of Debian's cloud kernels, recorded 2026-11-30: with nx_huge_pages=auto and never.
"""

from __future__ import annotations

import pytest

from worldswitch.errors import UnknownNameError
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vmcreate import (
    Cgroup,
    Dynmods,
    Lock,
    RecoveryThread,
    Thread,
    When,
    attach_waits,
    cpuset_waits,
    create_vm,
    create_vm_steps,
    end_attaches,
    first_run_steps,
    first_vm_interrupts,
    forks_pay,
    grace_period,
    move_steps,
    procs_lock,
    recovery_thread,
    remounted,
)

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


def test_5_4_waits_in_a_cpuset_of_its_own_and_only_there() -> None:
    """Rule cgroup-cpuset-wait: 27.3 ms in the jailer's cgroup, 0.35 ms outside (firecracker#2129, kernel 5.4)."""
    assert create_vm(Policy.of("5.4"), Cgroup.OWN).locks == (Lock.CPUSET,)
    assert create_vm(Policy.of("5.4"), Cgroup.ROOT).locks == ()


@pytest.mark.parametrize(
    ("last", "first"), [("5.10.192", "5.10.193"), ("5.15.128", "5.15.129"), ("6.1.49", "6.1.50"), ("6.4.0", "6.5.0")]
)
def test_cpusets_got_their_mutex_back(last: str, first: str) -> None:
    """Announcements of 5.10.193, 5.15.129 and 6.1.50: "sched/cpuset: Bring back cpuset_mutex"."""
    assert cpuset_waits(Policy.of(last), Cgroup.OWN)
    assert not cpuset_waits(Policy.of(first), Cgroup.OWN)


def test_between_6_0_and_6_5_a_cpuset_costs_a_second_grace_period_which_favordynmods_leaves() -> None:
    """Message-ID 20221208195634.2604362-3-longman@redhat.com wanted to tie cpuset_rwsem to the option."""
    assert create_vm(Policy.of("6.2"), Cgroup.OWN).locks == (Lock.THREADGROUP, Lock.CPUSET)
    assert create_vm(Policy.of("6.2", settings=["favordynmods=1"]), Cgroup.OWN).locks == (Lock.CPUSET,)


def test_only_writes_of_cgroup_procs_have_a_lock_of_the_process() -> None:
    """Rule cgroup-procs-lock: 7.2.13 cgroup_attach_task_all asks for CGRP_ATTACH_LOCK_GLOBAL."""
    assert procs_lock(Policy.of("7.2", settings=["favordynmods=1"])) is Lock.PROCESS
    assert procs_lock(Policy.of("7.2")) is Lock.THREADGROUP
    assert procs_lock(Policy.of("6.12", settings=["favordynmods=1"])) is Lock.THREADGROUP


def test_forks_pay_for_writers_that_do_not_wait() -> None:
    """Rule cgroup-fork-slow-path: commit 6a010a49b63a, "always forced into the slow path" before it and with it."""
    assert forks_pay(Policy.of("5.10"))
    assert not forks_pay(Policy.of("6.1"))
    assert forks_pay(Policy.of("6.1", settings=["favordynmods=1"]))


def test_from_5_18_on_a_kthread_moves_back_before_it_ends() -> None:
    """Rule nx-recovery-thread-end: source of 5.10.223 and 6.1.192, kvm_vm_worker_thread."""
    assert not end_attaches(Policy.of("5.10"))
    assert end_attaches(Policy.of("6.1"))
    assert not end_attaches(Policy.of("6.1", settings=["nx_huge_pages=never"]))
    assert not end_attaches(Policy.of("6.12"))


def test_a_remount_without_the_option_turns_it_off_but_not_the_locks_of_processes() -> None:
    """Rule favordynmods-remount: source of 6.1.192, 6.12.117 and 7.2.13, cgroup_favor_dynmods."""
    for kernel, stays in (("6.1", False), ("6.12", False), ("7.2", True)):
        on = remounted(Policy.of(kernel), Dynmods(), favordynmods=True)
        assert on == Dynmods(True, stays)
        assert remounted(Policy.of(kernel), on, favordynmods=False) == Dynmods(False, stays)
    assert remounted(Policy.of("5.10"), Dynmods(), favordynmods=True) == Dynmods()


def test_interrupts_of_the_first_vm() -> None:
    """Rule virtualization-interrupts: firecracker#3314, one for each CPU with xAPIC on 4.14, one for each cluster
    with x2APIC; the SDM (volume 3, 11.12.10.2) has 16 CPUs in one."""
    old = Policy.of("5.4-apic-ipi-shorthand", "amd")
    assert first_vm_interrupts(old, 192, x2apic=False) == 191
    assert first_vm_interrupts(old, 96, x2apic=True) == 6
    assert first_vm_interrupts(Policy.of("5.10", "amd"), 192, x2apic=False) == 1
    assert first_vm_interrupts(Policy.of("6.12", "amd"), 192, x2apic=False) == 0


def costs_of(steps: tuple) -> list[str]:
    return [step.cost for step in steps]


def test_the_steps_of_each_call() -> None:
    assert costs_of(create_vm_steps(Policy.of("6.1"))) == ["create-vm", "kthread", "attach", "grace-period"]
    assert costs_of(create_vm_steps(Policy.of("5.10"))) == ["create-vm", "kthread", "attach"]
    assert costs_of(create_vm_steps(Policy.of("6.13.0"))) == ["create-vm", "vhost-task"]
    assert costs_of(create_vm_steps(Policy.of("6.12"))) == ["create-vm"]
    assert costs_of(first_run_steps(Policy.of("6.12"))) == ["first-run", "vhost-task"]
    assert costs_of(first_run_steps(Policy.of("6.12", settings=["nx_huge_pages=never"]))) == ["first-run"]
    assert costs_of(move_steps(Policy.of("6.1"))) == ["move", "grace-period"]
    assert costs_of(move_steps(Policy.of("7.2", settings=["favordynmods=1"]))) == ["move"]


def test_an_unknown_control_group_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="cgroup=root or cgroup=own"):
        Cgroup.of("mine")


@pytest.mark.parametrize(("hz", "cpus", "ms"), [(250, 2, 4), (1000, 2, 3), (100, 2, 10), (1000, 512, 5)])
def test_when_idle_cpus_are_looked_for(hz: int, cpus: int, ms: float) -> None:
    """RCU_JIFFIES_TILL_FORCE_QS is 1, 2 above 250 Hz, 3 above 500 Hz, and one more for each 256 CPUs (tree.h)."""
    assert grace_period(hz, cpus).low == ms * 1e6


def test_the_longest_waits_published_are_those_for_a_cpu_that_is_urged() -> None:
    """109.1 ms (kvmtool, June 2023); "more than 100 ms" (Bug 217380, 96 CPUs). RCU urges after a tenth of a second."""
    for hz in (100, 250, 1000):
        assert 100e6 <= grace_period(hz, 96).high <= 120e6


def test_waits_recorded_on_an_idle_host_end_with_the_first_looks() -> None:
    """241 waits of tests/simulation/recorded/moves.json, at 250 Hz: one to four jiffies."""
    import json
    from pathlib import Path

    recorded = json.loads((Path(__file__).parents[1] / "simulation/recorded/moves.json").read_text())
    alone = recorded["alone"]
    assert min(alone) * 1e3 >= grace_period(250, 2).low
    assert max(alone) * 1e3 <= 3 * grace_period(250, 2).low
