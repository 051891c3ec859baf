"""``wsw run --compare A,B``: programs under two conditions in turns, A B B A, and a verdict.

In turns, because a host changes while it is measured: what grows slower all the while would else be laid to the side
that came second. Values of one turn are a pair, and pairs are compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.cli.conditions import CPUS, MMUS
from worldswitch.cli.machines import Machine, machines
from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.kit.running import Failure, Settings, Told, Work
from worldswitch.kit.words import features

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.kit.running import Say
    from worldswitch.record.result import Cell, Metric, Result, Spread
    from worldswitch.stats.compare import Comparison

TURNS = 12
"""Turns of each side unless told otherwise: with six or more pairs one time can be told apart, with 12 some forty."""
_CPUID = "cpuid."
_BY_NAME = {"kernel": "kernels", "cpu": "cpus", "mmu": "mmus", "build": "builds"}
"""Name before ``=`` -> the field of the conditions; any other name is a setting."""
_TIMES = ("tsc", "wall")


class Side(NamedTuple):
    """One of the two: *name* is what differs, as it stands among a cell's dimensions."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare on which machine.

    Attributes:
        sides: A and B.
        machine: Each side's.
        settings: Each side's.
        turns: Of each side.
    """

    on: str
    sides: tuple[Side, Side]
    machines: tuple[Machine, Machine]
    settings: tuple[Settings, Settings]
    turns: int


def sides_of(text: str) -> tuple[Side, Side]:
    """A and B of the words after ``--compare``: kernels, or ``NAME=VALUE`` of one name.

    Raises:
        UsageError: They are not two, are the same, or differ in more than one condition.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not all(words):
        raise UsageError(f"--compare {printable(text)!r} is not two, such as 5.10,6.12 or cpuid.pcid=0,cpuid.pcid=1")
    a, b = (_side(word) for word in words)
    if a.name != b.name:
        raise UsageError(f"--compare {printable(text)!r} differs in {printable(a.name)} and in {printable(b.name)}; "
                         "change one condition at a time")  # fmt: skip
    if a == b:
        raise UsageError(f"--compare {printable(text)!r} names the same twice; name two that differ")
    return a, b


def _side(word: str) -> Side:
    name, equals, value = word.partition("=")
    if not equals:
        return Side("kernel", word)
    if not name or not value:
        raise UsageError(f"--compare {printable(word)!r} is not NAME=VALUE, such as nx_huge_pages=never")
    return Side(name, value)


def plan(text: str, on: str, asked: Conditions, settings: Settings) -> Plan:
    """What to do, with everything refused that cannot be done.

    Raises:
        UsageError: Several machines, a condition given twice, or one the machine does not have.
    """
    sides = sides_of(text)
    if "," in on:
        raise UsageError("--compare compares two conditions on one machine; name one after --on")
    if sides[0].name == "kernel" and on == "kvm":
        raise UsageError(
            "this host runs one kernel: --compare K,K is for --on lab or model. Save a result under each kernel and "
            "give both to wsw compare, or compare cpuid.FEATURE=0,cpuid.FEATURE=1"
        )
    _refuse_given(sides[0].name, asked, settings)
    if settings.repeat == 0:
        raise UsageError("--repeat 0 measures no times, and --compare needs some; leave it out")
    both = [_under(side, on, asked, settings) for side in sides]
    return Plan(
        on,
        sides,
        (both[0][0], both[1][0]),
        (both[0][1], both[1][1]),
        1 if on == "model" else settings.repeat or TURNS,
    )


def _refuse_given(name: str, asked: Conditions, settings: Settings) -> None:
    """Refuse what --compare says as well, and several places, of which it would not be clear which are compared."""
    field = _BY_NAME.get(name)
    given = getattr(asked, field) if field else name in asked.parameters
    if given or name.removeprefix(_CPUID) in settings.features:
        raise UsageError(f"{printable(name)} is given twice, by --compare and by its own option; say it once")
    for option, field in _BY_NAME.items():
        if len(getattr(asked, field)) > 1:
            raise UsageError(f"--compare compares two conditions at one place; give --{option} one value")


def _under(side: Side, on: str, asked: Conditions, settings: Settings) -> tuple[Machine, Settings]:
    """The machine under the condition of *side*, and how to run there."""
    if side.name.startswith(_CPUID):
        chosen = features([f"{side.name}={side.value}"])
        settings = replace(settings, features={**settings.features, **chosen})
    elif side.name in _BY_NAME:
        known = {"cpu": CPUS, "mmu": MMUS}.get(side.name, ())
        if known and side.value not in known:
            raise UnknownNameError(side.name, side.value, known)
        given: dict[str, Any] = {_BY_NAME[side.name]: (side.value,)}
        asked = replace(asked, **given)
    else:
        asked = replace(asked, parameters={**asked.parameters, side.name: side.value})
    if on == "kvm" and not side.name.startswith(_CPUID):
        raise UsageError(
            f"--compare {printable(side.name)}=...: on kvm only cpuid.FEATURE=0 and =1 can be set, as parameters of "
            "this host's modules are not changed while it runs; --on lab and --on model have the others"
        )
    ((_, machine),) = machines(on, asked)
    return machine, settings


