"""What ``wsw run --save`` wrote: exits for each unit, times with their limits, and how long making VMs took."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.record.result import BY_REASON
from worldswitch.report import draw
from worldswitch.report.document import Column, Figure, Finding, Origin, Part, Section, Table, command
from worldswitch.report.words import many
from worldswitch.stats.percentile import nearest_rank
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.record.result import Cell, Result
    from worldswitch.report.inputs import ResultInput

_WHERE = ("on", "kernel", "cpu", "mmu", "module")
_MOST_REASONS = 7
_DRAWN = 40
_WEIGHT = 60.0
_QUANTILES = (50, 95, 99)


def part(given: ResultInput, ident: str) -> Part:
    """All about one saved Result."""
    result = given.result
    guests = [cell for cell in result.cells if cell.create_vm_ns is None]
    made = [cell for cell in result.cells if cell.create_vm_ns]
    sections = [*_guests(given, guests, ident), *_created(given, made, ident)]
    notes = list(dict.fromkeys(note for cell in result.cells for note in cell.notes))
    notes += [f"Cost {name}: {origin}" for name, origin in result.provenance.costs.items()]
    sections += _about(given, notes, ident)
    found = [*_told_by_guests(given, guests, ident), *_told_by_created(given, made, ident)]
    return Part(ident, "result", given.path, list(_facts(result)), sections, found)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    around, source = result.environment, result.provenance
    if source.argv:
        yield "command", _command(result)
    yield "made by", f"worldswitch {source.tool_version}" + (f", {source.started}" if source.started else "")
    for name, value in (("processor", around.cpu_model), ("host kernel", around.kernel)):
        if value:
            yield name, value
    yield "cells", f"{len(result.cells):,}"


def _command(result: Result) -> str:
    argv = list(result.provenance.argv)
    return command(*(argv[1:] if argv and argv[0].endswith("wsw") else argv))


def _varying(cells: Sequence[Cell]) -> list[str]:
    return [name for name in _WHERE if len({str(cell.dimensions.get(name)) for cell in cells}) > 1]


def _place(cell: Cell, varying: Sequence[str]) -> str:
    """What tells a cell from the others."""
    names = [str(cell.dimensions.get(name, "-")) for name in varying if name != "module" or "cpu" not in varying]
    return " · ".join(names) or str(cell.dimensions.get("on"))


def _programs(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(str(cell.dimensions.get("program")), []).append(cell)
    return found


def _reasons(cell: Cell) -> dict[str, float]:
    told = cell.per_op.get(BY_REASON)
    return {name: float(count) for name, count in told.items()} if isinstance(told, Mapping) else {}


def _exits(cell: Cell) -> float | None:
    value = cell.per_op.get("exits")
    return float(value) if isinstance(value, int | float) else None


def _number(value: float) -> str:
    return f"{value:,.4g}" if value < 10_000 else f"{value:,.0f}"


def _guests(given: ResultInput, cells: Sequence[Cell], ident: str) -> Iterator[Section]:
    figures = []
    for place, (program, group) in enumerate(_programs(cells).items()):
        figures.append(_per_unit(given, program, group, f"{ident}-exits-{place}"))
        timed = [cell for cell in group if cell.time_ns is not None]
        if timed:
            figures.append(_times(given, program, timed, f"{ident}-times-{place}"))
    if figures:
        lead = "Counts of a run less those of a run without any passes, divided by the passes."
        yield Section(f"{ident}-guests", "Guest programs", lead, figures)


def _per_unit(given: ResultInput, program: str, cells: Sequence[Cell], ident: str) -> Figure:
    varying = _varying(cells)
    totals: dict[str, float] = {}
    for cell in cells:
        for name, count in _reasons(cell).items():
            totals[name] = totals.get(name, 0) + count
    order = sorted(totals, key=lambda name: -totals[name])
    tone = {name: draw.colour(place) if place < _MOST_REASONS else draw.REST for place, name in enumerate(order)}
    most = max((_exits(cell) or 0 for cell in cells), default=0) or 1
    lines = [
        draw.Row(
            _place(cell, varying), "", _stack(cell, tone, most), "-" if (n := _exits(cell)) is None else _number(n)
        )
        for cell in cells[:_DRAWN]
    ]
    counters = sorted({name for cell in cells for name in cell.per_op} - {"exits", BY_REASON})
    columns = [*(Column(name, "code") for name in _WHERE), Column("n", "count"), Column("exits", "number")]
    columns += [Column(name, "number") for name in (*order, *counters)]
    rows: list[list[Any]] = [
        [*(cell.dimensions.get(name) for name in _WHERE), cell.n, _exits(cell)]
        + [_reasons(cell).get(name) for name in order]
        + [cell.per_op.get(name) for name in counters]
        for cell in cells
    ]
    unit = cells[0].unit or "unit"
    return Figure(
        ident,
        f"{program}: exits for each {unit}",
        "A bar for each machine, kernel and processor; none means that no exit is left.",
        Origin(given.path, _command(given.result), "counters of wsw run, per unit"),
        Table(columns, rows),
        draw.rows(lines, "; ".join(f"{line.label}: {line.value}" for line in lines)),
        legend=[(tone[name], name) for name in order[:_MOST_REASONS]]
        + ([(draw.REST, "other reasons")] if len(order) > _MOST_REASONS else []),
    )


def _stack(cell: Cell, tone: dict[str, str], most: float) -> Any:
    """The exits of one cell, reason after reason; in one piece where reasons are not told."""
    at, segments = 0.0, []
    parts = _reasons(cell) or {"exits": _exits(cell) or 0.0}
    for name, count in sorted(parts.items(), key=lambda one: -one[1]):
        if count > 0:
            segments.append(
                draw.Segment(tone.get(name, "c0"), f"{name}: {_number(count)}", at / most, (at + count) / most)
            )
            at += count
    return draw.bar(segments)


def _times(given: ResultInput, program: str, cells: Sequence[Cell], ident: str) -> Figure:
    varying = _varying(cells)
    spreads = [cell.time_ns for cell in cells if cell.time_ns is not None]
    axis = draw.scale(value for spread in spreads for value in spread)
    lines, rows = [], []
    for cell, spread in zip(cells, spreads, strict=True):
        low, mid, high = (axis.at(value) for value in spread)
        picture = draw.bar([draw.Segment("c0", format_ns(spread.mid), max(0.0, mid - 0.004), mid + 0.004)], (low, high))
        shown = f"{format_ns(spread.mid)} ({format_ns(spread.low)} – {format_ns(spread.high)})"
        lines.append(draw.Row(_place(cell, varying), "" if cell.steady else "not steady", picture, shown))
        rows.append([*(cell.dimensions.get(name) for name in _WHERE), *spread, cell.steady])
    columns = [*(Column(name, "code") for name in _WHERE), *(Column(name, "ns") for name in ("low", "mid", "high"))]
    return Figure(
        ident,
        f"{program}: time of each {cells[0].unit or 'unit'}",
        "The middle and its limits, on a logarithmic axis.",
        Origin(given.path, _command(given.result), "measured on kvm and lab; on the model counts times costs"),
        Table([*columns, Column("steady")], rows),
        draw.rows(lines[:_DRAWN], "; ".join(f"{line.label}: {line.value}" for line in lines[:_DRAWN]), axis.axis()),
    )


def _created(given: ResultInput, cells: Sequence[Cell], ident: str) -> Iterator[Section]:
    if not cells:
        return
    varying = _varying(cells)
    axis = draw.scale(value for cell in cells for value in cell.create_vm_ns or ())
    lines, rows = [], []
    for cell in cells:
        values = sorted(cell.create_vm_ns or ())
        p50, p95, p99 = (values[nearest_rank(len(values), p)] for p in _QUANTILES)
        marks = [draw.Mark("p50", "p50", p50), draw.Mark("p99", "p99", p99)]
        picture = draw.distribution(draw.binned(values), axis, marks)
        shown = f"p50 {format_ns(p50)} · p99 {format_ns(p99)} · max {format_ns(values[-1])}"
        if cell.dimensions.get("on") == "model" and cell.time_ns is not None:
            shown = f"p50 {format_ns(p50)}, by the costs' limits {format_ns(cell.time_ns.low)} – "
            shown += format_ns(cell.time_ns.high)
        lines.append(draw.Row(_place(cell, varying), many(len(values), "call"), picture, shown))
        rows.append(
            [*(cell.dimensions.get(name) for name in _WHERE), len(values), values[0], p50, p95, p99, values[-1]]
        )
    columns = [*(Column(name, "code") for name in _WHERE), Column("calls", "count")]
    columns += [Column(name, "ns") for name in ("min", "p50", "p95", "p99", "max")]
    figure = Figure(
        f"{ident}-create-vm",
        "How long KVM_CREATE_VM takes",
        "Height: calls of that duration; the axis is logarithmic, lines stand at the median and the 99th percentile.",
        Origin(given.path, _command(given.result), _method(cells)),
        Table(columns, rows),
        draw.rows(lines, "; ".join(f"{line.label}: {line.value}" for line in lines), axis.axis()),
    )
    calls = [
        [_place(cell, varying), number, ns] for cell in cells for number, ns in enumerate(cell.create_vm_ns or (), 1)
    ]
    most = 2000
    cut = f"The first {most:,} of {len(calls):,} calls; the file has all." if len(calls) > most else ""
    each = Figure(
        f"{ident}-create-vm-calls",
        "The calls one by one",
        "",
        Origin(given.path, _command(given.result), _method(cells)),
        Table([Column("where", "code"), Column("call", "count"), Column("took", "ns")], calls[:most], cut),
    )
    yield Section(f"{ident}-created", "Making VMs", figures=[figure, each])


def _about(given: ResultInput, notes: list[str], ident: str) -> Iterator[Section]:
    rows = [[name, str(value)] for name, value in given.result.environment.parameters.items()]
    rows += [[name, str(value)] for name, value in given.result.environment.machine.items()]
    figure = Figure(
        f"{ident}-environment",
        "Parameters of the machine",
        "",
        Origin(given.path, _command(given.result), "as the machine had them"),
        Table([Column("name", "code"), Column("value", "code")], rows),
    )
    if rows or notes:
        yield Section(f"{ident}-notes", "What to know", figures=[figure] if rows else [], notes=notes)


def _told_by_guests(given: ResultInput, cells: Sequence[Cell], ident: str) -> Iterator[Finding]:
    """For each program the machines with most and fewest exits."""
    for program, group in _programs(cells).items():
        known = [(count, cell) for cell in group if (count := _exits(cell)) is not None]
        if not known:
            continue
        varying = _varying(group)
        dear, cheap = max(known, key=lambda one: one[0]), min(known, key=lambda one: one[0])
        unit = dear[1].unit or "unit"
        # What is the same as printed is no difference to tell.
        differ = _number(dear[0]) != _number(cheap[0])
        if not differ:
            headline = f"{program}: {_number(dear[0])} exits for each {unit}, wherever it ran."
        else:
            headline = (
                f"{program}: {_number(dear[0])} exits for each {unit} on {_place(dear[1], varying)}, "
                f"{_number(cheap[0])} on {_place(cheap[1], varying)}."
            )
        most = sorted(_reasons(dear[1]).items(), key=lambda one: -one[1])
        reasons = ", ".join(f"{_number(count)} {name}" for name, count in most if count)
        yield Finding(
            "cost" if differ else "notice",
            headline,
            why=[f"{'Where there are most they are' if differ else 'They are'} {reasons}."] if reasons else [],
            about=given.path,
            link=f"{ident}-guests",
            weight=_WEIGHT - 1 + differ,
        )


def _told_by_created(given: ResultInput, cells: Sequence[Cell], ident: str) -> Iterator[Finding]:
    if not cells:
        return
    varying = _varying(cells)
    middles = [(statistics.median(cell.create_vm_ns or (0,)), cell) for cell in cells]
    slow, fast = max(middles, key=lambda one: one[0]), min(middles, key=lambda one: one[0])
    headline = f"KVM_CREATE_VM takes {format_ns(slow[0])} in the median"
    if len(cells) > 1 and slow[0] > fast[0]:
        headline += f" on {_place(slow[1], varying)}, {format_ns(fast[0])} on {_place(fast[1], varying)}"
    yield Finding(
        "cost",
        f"{headline}.",
        why=list(_about_calls(cells, slow[1], varying)),
        about=given.path,
        link=f"{ident}-created",
        weight=_WEIGHT + 1,
    )


def _method(cells: Sequence[Cell]) -> str:
    on_model = [cell.dimensions.get("on") == "model" for cell in cells]
    if all(on_model):
        return "computed from steps and their costs, not measured"
    return "every call that counts, in the order measured" + ("; those on the model are computed" * any(on_model))


def _about_calls(cells: Sequence[Cell], slow: Cell, varying: Sequence[str]) -> Iterator[str]:
    """How far to trust the median, and how much longer a call may take."""
    if slow.dimensions.get("on") == "model" and slow.time_ns is not None:
        low, _, high = (format_ns(value) for value in slow.time_ns)
        yield f"This is computed, not measured: {low} with all costs at their low limits, {high} at their high ones."
    longest = max(cells, key=lambda cell: max(cell.create_vm_ns or (0,)))
    if len(longest.create_vm_ns or ()) > 1:
        where = f" ({_place(longest, varying)})" if len(cells) > 1 else ""
        yield f"The longest call took {format_ns(max(longest.create_vm_ns or (0,)))}{where}."
