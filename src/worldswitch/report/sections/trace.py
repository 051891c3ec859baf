"""A trace: facts about the file, and its sections in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from worldswitch.report import headlines
from worldswitch.report.document import Column, Figure, Origin, Part, Section, Table, command
from worldswitch.report.sections import exits, over_time, whatif
from worldswitch.report.words import capital, many
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.record.trace import Meta
    from worldswitch.report.study import Study


def part(study: Study, ident: str) -> Part:
    """All about one trace; ids in it begin with *ident*."""
    meta = study.account.meta
    sections = [
        *over_time.sections(study, ident),
        *exits.sections(study, ident),
        *whatif.sections(study, ident),
        *_tables(study, ident),
        *_notes(study, ident),
    ]
    return Part(ident, "trace", study.path, list(_facts(study, meta)), sections, headlines.findings(study, ident))


def _facts(study: Study, meta: Meta) -> Iterator[tuple[str, str]]:
    yield "format", meta.format + (f", {meta.tool}" if meta.tool else "")
    if meta.kernel:
        yield "kernel", meta.kernel
    host = ", ".join(filter(None, (meta.cpu_model or meta.vendor, many(meta.cpus, "CPU") if meta.cpus else "")))
    if host:
        yield "host", host
    if meta.first_ns is not None and meta.last_ns is not None:
        yield "span", format_ns(meta.last_ns - meta.first_ns)
    yield "events", f"{sum(meta.events.values()):,}" + (f", {meta.lost:,} lost" if meta.lost else "")
    if study.account.count:
        yield "exits", f"{study.account.count:,}, {format_ns(study.account.total_ns)} outside the guest"
    if meta.command:
        yield "recorded by", meta.command


_KINDS = {"ns": "ns", "percent": "number", "s": "seconds"}


def _tables(study: Study, ident: str) -> Iterator[Section]:
    """Tables that came ready-made: ioctls of strace, rows of other tools."""
    figures = []
    for name, rows in study.account.tables.items():
        if rows:
            columns = [_column(key, rows) for key in rows[0]]
            body = [[row.get(key) for key in rows[0]] for row in rows]
            origin = Origin(study.path, command("analyze", study.path), "the rows of the file, added up by request")
            figures.append(Figure(f"{ident}-{name}", name, "", origin, Table(columns, body)))
    if figures:
        yield Section(f"{ident}-tables", "What is no exit", "Calls and rows of other tools in this file.", figures)


def _column(key: str, rows: list[dict[str, Any]]) -> Column:
    if key.endswith("_ns"):
        return Column(key.removesuffix("_ns"), "ns")
    values = [row.get(key) for row in rows if row.get(key) is not None]
    kind = "text" if any(isinstance(value, str) for value in values) else "count"
    return Column(key, "number" if any(isinstance(value, float) for value in values) else kind)


def _notes(study: Study, ident: str) -> Iterator[Section]:
    """What the detectors saw, and what is odd about the file."""
    meta = study.account.meta
    notes = [f"{seen.id}: {seen.detail}" for seen in study.account.detections]
    notes += [capital(note) for note in (*meta.notes, *(() if meta.complete else meta.damage))]
    if meta.out_of_order:
        notes.append(f"{meta.out_of_order:,} events came out of order")
    if meta.malformed:
        notes.append(f"{meta.malformed:,} records could not be decoded")
    if meta.skipped_lines:
        notes.append(f"{meta.skipped_lines:,} lines are no events")
    events = sorted(((name, n) for name, n in meta.events.items() if n), key=lambda pair: -pair[1])
    origin = Origin(study.path, command("analyze", study.path), "every record of the file, decoded or not")
    figure = Figure(
        f"{ident}-events",
        "Events in the file",
        "",
        origin,
        Table([Column("event", "code"), Column("records", "count")], events),
    )
    lead = "What the detectors of wsw analyze saw." if notes else "The detectors of wsw analyze saw nothing."
    yield Section(f"{ident}-notes", "The recording", lead, [figure] if events else [], notes=notes)
