"""Results and traces as rows for a spreadsheet or a data frame: CSV and Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from worldswitch.errors import printable
from worldswitch.record.result import flat_counts

if TYPE_CHECKING:
    from worldswitch.record.result import Cell, Result
    from worldswitch.record.trace import Trace

VALUE_COLUMNS = ("kind", "name", "unit", "run", "value")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def rows_of(result: Result) -> tuple[list[str], list[list[Any]]]:
    """One row for each number of *result*: columns, and rows.

    The columns are ``cell``, the conditions of all cells, then :data:`VALUE_COLUMNS`: *kind* is ``count`` (for each
    unit), ``time`` (of one unit, run by run) or ``spread``; *run* is the place of a value among those of its name.
    """
    conditions = list(dict.fromkeys(name for cell in result.cells for name in cell.flat_dimensions()))
    rows = [
        [place, *(cell.flat_dimensions().get(name) for name in conditions), *values]
        for place, cell in enumerate(result.cells)
        for values in _values(cell)
    ]
    return ["cell", *conditions, *VALUE_COLUMNS], rows


def _values(cell: Cell) -> Iterator[tuple[str, str, str, int | None, float]]:
    for name, value in flat_counts(cell.per_op).items():
        yield "count", name, cell.unit, None, value
    for metric in cell.metrics:
        for run, value in enumerate(metric.values):
            yield "time", metric.name, metric.unit, run, value
    if cell.time_ns is not None:
        for name, value in cell.time_ns._asdict().items():
            yield "spread", f"time_{name}", "ns", None, value


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: IO[str]) -> None:
    """Write *rows* as RFC 4180 has it, texts such that no spreadsheet takes them for formulas."""
    out = csv.writer(stream)
    out.writerow([_cell(name) for name in columns])
    out.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return int(value) if isinstance(value, bool) else value


def events_of(trace: Trace) -> tuple[list[str], Iterator[list[Any]]]:
    """One row for each event in time order: ``time``, ``cpu``, ``tid``, ``pid``, ``event``, then the fields of all."""
    with_rows = (table for batch in trace.batches() for table in batch.tables if any(map(len, table.values())))
    fields = list(dict.fromkeys(name for table in with_rows for name in table))
    return ["time", "cpu", "tid", "pid", "event", *fields], _events(trace, {name: i for i, name in enumerate(fields)})


def _events(trace: Trace, places: dict[str, int]) -> Iterator[list[Any]]:
    for batch in trace.batches():
        columns = []
        for table in batch.tables:
            lists = [[row.tobytes().hex(" ") for row in c] if c.ndim == 2 else c.tolist() for c in table.values()]
            columns.append(([places.get(name, 0) for name in table], zip(*lists, strict=True) if lists else None))
        common = (batch.time.tolist(), batch.cpu.tolist(), batch.tid.tolist(), batch.pid.tolist())
        for index, *at in zip(batch.order.tolist(), *common, strict=True):
            row: list[Any] = [None] * len(places)
            where, values = columns[index]
            if values is not None:
                for place, value in zip(where, next(values), strict=True):
                    row[place] = value
            yield [*at, batch.events[index], *row]


def write_parquet(columns: Sequence[str], rows: Sequence[Sequence[Any]], path: str | os.PathLike[str]) -> None:
    """Write *rows* as one Parquet file, whole or not at all; a column of mixed kinds becomes text."""
    import io

    import polars as pl

    from worldswitch.record.whole import write_whole

    data = {name: _alike([row[place] for row in rows]) for place, name in enumerate(columns)}
    out = io.BytesIO()
    pl.DataFrame({name: pl.Series(name, values, strict=False) for name, values in data.items()}).write_parquet(out)
    write_whole(Path(path), out.getvalue())


def _alike(values: list[Any]) -> list[Any]:
    kinds = {bool if isinstance(one, bool) else float if isinstance(one, int | float) else str
             for one in values if one is not None}  # fmt: skip
    if kinds == {float} and any(isinstance(one, float) for one in values):
        return [None if one is None else float(one) for one in values]
    return values if len(kinds) < 2 else [None if one is None else str(one) for one in values]
