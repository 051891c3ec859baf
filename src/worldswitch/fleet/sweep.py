"""``wsw fleet sweep``: many cells, run wherever there is room, as one dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from worldswitch.errors import UsageError, WorldswitchError
from worldswitch.fleet import engine
from worldswitch.fleet.pieces import Row, Say
from worldswitch.fleet.schema import as_parquet
from worldswitch.fleet.spec import MODEL, Sweep, Value

if TYPE_CHECKING:
    import polars as pl

    from worldswitch.fleet.folder import Folder
    from worldswitch.record.result import Cell

Runner = Callable[[Sequence[Mapping[str, Value]], str], "list[Cell | Exception]"]
"""Runs cells, given their values by axis and the folder that names of files are relative to."""

COUNTERS = (
    "exits", "root_loads", "root_unloads", "mmu_resets", "tlb_flushes", "pages_4k", "pages_2m", "nx_splits",
)  # fmt: skip
REFUSED, FAILED = "refused", "failed"
"""What became of a cell without a result: its values exclude each other, or it could not be run."""


@dataclass(frozen=True, slots=True)
class SweepWork:
    """Runs the cells of a sweep by number; see :class:`worldswitch.fleet.pieces.Work`."""

    sweep: Sweep
    run: Runner

    def rows(self, items: Sequence[int]) -> list[Row]:
        """The row of each cell."""
        cells = [self.sweep.cell(number) for number in items]
        outcomes = self.run(cells, self.sweep.folder)
        return [
            {"cell": number, **_named(cell), **_outcome(one, cell["on"])}
            for number, cell, one in zip(items, cells, outcomes, strict=True)
        ]

    def lost(self, item: int, why: str) -> Row:
        """The row of a cell whose worker was killed."""
        return {"cell": item, **_named(self.sweep.cell(item)), "status": FAILED, "error": why}

    def pack(self, rows: Iterable[Row]) -> bytes:
        """The rows as Parquet."""
        import polars as pl

        schema = self._schema()
        table = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
        return as_parquet(table)

    def _schema(self) -> dict[str, Any]:
        import polars as pl

        numbers = {"n": pl.Int64, "smp": pl.Int64}
        reasons = pl.List(pl.Struct({"reason": pl.String, "count": pl.Float64, "per_op": pl.Float64}))
        return {
            "cell": pl.Int64,
            "on": pl.String,
            **{name: numbers.get(name, pl.String) for name in self.sweep.axes},
            "status": pl.String,
            "error": pl.String,
            "passes": pl.Int64,
            "unit": pl.String,
            **dict.fromkeys(COUNTERS, pl.Float64),
            **{f"{name}_per_op": pl.Float64 for name in COUNTERS},
            "reasons": reasons,
            "faults": pl.Int64,
            **dict.fromkeys(("low_ns", "mid_ns", "high_ns"), pl.Float64),
            **dict.fromkeys(("create_vm_p50_ns", "create_vm_p99_ns", "create_vm_max_ns"), pl.Int64),
        }


def _named(cell: Mapping[str, Value]) -> Row:
    """The values as the table's types: what is no number by its nature is text."""
    return {name: value if name in ("n", "smp") else str(value) for name, value in cell.items()}


def _outcome(of: Cell | Exception, on: Value) -> Row:
    from worldswitch.record.result import BY_REASON
    from worldswitch.stats.percentile import nearest_rank

    if isinstance(of, Exception):
        # The model has all it needs: what it will not run, it never will.
        refused = isinstance(of, UsageError) or (on == MODEL and isinstance(of, WorldswitchError))
        return {"status": REFUSED if refused else FAILED, "error": str(of)}
    each, counts = of.per_op.get(BY_REASON), of.counters.get(BY_REASON)
    row: Row = {"status": "done", "passes": of.n, "unit": of.unit, "faults": of.faults_total}
    for name in COUNTERS:
        row[name], row[f"{name}_per_op"] = _number(of.counters.get(name)), _number(of.per_op.get(name))
    if isinstance(counts, Mapping):
        per = each if isinstance(each, Mapping) else {}
        row["reasons"] = [
            {"reason": reason, "count": float(count), "per_op": float(per.get(reason, 0.0))}
            for reason, count in sorted(counts.items())
        ]
    if of.time_ns is not None:
        row |= dict(zip(("low_ns", "mid_ns", "high_ns"), map(float, of.time_ns), strict=True))
    if of.create_vm_ns:
        ordered = sorted(of.create_vm_ns)
        for name, rank in (("p50", 50), ("p99", 99)):
            row[f"create_vm_{name}_ns"] = ordered[nearest_rank(len(ordered), rank)]
        row["create_vm_max_ns"] = ordered[-1]
    return row


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of the cells: how many of each status, the first errors of each, and pieces run by this run."""

    cells: int
    status: dict[str, int]
    errors: list[tuple[str, int]]
    done: int


def sweep(of: Sweep, run: Runner, folder: Folder, pool: engine.Pool, say: Say, retry: bool = False) -> Swept:
    """Run all cells of a sweep, and keep them in *folder*, which the caller holds.

    Raises:
        UsageError: The folder holds something else.
        MissingError: The workers are gone, or the folder cannot be written.
    """
    plan = engine.Plan("sweep", of.document(), list(of.pieces()))
    again = _failed(plan, folder) if retry else ()
    done = engine.run(plan, SweepWork(of, run), folder, pool, say, again)
    status: dict[str, int] = {}
    errors: dict[str, int] = {}
    for _, table in _tables(folder, [file for file, _ in plan.pieces]):
        for name, count in table["status"].value_counts().iter_rows():
            status[name] = status.get(name, 0) + count
        for error, count in table["error"].drop_nulls().value_counts().iter_rows():
            errors[error] = errors.get(error, 0) + count
    engine.close(plan, folder)
    most = sorted(errors.items(), key=lambda one: (-one[1], one[0]))
    return Swept(sum(status.values()), dict(sorted(status.items())), most, done)


def _tables(folder: Folder, files: Iterable[str]) -> Iterable[tuple[str, pl.DataFrame]]:
    import polars as pl

    for file in files:
        data = folder.read(file)
        if data is not None:
            yield file, pl.read_parquet(BytesIO(data), columns=["status", "error"])


def _failed(plan: engine.Plan, folder: Folder) -> list[str]:
    kept = sorted(engine.kept(plan, folder))
    return [file for file, table in _tables(folder, kept) if (table["status"] == FAILED).any()]
