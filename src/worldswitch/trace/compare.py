"""Two traces side by side: rates or counts of their exits and events, and how long exits of each reason took.

A trace becomes a cell of a Result, so that one machinery gives the verdicts on both. Two traces are comparable if what
was recorded is: the same kind of processor, one clock, the same events, nothing lost. In what they may differ is the
kernel, or the processor's model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.record.result import BY_REASON, Cell, Environment, Metric, Provenance, Result
from worldswitch.stats.blocks import MOST, blocks, quantile_of
from worldswitch.stats.compare import AT_LEAST, CONFIDENCE, MARGIN, ON_TRACE, Comparison
from worldswitch.stats.compare import compare as compare_results
from worldswitch.stats.verdicts import ALL_EXITS, RATE
from worldswitch.trace import exits
from worldswitch.trace.ahead import ahead
from worldswitch.x86.exits import isa_name, reason_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.record.trace import EventSource
    from worldswitch.x86.exits import ExitTables

CONDITIONS = ("cpu", "clock", "events", "complete", "lost", "kernel", "processor")
"""What traces are checked for; all but the last two have to be the same on both sides."""
MODEL = "worldswitch's model"
"""The tool that a trace of the model names; its times only number its events."""
_OTHERS = (
    "kvm_mmu_get_page", "kvm_mmu_prepare_zap_page", "kvm_mmu_set_spte", "kvm_mmu_spte_requested", "fast_page_fault",
    "kvm_tdp_mmu_spte_changed", "kvm_halt_poll_ns", "kvm_set_irq", "kvm_inj_virq", "kvm_msi_set_irq",
)  # fmt: skip
_EVENTS: dict[str, tuple[str, ...] | None] = {**dict.fromkeys(_OTHERS, ()), **exits.EVENTS}
_NOT_COUNTED = ("kvm_exit", "kvm_entry")
"""Events that the exits stand for."""
_WAITING = frozenset(("HLT", "hlt", "MWAIT", "mwait", "PAUSE", "pause", "EXTERNAL_INTERRUPT", "interrupt"))
_TAIL = MOST * 100
"""Exits from which on the slowest hundredth of each block of them is an exit or more."""
_LEAST_SHARE = 0.01
"""Reasons whose exits took a smaller share of the time have no time of their own: each would widen all intervals."""
_MOST_REASONS = 12
_UNLIKE = 0.05
"""Share of a side's events that the other cannot have recorded, from which on its times are not comparable."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A trace as it is compared.

    Attributes:
        counts: Event -> how many the trace holds.
        recordable: Events the recording could have held; empty where it does not say.
    """

    cell: Cell
    cpu_model: str | None
    counts: dict[str, int]
    recordable: frozenset[str]


def compare(
    a: EventSource,
    b: EventSource,
    *,
    ignore: Collection[str] = (),
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
    at_least: float = AT_LEAST,
    operations: tuple[int, int] | None = None,
    tables: ExitTables | None = None,
) -> Comparison:
    """*b* against *a*.

    Args:
        ignore: Conditions of :data:`CONDITIONS` in which they may differ, or that may be bad.
        confidence, margin, at_least: See :func:`worldswitch.stats.compare.compare`.
        operations: How many operations of the load each trace holds; ``(1, 1)`` if both did the same work. Then exits
            are compared by number, for each operation; else by the second, as the traces may be of any length.
        tables: Names of exit reasons beside the built-in ones.

    Raises:
        UsageError: They cannot be compared, with the reason.
        UnknownNameError: A condition nobody knows.
    """
    for name in ignore:
        if name not in CONDITIONS:
            raise UnknownNameError("condition", name, CONDITIONS, f"Traces have {', '.join(CONDITIONS)}.")
    if operations is not None and min(operations) < 1:
        raise UsageError(f"{min(operations)} operations are none; say how many each trace holds, such as 1000,1500")
    first, second = sides = [
        measured(source, None if operations is None else n, tables)
        for source, n in zip((a, b), operations or (1, 1), strict=True)
    ]
    _demand_comparable(first, second, ignore)
    results = [
        Result((one.cell,), Provenance(_version()), Environment(one.cpu_model, str(one.cell.dimensions["kernel"])))
        for one in sides
    ]
    return compare_results(
        *results, ignore=_known(ignore, sides), confidence=confidence, margin=margin, at_least=at_least
    )


def _version() -> str:
    from worldswitch import __version__

    return __version__


def _known(ignore: Collection[str], sides: Collection[Seen]) -> list[str]:
    """The conditions to pass over, of those that the cells have."""
    have = {name for one in sides for name, value in one.cell.dimensions.items() if value is not None}
    have |= {"processor"} if any(one.cpu_model for one in sides) else set()
    checked = [name for name in ("clock", "complete", "lost", "cpu") if name in have]
    return [name for name in dict.fromkeys((*checked, *ignore)) if name in have]


def _demand_comparable(a: Seen, b: Seen, ignore: Collection[str]) -> None:
    for name, why in (*_faults(a, "A"), *_faults(b, "B"), *_contrasts(a, b)):
        if name not in ignore:
            raise UsageError(f"the traces cannot be compared: {why}; or pass over it: --ignore {name}")


def _faults(one: Seen, side: str) -> Iterator[tuple[str, str]]:
    dimensions = one.cell.dimensions
    if not dimensions["complete"]:
        yield "complete", f"{side} is not whole, so what it lacks would count as a difference; record it again"
    if dimensions["lost"]:
        yield "lost", f"{side} lost {dimensions['lost']:,} events; record it again with larger buffers or fewer events"
    if not one.counts.get("kvm_exit"):
        yield "events", f"{side} holds no kvm_exit; record both with wsw record"


def _contrasts(a: Seen, b: Seen) -> Iterator[tuple[str, str]]:
    first, second = a.cell.dimensions, b.cell.dimensions
    if first["cpu"] != second["cpu"] and first["cpu"] and second["cpu"]:
        yield (
            "cpu",
            (
                f"A is of {first['cpu']}, B of {second['cpu']}, whose exits have other reasons and names; "
                "compare traces of one kind of processor"
            ),
        )
    clocks = first["clock"], second["clock"]
    if clocks[0] != clocks[1] and MODEL in clocks:
        yield "clock", "one is the model's, whose times only number its events; compare two of the model, or two real"
    elif clocks[0] and clocks[1] and clocks[0] != clocks[1]:
        yield "clock", f"A has the clock {clocks[0]}, B the clock {clocks[1]}; record both alike"
    for here, there, side, other in ((a, b, "A", "B"), (b, a, "B", "A")):
        unlike = _unlike(here, there)
        if sum(here.counts[name] for name in unlike) > _UNLIKE * sum(here.counts.values()):
            yield (
                "events",
                (
                    f"{side} has events that {other} did not record ({', '.join(map(printable, sorted(unlike)))}), "
                    "and recording them took time; record both alike"
                ),
            )


def _unlike(here: Seen, there: Seen) -> list[str]:
    """Events of *here* that *there* cannot have recorded, where it says what it could."""
    if not there.recordable:
        return []
    return [name for name, n in here.counts.items() if n and name not in there.recordable]


def measured(source: EventSource, operations: int | None = None, tables: ExitTables | None = None) -> Seen:
    """*source*, read to its end.

    Args:
        operations: Count exits for each of so many operations; if None, by the second.
    """
    times, reasons, isas = _read(source)
    meta = source.meta
    # Events of the model are numbered, not timed.
    numbered = (meta.tool or "") == MODEL
    names = {number: _name(source, number, tables) for number in reasons}
    whole = sum(len(duration) for _, duration in reasons.values())
    counts: dict[str, Any] = {ALL_EXITS: whole}
    counts[BY_REASON] = {names[number]: len(durations) for number, (_, durations) in reasons.items()}
    counts |= {name: len(when) for name, when in times.items() if len(when) and name not in _NOT_COUNTED}
    by_count = operations is not None or numbered
    cell = Cell(
        dimensions={
            "on": ON_TRACE,
            "program": ON_TRACE,
            "kernel": (meta.kernel or "").split(" ")[0] or None,
            "cpu": ", ".join(sorted(isas)) or meta.vendor,
            "clock": MODEL if numbered else meta.clock,
            "complete": meta.complete,
            "lost": meta.lost,
        },
        n=operations or 0,
        unit="operation" if operations and operations > 1 else "",
        per_op=_each(counts, operations or 1) if by_count else {},
        metrics=() if numbered else tuple(_metrics(times, reasons, names, by_count)),
        notes=() if numbered else tuple(_notes(reasons, names, by_count)),
    )
    return Seen(cell, meta.cpu_model, dict(meta.events), frozenset(source.formats))


def _each(counts: dict[str, Any], n: int) -> dict[str, Any]:
    return {name: _each(value, n) if isinstance(value, dict) else _per(value, n) for name, value in counts.items()}


def _per(value: int, n: int) -> float:
    return value // n if not value % n else value / n


def _read(source: EventSource) -> tuple[dict[str, Any], dict[int, tuple[Any, Any]], set[str]]:
    """When each event was, and start and duration of the exits of each reason, in the order of their ends."""
    pairs = exits.ExitPairing()
    times: dict[str, list[NDArray[np.int64]]] = {}
    parts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []

    def keep(rows: exits.ExitRows) -> None:
        rows = rows.take((rows.flags & exits.UNCOUNTED) == 0)
        parts.append((rows.number, rows.start, rows.duration))

    for batch in ahead(source.batches(_EVENTS)):
        keep(pairs.feed(batch))
        for index, name in enumerate(batch.events):
            if name in _EVENTS:
                times.setdefault(name, []).append(batch.time[batch.order == index])
    # The rows of the exits still open count for nothing, but give the arrays their kinds where there are no others.
    keep(pairs.finish())
    numbers, starts, durations = (np.concatenate([part[place] for part in parts]) for place in range(3))
    found = {}
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        found[number] = (starts[mine], durations[mine])
    isas = {isa_name(number >> 32) for number in found}
    return {name: np.concatenate(some) for name, some in times.items()}, found, isas


def _name(source: EventSource, number: int, tables: ExitTables | None) -> str:
    isa, reason = number >> 32, number & 0xFFFFFFFF
    names = getattr(source, "reason_names", None) or {}
    return names.get((isa, reason)) or reason_name(isa, reason, tables)


def _metrics(
    times: dict[str, Any], reasons: dict[int, tuple[Any, Any]], names: dict[int, str], by_count: bool
) -> Iterator[Metric]:
    if not by_count:
        yield from _rates(times, reasons, names)
    for number in _weighty(reasons, names):
        durations = reasons[number][1]
        yield Metric(f"time of {names[number]}", "ns", tuple(durations.tolist()))
        if len(durations) >= _TAIL:
            yield Metric(f"time of {names[number]}, slowest 1 %", "ns", blocks(durations, quantile_of(0.99)).values)


def _rates(times: dict[str, Any], reasons: dict[int, tuple[Any, Any]], names: dict[int, str]) -> Iterator[Metric]:
    every = [when for when in times.values() if len(when)]
    if not every:
        return
    first, last = min(int(when[0]) for when in every), max(int(when[-1]) for when in every)
    if last <= first:
        return
    edges = np.linspace(first, last, MOST + 1)

    def rate(name: str, when: NDArray[Any]) -> Metric:
        per_s = np.histogram(when, edges)[0] * (MOST * 1e9 / (last - first))
        return Metric(name, RATE, tuple(per_s.tolist()))

    if reasons:
        yield rate(ALL_EXITS, np.concatenate([start for start, _ in reasons.values()]))
    for number, (start, _) in reasons.items():
        if len(start) >= MOST:
            yield rate(f"exits, {names[number]}", start)
    for name, when in times.items():
        if name not in _NOT_COUNTED and len(when) >= MOST:
            yield rate(name, when)


def _weighty(reasons: dict[int, tuple[Any, Any]], names: dict[int, str]) -> list[int]:
    """Reasons whose exits are not waiting and took a share of the time worth looking at, the greatest first."""
    totals = {number: int(d.sum()) for number, (_, d) in reasons.items() if names[number] not in _WAITING}
    whole = sum(totals.values())
    found = [number for number, total in totals.items() if total >= _LEAST_SHARE * whole]
    return sorted(found, key=lambda number: -totals[number])[:_MOST_REASONS]


def _notes(reasons: dict[int, tuple[Any, Any]], names: dict[int, str], by_count: bool) -> Iterator[str]:
    rare = sorted(names[number] for number, (start, _) in reasons.items() if len(start) < MOST)
    if rare and not by_count:
        yield f"exits there are fewer than {MOST} of have no rate: {', '.join(rare)}"
    waiting = sorted(names[number] for number in reasons if names[number] in _WAITING)
    if waiting:
        yield f"how long {', '.join(waiting)} took is left out: there the guest waits, or the host does other things"
