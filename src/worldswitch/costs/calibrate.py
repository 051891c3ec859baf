"""Costs from measurements: results of programs on real KVM, kvm-unit-tests, the published tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from worldswitch.costs.atoms import Atom
from worldswitch.costs.beside import IN_STEP, STEP, Comparison
from worldswitch.costs.events import events
from worldswitch.errors import WorldswitchError
from worldswitch.record.result import Cell, Result, Spread

_WARM, _WHOLE = 1000, 2000
_SAME = 0.02
"""Exits for each unit by which a measurement may differ from the model."""
_TESTS = {"cpuid": "exit.cpuid", "vmcall": "exit.hypercall"}
"""Lines of kvm-unit-tests' vmexit that time one event, and nothing but it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A measurement that no cost is from, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class _Timed:
    name: str
    time: Spread
    counts: Mapping[str, float]


def from_results(results: Iterable[tuple[str, Result]]) -> tuple[list[Atom], list[Skipped]]:
    """Costs in ns from programs timed on real KVM; each result has a name.

    The model says what a unit of each program does, and has to agree with the exits measured. A cell with one event of
    unknown cost gives that cost, after those that are known are taken off. The guest's own work is in it.
    """
    timed, skipped = [], []
    for name, result in results:
        for cell in result.cells:
            what = f"{cell.dimensions.get('program')} in {name}"
            found = _timed(what, cell)
            if isinstance(found, Skipped):
                skipped.append(found)
            else:
                timed.append(found)
    atoms: dict[str, Atom] = {}
    while timed:
        fresh: dict[str, list[_Timed]] = {}
        later = []
        for one in timed:
            unknown = [event for event in one.counts if event not in atoms]
            if len(unknown) == 1:
                fresh.setdefault(unknown[0], []).append(one)
            elif unknown:
                later.append(one)
        if not fresh:
            skipped += [Skipped(one.name, f"costs of {', '.join(one.counts)} cannot be told apart") for one in later]
            break
        timed = later
        for event, cells in fresh.items():
            atom = _atom(event, cells, atoms)
            if isinstance(atom, Atom):
                atoms[event] = atom
            else:
                skipped.append(atom)
    return list(atoms.values()), skipped


def _atom(event: str, found: list[_Timed], atoms: Mapping[str, Atom]) -> Atom | Skipped:
    """The cost of *event*, the only one unknown in the cells *found*."""
    spreads = [_rest(one, event, atoms) for one in found]
    mid = statistics.median(spread.mid for spread in spreads)
    names = ", ".join(one.name for one in found)
    if mid <= 0:
        return Skipped(names, f"it takes no longer than its other events, which leaves nothing for {event}")
    low, high = min(spread.low for spread in spreads), max(spread.high for spread in spreads)
    origin = f"timed: {names}; with the guest's own work"
    return Atom(event, max(0.0, min(low, mid)), mid, max(high, mid), "ns", origin)


def _rest(one: _Timed, event: str, atoms: Mapping[str, Atom]) -> Spread:
    """What one *event* takes, once the others are taken off."""
    known = [(atoms[name], count) for name, count in one.counts.items() if name != event]
    mid, low, high = (sum(getattr(a, end) * n for a, n in known) for end in ("mid", "low", "high"))
    count = one.counts[event]
    return Spread((one.time.low - high) / count, (one.time.mid - mid) / count, (one.time.high - low) / count)


def _timed(what: str, cell: Cell) -> _Timed | Skipped:
    if cell.dimensions.get("on") != "kvm":
        return Skipped(what, "only times of real KVM on hardware are costs")
    if cell.time_ns is None or not cell.steady:
        return Skipped(what, "it has no time, or did not settle")
    try:
        counts, exits = _counted(cell)
    except (WorldswitchError, KeyError) as error:
        return Skipped(what, f"the model does not follow it: {error}")
    measured = cell.per_op.get("exits")
    if not isinstance(measured, int | float) or abs(measured - exits) > _SAME:
        return Skipped(what, f"{measured} exits for each {cell.unit} were measured, {exits:g} are the model's")
    if not counts:
        return Skipped(what, "it has no exits")
    return _Timed(what, cell.time_ns, counts)


def _counted(cell: Cell) -> tuple[dict[str, float], float]:
    """What a warm unit of the cell's program does by the model, and its exits."""
    from worldswitch.guest import library
    from worldswitch.kvm.distributions import kernel_named
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import run

    kernel, cpu, mmu, name = (str(cell.dimensions[key]) for key in ("kernel", "cpu", "mmu", "program"))
    given = cell.dimensions.get("parameters") or {}
    assert isinstance(given, Mapping)
    words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in given.items()]
    program = library.program(f"{name}:{','.join(words)}" if words else name)
    policy = Policy.of(kernel_named(kernel)[0], cpu, mmu)
    warm, whole = (run(program, policy, n) for n in (_WARM, _WHOLE))
    before, after = (events(found.counters, found.exits_by_reason, mmu) for found in (warm, whole))
    each = {event: (count - before.get(event, 0)) / (_WHOLE - _WARM) for event, count in after.items()}
    return {event: count for event, count in each.items() if count}, (whole.exits - warm.exits) / (_WHOLE - _WARM)


def from_unit_tests(lines: Iterable[tuple[str, str, int]], ghz: float | None) -> tuple[list[Atom], list[Skipped]]:
    """Costs from lines of kvm-unit-tests' vmexit: name of the file, of the test, and its cycles.

    Args:
        ghz: Of the TSC; without it costs are in cycles.
    """
    seen: dict[str, list[tuple[int, str]]] = {}
    skipped = []
    for where, test, cycles in lines:
        if test in _TESTS:
            seen.setdefault(_TESTS[test], []).append((cycles, where))
        else:
            skipped.append(Skipped(f"{test} in {where}", "it times more than one event, or one that has no cost here"))
    return [_of_cycles(event, found, ghz) for event, found in seen.items()], skipped


def _of_cycles(event: str, found: list[tuple[int, str]], ghz: float | None) -> Atom:
    cycles = [count for count, _ in found]
    low, mid, high = (value / (ghz or 1) for value in (min(cycles), statistics.median(cycles), max(cycles)))
    origin = f"kvm-unit-tests vmexit: {', '.join(where for _, where in found)}" + (f", at {ghz:g} GHz" if ghz else "")
    origin += "; one figure, so without a spread" if len(found) == 1 else ""
    return Atom(event, low, mid, high, "ns" if ghz else "cycles", origin)


def from_published(found: Comparison, steps: int, parallel: float) -> Iterator[Atom]:
    """The costs fitted to the published tables, in ns, on the hosts of the first group.

    Args:
        steps: How many the benchmark is taken to have made, one of the readings.
        parallel: How many of them are taken to have run at once.
    """
    reading = f"if there were {steps:,} steps, {parallel:g} at once"
    for event, seconds in found.fit.costs.items():
        mid, spread = seconds / steps * parallel * 1e9, 2 * found.fit.spread[event]
        origin = f"wsw tables, fitted to published times of ssdd:pcid=true, {reading}; limits: two standard deviations"
        covers = IN_STEP if event == STEP else ()
        yield Atom(event, mid * max(0.0, 1 - spread), mid, mid * (1 + spread), "ns", origin, covers)
