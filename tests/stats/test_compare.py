"""Verdicts: what is equal, what is worse, what cannot be told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from worldswitch.errors import UsageError
from worldswitch.record.result import Cell, Metric, Provenance, Result
from worldswitch.stats.compare import Comparison, Count, Time, Verdict, compare


def result(*cells: Cell) -> Result:
    return Result(cells, Provenance("1"))


def cell(program: str = "cr0-wp", **more: Any) -> Cell:
    return Cell({"on": "kvm", "program": program}, n=1000, unit="pair", **more)


def timed(*values: float, name: str = "time", unit: str = "ns", **more: Any) -> Cell:
    return cell(metrics=(Metric(name, unit, values, **more),))


def around(middle: float, n: int = 10, spread: float = 0.01, seed: int = 1) -> list[float]:
    return (middle * np.random.default_rng(seed).normal(1, spread, n)).tolist()


def counts(a: dict[str, Any], b: dict[str, Any], **more: Any) -> dict[str, Count]:
    (pair,) = compare(result(cell(per_op=a)), result(cell(per_op=b, **more))).pairs
    return {count.name: count for count in pair.counts}


def only_time(found: Comparison) -> Time:
    ((time,),) = [pair.times for pair in found.pairs]
    return time


def ask(a: Cell, b: Cell, **options: Any) -> Time:
    return only_time(compare(result(a), result(b), **options))


@pytest.mark.parametrize(
    ("a", "b", "verdict", "worse"),
    [
        (2.0, 2.0, Verdict.EQUAL, False),
        (2, 2.0, Verdict.EQUAL, False),
        (2.0, 0.0, Verdict.FEWER, False),
        (0.0, 2.0, Verdict.MORE, True),
        (2.0, 2.001, Verdict.MORE, True),
    ],
)
def test_counts_are_compared_exactly(a: float, b: float, verdict: Verdict, worse: bool) -> None:
    count = counts({"exits": a}, {"exits": b})["exits"]
    assert (count.a, count.b, count.verdict, count.worse) == (a, b, verdict, worse)


def test_more_of_a_reason_is_told_but_only_their_sum_is_worse() -> None:
    found = counts(
        {"exits": 2, "exits_by_reason": {"CR_ACCESS": 2}},
        {"exits": 2, "exits_by_reason": {"CR_ACCESS": 1, "EPT_VIOLATION": 1}},
    )
    assert [(name, count.verdict, count.worse) for name, count in found.items()] == [
        ("exits", Verdict.EQUAL, False),
        ("exits_by_reason.CR_ACCESS", Verdict.FEWER, False),
        ("exits_by_reason.EPT_VIOLATION", Verdict.MORE, False),
    ]


def test_pages_are_neither_good_nor_bad() -> None:
    assert not counts({"pages_2m": 1}, {"pages_2m": 2})["pages_2m"].worse


def test_what_one_side_cannot_count_is_left_out() -> None:
    assert counts({"exits": 2, "root_loads": 1}, {"exits": 2, "exits_by_reason": {"HLT": 2}}).keys() == {"exits"}


def test_counts_that_were_not_steady_are_not_told_apart() -> None:
    count = counts({"exits": 2}, {"exits": 3}, steady=False)["exits"]
    assert (count.verdict, count.worse) == (Verdict.NOT_TOLD_APART, False)
    assert count.why == "the counts of b were not steady"
    assert counts({"exits": 2}, {"exits": 2}, steady=False)["exits"].verdict is Verdict.EQUAL


def test_a_slower_side_is_told_and_worse() -> None:
    time = ask(timed(*around(1000)), timed(*around(1100, seed=2)))
    assert (time.verdict, time.worse) == (Verdict.SLOWER, True)
    assert time.shift is not None
    assert 0 < time.shift.low < 100 < time.shift.high or time.shift.mid == pytest.approx(100, rel=0.2)


def test_a_faster_side_is_told_and_not_worse() -> None:
    time = ask(timed(*around(1100)), timed(*around(1000, seed=2)))
    assert (time.verdict, time.worse) == (Verdict.FASTER, False)


def test_where_more_is_better_less_is_slower() -> None:
    a = timed(*around(1000), unit="op/s", lower_is_better=False)
    b = timed(*around(900, seed=2), unit="op/s", lower_is_better=False)
    assert ask(a, b).verdict is Verdict.SLOWER
    assert ask(b, a).verdict is Verdict.FASTER


def test_the_same_is_equal_if_the_interval_is_within_the_margin() -> None:
    a, b = timed(*around(1000, 30, 0.001)), timed(*around(1000, 30, 0.001, seed=2))
    assert ask(a, b, margin=0.01).verdict is Verdict.EQUAL
    assert ask(a, b, margin=0).verdict is Verdict.EQUAL, "a nanosecond is none"
    assert ask(a, b, margin=0, at_least=0).verdict is Verdict.NOT_TOLD_APART


def test_a_difference_too_small_to_matter_is_none() -> None:
    a, b = timed(*around(1000, 30, 0.0005)), timed(*around(1002, 30, 0.0005, seed=2))
    assert ask(a, b, margin=0).verdict is Verdict.SLOWER
    time = ask(a, b, margin=0.01)
    assert (time.verdict, time.worse) == (Verdict.EQUAL, False)


def test_a_wide_spread_is_not_told_apart() -> None:
    time = ask(timed(*around(1000, 8, 0.3)), timed(*around(1050, 8, 0.3, seed=2)))
    assert (time.verdict, time.worse, time.why) == (Verdict.NOT_TOLD_APART, False, "chance explains it")


def test_too_few_runs_are_told_with_how_many_would_do() -> None:
    time = ask(timed(1, 2, 3), timed(101, 102, 103))
    assert (time.verdict, time.shift) == (Verdict.NOT_TOLD_APART, None)
    assert time.why == "too few runs: 4 on each side would do"


def test_all_intervals_hold_together() -> None:
    """Ten programs of equal speed: a twentieth of all comparisons, not of all intervals, may err."""
    wrong = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        a, b = (
            result(*(cell(str(i), metrics=(Metric("t", "ns", tuple(random.normal(1e3, 50, 8))),)) for i in range(10)))
            for _ in range(2)
        )
        found = compare(a, b, margin=0)
        assert found.each == pytest.approx(0.995)
        wrong += any(pair.times[0].verdict is not Verdict.NOT_TOLD_APART for pair in found.pairs)
    # Binomial (100, 0.05) exceeds 14 with a chance of 0.0001.
    assert wrong <= 14


def test_exact_metrics_and_those_of_one_side_are_no_times() -> None:
    a = cell(
        metrics=(Metric("exits", "exits", (1, 1, 1), exact=True), Metric("t", "ns", (1, 2)), Metric("u", "ns", ()))
    )
    b = cell(metrics=(Metric("exits", "exits", (1, 1, 1), exact=True), Metric("t", "cycles", (1, 2))))
    assert compare(result(a), result(b)).pairs[0].times == ()


def test_the_time_of_a_pass_is_compared_once() -> None:
    """Each further interval would make all of them wider."""
    times = [Metric(name, unit, (1, 2)) for name, unit in (("wall", "ns"), ("cycles", "cycles"), ("tsc", "ns"))]
    (pair,) = compare(result(cell(metrics=tuple(times))), result(cell(metrics=tuple(times[:2])))).pairs
    assert [time.name for time in pair.times] == ["wall"]
    (pair,) = compare(result(cell(metrics=tuple(times))), result(cell(metrics=tuple(times)))).pairs
    assert [time.name for time in pair.times] == ["tsc"]


def test_a_burst_is_one_value() -> None:
    """Values measured together are not independent: their median and their slowest are what is compared."""
    a = timed(1, 9, 2, 3, 8, 4, 5, 7, 6, 5, 5, 5, name="create_vm", together=3)
    (pair,) = compare(result(a), result(a)).pairs
    assert [(time.name, time.a.n, time.a.median) for time in pair.times] == [
        ("create_vm, median of 3", 4, 4.5),
        ("create_vm, slowest of 3", 4, 7.5),
    ]


def test_worse_is_any_of_them() -> None:
    good, bad = cell(per_op={"exits": 0}), cell(per_op={"exits": 2})
    assert compare(result(good), result(bad)).worse
    assert not compare(result(bad), result(good)).worse
    slow, fast = timed(*around(2000)), timed(*around(1000, seed=2))
    assert compare(result(fast), result(slow)).worse
    assert not compare(result(slow), result(fast)).worse


def test_cells_without_a_partner_are_named() -> None:
    found = compare(result(cell(), cell("io")), result(cell(), cell("cpuid")))
    assert [one.dimensions["program"] for one in (*found.only_a, *found.only_b)] == ["io", "cpuid"]


@pytest.mark.parametrize(
    "options", [{"confidence": 0}, {"confidence": 1}, {"confidence": float("nan")}, {"margin": -0.1}, {"margin": 1}]
)
def test_numbers_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="is none; it must be"):
        compare(result(cell()), result(cell()), **options)
