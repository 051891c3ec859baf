"""How far two sides of a time are apart, whether chance explains it, and whether it is worth a word.

The difference is that of the medians. Its interval is the bootstrap's, which for a median need not be drawn value by
value: the median of a resample is one of the values, and the distribution of its place is known (Efron, "Bootstrap
methods: another look at the jackknife", 1979, section 3; Maritz and Jarrett, "A note on estimating the variance of the
sample median", 1978). Few values make the bootstrap's intervals too narrow, so there it is widened to the limits that
hold exactly for few (:mod:`worldswitch.stats.shift`, :mod:`worldswitch.stats.median`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from worldswitch.stats import permutation
from worldswitch.stats.median import median as median_with_limits
from worldswitch.stats.shift import Shift, shift

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DRAWS = 4000
_FEW = 50
"""Up to this many values on a side the exact limits are cheap, and needed."""
_SEED = 1


class Gate(enum.StrEnum):
    """What stands between a difference and a verdict."""

    FEW = "too few runs"
    CHANCE = "chance explains it"
    SMALL = "smaller than what counts"
    NOISE = "no larger than what a side differs from itself"


class Difference(NamedTuple):
    """From a to b, in the unit of the values.

    Attributes:
        shift: The difference of the medians, with its interval; None where there are too few values for one.
        chance: That sides which do not differ are set apart so far.
        least: The smallest such chance that so many values can give.
        noise: How far a side is apart from itself: its first half from its second, in the order measured.
        pairs: How many pairs were compared; 0 if the values are not in pairs.
    """

    shift: Shift | None
    chance: float
    least: float
    noise: float
    pairs: int = 0


def between(a: Sequence[float], b: Sequence[float], confidence: float = 0.95, *, of_means: bool = False) -> Difference:
    """The difference of two sides of independent values.

    Args:
        a, b: In the order measured.
        confidence: Of the interval.
        of_means: The difference of the means instead of the medians: where what counts is how much there is in all.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    n, m = len(first), len(second)
    least = permutation.least(n, m)
    middle, resampled = (_mean, _means) if of_means else (_middle, _medians)
    noise = max(halves_apart(first, middle), halves_apart(second, middle))
    found = None
    if n and m and least <= 1 - confidence:
        random = np.random.default_rng(_SEED)
        draws = resampled(second, random) - resampled(first, random)
        found = _interval(draws, middle(second) - middle(first), confidence)
        if max(n, m) <= _FEW:
            found = _widened(found, shift(first.tolist(), second.tolist(), confidence))
    return Difference(found, permutation.two_sided(first, second), least, noise)


def of_pairs(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Difference:
    """The difference of two sides whose values belong together one by one; what changed for both is not in it."""
    apart = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    n = len(apart)
    least = permutation.least_paired(n)
    found = None
    if n and least <= 1 - confidence:
        mid = _middle(apart)
        found = _interval(_medians(apart, np.random.default_rng(_SEED)), mid, confidence)
        if n <= _FEW:
            low, _, high, _ = median_with_limits(apart.tolist(), confidence)
            found = _widened(found, Shift(low, mid, high))
    return Difference(found, permutation.paired(apart), least, halves_apart(apart), n)


def gate(found: Difference, chance: float, most: float, counts: float) -> Gate | None:
    """The first gate that a difference does not pass; None if it passes all three.

    Args:
        chance: That of *found*, or as it counts among several (:func:`worldswitch.stats.permutation.holm`).
        most: The chance from which on nothing is told apart.
        counts: A difference no larger than this is not worth a word.
    """
    if found.shift is None:
        return Gate.FEW
    if chance >= most:
        return Gate.CHANCE
    if abs(found.shift.mid) <= counts:
        return Gate.SMALL
    if abs(found.shift.mid) <= found.noise:
        return Gate.NOISE
    return None


def _middle(values: NDArray[np.float64]) -> float:
    return float(np.median(values))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())


def halves_apart(
    values: Sequence[float] | NDArray[np.float64], middle: Callable[[NDArray[np.float64]], float] = _middle
) -> float:
    """How far the median (or another *middle*) of the first half is from that of the second; 0 for fewer than two."""
    half = len(values) // 2
    if not half:
        return 0.0
    return abs(middle(np.asarray(values[:half])) - middle(np.asarray(values[-half:])))


def _means(values: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Means of resamples of *values*."""
    found: NDArray[np.float64] = values[random.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)
    return found


def _medians(values: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resamples of *values*.

    A resample's k-th smallest value is at place ceil(n U) of the n in order, U the k-th smallest of n uniform numbers:
    beta-distributed.
    """
    ordered = np.sort(values)
    n = len(ordered)
    half = (n + 1) // 2
    lower = random.beta(half, n - half + 1, _DRAWS)
    found = ordered[np.minimum((lower * n).astype(np.intp), n - 1)]
    if n % 2:
        return found
    # The smallest of the n - half uniform numbers above the lower one.
    upper = lower + (1 - lower) * random.beta(1, n - half, _DRAWS)
    above: NDArray[np.float64] = ordered[np.minimum((upper * n).astype(np.intp), n - 1)]
    return (found + above) / 2


def _interval(draws: NDArray[np.float64], mid: float, confidence: float) -> Shift:
    low, high = np.quantile(draws, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Shift(min(float(low), mid), mid, max(float(high), mid))


def _widened(found: Shift, exact: Shift | None) -> Shift:
    if exact is None:
        return found
    return Shift(min(found.low, exact.low), found.mid, max(found.high, exact.high))
