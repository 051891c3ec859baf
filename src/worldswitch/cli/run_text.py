"""The text of ``wsw run``: a table of programs, the faults they met, latencies, and what to know about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.cli.access_text import access_cases, is_access
from worldswitch.kit.text import faults_each, latencies, name_of, number, reasons
from worldswitch.record.result import differences
from worldswitch.report.tables import fields, paragraphs, table
from worldswitch.units import format_ns
from worldswitch.x86.exceptions import PAGE_FAULT, error_bits, exception_name

if TYPE_CHECKING:
    from worldswitch.record.result import Cell, FaultSeen, Result, Spread

_WHERE = ("on", "kernel", "cpu", "mmu", "module", "build")
_PARAMETERS = ("kvm_intel.ept", "kvm_amd.npt", "kvm.tdp_mmu", "kvm.nx_huge_pages")
_FAULTS_SHOWN = 20
_ALWAYS = ("program", "n", "unit", "exits", "time", "low – high")
DIFFERS = "≠"
"""Marks a count that differs from the same program's first cell."""


def text(result: Result) -> str:
    """All that a person wants to see of *result*, no wider than 100 columns."""
    return "\n".join(part for part in _parts(result) if part)


def _parts(result: Result) -> Iterator[str]:
    cells = result.cells
    varying = _varying(cells)
    yield fields(_about(result, varying))
    yield _programs(cells, varying)
    yield _faults(cells, varying)
    yield from (access_cases(cell) for cell in cells if is_access(cell))
    yield _created(cells, varying)
    yield paragraphs("What to know", notes(cells))


def notes(cells: Sequence[Cell]) -> Iterator[str]:
    """Each note once, with the programs it is about where those are not all."""
    about: dict[str, dict[str, None]] = {}
    for cell in cells:
        for note in cell.notes:
            about.setdefault(note, {})[_name(cell)] = None
    everyone = {_name(cell) for cell in cells}
    for note, names in about.items():
        yield note if len(names) == len(everyone) else f"{', '.join(names)}: {note}"


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


def _programs(cells: Sequence[Cell], varying: Sequence[str]) -> str:
    guests = _by_program([(place, cell) for place, cell in enumerate(cells) if cell.create_vm_ns is None])
    if not guests:
        return ""
    differing = _differing(cells)
    rows = []
    for place, cell in guests:
        exits = cell.per_op.get("exits")
        mark = f" {DIFFERS}" if place in differing else ""
        cells_of_row = {
            "program": _name(cell),
            **{name: cell.dimensions.get(name) for name in varying},
            "n": f"{cell.n:,}",
            "unit": cell.unit,
            "exits": f"{number(exits)}{mark}" if isinstance(exits, int | float) else None,
            "of these": reasons(cell.per_op),
            "time": None if cell.time_ns is None else format_ns(cell.time_ns.mid),
            "low – high": _limits(cell.time_ns),
            "faults": faults_each(cell),
        }
        rows.append(cells_of_row)
    columns = [name for name in rows[0] if name in _ALWAYS or any(row[name] is not None for row in rows)]
    left = ("program", *varying, "unit", "of these")
    return table(columns, [[row[name] for name in columns] for row in rows], "For each unit", left=left)


def _by_program(placed: Sequence[tuple[int, Cell]]) -> list[tuple[int, Cell]]:
    """The cells of a program one below the other, as they are to be compared; programs and cells in their order."""
    order: dict[str, list[tuple[int, Cell]]] = {}
    for place, cell in placed:
        order.setdefault(_name(cell), []).append((place, cell))
    return [one for group in order.values() for one in group]


def _differing(cells: Sequence[Cell]) -> set[int]:
    """Places of cells whose counts differ from those of the first cell of the same program."""
    found = set()
    for row in differences(tuple(cells)):
        first, *others = row["per_op"]
        found |= {other["cell"] for other in others if other["value"] != first["value"]}
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
    rows: list[tuple[Any, ...]] = []
    for cell in cells:
        if is_access(cell):
            continue
        where = (_name(cell), *(cell.dimensions.get(name) for name in varying))
        rows += [(*where, *_fault(fault)) for fault in cell.faults]
    if not rows:
        return ""
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
    rows = []
    for cell in cells:
        if cell.create_vm_ns is not None:
            where = [cell.dimensions.get(name) for name in varying]
            rows += [(*where, *row) for row in latencies(cell)]
    if not rows:
        return ""
    columns = (*varying, "latency of", "calls", "p50", "p95", "p99", "max", "EINTR")
    return table(columns, rows, left=(*varying, "latency of"))
