"""The conformance table: on how many programs the model and a real kernel agree exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldswitch.report import draw
from worldswitch.report.document import Column, Figure, Finding, Origin, Part, Section, Table, command

if TYPE_CHECKING:
    from worldswitch.report.inputs import ConformanceInput

_KINDS = (("equal", "good"), ("named", "c3"), ("unexplained", "bad"))


def part(given: ConformanceInput, ident: str) -> Part:
    """All rows, one for each kernel, processor and way to page."""
    rows = given.rows
    most = max((row["run"] for row in rows), default=0) or 1
    lines = [draw.Row(f"{row['kernel']} · {row['cpu']} · {row['mmu']}", str(row.get("emulator", "")),
                      _bar(row, most), f"{row['equal']:,} of {row['run']:,} equal") for row in rows]  # fmt: skip
    columns = [Column("kernel", "code"), Column("processor", "code"), Column("MMU", "code"), Column("emulator", "code")]
    columns += [Column(name, "count") for name in ("run", "equal", "named", "unexplained", "failed")]
    columns += [Column("statistics equal", "count"), Column("statistics run", "count"), Column("named differences")]
    table = [
        [row["kernel"], row["cpu"], row["mmu"], row.get("emulator"), row["run"], row["equal"], row["named"],
         row["unexplained"], _length(row.get("failed")), row["statistics_equal"], row["statistics_run"], _names(row)]
        for row in rows
    ]  # fmt: skip
    run, equal = sum(row["run"] for row in rows), sum(row["equal"] for row in rows)
    unexplained = sum(row["unexplained"] for row in rows)
    figure = Figure(
        f"{ident}-table",
        "Programs on the model and on real kernels",
        "Equal: exits, faults, values and page tables are exactly those of the real kernel. Named: they differ "
        "in a way "
        "that is known and said.",
        Origin(given.path, command("conform", "-o", given.path), "the same programs, the same seed, on both"),
        Table(columns, table),
        draw.rows(lines, "; ".join(f"{line.label}: {line.value}" for line in lines)),
        legend=[("good", "equal"), ("c3", "named difference"), ("bad", "unexplained")],
    )
    finding = Finding(
        "warning" if unexplained else "ok",
        f"The model agrees exactly with real kernels on {equal:,} of {run:,} programs; {unexplained:,} differ "
        "unexplained.",
        why=[f"{sum(row['named'] for row in rows):,} more differ in a named, known way."],
        about=given.path,
        link=f"{ident}-table",
        weight=40.0 if unexplained else 24.0,
    )
    section = Section(f"{ident}-conformance", "Conformance", figures=[figure])
    return Part(ident, "conformance", given.path, [("rows", f"{len(rows):,}")], [section], [finding])


def _bar(row: Any, most: int) -> Any:
    at, segments = 0, []
    for kind, tone in _KINDS:
        if row[kind] > 0:
            segments.append(draw.Segment(tone, f"{kind}: {row[kind]:,}", at / most, (at + row[kind]) / most))
            at += row[kind]
    return draw.bar(segments)


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, (dict, list)) else None


def _names(row: Any) -> str:
    told = row.get("by_name")
    return ", ".join(f"{name} ({count})" for name, count in told.items()) if isinstance(told, dict) else ""
