"""Plain tables, for where no library draws them, and what the kit says of results in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.errors import printable
from worldswitch.live.cells import PASSES
from worldswitch.record.result import BY_REASON, NOT_TOLD
from worldswitch.stats.percentile import nearest_rank
from worldswitch.units import format_ns
from worldswitch.x86.exceptions import PAGE_FAULT, exception_name

if TYPE_CHECKING:
    from worldswitch.record.result import Cell, Result

_FAULTS_SHOWN = 20


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[int] = ()) -> str:
    """A table as text; None is shown as ``-``. The columns at the places *left* are aligned left."""
    cells = [[printable("-" if cell is None else str(cell)) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = [
            row[place].ljust(width) if place in left else row[place].rjust(width) for place, width in enumerate(widths)
        ]
        return "  ".join(padded).rstrip()

    return "".join(f"{line(row)}\n" for row in cells)


Defaults = Callable[[str], Mapping[str, Any]]
"""Gives the parameters that a program of some name has unless told otherwise; none for one it does not know."""


def text(result: Result, defaults: Defaults) -> str:
    """All that a person wants to see of a result of this host."""
    around = result.environment
    head = ", ".join(filter(None, (around.vendor_module, around.kernel, around.cpu_model)))
    return "\n".join(part for part in (f"{head}\n", *_parts(result.cells, defaults)) if part)


def _parts(cells: Sequence[Cell], defaults: Defaults) -> Iterator[str]:
    guests = [cell for cell in cells if cell.create_vm_ns is None]
    if guests:
        columns = ("program", "n", "unit", "exits", "time", "low", "high", "faults", "of these exits")
        yield table(columns, [(name_of(cell, defaults), *_program(cell)) for cell in guests], left=(0, 2, 8))
    faults = [(name_of(cell, defaults), *_fault(fault)) for cell in guests for fault in cell.faults]
    if faults:
        heads = ("program", "operation", "exception", "error code", "CR2", "count")
        rest = len(faults) - _FAULTS_SHOWN
        yield table(heads, faults[:_FAULTS_SHOWN], left=(0, 1, 2)) + (f"... and {rest} more\n" if rest > 0 else "")
    rows = [row for cell in cells if cell.create_vm_ns is not None for row in latencies(cell)]
    if rows:
        yield table(("latency of", "calls", "p50", "p95", "p99", "max", "EINTR"), rows, left=(0,))
    notes = dict.fromkeys(f"{name_of(cell, defaults)}: {note}" for cell in cells for note in cell.notes)
    yield "".join(f"- {printable(note)}\n" for note in notes)


def name_of(cell: Cell, defaults: Defaults) -> str:
    """The program with the parameters it has not by default, as one would ask for it."""
    name, given = str(cell.dimensions.get("program")), cell.dimensions.get("parameters")
    if not isinstance(given, Mapping):
        return name
    usual = defaults(name)
    told = [f"{key}={_plain(value)}" for key, value in given.items() if key in usual and usual[key] != value]
    return f"{name}:{','.join(told)}" if told else name


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _program(cell: Cell) -> tuple[Any, ...]:
    exits = cell.per_op.get("exits")
    times = [None] * 3 if cell.time_ns is None else [format_ns(ns) for ns in (cell.time_ns.mid, *cell.time_ns[::2])]
    return (
        f"{cell.n:,}",
        cell.unit,
        None if not isinstance(exits, (int, float)) else number(exits),
        *times,
        faults_each(cell),
        reasons(cell.per_op),
    )


def faults_each(cell: Cell) -> str | None:
    """Faults per unit; None if there are none."""
    passes = cell.counters.get(PASSES, cell.n)
    if not cell.faults_total or not isinstance(passes, (int, float)) or not passes:
        return None
    return number(cell.faults_total / passes)


def reasons(counts: Mapping[str, Any]) -> str | None:
    """Exits by reason on one line, the most frequent first; None if there are none, or nothing tells them apart."""
    found = counts.get(BY_REASON)
    if not isinstance(found, Mapping) or not {name for name, count in found.items() if count} - {NOT_TOLD}:
        return None
    ordered = sorted(((count, name) for name, count in found.items() if count), key=lambda one: (-one[0], one[1]))
    return ", ".join(f"{number(count)} {name}" for count, name in ordered) or None


def number(value: float) -> str:
    """As many digits as say something: ``2``, ``0.25``, ``0.003``."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.3f}".rstrip("0") if abs(value) >= 0.1 else f"{value:.2g}"


def _fault(fault: Any) -> tuple[Any, ...]:
    cr2 = f"{fault.cr2:#x}" if fault.vector == PAGE_FAULT else None
    return fault.operation, exception_name(fault.vector), f"{fault.error_code:#x}", cr2, f"{fault.count:,}"


def latencies(cell: Cell) -> Iterator[tuple[Any, ...]]:
    """Rows of create-vm: what, how many, p50, p95, p99 and the maximum, and how often it was interrupted."""
    for metric in cell.metrics:
        name = LATENCIES.get(metric.name, metric.name)
        interrupted = cell.counters.get("eintr") if metric.name == "create_vm" else None
        yield (name, f"{len(metric.values):,}", *percentiles(metric.values), interrupted)


LATENCIES = {"create_vm": "KVM_CREATE_VM", "first_run": "first KVM_RUN", "close_vm": "closing the VM"}
"""Metric of create-vm -> what people call it."""


def percentiles(values: Sequence[float]) -> list[str]:
    """p50, p95, p99 and the maximum of durations in ns, as text."""
    ordered = sorted(values)
    if not ordered:
        return ["-"] * 4
    places = (*(nearest_rank(len(ordered), percent) for percent in (50, 95, 99)), -1)
    return [format_ns(ordered[place]) for place in places]
