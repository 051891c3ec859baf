"""The tables of a run: names and types of their columns."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from worldswitch.fleet.pieces import Row


def _trace_schema() -> dict[str, Any]:
    import polars as pl

    text, whole = pl.String, pl.Int64
    reasons = pl.Struct(
        {
            "isa": text, "reason": text, "count": whole, "total_ns": whole, "min_ns": whole, "max_ns": whole,
            "open": whole, "user_ns": whole,
        }
    )  # fmt: skip
    return {
        "path": text, "size": whole, "host": text, "class": text, "error": text, "release": text, "kernel": text,
        "line": text, "vendor": text, "cpu_model": text, "format": text, "span_ns": whole, "lost": whole,
        "complete": pl.Boolean, "vms": whole, "vcpus": whole, "guest_ns": whole, "exits": whole, "total_ns": whole,
        "user_ns": whole, "open": whole,
        "reasons": pl.List(reasons),
        "bins": pl.List(pl.Struct({"isa": text, "reason": text, "key": whole, "count": whole})),
        "cr_writes": pl.List(pl.Struct({"cr": whole, "changed": text, "count": whole, "total_ns": whole})),
        "detections": pl.List(pl.Struct({"id": text, "count": whole})),
        "whatif": pl.Struct(
            {
                "method": text, "low_ns": whole, "mid_ns": whole, "high_ns": whole, "removed": whole, "cannot": text,
            }
        ),
    }  # fmt: skip


def trace_rows(rows: Iterable[Row]) -> pl.DataFrame:
    """One row for each trace: who and where, its sums, and lists of its reasons, bins of durations, writes, findings.

    A trace that was not read has an ``error`` and no sums.
    """
    import polars as pl

    schema = _trace_schema()
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def as_parquet(table: pl.DataFrame) -> bytes:
    """The file of a table."""
    out = BytesIO()
    table.write_parquet(out, compression="zstd")
    return out.getvalue()
