"""What another kernel or setting would save a fleet, from what it would save each host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.fleet.merge import WHERE

if TYPE_CHECKING:
    import polars as pl

_HOURS = 24
_Z = 1.959964
"""Standard deviations that a 95 % interval reaches to each side."""


class Saving(NamedTuple):
    """What the hosts of one kernel line and vendor would save.

    Attributes:
        hosts: Those whose saving can be told; *untold* are the others.
        removed: Exits removed in the traces.
        low, mid, high: Core-hours a day, if each host goes on as it did while it was traced. 95 %.
    """

    line: str
    vendor: str
    hosts: int
    untold: int
    removed: int
    low: float
    mid: float
    high: float


def savings(hosts: pl.DataFrame) -> list[Saving]:
    """Savings by kernel line and vendor, from a table of :func:`worldswitch.fleet.merge.hosts`.

    Hosts are taken for independent, so their intervals add up as variances do; what a host does outside the time it was
    traced is not in the interval.
    """
    import polars as pl

    found = []
    for (line, vendor), group in hosts.group_by(list(WHERE[:2]), maintain_order=True):
        told = group.filter((pl.col("whatif_traces") > 0) & (pl.col("whatif_span_ns") > 0))
        mid = variance = 0.0
        for row in told.iter_rows(named=True):
            # ns saved in a ns traced are cores.
            day = _HOURS / row["whatif_span_ns"]
            mid += row["whatif_mid_ns"] * day
            variance += ((row["whatif_high_ns"] - row["whatif_low_ns"]) / (2 * _Z) * day) ** 2
        half = _Z * math.sqrt(variance)
        removed = int(told["whatif_removed"].sum())
        found.append(
            Saving(
                str(line),
                str(vendor),
                len(told),
                len(group) - len(told),
                removed,
                max(0.0, mid - half),
                mid,
                mid + half,
            )
        )
    return found


def in_all(parts: list[Saving]) -> Saving:
    """The savings of the whole fleet."""
    half = math.sqrt(sum((one.high - one.mid) ** 2 for one in parts))
    mid = math.fsum(one.mid for one in parts)
    return Saving(
        "all", "all", sum(one.hosts for one in parts), sum(one.untold for one in parts),
        sum(one.removed for one in parts),
        max(0.0, mid - half), mid, mid + half,
    )  # fmt: skip
