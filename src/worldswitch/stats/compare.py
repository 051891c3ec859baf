"""Two Results side by side: counts exactly, times by their shift with an interval and a verdict."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldswitch.errors import UsageError
from worldswitch.record.result import BY_REASON, Cell, Metric, Result, flat_counts
from worldswitch.stats.matching import Condition, Matching, match
from worldswitch.stats.shift import Shift, shift, values_needed

if TYPE_CHECKING:
    from worldswitch.record.result import Number

CONFIDENCE = 0.95
MARGIN = 0.01
_THE_SAME = ("tsc", "wall", "cycles")
"""The time of one pass, taken in several ways: only the first that both sides have is compared."""
_NEUTRAL = ("pages_4k", "pages_2m", "pages_1g")
"""Counts of which neither more nor fewer is better."""


class Verdict(enum.StrEnum):
    """What can be said of one quantity, from a to b."""

    EQUAL = "equal"
    FEWER = "fewer"
    MORE = "more"
    FASTER = "faster"
    SLOWER = "slower"
    NOT_TOLD_APART = "not told apart"


@dataclass(frozen=True, slots=True)
class Count:
    """A count per operation on both sides.

    Attributes:
        worse: b has more of what nobody wants more of.
        why: Why they are not told apart, if they are not.
    """

    name: str
    a: Number
    b: Number
    verdict: Verdict
    worse: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a time: how many independent values, and their median."""

    n: int
    median: float


@dataclass(frozen=True, slots=True)
class Time:
    """A time, or another quantity with a spread, on both sides.

    Attributes:
        shift: From a to b; None where there are too few values.
        verdict: *equal* if the whole interval lies within the margin, *slower* or *faster* if it lies on one side of 0.
        worse: *b* is told apart as the worse one.
    """

    name: str
    unit: str
    a: Side
    b: Side
    shift: Shift | None
    verdict: Verdict
    worse: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A cell of each side, and what they differ in: *compared* is None if only in when they were measured."""

    a: Cell
    b: Cell
    compared: Condition | None
    counts: tuple[Count, ...]
    times: tuple[Time, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer.

    Attributes:
        only_a, only_b: Cells without a partner.
        confidence: With which all intervals hold together; *each* is what each of them has for that (Bonferroni).
        margin: Share of a's median within which times are equal.
    """

    pairs: tuple[Pair, ...]
    only_a: tuple[Cell, ...]
    only_b: tuple[Cell, ...]
    confidence: float
    each: float
    margin: float

    @property
    def worse(self) -> bool:
        """Whether b is worse in anything that was told apart."""
        counts = any(count.worse for pair in self.pairs for count in pair.counts)
        return counts or any(time.worse for pair in self.pairs for time in pair.times)


def compare(
    a: Result, b: Result, *, ignore: Collection[str] = (), confidence: float = CONFIDENCE, margin: float = MARGIN
) -> Comparison:
    """*b* against *a*, cell by cell; the cells of one Result against each other if it is given twice.

    Args:
        ignore: Conditions in which cells may differ unseen, see :func:`worldswitch.stats.matching.match`.
        confidence: Probability that all intervals hold.
        margin: Differences within this share of a's median are none.

    Raises:
        UsageError: No two cells can be compared, with the reason; or a number is out of its range.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence of {confidence} is none; it must be between 0 and 1, such as 0.95")
    if not 0 <= margin < 1:
        raise UsageError(f"a margin of {margin} is none; it must be from 0 to 1, such as 0.01 for one percent")
    found: Matching = match(a, b, ignore)
    matched = [(a.cells[pair.a], b.cells[pair.b], pair.compared) for pair in found.pairs]
    timed = [list(_timed(one, other)) for one, other, _ in matched]
    each = 1 - (1 - confidence) / max(1, sum(map(len, timed)))
    pairs = tuple(
        Pair(one, other, compared, tuple(_counts(one, other)), tuple(_time(*both, each, margin) for both in times))
        for (one, other, compared), times in zip(matched, timed, strict=True)
    )
    return Comparison(
        pairs,
        tuple(a.cells[place] for place in found.only_a),
        tuple(b.cells[place] for place in found.only_b),
        confidence,
        each,
        margin,
    )


def _counts(one: Cell, other: Cell) -> Iterator[Count]:
    first, second = flat_counts(one.per_op), flat_counts(other.per_op)
    for name in dict.fromkeys((*first, *second)):
        by_reason = name.startswith(f"{BY_REASON}.") and BY_REASON in one.per_op and BY_REASON in other.per_op
        if not by_reason and not (name in first and name in second):
            continue  # one side could not count it
        a, b = first.get(name, 0), second.get(name, 0)
        if a == b:
            yield Count(name, a, b, Verdict.EQUAL, False)
        elif not (one.steady and other.steady):
            side = "a" if not one.steady else "b"
            yield Count(name, a, b, Verdict.NOT_TOLD_APART, False, f"the counts of {side} were not steady")
        else:
            verdict = Verdict.MORE if b > a else Verdict.FEWER
            # What exits are for may move; that there are more of them is what counts.
            yield Count(name, a, b, verdict, b > a and name not in _NEUTRAL and not by_reason)


def _timed(one: Cell, other: Cell) -> Iterator[tuple[Metric, Metric]]:
    """The quantities with a spread that both cells have, each value of them independent of the others."""
    first, second = _metrics(one), _metrics(other)
    both = [name for name, metric in first.items() if name in second and metric.unit == second[name].unit]
    several = [name for name in _THE_SAME if name in both]
    for name in both:
        if name not in several[1:]:
            yield first[name], second[name]


def _metrics(cell: Cell) -> Mapping[str, Metric]:
    found = {}
    for metric in cell.metrics:
        if metric.exact or not metric.values:
            continue
        size = metric.together
        if size == 1:
            found[metric.name] = metric
            continue
        groups = [metric.values[at : at + size] for at in range(0, len(metric.values), size)]
        for what, take in (("median", _median), ("slowest", max)):
            name = f"{metric.name}, {what} of {size}"
            found[name] = Metric(name, metric.unit, tuple(take(group) for group in groups))
    return found


def _time(a: Metric, b: Metric, each: float, margin: float) -> Time:
    found = shift(a.values, b.values, each)
    sides = Side(len(a.values), _median(a.values)), Side(len(b.values), _median(b.values))
    verdict, why = _verdict(found, margin * abs(sides[0].median), a.lower_is_better)
    if found is None:
        why = f"too few runs: {values_needed(each)} on each side would do"
    return Time(a.name, a.unit, *sides, found, verdict, verdict is Verdict.SLOWER, why)


def _verdict(found: Shift | None, margin: float, lower_is_better: bool) -> tuple[Verdict, str]:
    if found is None:
        return Verdict.NOT_TOLD_APART, ""
    if -margin <= found.low and found.high <= margin:
        return Verdict.EQUAL, ""
    if found.low > 0 or found.high < 0:
        return (Verdict.SLOWER if (found.low > 0) == lower_is_better else Verdict.FASTER), ""
    return Verdict.NOT_TOLD_APART, ""


def _median(values: Sequence[Number]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
