"""Two Results side by side: counts exactly, times by a permutation test, an interval and a verdict.

A time is *slower* or *faster* only if it passes three gates: chance does not explain the difference (all times of a
comparison taken together), it is larger than what counts (a share of A, an absolute least), and larger than what
either side differs from itself. It is *equal* only if its whole interval is smaller than what counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldswitch.errors import UsageError
from worldswitch.record.result import BY_REASON, Cell, Metric, Result, flat_counts
from worldswitch.stats.matching import Condition, Matching, match
from worldswitch.stats.verdicts import ALL_EXITS, Judge, Side, Time, Verdict, median

if TYPE_CHECKING:
    from worldswitch.record.result import Number

CONFIDENCE = 0.95
MARGIN = 0.01
__all__ = ["Comparison", "Count", "Pair", "Side", "Time", "Verdict", "compare"]

AT_LEAST = 1.0
"""Nanoseconds: differences of times that are no larger are none."""
_THE_SAME = ("tsc", "wall", "cycles")
"""The time of one pass, taken in several ways: only the first that both sides have is compared."""
SESSION = "session"
"""Among the parameters of a Result: names the session in which its cells were measured, in turns with others."""
ON_TRACE = "trace"
"""What a cell is *on* that was not run but recorded."""
_NEUTRAL = ("pages_4k", "pages_2m", "pages_1g")
"""Counts of which neither more nor fewer is better."""


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
        margin: Share of a's median within which times are equal; *at_least* are the ns within which they are, too.
    """

    pairs: tuple[Pair, ...]
    only_a: tuple[Cell, ...]
    only_b: tuple[Cell, ...]
    confidence: float
    each: float
    margin: float
    at_least: float

    @property
    def worse(self) -> bool:
        """Whether b is worse in anything that was told apart."""
        counts = any(count.worse for pair in self.pairs for count in pair.counts)
        return counts or any(time.worse for pair in self.pairs for time in pair.times)


def compare(
    a: Result,
    b: Result,
    *,
    ignore: Collection[str] = (),
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
    at_least: float = AT_LEAST,
) -> Comparison:
    """*b* against *a*, cell by cell; the cells of one Result against each other if it is given twice.

    Args:
        ignore: Conditions in which cells may differ unseen, see :func:`worldswitch.stats.matching.match`.
        confidence: Probability that all verdicts hold.
        margin: Differences within this share of a's median are none.
        at_least: Differences of times within so many ns are none.

    Raises:
        UsageError: No two cells can be compared, with the reason; or a number is out of its range.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence of {confidence} is none; it must be between 0 and 1, such as 0.95")
    if not 0 <= margin < 1:
        raise UsageError(f"a margin of {margin} is none; it must be from 0 to 1, such as 0.01 for one percent")
    if not 0 <= at_least < float("inf"):
        raise UsageError(f"a least difference of {at_least} ns is none; it must be 0 or more")
    found: Matching = match(a, b, ignore)
    matched = [(a.cells[pair.a], b.cells[pair.b], pair.compared) for pair in found.pairs]
    together = a is b or (_session(a) is not None and _session(a) == _session(b))
    timed = [list(_timed(one, other)) for one, other, _ in matched]
    each = 1 - (1 - confidence) / max(1, sum(map(len, timed)))
    recorded = any(cell.dimensions.get("on") == ON_TRACE for cell in a.cells)
    judge = Judge(confidence, each, margin, at_least, together, recorded)
    times = iter(judge.times([both for pairs in timed for both in pairs]))
    pairs = tuple(
        Pair(
            one, other, compared, tuple(_counts(one, other, margin)),
            (*(next(times) for _ in several), *_reckoned(judge, one, other)),
        )
        for (one, other, compared), several in zip(matched, timed, strict=True)
    )  # fmt: skip
    return Comparison(
        pairs,
        tuple(a.cells[place] for place in found.only_a),
        tuple(b.cells[place] for place in found.only_b),
        confidence,
        each,
        margin,
        at_least,
    )


def _reckoned(judge: Judge, one: Cell, other: Cell) -> Iterator[Time]:
    """The time that costs gave, where neither side was timed."""
    if one.time_ns is not None and other.time_ns is not None and not one.metrics and not other.metrics:
        yield judge.reckoned(one.time_ns, other.time_ns)


def _session(result: Result) -> str | None:
    """What tells whether two results were measured in turns with each other."""
    session = result.provenance.parameters.get(SESSION)
    return session if isinstance(session, str) else None


def _counts(one: Cell, other: Cell, margin: float) -> Iterator[Count]:
    # What a recording counts is of a host on which other things go on too.
    exact = ON_TRACE not in (one.dimensions.get("on"), other.dimensions.get("on"))
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
            more = name not in _NEUTRAL and not by_reason if exact else name == ALL_EXITS and b > a * (1 + margin)
            yield Count(name, a, b, verdict, b > a and more)


def _timed(one: Cell, other: Cell) -> Iterator[tuple[Metric, Metric]]:
    """The quantities with a spread that both cells have, each value of them independent of the others."""
    first, second = _metrics(one), _metrics(other)
    both = [name for name, metric in first.items() if name in second and metric.unit == second[name].unit]
    several = [name for name in _THE_SAME if name in both]
    for name in both:
        if name not in several[1:]:
            yield first[name], second[name]


def _metrics(cell: Cell) -> dict[str, Metric]:
    found = {}
    for metric in cell.metrics:
        if metric.exact or not metric.values:
            continue
        size = metric.together
        if size == 1:
            found[metric.name] = metric
            continue
        groups = [metric.values[at : at + size] for at in range(0, len(metric.values), size)]
        for what, take in (("median", median), ("slowest", max)):
            name = f"{metric.name}, {what} of {size}"
            # A burst has one turn, that of its first.
            found[name] = Metric(name, metric.unit, tuple(take(group) for group in groups), turns=metric.turns[::size])
    return found