def run(chosen: Plan, work: Sequence[Work], say: Say) -> Iterator[Cell | Failure]:
    """A cell of A and one of B for each program, or why there is none."""
    found: tuple[dict[int, list[Cell]], dict[int, list[Cell]]] = ({}, {})
    when: tuple[list[int], list[int]] = ([], [])
    stopped: KeyboardInterrupt | None = None
    try:
        for turn in range(2 * chosen.turns):
            # A B, B A, A B ...: whatever drifts meets both alike.
            side = turn % 2 ^ (turn // 2) % 2
            failures = _turn(chosen, work, turn, side, say, found[side])
            if failures:
                yield from failures
                break
            when[side].append(turn)
    except KeyboardInterrupt as interrupt:
        stopped = interrupt
    pairs = min(len(one) for one in when)
    for turns, those in zip(when, found, strict=True):
        for cells in those.values():
            yield joined(cells[:pairs] or cells, turns)
    if stopped is not None:
        raise stopped


def _turn(
    chosen: Plan, work: Sequence[Work], turn: int, side: int, say: Say, found: dict[int, list[Cell]]
) -> list[Failure]:
    """Run all of *work* once; its cells go to *found* if there is one for each."""
    settings = chosen.settings[side]
    if chosen.on != "model":
        settings = replace(settings, repeat=1)
    label = f"turn {turn + 1} of {2 * chosen.turns}, {'AB'[side]} ({printable(chosen.sides[side].value)})"
    given = list(chosen.machines[side].run(work, settings, _saying(say, label)))
    failures = [one for one in given if isinstance(one, Failure)]
    if not failures:
        for place, cell in enumerate(given):
            assert not isinstance(cell, Failure)
            found.setdefault(place, []).append(cell)
    return failures


def _saying(say: Say, label: str) -> Say:
    return lambda text: say(text if isinstance(text, Told) else f"{label}: {text}")


def joined(cells: Sequence[Cell], turns: Sequence[int]) -> Cell:
    """One cell of those that were measured at *turns*: all values together, each with its turn.

    Counts that were not the same in all turns make it unsteady.
    """
    first = cells[0]
    if len(cells) == 1:
        return first
    several = [_together([cell.metrics[place] for cell in cells], turns) for place in range(len(first.metrics))]
    same = all(cell.per_op == first.per_op for cell in cells)
    notes = dict.fromkeys(note for cell in cells for note in cell.notes)
    if not same:
        notes["the turns did not all count the same: the host was busy; try again, or fewer with -n"] = None
    return replace(
        first,
        metrics=tuple(several),
        time_ns=_time(several) if first.time_ns is not None else None,
        create_vm_ns=None
        if first.create_vm_ns is None
        else tuple(value for cell in cells for value in cell.create_vm_ns or ()),
        steady=same and all(cell.steady for cell in cells),
        notes=tuple(notes),
    )


def _together(metrics: Sequence[Metric], turns: Sequence[int]) -> Metric:
    return replace(
        metrics[0],
        values=tuple(value for metric in metrics for value in metric.values),
        warmups=tuple(value for metric in metrics for value in metric.warmups),
        turns=tuple(turn for metric, turn in zip(metrics, turns, strict=False) for _ in metric.values),
    )


def _time(metrics: Sequence[Metric]) -> Spread | None:
    from worldswitch.record.result import Spread
    from worldswitch.stats.median import median

    for name in _TIMES:
        for metric in metrics:
            if metric.name == name and metric.values:
                return Spread(*median(metric.values)[:3])
    return None


def session() -> dict[str, Any]:
    """What marks cells as measured in one session, for the parameters of a Result."""
    from worldswitch.stats.compare import SESSION

    return {SESSION: f"{time.time_ns():x}-{os.getpid():x}", "order": "ABBA"}


def compared(result: Result, name: str) -> Comparison:
    """The cells of *result* against each other along the condition *name*; what follows from it is passed over."""
    from worldswitch.stats.compare import compare

    return compare(result, result, ignore=sorted(_following(result, name)))


def _following(result: Result, name: str) -> set[str]:
    from worldswitch.stats.matching import differing

    found: set[str] = set()
    for i, one in enumerate(result.cells):
        for other in result.cells[i + 1 :]:
            if _same_program(one, other):
                found |= {condition.name for condition in differing(one, result, other, result)}
    return {one for one in found if one not in (name, f"set.{name}")}


def _same_program(one: Cell, other: Cell) -> bool:
    return all(one.dimensions.get(name) == other.dimensions.get(name) for name in ("program", "parameters"))


def python(text: str, on: str, specs: Sequence[str], asked: str, settings: str) -> str:
    """The calls that do the same."""
    return "\n".join(
        [
            "from worldswitch.cli import ab",
            "from worldswitch.cli.conditions import Conditions",
            "from worldswitch.cli.work import prepare",
            "from worldswitch.kit.running import Settings",
            "from worldswitch.record.result import Provenance, Result",
            "",
            f"work = prepare({list(specs)!r})",
            f"plan = ab.plan({text!r}, {on!r}, {asked}, {settings})",
            'result = Result(tuple(ab.run(plan, work, print)), Provenance("", parameters=ab.session()))',
            "for pair in ab.compared(result, plan.sides[0].name).pairs:",
            "    print(pair.counts, pair.times)",
        ]
    )


def parameters(chosen: Plan) -> Mapping[str, Any]:
    """What was asked for, for the provenance."""
    return {"compare": [f"{side.name}={side.value}" for side in chosen.sides], "turns": chosen.turns, **session()}
