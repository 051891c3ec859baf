"""Hosts unlike the others of their group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.fleet.merge import WHERE

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

FEWEST = 8
"""Hosts that a group needs before one of them can be unlike the others."""
LIMIT = 3.5
_SCALE = 0.6745
_MEAN_SCALE = 1.253314
METRICS = ("exits_per_vcpu_second", "outside")


class Outlier(NamedTuple):
    """A host whose *value* of *metric* is far from its group's *median*; *score* is the modified z-score."""

    host: str
    line: str
    vendor: str
    kind: str
    metric: str
    value: float
    median: float
    score: float


def outliers(hosts: pl.DataFrame) -> list[Outlier]:
    """The outliers among *hosts* (of :func:`worldswitch.fleet.merge.hosts`), the farthest first.

    Modified z-score of logarithms beyond 3.5: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993.
    """
    found = [one for metric in METRICS for one in _of(hosts, metric)]
    return sorted(found, key=lambda one: (-abs(one.score), one.host, one.metric))


def _of(hosts: pl.DataFrame, metric: str) -> Iterator[Outlier]:
    import numpy as np
    import polars as pl

    told = hosts.filter(pl.col(metric) > 0)
    for keys, group in told.group_by(list(WHERE), maintain_order=True):
        if len(group) < FEWEST:
            continue
        values = group[metric].to_numpy()
        scores = _scores(np.log(values))
        for place in np.flatnonzero(np.abs(scores) > LIMIT).tolist():
            line, vendor, kind = map(str, keys)
            value, median = float(values[place]), float(np.median(values))
            yield Outlier(group["host"][place], line, vendor, kind, metric, value, median, float(scores[place]))


def _scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    away = values - np.median(values)
    spread = float(np.median(np.abs(away))) / _SCALE
    if not spread:
        # More than half are equal: the mean distance is what is left to measure by.
        spread = float(np.abs(away).mean()) * _MEAN_SCALE
    return away / spread if spread else np.zeros(len(values))
