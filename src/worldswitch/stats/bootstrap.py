"""Bootstrap intervals.

Consecutive exits of a trace are not independent (a cold cache, a noisy neighbour), so what is resampled is blocks of
consecutive values: Künsch, "The Jackknife and the Bootstrap for General Stationary Observations", 1989.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_BLOCKS = 500
_RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate with its confidence limits, in the unit of the values."""

    low: float
    mid: float
    high: float


def total(values: ArrayLike, confidence: float = 0.95, resamples: int = _RESAMPLES, seed: int = 1) -> Interval:
    """The sum of *values* (in the order measured) with a percentile interval.

    Args:
        values: Shape (n,).
        confidence: Share of resampled sums that lie inside.
        resamples: How many sums to draw.
        seed: Of the generator; the same seed gives the same interval.

    With fewer than two values there is nothing to resample: all three numbers are the sum.
    """
    data = np.asarray(values, np.float64)
    n = len(data)
    mid = float(data.sum())
    if n < 2:
        return Interval(mid, mid, mid)
    block = -(-n // _BLOCKS)
    whole = n // block * block
    sums = data[:whole].reshape(-1, block).sum(axis=1)
    draws = np.random.default_rng(seed).integers(0, len(sums), (resamples, len(sums)))
    # Resampled blocks cover the values that fill whole blocks; the rest is scaled up, not dropped.
    totals = sums[draws].sum(axis=1) * (n / whole)
    low, high = np.quantile(totals, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(min(float(low), mid), mid, max(float(high), mid))
