"""The text of ``wsw fleet``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.errors import printable
from worldswitch.fleet.doctor import LEVELS
from worldswitch.fleet.savings import in_all
from worldswitch.fleet.sketch import ACCURACY
from worldswitch.report.tables import fields, paragraphs, table
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.fleet.analyze import Fleet
    from worldswitch.fleet.doctor import Ward
    from worldswitch.fleet.savings import Saving
    from worldswitch.fleet.sweep import Swept

_MOST = 20


def analyzed(fleet: Fleet, output: str, asked: str) -> str:
    """What many traces came to."""
    return "\n".join(part for part in _analyzed(fleet, output, asked) if part)


def _analyzed(fleet: Fleet, output: str, asked: str) -> Iterator[str]:
    tables = fleet.tables
    hosts, failed = tables["hosts"], tables["failed"]
    yield fields(
        (
            ("traces", f"{len(tables['traces']):,}, of {_hosts(len(hosts))}"),
            ("not read", f"{len(failed):,}" if len(failed) else None),
            ("exits", f"{int(hosts['exits'].sum()):,}"),
            ("time out of the guest", format_ns(int(hosts["total_ns"].sum()))),
            ("tables", f"{output}/*.parquet"),
        )
    )
    group = ("kernel", "vendor", "class")
    rows = [
        (
            row["line"], row["vendor"], row["class"] or "-", f"{row['hosts']:,}", f"{row['exits']:,}",
            _rate(row["exits_per_vcpu_second"]), _share(row["outside"]),
        )
        for row in tables["groups"].iter_rows(named=True)
    ]  # fmt: skip
    columns = (*group, "hosts", "exits", "exits/s of a vCPU", "out of the guest")
    yield _listing(columns, rows, "Hosts by kernel", group)
    yield _reasons(tables["reasons"], group)
    if fleet.savings:
        yield _savings(fleet.savings, asked)
    yield _outliers(fleet)
    yield paragraphs("Not read", _listed([f"{path}: {error}" for path, error in failed.iter_rows()]))
    yield paragraphs("What to know", _know(fleet))


def _reasons(of: Any, group: Sequence[str]) -> str:
    ordered = of.sort("total_ns", "count", *of.columns[:5], descending=[True, True, *[False] * 5])
    rows = [
        (
            row["line"], row["vendor"], row["class"] or "-", row["reason"], f"{row['count']:,}",
            format_ns(row["total_ns"]), format_ns(row["p50_ns"]), format_ns(row["p99_ns"]), format_ns(row["max_ns"]),
        )
        for row in ordered.iter_rows(named=True)
        if row["count"]
    ]  # fmt: skip
    title = "Exits by reason, those that took most first"
    return _listing((*group, "reason", "count", "time", "p50", "p99", "max"), rows, title, (*group, "reason"))


def _savings(parts: list[Saving], asked: str) -> str:
    every = [*parts, in_all(parts)] if len(parts) > 1 else parts
    rows = [
        (one.line, one.vendor, f"{one.hosts:,}", f"{one.untold:,}", f"{one.removed:,}", _hours(one.mid),
         f"{_hours(one.low)} – {_hours(one.high)}")
        for one in every
    ]  # fmt: skip
    columns = ("kernel", "vendor", "hosts", "not told", "exits removed", "core-hours a day", "95 %")
    return table(columns, rows, f"Saved with {printable(asked)}", left=("kernel", "vendor"))


def _outliers(fleet: Fleet) -> str:
    names = {"exits_per_vcpu_second": ("exits/s of a vCPU", _rate), "outside": ("out of the guest", _share)}
    rows = []
    for one in fleet.outliers:
        name, shown = names[one.metric]
        where = " ".join(part for part in (one.line, one.vendor, one.kind) if part)
        rows.append((one.host, where, name, shown(one.value), shown(one.median), f"{one.score:+.1f}"))
    columns = ("host", "of", "what", "here", "median there", "score")
    return _listing(columns, rows, "Hosts unlike the others", ("host", "of", "what"))


def _know(fleet: Fleet) -> Iterator[str]:
    yield (
        f"percentiles are of DDSketches, within {ACCURACY:.0%} of a duration of that rank; all else is added up exactly"
    )
    if fleet.savings:
        yield (
            "core-hours a day take each host to go on as it did while it was traced; the interval adds up those of the "
            "hosts as independent"
        )
        untold = fleet.tables["traces"]["whatif_cannot"].drop_nulls().value_counts(sort=True).sort(
            "count", "whatif_cannot", descending=[True, False]
        )  # fmt: skip
        for why, count in untold.head(3).iter_rows():
            yield f"not told of {count:,} traces: {why}"
    partial = int((~fleet.tables["traces"]["complete"]).sum())
    if partial:
        yield f"{partial:,} traces are damaged or end early; what they hold is in the tables"
    lost = int(fleet.tables["traces"]["lost"].sum())
    if lost:
        yield f"{lost:,} events were lost while recording"


def swept(found: Swept, output: str) -> str:
    """What came of a sweep."""
    status = ", ".join(f"{count:,} {name}" for name, count in found.status.items())
    head = fields((("cells", f"{found.cells:,}: {status}"), ("dataset", f"{output}/cells/**/*.parquet")))
    why = paragraphs("Why not", _listed([f"{count:,} cells: {error}" for error, count in found.errors]))
    return "\n".join(part for part in (head, why) if part)


def judged(ward: Ward) -> str:
    """What was found on many hosts."""
    levels = [level.label for level in LEVELS]
    folder = _common_folder(ward.hosts["host"].to_list())
    rows = [
        (
            row["host"].removeprefix(folder), row["release"] or "?", row["vendor"] or "?",
            *(row[level] for level in levels), row["worst_findings"] or "-",
        )
        for row in ward.hosts.iter_rows(named=True)
    ]  # fmt: skip
    left = ("host", "kernel", "cpu", "worst findings")
    title = _hosts(len(rows)) + (f" in {folder}" if folder else "") + ", the worst first"
    fixes = [
        (fix.severity.label, f"{len(fix.hosts):,}", fix.id, fix.text + (" (reboot)" if fix.needs_reboot else ""))
        for fix in ward.fixes
    ]
    columns = ("severity", "hosts", "finding", "fix")
    parts = [
        _listing(("host", "kernel", "cpu", *levels, "worst findings"), rows, title, left),
        _listing(columns, fixes, "Fixes, the worst and most frequent first", ("severity", "finding", "fix")),
    ]
    parts.append(paragraphs("Not read", _listed([f"{path}: {error}" for path, error in ward.failed])))
    return "\n".join(part for part in parts if part)


def _common_folder(names: list[str]) -> str:
    """The folder all *names* are in, with its slash; hosts that their snapshots do not name are named by paths."""
    folders = {name.rpartition("/")[0] for name in names}
    return f"{folders.pop()}/" if len(folders) == 1 and "" not in folders else ""


def _listing(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str, left: Sequence[str]) -> str:
    """The first of *rows* as a table, and how many more there are; nothing if there is none."""
    if not rows:
        return ""
    more = f"... and {len(rows) - _MOST:,} more; --json has them all\n" if len(rows) > _MOST else ""
    return table(columns, rows[:_MOST], title, left=left) + more


def _listed(sentences: list[str]) -> list[str]:
    more = len(sentences) - _MOST
    return sentences[:_MOST] + ([f"and {more:,} more; --json has them all"] if more > 0 else [])


def _hosts(count: int) -> str:
    return f"{count:,} host" + ("" if count == 1 else "s")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _hours(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.0f}"
