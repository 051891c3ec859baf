"""Two traces side by side: what is refused, what is counted, what is told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.record.trace import Batch, Meta, Trace
from worldswitch.stats.compare import Comparison, Verdict
from worldswitch.stats.verdicts import Time
from worldswitch.trace import open_source
from worldswitch.trace.compare import MODEL, compare
from worldswitch.x86.exits import reason_number

DATA = Path(__file__).parents[1] / "data"
VMX, CPUID, HLT, IO = 1, 10, 12, 30
EVERY = 100_000
"""ns from exit to exit."""


def trace(durations: np.ndarray, reason: int = IO, isa: int = VMX, every: int = EVERY, **meta: Any) -> Trace:
    """Exits of one vCPU at equal distances, each as long as told."""
    n = len(durations)
    time = np.empty(2 * n + 1, np.int64)
    time[0] = 500  # without an entry before it, an exit is not counted, as perf kvm stat does not
    time[1::2] = 1000 + np.arange(n) * every
    time[2::2] = time[1::2] + durations.astype(np.int64)
    order = np.append(np.uint16(1), np.tile(np.array([0, 1], np.uint16), n))
    ones = np.ones(2 * n + 1, np.int32)
    exits = {"exit_reason": np.full(n, reason, np.uint32), "isa": np.full(n, isa, np.uint32)}
    tables = ({**exits, "vcpu_id": np.zeros(n, np.uint32)}, {"vcpu_id": np.zeros(n + 1, np.uint32)})
    batch = Batch(("kvm_exit", "kvm_entry"), order, time, ones, ones, ones, tables)
    about = {"kernel": "6.1.0 x", "clock": "mono", "events": {"kvm_exit": n, "kvm_entry": n}, **meta}
    return Trace([batch], Meta(**about))


def noisy(n: int = 4000, middle: float = 2000, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(middle, 100, n)


def time(found: Comparison, name: str) -> Time:
    (pair,) = found.pairs
    return next(one for one in pair.times if one.name == name)


def test_reasons_are_those_the_tests_mean() -> None:
    """Intel's manual, volume 3, appendix C: 10 is CPUID, 12 HLT, 30 an I/O instruction."""
    assert [reason_number(name, None, None) for name in ("CPUID", "HLT", "IO_INSTRUCTION")] == [
        (VMX, CPUID), (VMX, HLT), (VMX, IO),
    ]  # fmt: skip


def test_longer_exits_are_told_as_slower() -> None:
    found = compare(trace(noisy()), trace(noisy(middle=2200, seed=2)))
    slower = time(found, "time of IO_INSTRUCTION")
    assert (slower.verdict, slower.worse) == (Verdict.SLOWER, True)
    assert slower.a.median == pytest.approx(2000, rel=0.01)
    assert slower.shift is not None
    assert slower.shift.low < 200 < slower.shift.high
    assert found.worse


def test_the_same_load_twice_is_equal() -> None:
    found = compare(trace(noisy()), trace(noisy(seed=2)))
    assert time(found, "time of IO_INSTRUCTION").verdict is Verdict.EQUAL
    assert not found.worse


def test_rates_are_by_the_second_whatever_the_length() -> None:
    found = compare(trace(noisy(4000)), trace(noisy(8000, seed=2)))
    rate = time(found, "exits")
    assert rate.a.median == pytest.approx(1e9 / EVERY, rel=0.01)
    assert rate.verdict is Verdict.EQUAL


