"""The published measurements beside the model, and beside a null model that knows nothing of KVM.

The executable KVM counts what each cell's kernel does in one step of the benchmark. A few cells, marked in the data,
give the costs of what is counted and the speeds of the hosts; all others are predicted. What is right is asked of
ratios and orders, which need neither the number of steps nor how many ran at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from worldswitch.costs.events import events
from worldswitch.costs.fit import Fit, Observed, least_squares
from worldswitch.costs.published import REFERENCE, STAGES, Cell, Published, Table

if TYPE_CHECKING:
    from worldswitch.guest.image import Image
    from worldswitch.guest.program import Program

MOST_FITTED = 10
WITHIN = 0.15
"""A relative error above this is a miss."""
STEP = "work.ssdd"
"""What a step takes besides the events counted."""
UNSCALED = frozenset({"root_reload.shadow"})
"""Shadow columns are alike on all hosts, though their other columns differ by 40 %: no speed applies to these."""
IN_STEP = ("exit.exception", "exit.dr")
"""Happen once in every step of every cell, so nothing tells them from it."""
_WARM, _STEPS = 1000, 500_000
"""What the first steps add once, such as first faults, is left out."""
_SURE = 3 * math.sqrt(2)
"""Standard deviations of a cell by which two must differ to be told apart."""
_TIE = 1e-3


@dataclass(frozen=True, slots=True)
class Beside:
    """A published cell, and what the model and the null model say, in seconds; None: no other cell is alike."""

    table: Table
    cell: Cell
    model: float
    null: float | None

    @property
    def name(self) -> str:
        """Table, row and column."""
        return f"{self.table.id}/{self.cell.row}/{self.cell.column}"

    @property
    def error(self) -> float:
        """Of the model, relative to what was published."""
        return self.model / self.cell.seconds - 1

    @property
    def null_error(self) -> float | None:
        """Of the null model."""
        return None if self.null is None else self.null / self.cell.seconds - 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """What a stage costs relative to a later one, in one column; cells of one stage count as their geometric mean.

    Attributes:
        held_out: No cell of the column was used to fit a cost. (A host's speed divides out.)
        judged: It is between neighbouring stages, as the patches were.
    """

    table: str
    column: str
    stages: str
    published: float
    model: float
    null: float | None
    held_out: bool
    judged: bool

    @property
    def name(self) -> str:
        """Table, column and stages."""
        return f"{self.table}/{self.column} {self.stages}"

    @property
    def error(self) -> float:
        """Of the model, relative to the ratio published."""
        return self.model / self.published - 1

    @property
    def null_error(self) -> float | None:
        """Of the null model."""
        return None if self.null is None else self.null / self.published - 1


@dataclass(frozen=True, slots=True)
class Order:
    """Two points of a table (column and stage) that differ by more than noise, the dearer first."""

    table: str
    dearer: str
    cheaper: str
    right: bool

    @property
    def name(self) -> str:
        """Table and both points."""
        return f"{self.table} {self.dearer} > {self.cheaper}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it.

    Attributes:
        fit: In seconds of the whole benchmark per event in each step.
    """

    published: Published
    cells: tuple[Beside, ...]
    fit: Fit
    ratios: tuple[Ratio, ...]
    orders: tuple[Order, ...]

    def held_out(self) -> list[Beside]:
        """The cells that no fit used."""
        return [one for one in self.cells if not one.cell.fit]

    def judged(self) -> list[Ratio]:
        """The ratios that were predicted, between neighbouring stages."""
        return [ratio for ratio in self.ratios if ratio.judged and ratio.held_out]

    def misses(self) -> list[str]:
        """Names of held-out cells, ratios and orders that are wrong."""
        wrong = [f"cell {one.name}" for one in self.held_out() if abs(one.error) > WITHIN]
        wrong += [f"ratio {one.name}" for one in self.ratios if one.held_out and abs(one.error) > WITHIN]
        return wrong + [f"order {one.name}" for one in self.orders if not one.right]

    def faults(self) -> list[str]:
        """What is not as it must be, a sentence each; empty if all is."""
        return list(_faults(self))


def ratio_error(ratios: Iterable[Ratio]) -> float:
    """The largest error of the model."""
    return max((abs(ratio.error) for ratio in ratios), default=0.0)


def null_ratio_error(ratios: Iterable[Ratio]) -> float:
    """The largest error of the null model."""
    return max((abs(ratio.null_error) for ratio in ratios if ratio.null_error is not None), default=0.0)


def median_error(cells: Iterable[Beside]) -> float:
    """The median of the model's errors, without signs."""
    return statistics.median(abs(one.error) for one in cells)


def null_median_error(cells: Iterable[Beside]) -> float:
    """The median of the null model's."""
    return statistics.median(abs(one.null_error) for one in cells if one.null_error is not None)


def beside(published: Published) -> Comparison:
    """Fit on the marked cells, predict all."""
    places = [(table, cell) for table in published.tables for cell in table.cells]
    marked = [Observed(cell.seconds, per_step(table, cell), table.group) for table, cell in places if cell.fit]
    fit = least_squares(marked, REFERENCE, UNSCALED, published.noise)
    cells = tuple(
        Beside(
            table, cell, fit.predict(per_step(table, cell), table.group, UNSCALED), null(published, fit, table, cell)
        )
        for table, cell in places
    )
    return Comparison(published, cells, fit, tuple(_ratios(cells)), tuple(_orders(published, cells)))


def per_step(table: Table, cell: Cell) -> Mapping[str, float]:
    """Event -> how often the executable KVM counts it in a step of the cell's benchmark."""
    return _per_step(table.stages[cell.stage], table.cpu, cell.mmu, table.program)


@cache
def _per_step(kernel: str, cpu: str, mmu: str, program: str) -> Mapping[str, float]:
    from worldswitch.kvm.host import Host
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import run

    guest, image = _guest(program)
    policy, host = Policy.of(kernel, cpu, mmu), Host(other_vcpus=True)
    warm, whole = (run(guest, policy, steps, host=host, image=image) for steps in (_WARM, _STEPS))
    before, after = (events(found.counters, found.exits_by_reason, mmu) for found in (warm, whole))
    each = {name: (count - before.get(name, 0)) / (_STEPS - _WARM) for name, count in after.items()}
    return {STEP: 1.0} | {name: count for name, count in each.items() if count and name not in IN_STEP}


@cache
def _guest(program: str) -> tuple[Program, Image]:
    from worldswitch.guest import library
    from worldswitch.guest.assemble import assemble

    guest = library.program(program)
    return guest, assemble(guest)


def null(published: Published, fit: Fit, table: Table, cell: Cell) -> float | None:
    """What the null model says: the median of all cells of the same MMU and stage in other columns, fitted or not.

    It is given the speeds of the hosts, so that all it lacks is what KVM does.
    """
    alike = [
        other.seconds / _speed(fit, there, other)
        for there in published.tables
        for other in there.cells
        if (other.mmu, other.stage) == (cell.mmu, cell.stage) and (there.id, other.column) != (table.id, cell.column)
    ]
    return _speed(fit, table, cell) * statistics.median(alike) if alike else None


def _speed(fit: Fit, table: Table, cell: Cell) -> float:
    return 1.0 if cell.mmu == "shadow" else fit.scales[table.group]


def _columns(cells: Iterable[Beside]) -> dict[tuple[str, str], dict[str, list[Beside]]]:
    """(table, column) -> stage -> cells."""
    found: dict[tuple[str, str], dict[str, list[Beside]]] = {}
    for one in cells:
        found.setdefault((one.table.id, one.cell.column), {}).setdefault(one.cell.stage, []).append(one)
    return found


def _ratios(cells: Iterable[Beside]) -> Iterator[Ratio]:
    for (table, column), stages in _columns(cells).items():
        held_out = not any(one.cell.fit == "atoms" for group in stages.values() for one in group)
        there = [stage for stage in STAGES if stage in stages]
        for dear, cheap in pairwise(there):
            a, b = stages[dear], stages[cheap]
            nulls = (a[0].null, b[0].null)
            yield Ratio(
                table,
                column,
                f"{dear}/{cheap}",
                _mean(one.cell.seconds for one in a) / _mean(one.cell.seconds for one in b),
                _mean(one.model for one in a) / _mean(one.model for one in b),
                None if nulls[0] is None or nulls[1] is None else nulls[0] / nulls[1],
                held_out,
                STAGES.index(cheap) - STAGES.index(dear) == 1,
            )


def _orders(published: Published, cells: Iterable[Beside]) -> Iterator[Order]:
    points: dict[str, list[tuple[str, float, float]]] = {}
    for (table, column), stages in _columns(cells).items():
        for stage, there in stages.items():
            seconds, model = _mean(one.cell.seconds for one in there), _mean(one.model for one in there)
            points.setdefault(table, []).append((f"{column} {stage}", seconds, model))
    for table, known in points.items():
        for pair in combinations(known, 2):
            dear, cheap = sorted(pair, key=lambda point: -point[1])
            if math.log(dear[1] / cheap[1]) > _SURE * published.noise:
                yield Order(table, dear[0], cheap[0], dear[2] > cheap[2] * (1 + _TIE))


def _mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def _faults(found: Comparison) -> Iterator[str]:
    fitted = sum(1 for one in found.cells if one.cell.fit)
    if fitted > MOST_FITTED:
        yield f"{fitted} cells are used for the fit, more than {MOST_FITTED}"
    if found.fit.parameters > fitted:
        yield f"{found.fit.parameters} numbers are fitted to {fitted} cells"
    worst, null_worst = ratio_error(found.judged()), null_ratio_error(found.judged())
    if worst > WITHIN:
        yield f"a predicted ratio is {100 * worst:.1f} % off, more than {100 * WITHIN:g} %"
    if worst >= null_worst:
        yield f"the null model's ratios ({100 * null_worst:.1f} % off at most) are no worse than the model's"
    misses, told = set(found.misses()), {miss.what for miss in found.published.misses}
    for name in sorted(misses - told):
        yield f"{name} is wrong, and no reason is given"
    for name in sorted(told - misses):
        yield f"{name} is listed as a miss, and is none"
