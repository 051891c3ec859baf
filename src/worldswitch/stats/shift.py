"""How much larger the values of one side are than those of the other, with limits that hold for few values.

Times of runs are skewed and few, so no normal distribution is assumed: the estimate is Hodges and Lehmann's, the limits
are Moses', exact for small samples (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", third edition,
sections 4.2 and 4.3). Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_EXACT = 2500
"""Up to this many pairs the distribution of the rank sum is computed; beyond, the normal one is as good."""
_MOST = 1000
"""Values used of each side, evenly spaced in the order given; more would only cost time."""


class Shift(NamedTuple):
    """By how much b is larger than a, in the unit of the values.

    Attributes:
        low, high: Hold the true shift with the confidence asked for.
        mid: The median of all differences between one value of b and one of a.
    """

    low: float
    mid: float
    high: float


def shift(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Shift | None:
    """The shift from *a* to *b*; None if so few values cannot give limits of this confidence (:func:`values_needed`).

    The limits hold for independent values whose distributions have the same shape. Where values are equal they are
    wider than need be.
    """
    a, b = _thinned(a), _thinned(b)
    cut = _cut(len(a), len(b), (1 - confidence) / 2)
    if cut is None:
        return None
    differences = sorted(y - x for x in a for y in b)
    n = len(differences)
    return Shift(differences[cut], (differences[(n - 1) // 2] + differences[n // 2]) / 2, differences[n - 1 - cut])


def values_needed(confidence: float) -> int:
    """The fewest values on each side that can give limits of this confidence."""
    n = 1
    while (1 - confidence) * math.comb(2 * n, n) * (1 + 1e-12) < 2:
        n += 1
    return n


def _thinned(values: Sequence[float]) -> Sequence[float]:
    return values[:: -(-len(values) // _MOST) or 1]


def _cut(n: int, m: int, tail: float) -> int | None:
    """The largest k with P(U <= k) <= *tail*, U Mann and Whitney's statistic; None if P(U = 0) is more."""
    if not n or not m:
        return None
    if n * m > _EXACT:
        return _normal_cut(n, m, tail)
    limit = tail * math.comb(n + m, n) * (1 + 1e-12)
    reached, cut = 0, None
    for k, count in enumerate(_arrangements(n, m)):
        reached += count
        if reached > limit:
            break
        cut = k
    return cut


def _arrangements(n: int, m: int) -> list[int]:
    """How many arrangements of n and m values have U = 0, 1, ..., up to the middle.

    The coefficients of the Gaussian binomial, the product over i of (1 - x^(m+i)) / (1 - x^i).
    """
    size = n * m // 2 + 1
    series = [1] + [0] * (size - 1)
    for i in range(1, n + 1):
        for k in range(size - 1, m + i - 1, -1):
            series[k] -= series[k - m - i]
        for k in range(i, size):
            series[k] += series[k - i]
    return series


def _normal_cut(n: int, m: int, tail: float) -> int | None:
    from statistics import NormalDist

    deviation = math.sqrt(n * m * (n + m + 1) / 12)
    cut = math.floor(n * m / 2 - 0.5 + NormalDist().inv_cdf(tail) * deviation)
    return cut if cut >= 0 else None