def test_more_exits_a_second_are_worse_and_fewer_are_not() -> None:
    few, many = trace(noisy(4000)), trace(noisy(4000, seed=2), every=EVERY // 2)
    more = time(compare(few, many), "exits")
    assert (more.verdict, more.worse, more.b.median) == (Verdict.MORE, True, pytest.approx(2e9 / EVERY, rel=0.01))
    assert not compare(many, few).worse


def test_the_same_work_is_compared_by_number() -> None:
    (pair,) = compare(trace(noisy(400)), trace(noisy(500)), operations=(1, 1)).pairs
    counts = {count.name: count for count in pair.counts}
    assert (counts["exits"].a, counts["exits"].b, counts["exits"].verdict) == (400, 500, Verdict.MORE)
    assert counts["exits"].worse
    assert not counts["exits_by_reason.IO_INSTRUCTION"].worse, "which exits there are may move"
    assert not [one for one in pair.times if one.unit == "1/s"]


def test_a_few_exits_more_than_before_are_more_and_not_worse() -> None:
    """Timers of the host are in a recording too."""
    (pair,) = compare(trace(noisy(400)), trace(noisy(402)), operations=(1, 1)).pairs
    assert (pair.counts[0].verdict, pair.counts[0].worse) == (Verdict.MORE, False)


def test_exits_of_one_operation() -> None:
    (pair,) = compare(trace(noisy(400)), trace(noisy(900)), operations=(200, 300)).pairs
    assert (pair.counts[0].a, pair.counts[0].b) == (2, 3)


def test_waiting_is_counted_but_not_timed() -> None:
    found = compare(trace(noisy(), HLT), trace(noisy(middle=9000), HLT))
    assert time(found, "exits, HLT").verdict is Verdict.EQUAL
    assert not [one for one in found.pairs[0].times if one.name.startswith("time of")]
    assert "how long HLT took is left out" in found.pairs[0].a.notes[0]


@pytest.mark.parametrize(
    ("change", "condition", "why"),
    [
        ({"complete": False}, "complete", "B is not whole"),
        ({"lost": 7}, "lost", "B lost 7 events"),
        ({"clock": "x86-tsc"}, "clock", "A has the clock mono, B the clock x86-tsc"),
        ({"isa": 2}, "cpu", "A is of VMX, B of SVM"),
        ({"tool": MODEL}, "clock", "whose times only number its events"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else None,
)
def test_what_is_not_comparable_is_refused_with_the_reason(change: dict[str, Any], condition: str, why: str) -> None:
    a, b = trace(noisy(100)), trace(noisy(100), **change)
    with pytest.raises(UsageError, match=why) as refused:
        compare(a, b)
    assert f"--ignore {condition}" in str(refused.value)
    compare(a, b, ignore=[condition])


def test_two_conditions_at_once_are_refused() -> None:
    a, b = trace(noisy(100), cpu_model="X"), trace(noisy(100), cpu_model="Y", kernel="6.12.0")
    with pytest.raises(UsageError, match="kernel") as refused:
        compare(a, b)
    assert "--ignore processor" in str(refused.value) or "--ignore kernel" in str(refused.value)
    (pair,) = compare(a, b, ignore=["processor"]).pairs
    assert pair.compared is not None
    assert pair.compared.name == "kernel"


def test_an_unknown_condition_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="nearest: clock"):
        compare(trace(noisy(100)), trace(noisy(100)), ignore=["clok"])


def test_traces_of_the_model_are_compared_by_number_alone() -> None:
    (pair,) = compare(trace(noisy(100), tool=MODEL), trace(noisy(200), tool=MODEL)).pairs
    assert pair.times == ()
    assert (pair.counts[0].a, pair.counts[0].b) == (100, 200)


def test_events_that_one_side_did_not_record_are_refused() -> None:
    """One was recorded with all of KVM's events, one with those of perf kvm stat."""
    paths = [DATA / "svm-5.10-npt" / name for name in ("wp.perf.data.zst", "kvmstat.perf.data.zst")]
    with pytest.raises(UsageError, match=r"A has events that B did not record .*kvm_emulate_insn"):
        compare(*map(open_source, paths))


def test_what_recordings_of_two_settings_say() -> None:
    """README.md of the data: without tdp_mmu every write of CR0.WP exits; with it roots are built anew by 796 faults
    more."""
    paths = [DATA / name / "wp.perf.data.zst" for name in ("svm-5.10-npt", "svm-5.10-npt-tdpmmu")]
    (pair,) = compare(*map(open_source, paths), operations=(2000, 200)).pairs
    counts = {count.name.rpartition(".")[2]: (count.a, count.b) for count in pair.counts}
    assert counts["cr0_sel_write"] == (1, 1)
    assert counts["npf"] == (8 / 2000, 804 / 200)


def test_an_empty_trace() -> None:
    empty = Trace([], Meta(kernel="6.1.0", clock="mono"))
    with pytest.raises(UsageError, match="A holds no kvm_exit"):
        compare(empty, trace(noisy(100)))
    compare(empty, trace(noisy(100)), ignore=["events"])
