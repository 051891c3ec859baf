"""Text of hist files, in the form Documentation/trace/histogram.rst and hist_trigger_print_key describe."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import MissingError
from worldswitch.live.histogram import ExitHistogram, Key, dropped, parse
from worldswitch.live.sampling import Host

DATA = Path(__file__).parents[1] / "data/top"
INTERRUPTS = [("6.12", 39), ("7.2", 50)]
"""As the program in the guest printed them: 15 + 9 + 15 and 16 + 14 + 20."""
TEXT = """\
# event histogram
#
# trigger info: hist:keys=common_pid,vcpu_id,exit_reason,isa:vals=hitcount:sort=hitcount:size=16384 [active]
#

{ common_pid:        412, vcpu_id:          1, exit_reason:        120, isa:          2 } hitcount:          3
{ common_pid:        411, vcpu_id:          0, exit_reason:         28, isa:          1 } hitcount:         17
{ common_pid:        411, vcpu_id:          0, exit_reason:        101, isa:          2 } hitcount:     123456

Totals:
    Hits: 123476
    Entries: 3
    Dropped: 0
"""


def test_entries_are_by_thread_vcpu_and_the_reasons_name_of_its_vendor() -> None:
    """28 of VMX is EXIT_REASON_CR_ACCESS, 0x78 of SVM SVM_EXIT_HLT, 0x65 cr0_sel_write (uapi/asm/vmx.h, svm.h)."""
    assert parse(TEXT) == {
        Key(412, 1, "hlt"): 3,
        Key(411, 0, "CR_ACCESS"): 17,
        Key(411, 0, "cr0_sel_write"): 123456,
    }
    assert dropped(TEXT) == 0


def test_a_full_histogram_says_what_it_dropped() -> None:
    assert dropped(TEXT.replace("Dropped: 0", "Dropped: 42")) == 42


def test_an_older_event_has_no_vcpu() -> None:
    text = "{ common_pid:        411, exit_reason:         12, isa:          1 } hitcount:          5\n"
    assert parse(text) == {Key(411, None, "HLT"): 5}


def test_entries_without_their_vendor_are_of_the_hosts() -> None:
    text = "{ common_pid:        411, vcpu_id:          0, exit_reason:        120 } hitcount:          5\n"
    assert parse(text, 2) == {Key(411, 0, "hlt"): 5}


@pytest.mark.parametrize("text", ["", "# event\n", "{ comm: x } hitcount: 3\n", "{ common_pid: 4 } hitcount: "])
def test_what_is_no_entry_is_none(text: str) -> None:
    assert parse(text) == {}


@given(st.text(max_size=200) | st.text("{} :,comnpidhtu_exs0123456789-\n", max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert all(count >= 0 for count in parse(text).values())


@pytest.mark.parametrize(("kernel", "interrupts"), INTERRUPTS)
def test_a_real_kernels_histogram_has_the_exits_the_guest_made(kernel: str, interrupts: int) -> None:
    """A guest that changed CR0.WP 1,000 times before each of 15 port writes, in the lab on AMD.

    SVM intercepts each such write (cr0_sel_write), and the histogram is of all there was.
    """
    with tarfile.open(DATA / f"svm-{kernel}.tar.gz") as packed:
        (name,) = (name for name in packed.getnames() if name.endswith("/hist"))
        text = packed.extractfile(name).read().decode()
    reasons = {(key.vcpu, key.reason): count for key, count in parse(text, 2).items()}
    assert reasons == {(0, "cr0_sel_write"): 15_000, (0, "io"): 15, (0, "interrupt"): interrupts}
    assert int(re.search(r"Hits: (\d+)", text)[1]) == sum(reasons.values())


@pytest.mark.parametrize("kernel", ["6.12", "7.2"])
def test_a_real_kernels_debugfs_is_sampled(kernel: str, tmp_path: Path) -> None:
    """The same host, copied after one more pass than the histogram saw: 16 port writes in all."""
    with tarfile.open(DATA / f"svm-{kernel}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    host = Host(tmp_path)
    (vm,) = host.sample().vms
    host.close()
    assert (vm.process, vm.vcpu_count, vm.counters["io_exits"], vm.counters["insn_emulation"]) == (
        "python3",
        2,
        16,
        16_000,
    )


def tree(root: Path, *, hist: bool = True) -> Path:
    """A tracefs with a KVM event below *root*; the folder of the event in the instance that is made."""
    top = root / "sys/kernel/tracing"
    event = top / "events/kvm/kvm_exit"
    event.mkdir(parents=True)
    (top / "instances").mkdir()
    (event / "format").write_text("field:int common_pid;\nfield:unsigned int exit_reason;\nfield:u32 isa;\n")
    if hist:
        (event / "hist").write_text("")
    return event


def test_without_tracefs_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="mount -t tracefs"):
        ExitHistogram(tmp_path)


def test_lockdown_is_named(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    with pytest.raises(MissingError, match="lockdown is at confidentiality"):
        ExitHistogram(tmp_path)


def test_a_kernel_without_histograms_is_told_from_one_without_events(tmp_path: Path) -> None:
    tree(tmp_path, hist=False)
    with pytest.raises(MissingError, match="CONFIG_HIST_TRIGGERS"):
        ExitHistogram(tmp_path)
