"""What a guest and its exits were, on the model and on a real KVM, and in what the two differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.guest import operations as ops
from worldswitch.guest.paths import places
from worldswitch.guest.program import SIZES
from worldswitch.guest.tables import LEVELS
from worldswitch.live.counting import HOSTS_OWN
from worldswitch.live.reasons import INTERRUPTS
from worldswitch.x86.paging import ACCESSED

if TYPE_CHECKING:
    from worldswitch.guest.program import Program
    from worldswitch.kvm.vcpu import Run

_WINDOWS = frozenset(("INTERRUPT_WINDOW", "PENDING_INTERRUPT", "NMI_WINDOW", "EXCEPTION_NMI_WINDOW", "vintr"))
NOT_COUNTED = INTERRUPTS | _WINDOWS
"""Exits by interrupts, which come when they come."""
_OF_ITS_OWN = frozenset(("exits", "root_loads", "root_unloads", "mmu_resets"))
"""Counters that are no statistic of KVM's, or hold interrupts."""


class FaultSeen(NamedTuple):
    """An exception, where in the program, and what the processor said of it."""

    operation: str
    vector: int
    error_code: int
    cr2: int
    rip: int

    def __str__(self) -> str:
        return f"vector {self.vector} code {self.error_code:#x} cr2 {self.cr2:#x} rip {self.rip:#x} in {self.operation}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one run.

    Attributes:
        exits: Reason, as kvm_exit prints it -> how often, without interrupts.
        statistics: KVM's, as far as known.
        bare: It leaves no results, so only exits can be compared.
        ended: What KVM ended the guest of before the program's end; empty if it did not.
        interrupted: As :func:`worldswitch.kvm.vcpu.run` takes it; not compared.
        values: Path of each operation that keeps a value -> the value, of those known.
    """

    exits: Mapping[str, int]
    statistics: Mapping[str, int] = field(default_factory=dict)
    bare: bool = False
    passes: int = 0
    faults: int = 0
    retries: int = 0
    log: tuple[FaultSeen, ...] = ()
    values: Mapping[str, int] = field(default_factory=dict)
    ended: str = ""
    interrupted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same: ``exits npf``, ``fault 3``, ``value vcpu 0 end 4``."""

    what: str
    model: str
    real: str

    @property
    def kind(self) -> str:
        """What it is without its place: ``exits npf``, ``fault``, ``value``."""
        head = self.what.partition(" ")[0]
        return self.what if head == "exits" else head

    def __str__(self) -> str:
        return f"{self.what}: model {self.model}, real {self.real}"


def of_model(run: Run) -> Seen:
    """What the model says."""
    exits = {name: count for name, count in run.exits_by_reason.items() if name not in NOT_COUNTED}
    (report, *_) = run.reports
    if report is None:
        return Seen(exits, dict(run.counters), bare=True, ended=run.ended)
    log = tuple(FaultSeen(one.operation, one.vector, one.error_code, one.cr2, one.rip) for one in report.log)
    return Seen(
        exits, dict(run.counters), False, report.passes, report.faults, report.retries, log, dict(report.values)
    )


def of_agent(document: Mapping[str, Any]) -> Seen:
    """What one of the agent's runs says."""
    exits = {name: count for name, count in (document["exits"] or {}).items() if name not in NOT_COUNTED}
    report, interrupted = document["report"], frozenset(document["interrupted"])
    if report is None:
        return Seen(exits, document["counters"], bare=True, ended=document["ended"], interrupted=interrupted)
    log = tuple(FaultSeen(*one) for one in report["log"])
    counts = (report["passes"], report["faults"], report["retries"])
    return Seen(exits, document["counters"], False, *counts, log, report["values"], interrupted=interrupted)


def not_compared(program: Program) -> dict[str, int]:
    """Path of each operation that keeps a value -> bits of it that say nothing.

    That is A in entries that lead to another table: a walk that faults further down may have set it, or not
    (kvm-unit-tests, x86/access.c, ignore_pde).
    """
    return {
        place.path: ACCESSED
        for place in places(program)
        if isinstance(place.operation, ops.ReadEntry) and place.operation.level > _leaf(program, place.operation)
    }


def _leaf(program: Program, read: ops.ReadEntry) -> int:
    space = next(space for space in program.spaces if space.name == read.space)
    sizes = (p.size for p in space.pages if p.va <= read.va < p.va + SIZES[p.size] * p.count)
    return LEVELS[next(sizes)]


def differences(model: Seen, real: Seen, ignored: Mapping[str, int]) -> tuple[Difference, ...]:
    """In what the two differ: exits by reason, the end, then what the guest saw; of the faults the first that differs.

    Args:
        ignored: See :func:`not_compared`.
    """
    return tuple(_differences(model, real, ignored))


def _differences(model: Seen, real: Seen, ignored: Mapping[str, int]) -> Iterator[Difference]:
    for name in sorted({*model.exits, *real.exits}):
        one, other = model.exits.get(name, 0), real.exits.get(name, 0)
        if one != other:
            yield Difference(f"exits {name}", str(one), str(other))
    if model.ended != real.ended:
        yield Difference("end", model.ended or "the program's", real.ended or "the program's")
    if model.bare or real.bare:
        return
    for name in ("passes", "faults", "retries"):
        if getattr(model, name) != getattr(real, name):
            yield Difference(name, str(getattr(model, name)), str(getattr(real, name)))
    for place in range(max(len(model.log), len(real.log))):
        ours = model.log[place] if place < len(model.log) else None
        theirs = real.log[place] if place < len(real.log) else None
        if ours != theirs:
            yield Difference(f"fault {place}", str(ours or "none"), str(theirs or "none"))
            break
    for path, value in model.values.items():
        if path in real.values and (real.values[path] ^ value) & ~ignored.get(path, 0):
            yield Difference(f"value {path}", f"{value:#x}", f"{real.values[path]:#x}")


def statistics_differences(model: Seen, real: Seen) -> tuple[Difference, ...]:
    """In which of KVM's statistics that both have the two differ; those of the host's own doing aside."""
    names = (model.statistics.keys() & real.statistics.keys()) - HOSTS_OWN - _OF_ITS_OWN
    return tuple(
        Difference(f"statistic {name}", str(model.statistics[name]), str(real.statistics[name]))
        for name in sorted(names)
        if model.statistics[name] != real.statistics[name]
    )
