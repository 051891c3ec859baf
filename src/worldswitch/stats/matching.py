"""Which cells of two Results may be compared: those that differ in nothing, or in one and the same condition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from worldswitch.errors import UsageError, printable
from worldswitch.record.result import Cell, Result

PROCESSOR = "processor"
"""The condition that is the model of the processor."""
_MMU_PARAMETERS = frozenset(("kvm.tdp_mmu", "kvm_intel.ept", "kvm_amd.npt"))
_VENDORS = ("kvm_intel.", "kvm_amd.")
_LAST = ("program", "parameters.")
"""Conditions that are compared along only if there is no other."""


class Condition(NamedTuple):
    """A condition and its value on either side; None where it is not known."""

    name: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.name} ({_plain(self.a)} and {_plain(self.b)})"


def _plain(value: Any) -> str:
    return "none" if value is None else printable(str(value))


@dataclass(frozen=True)
class Match:
    """Cells to compare, by their places, and in what they differ: nothing, or one condition."""

    a: int
    b: int
    compared: Condition | None


@dataclass(frozen=True)
class Matching:
    """All pairs, and the places of cells that have no partner."""

    pairs: tuple[Match, ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]


def match(a: Result, b: Result, ignore: Collection[str] = ()) -> Matching:
    """The pairs of a cell of *a* and a cell of *b* that differ in nothing; if there is none, in one condition.

    That condition is the same for all pairs: the one with the most of them. If *b* is *a*, its cells are compared with
    each other.

    Args:
        ignore: Conditions not looked at.

    Raises:
        UsageError: No two cells can be compared; the message says in what the nearest two differ.
    """
    _demand_known(a, b, ignore)
    found = {
        (i, j): conditions
        for i, one in enumerate(a.cells)
        for j, other in enumerate(b.cells)
        if a is not b or i < j
        for conditions in [differing(one, a, other, b, ignore)]
    }
    pairs = _same(found) or _along(found)
    if not pairs:
        raise UsageError(_refusal(found))
    used_a, used_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    if a is b:
        used_a = used_b = used_a | used_b
    return Matching(
        tuple(pairs),
        tuple(i for i in range(len(a.cells)) if i not in used_a),
        tuple(j for j in range(len(b.cells)) if j not in used_b),
    )


def differing(one: Cell, a: Result, other: Cell, b: Result, ignore: Collection[str] = ()) -> list[Condition]:
    """The conditions in which two cells differ, those left out that follow from another one.

    Where one side does not know a condition they do not differ in it. Module parameters and the processor's model are
    conditions as well.
    """
    first, second = _conditions(one, a), _conditions(other, b)
    found = {
        name: Condition(name, value, second[name])
        for name, value in first.items()
        if name in second and value != second[name] and name not in ignore
    }
    follow = set(_following(found))
    return [condition for name, condition in found.items() if name not in follow]


def _conditions(cell: Cell, result: Result) -> dict[str, Any]:
    around = result.environment_of(cell)
    found = {**around.parameters, PROCESSOR: around.cpu_model, **cell.flat_dimensions()}
    if cell.dimensions.get("mmu") is not None:
        found = {name: value for name, value in found.items() if name not in _MMU_PARAMETERS}
    # No control group, say, is a value; no kernel is something nobody noted.
    return {name: value for name, value in found.items() if value is not None or name.startswith("parameters.")}


def _following(found: Collection[str]) -> Iterator[str]:
    for name in found:
        of_host = name in ("module", PROCESSOR) or ("." in name and not name.startswith("parameters."))
        of_vendor = name in ("module", PROCESSOR) or name.startswith(_VENDORS)
        if ("on" in found and of_host) or ("cpu" in found and of_vendor):
            yield name


def _demand_known(a: Result, b: Result, ignore: Collection[str]) -> None:
    from worldswitch.errors import UnknownNameError

    known = {name for result in (a, b) for cell in result.cells for name in _conditions(cell, result)}
    for name in ignore:
        if name not in known:
            raise UnknownNameError("condition", name, known, f"These results have {', '.join(sorted(known)[:12])}.")


def _same(found: dict[tuple[int, int], list[Condition]]) -> list[Match]:
    """Pairs that differ in nothing; cells that are there several times are taken in turn."""
    pairs: list[Match] = []
    for (i, j), conditions in found.items():
        if not conditions and all(i != pair.a and j != pair.b for pair in pairs):
            pairs.append(Match(i, j, None))
    return pairs


def _along(found: dict[tuple[int, int], list[Condition]]) -> list[Match]:
    single = {places: conditions[0] for places, conditions in found.items() if len(conditions) == 1}
    if not single:
        return []
    counts = Counter(condition.name for condition in single.values())
    chosen = max(counts, key=lambda name: (not name.startswith(_LAST), counts[name]))
    return [Match(i, j, condition) for (i, j), condition in single.items() if condition.name == chosen]


def _refusal(found: dict[tuple[int, int], list[Condition]]) -> str:
    if not found:
        return "there are no two cells to compare; give two results, or one with several cells"
    conditions = min(found.values(), key=len)
    listed = ", ".join(map(str, conditions[:-1])) + f" and {conditions[-1]}"
    return (
        f"no cell of one side differs from one of the other in a single condition; the nearest two differ in {listed}. "
        f"Measure again with only one changed, or pass over what does not matter: --ignore {conditions[-1].name}"
    )
