"""Many values measured one after the other, as few that are independent.

Consecutive exits, or latencies, depend on each other: a cold cache, a busy neighbour, a phase of the load. Taken one by
one they would count as far more evidence than they are. So the series is cut into blocks of consecutive values, each
counts once, and blocks are made longer until neighbours no longer resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SEVERAL = 200
"""From this many values on a series is cut; fewer are taken as the independent runs they mostly are."""
MOST, FEWEST = 64, 8
"""Blocks of a series."""
_DEVIATIONS = 1.65
"""Neighbours resemble each other if their correlation is more than so many times what chance makes of it."""


class Blocks(NamedTuple):
    """A series in blocks.

    Attributes:
        values: One for each block, in order.
        size: Values of the series in each; those left over at the end are in none.
        settled: Blocks are independent as far as can be seen; else even the longest resemble their neighbours.
    """

    values: tuple[float, ...]
    size: int
    settled: bool


def median_of(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each row of shape (blocks, size)."""
    found: NDArray[np.float64] = np.median(rows, axis=1)
    return found


def mean_of(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each row."""
    found: NDArray[np.float64] = rows.mean(axis=1)
    return found


def quantile_of(share: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """What takes the value of each row that *share* of its values do not exceed."""
    return lambda rows: np.quantile(rows, share, axis=1)


def blocks(series: ArrayLike, take: Callable[[NDArray[np.float64]], NDArray[np.float64]] = median_of) -> Blocks:
    """*series*, of shape (n,) and in the order measured, as independent values.

    Args:
        take: What a block of values is worth: rows of shape (blocks, size) -> shape (blocks,).
    """
    data = np.asarray(series, np.float64)
    if len(data) < 2 * FEWEST:
        return Blocks(tuple(data.tolist()), 1, True)
    count = min(MOST, len(data))
    while True:
        size = len(data) // count
        values = take(data[: count * size].reshape(count, size))
        settled = resemblance(values) <= _DEVIATIONS / math.sqrt(count)
        if settled or count // 2 < FEWEST:
            return Blocks(tuple(values.tolist()), size, settled)
        count //= 2


def resemblance(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The correlation of each value with the next; 0 where all are equal."""
    data = np.asarray(values, np.float64)
    apart = data - data.mean()
    whole = float((apart * apart).sum())
    return float((apart[1:] * apart[:-1]).sum()) / whole if whole else 0.0
