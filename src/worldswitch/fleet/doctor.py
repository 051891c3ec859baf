"""``wsw fleet doctor``: the snapshots of many hosts, the worst first, and what would mend most of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.errors import WorldswitchError
from worldswitch.fleet import engine
from worldswitch.fleet.fetched import as_file, without_path
from worldswitch.fleet.pieces import Input, Row, Say, cut
from worldswitch.fleet.schema import as_parquet
from worldswitch.host.finding import Profile, Severity

if TYPE_CHECKING:
    import polars as pl

    from worldswitch.fleet.folder import Folder

LARGEST = 256 << 20
_NO_FIX = "nothing to do"
LEVELS = (Severity.CRITICAL, Severity.WARNING, Severity.NOTICE, Severity.UNKNOWN)


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """Judges one snapshot at a time; see :class:`worldswitch.fleet.pieces.Work`."""

    profile: str = Profile.DEFAULT.value
    folder: str = ""
    """Where relative paths begin; empty: where the worker is."""

    def rows(self, items: Sequence[Input]) -> list[Row]:
        """The row of each snapshot."""
        return [self._row(item) for item in items]

    def _row(self, item: Input) -> Row:
        from worldswitch.host.diagnosis import diagnose
        from worldswitch.host.gather import gather
        from worldswitch.host.snapshot import Snapshot

        try:
            with as_file(item, LARGEST, self.folder) as path:
                host = gather(Snapshot(str(path)))
                found = diagnose(host, Profile(self.profile))
        except (WorldswitchError, OSError, MemoryError, RecursionError) as error:
            return self.lost(item, without_path(str(error), item.path, self.folder))
        return {
            "path": item.path,
            "host": item.path if host.name == str(path) else host.name,
            "error": None,
            "release": host.release or None,
            "kernel": None if host.kernel is None else str(host.kernel),
            "vendor": host.cpu.vendor or None,
            "cpu_model": host.cpu.name or None,
            "findings": [
                {
                    "id": one.id, "severity": int(one.severity), "title": one.title, "fix": one.fix.text or _NO_FIX,
                    "gain": one.gain.text, "needs_reboot": one.fix.needs_reboot,
                }
                for one in found
            ],
        }  # fmt: skip

    def lost(self, item: Input, why: str) -> Row:
        """The row of a snapshot that was not read, and why."""
        return {"path": item.path, "host": item.path, "error": why}

    def pack(self, rows: Iterable[Row]) -> bytes:
        """The rows as Parquet."""
        import polars as pl

        text, whole = pl.String, pl.Int64
        finding = pl.Struct(
            {"id": text, "severity": whole, "title": text, "fix": text, "gain": text, "needs_reboot": pl.Boolean}
        )
        schema: dict[str, Any] = {
            **dict.fromkeys(("path", "host", "error", "release", "kernel", "vendor", "cpu_model"), text),
            "findings": pl.List(finding),
        }
        return as_parquet(pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema))


class Fix(NamedTuple):
    """What mends a finding, and where.

    Attributes:
        severity: The worst that is found of it.
        hosts: Their names, sorted.
        gain: As it is told for the first of them.
    """

    id: str
    severity: Severity
    text: str
    gain: str
    needs_reboot: bool
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ward:
    """What was found on all hosts.

    Attributes:
        hosts: A row for each, the worst first: who and what it is, and a count for each severity.
        fixes: The worst and most frequent first.
        failed: Snapshots not read, and why.
        done: Pieces worked on by this run.
    """

    hosts: pl.DataFrame
    fixes: list[Fix]
    failed: list[tuple[str, str]]
    done: int


def doctor(
    inputs: Sequence[Input], work: SnapshotWork, folder: Folder, pool: engine.Pool, say: Say, retry: bool
) -> Ward:
    """Judge all snapshots, and keep what was found in *folder*, which the caller holds.

    Raises:
        UsageError: The folder holds something else.
        MissingError: The workers are gone, or the folder cannot be written.
    """
    import polars as pl

    parameters = {"profile": work.profile}
    pieces = [(engine.place_of(piece), piece) for piece in cut(inputs, {"doctor": engine.VERSION, **parameters})]
    plan = engine.Plan("doctor", parameters, pieces)
    again = [file for file, table in _tables(plan, folder) if table["error"].is_not_null().any()] if retry else []
    done = engine.run(plan, work, folder, pool, say, again)
    rows = pl.concat([table for _, table in _tables(plan, folder)]).sort("host", "path")
    failed = rows.filter(pl.col("error").is_not_null()).select("path", "error")
    ward = Ward(_hosts(rows), _fixes(rows), list(failed.iter_rows()), done)
    _keep(ward, rows, folder)
    engine.close(plan, folder)
    return ward


def _tables(plan: engine.Plan, folder: Folder) -> Iterable[tuple[str, pl.DataFrame]]:
    import polars as pl

    for file, _ in plan.pieces:
        data = folder.read(file)
        if data is not None:
            yield file, pl.read_parquet(BytesIO(data))


def _hosts(rows: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    severity = pl.col("findings").list.eval(pl.element().struct.field("severity"))
    counts = [severity.list.count_matches(int(level)).alias(level.label) for level in reversed(Severity)]
    ids = pl.col("findings").list.eval(
        pl.element().struct.field("id").filter(
            (pl.element().struct.field("severity") == pl.element().struct.field("severity").max())
            & (pl.element().struct.field("severity") > int(Severity.INFO))
        ).unique(maintain_order=True)
    )  # fmt: skip
    labels = [level.label for level in reversed(Severity)]
    table = rows.filter(pl.col("error").is_null()).select(
        "host", "release", "kernel", "vendor", *counts, ids.list.join(", ").alias("worst_findings")
    )
    return table.sort(*labels, "host", descending=[*[True] * len(labels), False])


def _fixes(rows: pl.DataFrame) -> list[Fix]:
    import polars as pl

    each = rows.filter(pl.col("error").is_null()).select("host", "findings").explode("findings").drop_nulls()
    each = each.unnest("findings").filter(pl.col("severity") >= int(Severity.NOTICE))
    table = each.group_by("id", "fix", "needs_reboot").agg(
        pl.col("severity").max(), pl.col("gain").first(), pl.col("host").unique().sort()
    )
    found = [
        Fix(row["id"], Severity(row["severity"]), row["fix"], row["gain"], row["needs_reboot"], tuple(row["host"]))
        for row in table.iter_rows(named=True)
    ]
    return sorted(found, key=lambda fix: (-fix.severity, -len(fix.hosts), fix.id, fix.text))


def summary(ward: Ward) -> dict[str, Any]:
    """What was found, as JSON."""
    return {
        "hosts": ward.hosts.to_dicts(),
        "fixes": [{**fix._asdict(), "severity": fix.severity.label, "hosts": list(fix.hosts)} for fix in ward.fixes],
        "failed": [{"path": path, "error": error} for path, error in ward.failed],
    }


def _keep(ward: Ward, rows: pl.DataFrame, folder: Folder) -> None:
    for name, table in (("hosts", ward.hosts), ("findings", rows)):
        folder.write(f"{name}.parquet", as_parquet(table))
    folder.write("summary.json", (json.dumps(summary(ward), indent=1, sort_keys=True) + "\n").encode())
