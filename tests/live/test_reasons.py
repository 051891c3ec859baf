from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.errors import MissingError
from worldswitch.live.reasons import NOT_TOLD, Tracer, count, from_statistics, made_by_interrupts, tracer

DATA = Path(__file__).parents[1] / "data"
TEXT = (
    " vmm-412 [000] d..1.    12.345678: kvm_exit: vcpu 0 reason write_cr0 rip 0x1010 info1 0x0 info2 0x0\n"
    " vmm-412 [000] d..1.    12.345679: kvm_entry: vcpu 0, rip 0x1013\n"
    " vmm-412 [000] d..1.    12.345: kvm_exit: vcpu 0 reason INVALID_STATE FAILED_VMENTRY rip 0x1010\n"
    " vmm-412 [000] ....     12.345: kvm_exit: reason CR_ACCESS rip 0x1010 info 0 0\n"
)
"""Forms of the line: trace/events/kvm, arch/x86/kvm/trace.h; the last is that of Linux before 5.10."""


def test_exits_are_counted_by_the_names_the_kernel_prints() -> None:
    assert count(TEXT) == {"write_cr0": 1, "INVALID_STATE FAILED_VMENTRY": 1, "CR_ACCESS": 1}


@pytest.mark.parametrize("recording", ["vmx-5.10-ept", "vmx-6.1-ept", "vmx-7.2-shadow"])
def test_real_recordings_have_an_exit_for_each_kvm_cr(recording: str) -> None:
    text = (DATA / recording / "trace.txt").read_text()
    found = count(text)
    assert found["CR_ACCESS"] == text.count(" kvm_cr: ") > 0
    assert sum(found.values()) == text.count(" kvm_exit: ")


def test_statistics_tell_what_they_name_and_say_what_is_left() -> None:
    counters = {"exits": 10, "io_exits": 4, "halt_exits": 1, "hypercalls": 0, "pf_fixed": 99}
    assert from_statistics(counters, {}) == {"IO": 4, "HLT": 1, NOT_TOLD: 5}


def test_exits_to_userspace_are_heard_where_kvm_does_not_count_them() -> None:
    assert from_statistics({"exits": 5, "io_exits": 0, "halt_exits": 1}, {"IO": 4, "HLT": 1}) == {"IO": 4, "HLT": 1}


def test_more_told_than_there_were_tells_nothing() -> None:
    assert from_statistics({"exits": 3, "io_exits": 4}, {}) == {NOT_TOLD: 3}
    assert from_statistics({}, {"HLT": 1}) == {}


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    for cpu in ("cpu0", "cpu1"):
        (tmp_path / "per_cpu" / cpu).mkdir(parents=True)
        (tmp_path / "per_cpu" / cpu / "stats").write_text("entries: 5\noverrun: 0\ndropped events: 0\n")
    (tmp_path / "events/kvm/kvm_exit").mkdir(parents=True)
    (tmp_path / "trace").write_text(TEXT)
    return tmp_path


def test_tracing_is_on_only_while_it_lasts(instance: Path) -> None:
    found = Tracer(instance)
    with found.on():
        assert (instance / "tracing_on").read_text() == "1"
        assert (instance / "trace").read_text() == ""
    assert (instance / "tracing_on").read_text() == "0"


def test_lost_events_make_it_tell_nothing(instance: Path) -> None:
    assert (Tracer(instance).exits() or {})["write_cr0"] == 1
    (instance / "per_cpu/cpu1/stats").write_text("entries: 5\noverrun: 3\n")
    assert Tracer(instance).exits() is None


def test_room_is_made_only_for_more_exits_than_fit(instance: Path) -> None:
    """24,000 exits in a run, as ssdd makes on 5.10 with the TDP MMU, filled the buffer."""
    found = Tracer(instance)
    found.watch(9_000)
    assert not (instance / "buffer_size_kb").exists()
    found.watch(24_000)
    assert int((instance / "buffer_size_kb").read_text()) * 1024 >= 24_000 * 72
    assert (instance / "events/kvm/kvm_exit/enable").read_text() == "1"


def test_a_host_without_tracefs_says_why(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="tracefs"), tracer(tmp_path):
        pass


@pytest.mark.needs("kvm-events")
def test_the_real_instance_is_made_and_removed() -> None:
    import os

    here = Path(f"/sys/kernel/tracing/instances/wsw-{os.getpid()}")
    with tracer() as found:
        assert here.is_dir()
        with found.on():
            pass
        assert found.exits() == {}
        found.off()
    assert not here.exists()


def test_a_debug_register_that_only_an_interrupt_took_away_is_told() -> None:
    """Rule debug-register-exits. Expected: vcpu_enter_guest (x86.c) and dr_interception (svm.c) of 6.12.117, read."""
    line = " vmm-{} [000] d..1. 12.3: kvm_exit: {}reason {} rip 0x1010 info1 0x0\n"
    svm = (
        "write_dr0",
        "interrupt",
        "interrupt",
        "write_dr0",
        "msr",
        "read_dr7",
        "read_dr6",
        "msr",
        "interrupt",
        "read_dr7",
    )
    found = made_by_interrupts("".join(line.format(412, "vcpu 0 ", reason) for reason in svm))
    assert found == {"write_dr0": 1, "read_dr6": 1}
    vmx = ("DR_ACCESS", "EXTERNAL_INTERRUPT", "DR_ACCESS", "HLT", "DR_ACCESS")
    assert made_by_interrupts("".join(line.format(412, "", reason) for reason in vmx)) == {"DR_ACCESS": 1}
    apart = "".join(line.format(thread, "vcpu 0 ", "write_dr0") for thread in (412, 413))
    assert made_by_interrupts(apart) == {}
