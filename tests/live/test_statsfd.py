from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from live.fakes import FakeDevice
from live.images import TOGGLE_WP
from worldswitch.errors import MissingError
from worldswitch.live.device import Kvm
from worldswitch.live.machine import run_image
from worldswitch.live.statsfd import delta, layout, of_folder, of_process, open_statistics

CUMULATIVE, INSTANT, PEAK, LOG_HISTOGRAM, BOOLEAN = 0, 1, 2, 4, 4 << 4


def statistics_file(path: Path, *rows: tuple[str, int, list[int]], name_size: int = 48) -> Path:
    """A file of the form Documentation/virt/kvm/api.rst gives: header, id, descriptors, data."""
    descriptors, data = b"", b""
    for name, flags, words in rows:
        descriptors += struct.pack("<IhHII", flags, 0, len(words), len(data), 0) + name.encode().ljust(name_size, b"\0")
        data += struct.pack(f"<{len(words)}Q", *words)
    at = 24 + name_size
    head = struct.pack("<6I", 0, name_size, len(rows), 24, at, at + len(descriptors))
    path.write_bytes(head + b"kvm-1".ljust(name_size, b"\0") + descriptors + data)
    return path


@pytest.fixture
def vm_file(tmp_path: Path) -> Path:
    return statistics_file(
        tmp_path / "vm",
        ("halt_wait_hist", CUMULATIVE | LOG_HISTOGRAM, [9, 9, 9]),
        ("exits", CUMULATIVE, [5]),
        ("pages_4k", INSTANT, [7]),
        ("max_mmu_rmap_size", PEAK, [3]),
        ("guest_mode", INSTANT | BOOLEAN, [1]),
    )


def test_layout_is_read_from_the_descriptors(vm_file: Path) -> None:
    with vm_file.open("rb") as file:
        found = {one.name: one for one in layout(file.fileno())}
    assert [one.words for one in found.values()] == [3, 1, 1, 1, 1]
    assert found["exits"].cumulative
    assert not found["pages_4k"].cumulative
    assert found["guest_mode"].boolean


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff" * 24)
    with (tmp_path / "x").open("rb") as file, pytest.raises(MissingError, match="statistics of this KVM"):
        layout(file.fileno())


def test_vcpus_are_summed_and_histograms_and_flags_left_out(vm_file: Path, tmp_path: Path) -> None:
    vcpu = statistics_file(tmp_path / "vcpu", ("exits", CUMULATIVE, [2]), ("io_exits", CUMULATIVE, [1]))
    files = [vm_file, vcpu, vcpu]
    device = FakeDevice()
    with Kvm(device) as kvm, kvm.create_vm() as vm, vm.create_vcpu(0) as one, vm.create_vcpu(1) as two:
        for owner in (vm, one, two):
            owner.stats_fd = lambda: os.open(files.pop(0), os.O_RDONLY)  # type: ignore[method-assign]
        with open_statistics(vm, [one, two]) as statistics:
            assert statistics is not None
            assert statistics.source == "KVM_GET_STATS_FD"
            assert statistics.read() == {"exits": 9, "pages_4k": 7, "max_mmu_rmap_size": 3, "io_exits": 2}
            assert statistics.instants == {"pages_4k", "max_mmu_rmap_size"}


def test_without_the_ioctl_debugfs_is_read_with_its_older_names(tmp_path: Path) -> None:
    # Names of Linux 5.10: debugfs_entries, arch/x86/kvm/x86.c.
    with Kvm(FakeDevice()) as kvm, kvm.create_vm() as vm:
        folder = tmp_path / "sys/kernel/debug/kvm" / vm.name
        (folder / "vcpu0").mkdir(parents=True)
        for name, value in {"irq_window": 1, "request_irq": 2, "nx_largepages_splitted": 3, "largepages": 4}.items():
            (folder / name).write_text(f"{value}\n")
        with open_statistics(vm, [], tmp_path) as statistics:
            assert statistics is not None
            assert statistics.source == "debugfs"
            assert statistics.read() == {
                "irq_window_exits": 1, "request_irq_exits": 2, "nx_lpage_splits": 3, "pages_2m": 4,
            }  # fmt: skip


def test_neither_of_them_gives_none(tmp_path: Path) -> None:
    with Kvm(FakeDevice()) as kvm, kvm.create_vm() as vm, open_statistics(vm, [], tmp_path) as statistics:
        assert statistics is None


def test_a_count_is_a_difference_and_a_state_is_not() -> None:
    assert delta({"exits": 3, "pages_2m": 5}, {"exits": 10, "pages_2m": 2, "new": 1}, frozenset(["pages_2m"])) == {
        "exits": 7, "pages_2m": 2, "new": 1,
    }  # fmt: skip


def test_the_vms_of_a_process_are_found_by_its_threads(tmp_path: Path) -> None:
    top = tmp_path / "sys/kernel/debug/kvm"
    for name in ("101-9", "300-4"):
        (top / name).mkdir(parents=True)
        (top / name / "exits").write_text("12\n")
    (tmp_path / "proc/100/task/101").mkdir(parents=True)
    assert of_process(100, tmp_path) == {"101-9": {"exits": 12}}
    with pytest.raises(MissingError, match=r"no statistics of a VM of process 5; it does for 101, 300"):
        of_process(5, tmp_path)


def test_debugfs_that_is_not_mounted_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="mount -t debugfs"):
        of_process(1, tmp_path)


@pytest.mark.needs("kvm")
class TestReal:
    def test_each_cr0_write_of_a_kvm_that_intercepts_them_is_an_exit(self) -> None:
        with Kvm() as kvm:
            none, some = (run_image(kvm, TOGGLE_WP, n).counters["exits"] for n in (0, 100))
        # All of them, with the interrupts of a busy host, or, where the guest owns CR0.WP, none.
        assert 0 <= some - none < 20 or 100 <= some - none < 200

    def test_debugfs_and_the_file_agree(self) -> None:
        top = Path("/sys/kernel/debug/kvm")
        if not os.access(top, os.R_OK):
            pytest.skip("debugfs cannot be read")
        with Kvm() as kvm, kvm.create_vm() as vm, open_statistics(vm) as statistics:
            assert statistics is not None
            own, folder = statistics.read(), of_folder(top / vm.name)
            assert of_process(os.getpid()) == {vm.name: folder}
        # Kernel lockdown lets only files be read that nobody may write: those of states.
        both = own.keys() & folder.keys()
        assert {"pages_4k", "pages_2m"} <= both
        assert {name: own[name] for name in both} == {name: folder[name] for name in both}

    def test_a_closed_file_is_told(self) -> None:
        with Kvm() as kvm, kvm.create_vm() as vm:
            fd = vm.stats_fd()
        if fd is None:
            pytest.skip("Linux before 5.14")
        os.close(fd)
        with pytest.raises(MissingError, match=os.strerror(errno.EBADF)):
            layout(fd)
