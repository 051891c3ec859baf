"""The text of ``wsw run``: a table of programs, the faults they met, latencies, and what to know about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldswitch.cli.access_text import access_cases, is_access
from worldswitch.kit.text import LATENCIES, faults_each, latencies, name_of, number, percentiles, reasons
from worldswitch.record.result import differences
from worldswitch.report.tables import WIDTH, fields, paragraphs, table
from worldswitch.units import format_ns
from worldswitch.x86.exceptions import PAGE_FAULT, error_bits, exception_name

if TYPE_CHECKING:
    from worldswitch.record.result import Cell, FaultSeen, Metric, Result, Spread

    Placed = tuple[int, Cell]
    """A cell and its place among all."""

_WHERE = ("on", "kernel", "cpu", "mmu", "module", "build")
_PARAMETERS = ("kvm_intel.ept", "kvm_amd.npt", "kvm.tdp_mmu", "kvm.nx_huge_pages")
_FAULTS_SHOWN = 20
_LEAST_SHOWN = 0.05
"""What happens less often than in one unit of twenty is not of the unit."""
_OTHERS = ("program", "KVM's other counters, for each unit")
DIFFERS = "≠"
"""Marks exits that differ in number from the same program's first cell."""


def text(result: Result) -> str:
    """All that a person wants to see of *result*, no wider than 100 columns."""
    return "\n".join(part for part in _parts(result) if part)


def _parts(result: Result) -> Iterator[str]:
    cells = result.cells
    varying = _varying(cells)
    yield fields(_about(result, varying))
    yield from _programs(cells, varying)
    yield _faults(cells, varying)
    yield from (access_cases(cell) for cell in cells if is_access(cell))
    yield _created(cells, varying)
    yield paragraphs("What to know", notes(cells))


def notes(cells: Sequence[Cell]) -> Iterator[str]:
    """Each note once, with the programs and machines it is about where those are not all."""
    about: dict[str, list[Cell]] = {}
    for cell in cells:
        for note in dict.fromkeys(cell.notes):
            about.setdefault(note, []).append(cell)
    for note, those in about.items():
        parts = [", ".join(some) for of in (_name, _machine) if (some := _if_not_all(those, cells, of))]
        yield f"{' on '.join(parts)}: {note}" if parts else note


def _machine(cell: Cell) -> str:
    return str(cell.dimensions.get("on"))


def _if_not_all(some: Sequence[Cell], cells: Sequence[Cell], of: Callable[[Cell], str]) -> list[str]:
    """What *some* of the *cells* are, each once; nothing if there is no other."""
    found = list(dict.fromkeys(map(of, some)))
    return found if len(found) < len(set(map(of, cells))) else []


