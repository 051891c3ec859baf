"""Bootstrap intervals.

Consecutive exits of a trace are not independent (a cold cache, a noisy neighbour), so what is resampled is blocks of
consecutive values: Künsch, "The Jackknife and the Bootstrap for General Stationary Observations", 1989.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_MOST_BLOCKS, _FEWEST_BLOCKS = 500, 50
_RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate with its confidence limits, in the unit of the values."""

    low: float
    mid: float
    high: float


def block_length(n: int) -> int:
    """How many consecutive of *n* values make a block.

    It grows as n^(1/3), the rate Künsch derives, but leaves at least 50 blocks to draw from, as few would make the
    interval too narrow, and at most 500, which bounds the work.
    """
    return max(1, -(-n // _MOST_BLOCKS), min(round(math.cbrt(n)), n // _FEWEST_BLOCKS))


def total(values: ArrayLike, confidence: float = 0.95, resamples: int = _RESAMPLES, seed: int = 1) -> Interval:
    """The sum of *values* (in the order measured) with a percentile interval.

    Args:
        values: Shape (n,).
        confidence: Share of resampled sums that lie inside.
        resamples: How many sums to draw.
        seed: Of the generator; the same seed gives the same interval.

    With fewer than two values there is nothing to resample: all three numbers are the sum. The sum is always inside.
    """
    data = np.asarray(values, np.float64)
    n = len(data)
    mid = float(data.sum())
    if n < 2:
        return Interval(mid, mid, mid)
    block = block_length(n)
    whole = n // block * block
    sums = data[:whole].reshape(-1, block).sum(axis=1)
    draws = np.random.default_rng(seed).integers(0, len(sums), (resamples, len(sums)))
    # Resampled blocks cover the values that fill whole blocks; the rest is scaled up, not dropped.
    totals = sums[draws].sum(axis=1) * (n / whole)
    low, high = np.quantile(totals, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(min(float(low), mid), mid, max(float(high), mid))
