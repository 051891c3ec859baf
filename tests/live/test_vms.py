from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.errors import MissingError
from worldswitch.live.vms import Vm, demand_vm, running, threads


def process(root: Path, pid: int, comm: str, *files: str) -> None:
    home = root / f"proc/{pid}"
    (home / "fd").mkdir(parents=True)
    for number in (pid, pid + 1):
        (home / f"task/{number}").mkdir(parents=True)
    (home / "comm").write_text(comm + "\n")
    for number, target in enumerate(files):
        (home / f"fd/{number}").symlink_to(target)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    # The names KVM gives its files: virt/kvm/kvm_main.c, anon_inode_getfd.
    process(
        tmp_path, 100, "qemu\x1b[2J", "/dev/kvm", "anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0", "anon_inode:kvm-vcpu:1"
    )
    process(tmp_path, 200, "sleep", "/dev/null")
    return tmp_path


def test_processes_that_hold_a_vm_are_found_with_their_vcpus(host: Path) -> None:
    assert running(host) == [Vm(100, r"qemu\x1b[2J", 2)]


def test_threads_of_a_process(host: Path) -> None:
    assert threads(100, host) == [100, 101]


def test_a_process_without_a_vm_is_refused_with_those_that_have_one(host: Path) -> None:
    with pytest.raises(MissingError, match=r"200 holds no VM; processes with a VM are 100 \(qemu.*, 2 vCPUs\)"):
        demand_vm(200, host)


def test_a_process_with_a_vm_is_accepted(host: Path) -> None:
    demand_vm(100, host)


def test_a_process_that_is_not_there_is_told(host: Path) -> None:
    with pytest.raises(MissingError, match="no process 300"):
        demand_vm(300, host)