def _about(result: Result, varying: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if not result.cells:
        return
    first = result.cells[0].dimensions
    around = result.environment_of(result.cells[0])

    def fixed(name: str) -> Any:
        return None if name in varying else first.get(name)

    module = fixed("module")
    yield "on", ", ".join(filter(None, (fixed("on"), f"module {module}" if module else None)))
    yield "kernel", fixed("kernel")
    if all(result.environment_of(cell) == around for cell in result.cells):
        yield "processor", around.cpu_model
        told = {name: around.parameters[name] for name in _PARAMETERS if name in around.parameters}
        yield "mmu", ", ".join(filter(None, (fixed("mmu"), *(f"{name}={value}" for name, value in told.items()))))
    else:
        yield "mmu", fixed("mmu")


def _varying(cells: Sequence[Cell]) -> list[str]:
    """The conditions that are not the same for all cells."""
    return [name for name in _WHERE if len({str(cell.dimensions.get(name)) for cell in cells}) > 1]


def _programs(cells: Sequence[Cell], varying: Sequence[str]) -> Iterator[str]:
    """One table of all programs; under several conditions an overview, then a table for each program."""
    groups = _by_program([(place, cell) for place, cell in enumerate(cells) if cell.create_vm_ns is None])
    differing = _differing(cells)
    if not varying:
        guests = [one for group in groups.values() for one in group]
        if guests:
            yield _table(("program", "n", "unit"), guests, differing, "For each unit")
            yield _other_counters([cell for _, cell in guests])
        return
    # The module follows from the processor.
    where = [name for name in varying if name != "module" or "cpu" not in varying]
    if len(groups) > 1:
        yield _overview(groups, where, differing)
    for name, group in groups.items():
        counts = {cell.n for _, cell in group}
        n = f", n = {group[0][1].n:,}" if len(counts) == 1 else ""
        columns = (*where, *(() if n else ("n",)))
        yield _table(columns, group, differing, f"{name}: for each {group[0][1].unit}{n}")


def _table(first: Sequence[str], placed: Sequence[Placed], differing: set[int], title: str) -> str:
    """Rows of cells: what *first* names, then exits, times, faults and, last, exits by reason."""
    rows = []
    for place, cell in placed:
        told = {"program": _name(cell), "n": f"{cell.n:,}", "unit": cell.unit}
        rows.append(
            {
                **{name: told[name] if name in told else cell.dimensions.get(name) for name in first},
                "exits": _exits(cell, place in differing),
                "time": None if cell.time_ns is None else format_ns(cell.time_ns.mid),
                "low – high": _limits(cell.time_ns),
                "faults": faults_each(cell),
                "of these exits": reasons(cell.per_op),
            }
        )
    shown = {*first, "exits"}
    columns = [name for name in rows[0] if name in shown or any(row[name] is not None for row in rows)]
    left = [name for name in (*first, "of these exits") if name != "n"]
    return table(columns, [[row[name] for name in columns] for row in rows], title, left=left)


def _exits(cell: Cell, differs: bool) -> str | None:
    exits = cell.per_op.get("exits")
    if not isinstance(exits, int | float):
        return None
    return f"{number(exits)} {DIFFERS}" if differs else number(exits)


def _overview(groups: Mapping[str, Sequence[Placed]], where: Sequence[str], differing: set[int]) -> str:
    """Exits of each program under each condition."""
    rows: dict[tuple[str, ...], dict[str, str | None]] = {}
    for name, group in groups.items():
        for place, cell in group:
            key = tuple(str(cell.dimensions.get(one, "-")) for one in where)
            rows.setdefault(key, {})[name] = _exits(cell, place in differing)
    widths = [max(8, len(one), *(len(key[place]) for key in rows)) + 2 for place, one in enumerate(where)]
    tables: list[str] = []
    for names in _chunks(list(groups), WIDTH - sum(widths)):
        lines = [[*key, *(row.get(name) for name in names)] for key, row in rows.items()]
        tables.append(table((*where, *names), lines, "" if tables else "Exits for each unit", left=where))
    return "\n".join(tables)


def _chunks(names: Sequence[str], width: int) -> Iterator[list[str]]:
    """The names in as many lines as *width* makes needful."""
    chunk: list[str] = []
    for name in names:
        if chunk and sum(max(7, len(one)) + 2 for one in (*chunk, name)) > width:
            yield chunk
            chunk = []
        chunk.append(name)
    yield chunk


def _other_counters(cells: Sequence[Cell]) -> str:
    """What else KVM counted for each unit, where it does not tell exits by reason: then it is all there is to see."""
    rows = []
    for cell in cells:
        if reasons(cell.per_op) is not None:
            continue
        found = [
            f"{number(value)} {name}"
            for name, value in cell.per_op.items()
            if name != "exits" and isinstance(value, int | float) and value >= _LEAST_SHOWN
        ]
        if found:
            rows.append((_name(cell), ", ".join(found)))
    return table(_OTHERS, rows, left=_OTHERS) if rows else ""


def _by_program(placed: Sequence[Placed]) -> dict[str, list[Placed]]:
    """The cells of each program, as they are to be compared; programs and cells in their order."""
    groups: dict[str, list[Placed]] = {}
    for place, cell in placed:
        groups.setdefault(_name(cell), []).append((place, cell))
    return groups


def _differing(cells: Sequence[Cell]) -> set[int]:
    """Places of cells that make another number of exits than the first cell of the same program.

    A few exits of the first passes, page faults most often, are no difference of what a unit does.
    """
    found = set()
    for row in differences(tuple(cells)):
        if row["counter"] == "exits":
            first, *others = row["per_op"]
            found |= {other["cell"] for other in others if abs(other["value"] - first["value"]) >= _LEAST_SHOWN}
    return found


def _name(cell: Cell) -> str:
    return name_of(cell, _defaults)


def _defaults(name: str) -> dict[str, Any]:
    from worldswitch.errors import UnknownNameError
    from worldswitch.guest import library

    try:
        return {one.name: one.default for one in library.parameters(name)}
    except UnknownNameError:
        return {}


def _limits(spread: Spread | None) -> str | None:
    return None if spread is None else f"{format_ns(spread.low)} – {format_ns(spread.high)}"


def _faults(cells: Sequence[Cell], varying: Sequence[str]) -> str:
    """The faults of each program; once for all conditions where they are the same under all."""
    rows: list[tuple[Any, ...]] = []
    where = [name for name in varying if name != "module" or "cpu" not in varying]
    apart = False
    for name, group in _by_program([(place, cell) for place, cell in enumerate(cells) if not is_access(cell)]).items():
        first = group[0][1]
        if len(group) > 1 and first.faults and all(cell.faults == first.faults for _, cell in group):
            rows += [(name, *["any"] * len(where), *_fault(fault)) for fault in first.faults]
            continue
        for _, cell in group:
            apart |= bool(cell.faults)
            told = (name, *(cell.dimensions.get(one) for one in where))
            rows += [(*told, *_fault(fault)) for fault in cell.faults]
    if not rows:
        return ""
    varying = where if apart else []
    rows = rows if apart else [(row[0], *row[1 + len(where) :]) for row in rows]
    rest = len(rows) - _FAULTS_SHOWN
    more = f"... and {rest} rows more (--json has all)\n" if rest > 0 else ""
    columns = ("program", *varying, "operation", "exception", "error code", "CR2", "RIP", "count")
    left = ("program", *varying, "operation", "exception", "error code")
    return table(columns, rows[:_FAULTS_SHOWN], "Faults", left=left) + more


def _fault(fault: FaultSeen) -> tuple[Any, ...]:
    page_fault = fault.vector == PAGE_FAULT
    bits = error_bits(fault.error_code) if page_fault else ""
    return (
        fault.operation,
        exception_name(fault.vector),
        f"{fault.error_code:#x}{f' ({bits})' if bits else ''}",
        f"{fault.cr2:#x}" if page_fault else None,
        f"{fault.rip:#x}",
        f"{fault.count:,}",
    )


def _created(cells: Sequence[Cell], varying: Sequence[str]) -> str:
    """Latencies of create-vm under each condition; where some are simulated, with their limits and a column less."""
    made = [cell for cell in cells if cell.create_vm_ns is not None]
    limited = any(cell.time_ns for cell in made)
    interrupted = any(cell.counters.get("eintr") for cell in made) or not limited
    where = _telling(made, varying)
    rows = []
    for cell in made:
        known = {metric.name: metric for metric in cell.metrics}
        own = [metric for name, metric in known.items() if name in LATENCIES]
        for metric, row in zip(own, latencies(replace(cell, metrics=tuple(own))), strict=True):
            name, calls, p50, p95, p99, most, eintr = row
            shown = [name, calls, p50, _p50_limits(metric.name, known)] if limited else [name, calls, p50, p95]
            shown += [p99, most, *([eintr] if interrupted else [])]
            rows.append((*(cell.dimensions.get(one) for one in where), *shown))
    if not rows:
        return ""
    columns = [*where, "latency of", "calls", "p50", "low – high" if limited else "p95", "p99", "max"]
    columns += ["EINTR"] * interrupted
    return table(columns, rows, left=(*where, "latency of"))


def _telling(cells: Sequence[Cell], varying: Sequence[str]) -> list[str]:
    """Of the conditions that vary, those that tell the cells apart: what pages a guest says little of its creation."""

    def keys(names: Sequence[str]) -> set[str]:
        return {str([cell.dimensions.get(name) for name in names]) for cell in cells}

    where = [name for name in varying if name not in ("mmu", "module")]
    return where if len(keys(where)) == len(keys(varying)) else list(varying)


def _p50_limits(name: str, known: Mapping[str, Metric]) -> str | None:
    """What the median would be with all costs low, and high; None where nothing was simulated."""
    ends = [known.get(f"{name}_{end}") for end in ("low", "high")]
    return " – ".join(percentiles(metric.values)[0] for metric in ends if metric) or None
