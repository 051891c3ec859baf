from __future__ import annotations

import numpy as np
import pytest

from scripts import CPUID, HLT, SVM, batch, cr_write, emulated, entry, event, exit_, trace
from worldswitch.record.trace import Batch
from worldswitch.trace import pairing
from worldswitch.trace.exits import EVENTS, NO_CR, Detail, ExitPairing, ExitRows, pair_exits


def rows(*events, pid: int | None = None) -> ExitRows:
    pairs = ExitPairing()
    return pairs.feed(batch(list(events), pid))


def test_a_row_holds_what_the_exit_said() -> None:
    made = rows(entry(1, vcpu=2), exit_(10, reason=CPUID, rip=0x77, info1=3, info2=4, vcpu_id=2), entry(30, vcpu=2))
    assert len(made) == 1
    names = ("vcpu", "isa", "reason", "start", "duration", "guest", "rip", "info1", "info2", "cr", "flags")
    assert [int(getattr(made, name)[0]) for name in names] == [2, 1, CPUID, 10, 20, 9, 0x77, 3, 4, NO_CR, 0]


def test_a_detail_of_an_exit_is_its_first() -> None:
    made = rows(
        entry(1), exit_(10), event(11, "kvm_msr", write=1, ecx=0x10), event(12, "kvm_cpuid", function=1), entry(20)
    )
    assert (made.detail_kind[0], int(made.detail[0])) == (Detail.MSR, 1 << 32 | 0x10)
    assert made.flags[0] & pairing.DETAILED


def test_an_event_between_entry_and_exit_belongs_to_none() -> None:
    made = rows(entry(1), event(5, "kvm_msr", write=0, ecx=0x10), exit_(10), entry(20))
    assert made.detail_kind.tolist() == [Detail.NONE]


def test_threads_are_listed_as_they_appear() -> None:
    pairs = ExitPairing()
    pairs.feed(batch([entry(1, 50), entry(2, 40), entry(3, 50)], pid=9))
    assert pairs.tids.tolist() == [50, 40]
    assert pairs.pids.tolist() == [9, 9]
    assert pairs.threads == 2


def test_more_threads_than_there_was_room_for() -> None:
    pairs = ExitPairing()
    events = [one for tid in range(1, 2000) for one in (entry(tid, tid), exit_(tid, tid), entry(tid + 1, tid))]
    made = pairs.feed(batch(sorted(events, key=lambda one: one[0])))
    assert pairs.threads == 1999
    assert len(made) == 1999
    assert sorted(made.thread.tolist()) == list(range(1999))


def test_threads_with_odd_ids_are_threads() -> None:
    pairs = ExitPairing()
    pairs.feed(batch([entry(1, -1), entry(2, 0), entry(3, 0x7FFFFFFF)]))
    assert pairs.tids.tolist() == [-1, 0, 0x7FFFFFFF]


def test_open_exits_come_out_at_the_end() -> None:
    pairs = ExitPairing()
    assert len(pairs.feed(batch([entry(1), exit_(10), event(30, "kvm_mmio", gpa=1)]))) == 0
    made = pairs.finish()
    assert made.flags.tolist() == [pairing.UNFINISHED | pairing.DETAILED]
    assert made.duration.tolist() == [20]


def test_pair_exits_reads_a_source_to_its_end() -> None:
    parts = list(pair_exits(trace(entry(1), exit_(10), entry(20), exit_(30), split=2)))
    assert [len(part) for _, part in parts] == [0, 1, 1]


def test_an_empty_batch_makes_no_rows() -> None:
    empty = np.empty(0, np.int32)
    assert (
        len(ExitPairing().feed(Batch((), empty.astype(np.uint16), empty.astype(np.int64), empty, empty, empty, ())))
        == 0
    )


def test_times_before_zero_are_zero() -> None:
    made = rows(entry(-50), exit_(-10), entry(7))
    assert (made.start.tolist(), made.duration.tolist()) == ([0], [7])


@pytest.mark.parametrize("name", ["exit_reason", "isa", "guest_rip", "info1", "info2", "vcpu_id"])
@pytest.mark.parametrize("kind", ["missing", "text", "bytes", "float"])
def test_a_field_that_is_missing_or_no_number_counts_as_zero(name: str, kind: str) -> None:
    """The file's format decides what a field is; a hostile or future one may decide anything."""
    made = batch([entry(1), exit_(10), entry(20)])
    table = made.tables[made.events.index("kvm_exit")]
    if kind == "missing":
        del table[name]
    else:
        table[name] = {
            "text": np.array(["x"], object), "bytes": np.zeros((1, 5), np.uint8), "float": np.array([1.5]),
        }[kind]  # fmt: skip
    assert ExitPairing().feed(made).duration.tolist() == [10]


@pytest.mark.parametrize("insn", [np.array(["0f 22 c0"], object), np.zeros((1, 2), np.uint8), np.zeros(1, np.uint32)])
def test_instruction_bytes_of_another_kind_write_nothing(insn) -> None:
    made = batch([entry(1), exit_(10, isa=SVM), emulated(11, b"\x0f\x22\xc0"), entry(20)])
    made.tables[made.events.index("kvm_emulate_insn")]["insn"] = insn
    assert ExitPairing().feed(made).cr.tolist() == [NO_CR]


def test_an_emulated_instruction_without_fields_writes_nothing() -> None:
    made = batch([entry(1), exit_(10, isa=SVM), emulated(11, b"\x0f\x22\xc0"), entry(20)])
    made.tables[made.events.index("kvm_emulate_insn")].clear()
    assert ExitPairing().feed(made).cr.tolist() == [NO_CR]


def test_the_length_cuts_the_instruction() -> None:
    one = emulated(11, b"\x0f\x22\xc0")
    one[3]["len"] = 2
    assert rows(entry(1), exit_(10, isa=SVM), one, entry(20)).cr.tolist() == [NO_CR]


def test_kvm_cr_says_more_than_the_emulated_instruction() -> None:
    made = rows(entry(1), exit_(10, isa=SVM), emulated(11, b"\x0f\x22\xc0"), cr_write(12, 0, 0x33), entry(20))
    assert (made.cr.tolist(), made.cr_value.tolist()) == ([0], [0x33])
    assert made.flags[0] & pairing.CR_FIRST


def test_the_selection_names_every_event_the_pairing_reads() -> None:
    assert {"kvm_exit", "kvm_entry", "kvm_cr", "kvm_emulate_insn", "kvm_fpu"} <= set(EVENTS)


def test_rows_can_be_taken() -> None:
    made = rows(entry(1), exit_(10, reason=CPUID), entry(20), exit_(30, reason=HLT), entry(40))
    assert made.take(made.reason == HLT).start.tolist() == [30]
    assert not made.any(pairing.OPEN)
