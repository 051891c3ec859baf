"""The verdict on a time, or another quantity with a spread: how far the sides are apart, and what stands in the way."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldswitch.stats.shift import Shift, values_needed

if TYPE_CHECKING:
    from worldswitch.record.result import Metric, Number, Spread
    from worldswitch.stats.difference import Difference

RATE = "1/s"
"""The unit of what is counted by the second: there is more or less of it, and it is neither fast nor slow."""
ALL_EXITS = "exits"
"""The rate of all exits: only of that is more worse."""


class Verdict(enum.StrEnum):
    """What can be said of one quantity, from a to b."""

    EQUAL = "equal"
    FEWER = "fewer"
    MORE = "more"
    FASTER = "faster"
    SLOWER = "slower"
    NOT_TOLD_APART = "not told apart"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a time: how many values, and the median of them, or of their blocks; of a rate, its mean."""

    n: int
    median: float


@dataclass(frozen=True, slots=True)
class Time:
    """A time, or another quantity with a spread, on both sides.

    Attributes:
        shift: From a to b; None where there are too few values.
        chance: That sides which do not differ are set apart so far, with all other times of the comparison in it; None
            where nothing was measured but reckoned from costs.
        counts: A difference no larger than this is none; *noise* is how far a side differs from itself.
        pairs: Pairs measured in turns that were compared one by one; 0 if the values are not in pairs.
        worse: *b* is told apart as the worse one.
        why: Which gate a difference did not pass.
    """

    name: str
    unit: str
    a: Side
    b: Side
    shift: Shift | None
    verdict: Verdict
    worse: bool
    why: str = ""
    chance: float | None = None
    counts: float = 0.0
    noise: float = 0.0
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Judge:
    """Gives verdicts on times.

    Attributes:
        confidence: With which all verdicts hold together; *each* is that of each interval.
        margin: Share of a's median within which a difference is none; *at_least* are the ns within which it is none.
        together: Both sides were measured in one session, so that turns may make pairs.
        recorded: The values are those of a trace, of which even few resemble their neighbours.
    """

    confidence: float
    each: float
    margin: float
    at_least: float
    together: bool
    recorded: bool = False

    def times(self, several: Sequence[tuple[Metric, Metric]]) -> Iterator[Time]:
        """A verdict on each, with all others in mind."""
        from worldswitch.stats.permutation import holm

        found = [self._difference(a, b) for a, b in several]
        chances = holm([one.chance for one, *_ in found])
        for (metric, _), (one, settled, sides), chance in zip(several, found, chances, strict=True):
            yield self._time(metric, sides, one, settled, chance)

    def _difference(self, a: Metric, b: Metric) -> tuple[Difference, bool, tuple[Side, Side]]:
        """What sets them apart; whether the values of each are independent as far as can be seen; and the sides."""
        from worldswitch.stats.blocks import FEWEST, SEVERAL, blocks, mean_of, median_of
        from worldswitch.stats.difference import between, of_pairs

        if self.together and in_pairs(a, b):
            return of_pairs(a.values, b.values, self.each), True, (_side(a, a.values), _side(b, b.values))
        several = 2 * FEWEST if self.recorded else SEVERAL
        take = mean_of if a.unit == RATE else median_of
        sides = [blocks(one.values, take) if len(one.values) >= several else None for one in (a, b)]
        first, second = (block.values if block else one.values for one, block in zip((a, b), sides, strict=True))
        found = between(first, second, self.each, of_means=a.unit == RATE)
        return found, all(block.settled for block in sides if block), (_side(a, first), _side(b, second))

    def _time(self, a: Metric, sides: tuple[Side, Side], found: Difference, settled: bool, chance: float) -> Time:
        from worldswitch.stats.difference import Gate, gate

        counts = self._counts(a, sides[0])
        stopped = gate(found, chance, 1 - self.confidence, counts)
        if found.shift and -counts <= found.shift.low and found.shift.high <= counts:
            verdict, why = Verdict.EQUAL, ""
        elif stopped is None and not settled:
            verdict, why = Verdict.NOT_TOLD_APART, "it drifts: too long phases for so short a measurement"
        elif stopped is None:
            verdict, why = _direction(a, found.shift), ""
        elif stopped is Gate.FEW:
            from worldswitch.stats.permutation import pairs_needed

            needed = pairs_needed(1 - self.each) if found.pairs else values_needed(self.each)
            verdict, why = Verdict.NOT_TOLD_APART, f"too few runs: {needed} on each side would do"
        else:
            verdict, why = Verdict.NOT_TOLD_APART, str(stopped)
        worse = verdict in (Verdict.SLOWER, Verdict.MORE)
        return Time(
            a.name, a.unit, *sides, found.shift, verdict, worse and not _by_reason(a), why,
            chance, counts, found.noise, found.pairs,
        )  # fmt: skip

    def _counts(self, a: Metric, side: Side) -> float:
        return max(self.margin * abs(side.median), self.at_least if a.unit == "ns" else 0.0)

    def reckoned(self, a: Spread, b: Spread) -> Time:
        """A verdict on times that were not measured but reckoned, from the same costs."""
        counts = max(self.margin * abs(a.mid), self.at_least)
        # The same costs are in both, so what is the same on both sides is no difference.
        low, high = (0.0, 0.0) if a == b else (b.low - a.high, b.high - a.low)
        found = Shift(min(low, b.mid - a.mid), b.mid - a.mid, max(high, b.mid - a.mid))
        apart = low > 0 or high < 0
        if -counts <= found.low and found.high <= counts:
            verdict, why = Verdict.EQUAL, ""
        elif apart and abs(found.mid) > counts:
            verdict, why = (Verdict.SLOWER if low > 0 else Verdict.FASTER), ""
        else:
            verdict, why = Verdict.NOT_TOLD_APART, "smaller than what the costs leave open"
        sides = Side(0, a.mid), Side(0, b.mid)
        return Time("time, from costs", "ns", *sides, found, verdict, verdict is Verdict.SLOWER, why, None, counts)


def _side(metric: Metric, values: Sequence[float]) -> Side:
    """The side of *metric*, whose middle is that of the independent *values* made of its own."""
    return Side(len(metric.values), sum(values) / len(values) if metric.unit == RATE else median(values))


def in_pairs(a: Metric, b: Metric) -> bool:
    """Whether the k-th values of both were measured one right after the other, in whichever order."""
    return bool(a.turns) and len(a.turns) == len(b.turns) == len(a.values) == len(b.values) and all(
        abs(x - y) == 1 for x, y in zip(a.turns, b.turns, strict=True)
    )  # fmt: skip


def _direction(metric: Metric, found: Shift | None) -> Verdict:
    grown = found is not None and found.mid > 0
    if metric.unit == RATE:
        return Verdict.MORE if grown else Verdict.FEWER
    return Verdict.SLOWER if grown == metric.lower_is_better else Verdict.FASTER


def _by_reason(metric: Metric) -> bool:
    """Whether it is a rate of one kind of exits or events: those may move, only all exits together are judged."""
    return metric.unit == RATE and metric.name != ALL_EXITS


def median(values: Sequence[Number]) -> float:
    """The middle value, or the mean of the two middle ones."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
