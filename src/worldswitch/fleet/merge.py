"""Rows of traces merged into tables of a fleet: sums of integers and bins, so the order of merging changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from worldswitch.fleet.sketch import quantiles

if TYPE_CHECKING:
    import polars as pl

WHERE = ("line", "vendor", "class")
"""What hosts are grouped by: the kernel's line, the processor's vendor, the host's class."""
_REASON = (*WHERE, "isa", "reason")
_TABLES = ("traces", "reasons", "bins", "cr_writes", "detections")
_TOGETHER = 64
QUANTILES = (0.5, 0.95, 0.99)
_NAMES = ("p50_ns", "p95_ns", "p99_ns")


def merged(pieces: Iterable[bytes]) -> dict[str, pl.DataFrame]:
    """The tables of all *pieces*.

    ``traces``: one row for each trace without its lists; ``reasons``: exits by group and reason, with quantiles;
    ``cr_writes`` and ``detections``: by group; ``failed``: the traces not read, with path and error.
    """
    import polars as pl

    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in _TABLES}
    for data in pieces:
        for name, part in _split(pl.read_parquet(BytesIO(data))):
            parts[name].append(part)
            if name != "traces" and len(parts[name]) >= _TOGETHER:
                parts[name] = [_summed(name, parts[name])]
    summed = {name: _summed(name, some) for name, some in parts.items() if name != "traces"}
    rows = pl.concat(parts["traces"]).sort("path")
    failed = rows.filter(pl.col("error").is_not_null()).select("path", "error")
    return {
        "traces": rows.filter(pl.col("error").is_null()).drop("error"),
        "reasons": _with_quantiles(summed["reasons"], summed["bins"]),
        "cr_writes": summed["cr_writes"],
        "detections": summed["detections"],
        "failed": failed,
    }


_KEYS = {
    "reasons": _REASON,
    "bins": (*_REASON, "key"),
    "cr_writes": (*WHERE, "cr", "changed"),
    "detections": (*WHERE, "id"),
}


def _split(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The tables in the rows of one piece; lists become rows of their own, beside the group of their trace."""
    import polars as pl

    lists = [name for name in _TABLES if name != "traces"]
    yield "traces", rows.drop(lists).unnest("whatif", separator="_")
    read = rows.filter(pl.col("error").is_null())
    for name in lists:
        part = read.select(*WHERE, name).explode(name).drop_nulls(name)
        part = part.unnest(name)
        if name in ("reasons", "detections"):
            part = part.with_columns(traces=pl.lit(1, pl.Int64))
        yield name, part


def _summed(name: str, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    keys = list(_KEYS[name])
    whole = pl.concat(parts)
    kind = {"min_ns": pl.Expr.min, "max_ns": pl.Expr.max}
    sums = [kind.get(column, pl.Expr.sum)(pl.col(column)) for column in whole.columns if column not in keys]
    return whole.group_by(keys).agg(sums).sort(keys)


def _with_quantiles(reasons: pl.DataFrame, bins: pl.DataFrame) -> pl.DataFrame:
    """*reasons* with the quantiles of their durations, ns."""
    import polars as pl

    keys = list(_REASON)
    rows: list[dict[str, Any]] = []
    for group in bins.group_by(keys, maintain_order=True).agg("key", "count").iter_rows(named=True):
        found = quantiles(group["key"], group["count"], QUANTILES)
        rows.append({**{name: group[name] for name in keys}, **dict(zip(_NAMES, found, strict=True))})
    schema = {**dict.fromkeys(keys, pl.String), **dict.fromkeys(_NAMES, pl.Float64)}
    return reasons.join(pl.DataFrame(rows, schema=schema), on=keys, how="left", nulls_equal=True)


def hosts(traces: pl.DataFrame) -> pl.DataFrame:
    """One row for each host: the sums of its traces, with rates.

    ``exits_per_vcpu_second`` is by the time traced of each vCPU thread, in the guest and out of it; ``outside`` the
    share of that time out of the guest.
    """
    import polars as pl

    keys = ["host", *WHERE]
    sums = ("span_ns", "vms", "vcpus", "guest_ns", "exits", "total_ns", "user_ns", "open", "lost")
    whatif = ("whatif_low_ns", "whatif_mid_ns", "whatif_high_ns", "whatif_removed")
    table = traces.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("traces"),
        pl.col("kernel").drop_nulls().unique().sort().str.join(", ").alias("kernels"),
        *(pl.col(name).sum() for name in sums),
        pl.col("complete").all(),
        *(pl.col(name).sum() for name in whatif),
        pl.col("whatif_mid_ns").is_not_null().sum().cast(pl.Int64).alias("whatif_traces"),
        pl.when(pl.col("whatif_mid_ns").is_not_null()).then("span_ns").sum().alias("whatif_span_ns"),
    )
    busy = (pl.col("guest_ns") + pl.col("total_ns")).cast(pl.Float64)
    return table.with_columns(
        exits_per_vcpu_second=pl.when(busy > 0).then(pl.col("exits") / busy * 1e9),
        outside=pl.when(busy > 0).then(pl.col("total_ns") / busy),
    ).sort(keys)


def groups(of: pl.DataFrame) -> pl.DataFrame:
    """One row for each kernel line, vendor and class: the sums of its hosts."""
    import polars as pl

    keys = list(WHERE)
    sums = ("traces", "span_ns", "vms", "vcpus", "guest_ns", "exits", "total_ns", "user_ns", "open", "lost")
    busy = (pl.col("guest_ns") + pl.col("total_ns")).cast(pl.Float64)
    table = of.group_by(keys).agg(pl.len().cast(pl.Int64).alias("hosts"), *(pl.col(name).sum() for name in sums))
    return table.with_columns(
        exits_per_vcpu_second=pl.when(busy > 0).then(pl.col("exits") / busy * 1e9),
        outside=pl.when(busy > 0).then(pl.col("total_ns") / busy),
    ).sort(keys)
