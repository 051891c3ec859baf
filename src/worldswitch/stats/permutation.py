"""Permutation tests by ranks: with what probability chance alone would set two sides apart so far.

If the two sides do not differ, every way to deal the values out to them is as likely as the one seen. The statistic is
the sum of ranks (equal values share theirs), which one huge value does not carry away: Wilcoxon, "Individual
comparisons by ranking methods", 1945. Its distribution over all ways is computed, not sampled; ties are in it. For many
values the normal distribution with the same mean and variance takes its place.

Where values come in pairs, what may be exchanged is the two of each pair: the sign of each difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_EXACT_PAIRS = 2500
"""Up to this many pairs of a value of either side all ways are counted."""
_EXACT_DIFFERENCES = 100


def two_sided(a: ArrayLike, b: ArrayLike) -> float:
    """The chance that sides as alike as can be are set apart as far as *a* and *b* are, or farther, either way.

    Args:
        a, b: Independent values of each side, shapes (n,) and (m,); the order does not matter.

    With no value on a side nothing sets them apart: 1.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    n, m = len(first), len(second)
    if not n or not m:
        return 1.0
    ranks = _doubled_ranks(np.concatenate((first, second)))
    seen = int(ranks[:n].sum())
    middle = n * (n + m + 1)
    if n * m <= _EXACT_PAIRS:
        ways = _ways(tuple(sorted(ranks.tolist())), n)
        sums = np.arange(len(ways))
        return _share(ways, np.abs(sums - middle) >= abs(seen - middle))
    # The variance of a sum of n ranks drawn without replacement; doubled ranks have four times that.
    variance = n * m / (n + m) * float(ranks.var(ddof=1))
    return _normal(abs(seen - middle) - 1, variance)


def paired(differences: ArrayLike) -> float:
    """The chance that pairs in which nothing differs give differences that lean so far to one side, or farther.

    Args:
        differences: b - a of each pair, shape (n,). Those of 0 say nothing and are left out.
    """
    values = np.asarray(differences, np.float64)
    values = values[values != 0]
    n = len(values)
    if not n:
        return 1.0
    ranks = _doubled_ranks(np.abs(values))
    seen = int(ranks[values > 0].sum())
    total = int(ranks.sum())
    if n <= _EXACT_DIFFERENCES:
        ways = _signs(tuple(sorted(ranks.tolist())))
        sums = np.arange(len(ways))
        return _share(ways, np.abs(2 * sums - total) >= abs(2 * seen - total))
    return _normal(abs(seen - total / 2) - 1, float((ranks.astype(np.float64) ** 2).sum()) / 4)


def holm(chances: Sequence[float]) -> list[float]:
    """Each chance as it counts among all of them: below 0.05, say, it stands together with the others at 5 %.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    adjusted = [1.0] * len(chances)
    most = 0.0
    for done, place in enumerate(order):
        most = max(most, min(1.0, (len(chances) - done) * chances[place]))
        adjusted[place] = most
    return adjusted


def least(n: int, m: int) -> float:
    """The smallest chance that :func:`two_sided` can give for so many values: that of the two outermost ways."""
    return min(1.0, 2 / math.comb(n + m, n)) if n and m else 1.0


def least_paired(n: int) -> float:
    """The smallest chance that :func:`paired` can give."""
    return 2.0 ** (1 - n) if n else 1.0


def pairs_needed(most: float) -> int:
    """The fewest pairs that can give a chance of *most* or less."""
    n = 1
    while least_paired(n) > most * (1 + 1e-12):
        n += 1
    return n


def _doubled_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Twice the rank of each value, from 2 on; equal ones share the mean of theirs. Doubled, they are whole numbers."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, "left")
    upto = np.searchsorted(ordered, values, "right")
    return (below + upto + 1).astype(np.int64)


@lru_cache(maxsize=64)
def _ways(ranks: tuple[int, ...], n: int) -> NDArray[np.float64]:
    """In which share of all ways to choose *n* of *ranks* they sum up to 0, 1, ...

    Shares and not numbers, which would leave the range of floating point: each rank is taken with the chance that it is
    among those chosen from the rest.
    """
    most = sum(ranks[-n:]) + 1
    table = np.zeros((n + 1, most))
    table[0, 0] = 1.0
    chosen = np.arange(n + 1)
    for seen, rank in enumerate(ranks):
        left = len(ranks) - seen
        take = np.clip((n - chosen) / left, 0.0, 1.0)[:, None]
        taken = table * take
        table = table - taken
        table[1:, rank:] += taken[:-1, : most - rank]
    result: NDArray[np.float64] = table[n]
    return result


@lru_cache(maxsize=64)
def _signs(ranks: tuple[int, ...]) -> NDArray[np.float64]:
    """In which share of all ways to give *ranks* signs those with a plus sum up to 0, 1, ..."""
    table = np.zeros(sum(ranks) + 1)
    table[0] = 1.0
    for rank in ranks:
        table *= 0.5
        table[rank:] += table[:-rank].copy()
    return table


def _share(ways: NDArray[np.float64], where: NDArray[np.bool_]) -> float:
    return min(1.0, float(ways[where].sum()))


def _normal(distance: float, variance: float) -> float:
    if variance <= 0:
        return 1.0
    return math.erfc(max(0.0, distance) / math.sqrt(2 * variance))
