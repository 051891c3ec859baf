"""Durations as a DDSketch, from traces to fleets.

Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", VLDB 2019: a
value goes to the bin of its logarithm, so sketches merge by adding bins, in any order, and a quantile is within
:data:`ACCURACY` of a value that has that rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ACCURACY = 0.01
"""Relative error of a quantile."""
ZERO = -(1 << 30)
"""Key of the bin of durations of 0."""


def bins(values: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Keys and counts of the bins that hold *values*, each as often as *counts* says.

    Args:
        values: Shape (n,), ns, none negative.
        counts: Shape (n,).
    """
    key_of = _mapping().key
    found: dict[int, int] = {}
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        key = key_of(value) if value > 0 else ZERO
        found[key] = found.get(key, 0) + count
    return sorted(found), [found[key] for key in sorted(found)]


def quantiles(keys: Iterable[int], counts: Iterable[int], at: Iterable[float]) -> list[float]:
    """The values at the ranks *at* (0 to 1) of what bins hold, in the unit of the values.

    Raises:
        ValueError: The bins hold nothing.
    """
    from ddsketch.ddsketch import BaseDDSketch
    from ddsketch.store import DenseStore

    store, none = DenseStore(), 0
    for key, count in zip(keys, counts, strict=True):
        if key == ZERO:
            none += count
        else:
            store.add(key, count)
    sketch = BaseDDSketch(_mapping(), store, DenseStore(), float(none))
    found = [sketch.get_quantile_value(one) for one in at]
    told = [float(one) for one in found if one is not None]
    if len(told) < len(found):
        raise ValueError("no values, so no quantiles")
    return told


def _mapping() -> Any:
    from ddsketch.mapping import LogarithmicMapping

    return LogarithmicMapping(ACCURACY)
