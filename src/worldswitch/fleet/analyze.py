"""``wsw fleet analyze``: many traces, one row each, and the fleet's tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from worldswitch.fleet import engine, merge
from worldswitch.fleet.outliers import Outlier, outliers
from worldswitch.fleet.pieces import Input, Say, cut
from worldswitch.fleet.savings import Saving, savings
from worldswitch.fleet.schema import as_parquet
from worldswitch.fleet.sketch import ACCURACY

if TYPE_CHECKING:
    import polars as pl

    from worldswitch.fleet.folder import Folder
    from worldswitch.fleet.traces import TraceWork

SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What became of the traces.

    Attributes:
        tables: ``traces``, ``hosts``, ``groups``, ``reasons``, ``cr_writes``, ``detections``, ``failed``.
        outliers: Hosts unlike others, the farthest first.
        savings: By kernel line and vendor; empty if no question was asked.
        done: Pieces worked on by this run; the others were there.
    """

    tables: dict[str, pl.DataFrame]
    outliers: list[Outlier]
    savings: list[Saving]
    done: int


def analyze(
    inputs: Sequence[Input], work: TraceWork, folder: Folder, pool: engine.Pool, say: Say, retry: bool = False
) -> Fleet:
    """Account for all *inputs* and keep the tables in *folder*, which the caller holds.

    Args:
        inputs: The traces.
        work: What is asked of each.
        folder: Where results are kept, and those of a run before that was ended.
        pool: Who does the work.
        say: Told how far it is.
        retry: Read what could not be read before once more.

    Raises:
        UsageError: The folder holds something else.
        MissingError: The workers are gone, or the folder cannot be written.
    """
    parameters = work.parameters()
    pieces = [(engine.place_of(piece), piece) for piece in cut(inputs, {"analyze": engine.VERSION, **parameters})]
    plan = engine.Plan("analyze", parameters, pieces)
    again = _failed(plan, folder) if retry else ()
    done = engine.run(plan, work, folder, pool, say, again)
    tables = merge.merged(_pieces(plan, folder))
    tables["hosts"] = merge.hosts(tables["traces"])
    tables["groups"] = merge.groups(tables["hosts"])
    asked = work.to is not None or bool(work.settings)
    fleet = Fleet(tables, outliers(tables["hosts"]), savings(tables["hosts"]) if asked else [], done)
    _keep(fleet, folder)
    engine.close(plan, folder)
    return fleet


def summary(fleet: Fleet) -> dict[str, Any]:
    """The fleet in one JSON document: everything but the tables by trace and by host."""
    tables = fleet.tables
    return {
        "traces": len(tables["traces"]),
        "hosts": len(tables["hosts"]),
        "exits": int(tables["hosts"]["exits"].sum()),
        "total_ns": int(tables["hosts"]["total_ns"].sum()),
        "quantile_error": ACCURACY,
        "groups": tables["groups"].to_dicts(),
        "reasons": tables["reasons"].to_dicts(),
        "cr_writes": tables["cr_writes"].to_dicts(),
        "detections": tables["detections"].to_dicts(),
        "outliers": [one._asdict() for one in fleet.outliers],
        "savings": [one._asdict() for one in fleet.savings],
        "failed": tables["failed"].to_dicts(),
    }


def _pieces(plan: engine.Plan, folder: Folder) -> Iterator[bytes]:
    for file, _ in plan.pieces:
        data = folder.read(file)
        assert data is not None, file
        yield data


def _failed(plan: engine.Plan, folder: Folder) -> list[str]:
    """The pieces with an input that was not read."""
    import polars as pl

    found = []
    for file in sorted(engine.kept(plan, folder)):
        data = folder.read(file)
        if data is not None and pl.read_parquet(BytesIO(data), columns=["error"])["error"].is_not_null().any():
            found.append(file)
    return found


def _keep(fleet: Fleet, folder: Folder) -> None:
    for name, table in fleet.tables.items():
        folder.write(f"{name}.parquet", as_parquet(table))
    folder.write(SUMMARY, (json.dumps(summary(fleet), indent=1, sort_keys=True) + "\n").encode())
