"""Samples of a tree of files like debugfs', and of real VMs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stat_tree import STATES, StatTree
from worldswitch.live.folders import Folders
from worldswitch.live.held import HeldStatistics
from worldswitch.live.sampling import SHOWN, Host

VMM = """
import sys
from worldswitch.live.device import Kvm
with Kvm() as kvm:
    vms = [kvm.create_vm() for _ in range(int(sys.argv[1]))]
    files = []
    for vm in vms:
        vm.__enter__()
        files += [one.stats_fd() for one in (vm, vm.create_vcpu(0), vm.create_vcpu(1))]
    print("ready" if None not in files else "none", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def tree(tmp_path: Path) -> StatTree:
    return StatTree(tmp_path)


@pytest.fixture
def host(tree: StatTree):
    found = Host(tree.root)
    yield found
    found.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_vm_has_its_name_process_vcpus_and_statistics(tree: StatTree, host: Host) -> None:
    tree.add(4711, vcpus=3, process="crosvm")
    (vm,) = host.sample().vms
    assert (vm.name, vm.pid, vm.process, vm.vcpu_count) == ("4711-11", 4711, "crosvm", 3)
    assert vm.counters["exits"] == 1000
    assert vm.counters["pages_2m"] == STATES["pages_2m"]
    assert set(vm.counters) <= SHOWN


def test_all_statistics_are_read_only_of_vms_looked_at(tree: StatTree, host: Host) -> None:
    names = [tree.add(10), tree.add(11)]
    one, two = host.sample([names[0]]).vms
    assert "l1d_flush" in one.counters
    assert "l1d_flush" not in two.counters


def test_the_process_of_a_thread_that_made_the_vm(tree: StatTree, host: Host) -> None:
    tree.add(500)
    (tree.root / "proc/500/status").write_text("Name:\tvcpu\nTgid:\t470\n")
    (tree.root / "proc/470").mkdir()
    (tree.root / "proc/470/comm").write_text("firecracker\n")
    (vm,) = host.sample().vms
    assert (vm.name, vm.pid, vm.process) == ("500-11", 470, "firecracker")


def test_vms_come_and_go_and_no_file_stays_open(tree: StatTree, host: Host) -> None:
    host.sample()
    before = open_files()
    for pid in range(100, 120):
        tree.add(pid)
    assert len(host.sample().vms) == 20
    for name in list(tree.values)[:19]:
        tree.remove(name)
    assert [vm.name for vm in host.sample().vms] == ["119-11"]
    tree.remove("119-11")
    assert host.sample().vms == ()
    assert open_files() == before


def test_names_are_in_the_order_of_their_numbers(tree: StatTree, host: Host) -> None:
    for pid, fd in ((1000, 3), (99, 12), (99, 4)):
        tree.add(pid, fd)
    assert [vm.name for vm in host.sample().vms] == ["99-4", "99-12", "1000-3"]


def test_names_of_older_kernels_are_those_of_newer_ones(tree: StatTree, host: Host) -> None:
    """Linux before 5.13 calls nx_lpage_splits nx_largepages_splitted, and irq_window_exits irq_window."""
    folder = tree.top / tree.add(10)
    (folder / "nx_lpage_splits").rename(folder / "nx_largepages_splitted")
    (vm,) = host.sample().vms
    assert vm.counters["nx_lpage_splits"] == STATES["nx_lpage_splits"]


def test_faults_fixed_stand_for_faults_taken_where_there_are_none(tree: StatTree, host: Host) -> None:
    folder = tree.top / tree.add(10)
    (folder / "pf_taken").unlink()
    (vm,) = host.sample().vms
    assert vm.counters["pf_fixed"] == 1000


def test_what_is_no_vm_and_no_number_is_passed_over(tree: StatTree, host: Host) -> None:
    folder = tree.top / tree.add(10)
    (tree.top / "exits").write_text("5\n")
    (tree.top / "x-y").mkdir()
    (folder / "hypercalls").write_text("many\n")
    (vm,) = host.sample().vms
    assert "hypercalls" not in vm.counters


def test_only_takes_names_process_ids_and_process_names(tree: StatTree, host: Host) -> None:
    tree.add(10, process="crosvm")
    tree.add(11)
    tree.add(12)
    sample = host.sample()
    assert [vm.name for vm in sample.only(["10-11"]).vms] == ["10-11"]
    assert [vm.name for vm in sample.only(["12", "crosvm"]).vms] == ["10-11", "12-11"]
    assert sample.only([]) is sample
    assert sample.only(["13"]).vms == ()


def test_without_debugfs_what_is_missing_is_said_until_it_comes(tmp_path: Path) -> None:
    (tmp_path / "sys/module/kvm").mkdir(parents=True)
    host = Host(tmp_path)
    (lack,) = host.sample().lacks
    assert (lack.why, lack.remedy) == ("debugfs is not mounted", "as root: mount -t debugfs none /sys/kernel/debug")
    folder = tmp_path / "sys/kernel/debug/kvm/7-9"
    folder.mkdir(parents=True)
    (folder / "exits").write_text("3\n")
    sample = host.sample()
    assert (sample.lacks, [vm.name for vm in sample.vms]) == ((), ["7-9"])
    host.close()


def test_without_the_module_it_says_so(tmp_path: Path) -> None:
    (lack,) = Host(tmp_path).sample().lacks
    assert lack.why == "the kvm module is not loaded"


@pytest.mark.parametrize(("level", "why"), [("none [integrity] confidentiality", r"lockdown \(integrity\)"),
                                            (None, r"refused \(EPERM\), as kernels under lockdown do")])  # fmt: skip
def test_lockdown_is_stated_only_where_the_kernel_says_so(tree: StatTree, monkeypatch, level, why) -> None:
    from worldswitch.live import folders

    def refused(name: str, folder: int) -> int:
        if name == "exits":
            raise PermissionError(1, "Operation not permitted")
        return 1

    tree.add(10)
    if level:
        (tree.root / "sys/kernel/security").mkdir(parents=True)
        (tree.root / "sys/kernel/security/lockdown").write_text(level)
    monkeypatch.setattr(folders, "_value", refused)
    found = Folders(tree.root)
    found.read(SHOWN)
    (lack,) = found.lacks
    found.close()
    assert lack.what == "1 of KVM's counters in debugfs"
    assert re.search(why, lack.why)


@pytest.fixture
def vmm():
    """Starts a VMM that keeps KVM's statistics of so many VMs open, two vCPUs each."""
    processes = []

    def start(vms: int) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", VMM, str(vms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        if process.stdout.readline() != "ready\n":
            pytest.skip("this kernel has no KVM_GET_STATS_FD")
        return process

    yield start
    for process in processes:
        process.communicate()


@pytest.mark.needs("kvm")
def test_statistics_that_a_vmm_holds_open_are_of_each_vcpu(vmm) -> None:
    process = vmm(1)
    held = HeldStatistics()
    held.look(process.pid)
    found = held.read(process.pid)
    assert set(found.vcpus) == {0, 1}
    assert found.vcpus[0]["exits"] == 0
    assert "remote_tlb_flush" in found.vm
    process.communicate()
    held.sweep()
    assert held.read(process.pid) is None
    held.close()


@pytest.mark.needs("kvm")
def test_files_of_several_vms_are_left_and_that_is_said(vmm) -> None:
    process = vmm(2)
    held = HeldStatistics()
    held.look(process.pid)
    assert held.read(process.pid) is None
    assert held.several == {process.pid}
    held.keep_only(set())
    assert held.several == set()


@pytest.mark.needs("kvm")
def test_a_vm_whose_process_ended_is_gone_though_it_was_sampled(vmm) -> None:
    """A copy of a statistics file that stayed open would keep the VM and its folder."""
    host = Host()
    process = vmm(1)
    assert process.pid in {vm.pid for vm in host.sample().vms}
    process.communicate()
    assert process.pid not in {vm.pid for vm in host.sample().vms}
    host.close()
