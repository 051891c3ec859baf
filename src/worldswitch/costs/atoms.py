"""Cost atoms: what one event takes, between which limits, and where that is from; and the time that counts take."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.record.result import Spread

UNITS = ("ns", "cycles")
WORK = "work."
"""Events of a guest's own doing, one per unit of a program: ``work.ssdd``."""


@dataclass(frozen=True, slots=True)
class Atom:
    """The cost of one event.

    Attributes:
        event: As in :mod:`worldswitch.costs.events`, or ``work.PROGRAM``: a unit of a program without what is counted.
        low, mid, high: In *unit*, one of :data:`UNITS`.
        origin: Where the figures are from, so that they can be had again.
        covers: Events whose cost is in this one already.
    """

    event: str
    low: float
    mid: float
    high: float
    unit: str
    origin: str
    covers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise UsageError(f"cost of {printable(self.event)}: the unit is one of {', '.join(UNITS)}")
        if not self.origin.strip():
            raise UsageError(f"cost of {printable(self.event)}: it has no origin, and a figure without one is no cost")
        if not 0 <= self.low <= self.mid <= self.high < math.inf:
            raise UsageError(f"cost of {printable(self.event)}: 0 <= low <= mid <= high does not hold")


@dataclass(frozen=True, slots=True)
class Priced:
    """What counts take, in ns; None while an event has no cost.

    Attributes:
        unpriced: Those events, each with the reason.
        used: The atoms that went into it.
    """

    time: Spread | None
    unpriced: Mapping[str, str]
    used: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """A set of costs, at most one for each event."""

    atoms: tuple[Atom, ...]

    def __post_init__(self) -> None:
        names = [atom.event for atom in self.atoms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"{printable(twice[0])} has more than one cost; keep one")

    def price(self, counts: Mapping[str, float]) -> Priced:
        """The time of *counts*: mid the sum of all mids, low and high those of all limits at once.

        A ``work.`` event without a cost is no gap; the time then is without the guest's own work.
        """
        known = {atom.event: atom for atom in self.atoms}
        covered = {name for event in counts if event in known for name in known[event].covers}
        used = [(known[event], count) for event, count in counts.items() if event in known and event not in covered]
        wanted = {event for event in counts if not event.startswith(WORK)} - covered
        unpriced = dict.fromkeys(sorted(wanted - known.keys()), "has no cost")
        unpriced |= {atom.event: "is in cycles, of no known length" for atom, _ in used if atom.unit == "cycles"}
        time = None if unpriced else Spread(*(sum(getattr(a, end) * n for a, n in used) for end in Spread._fields))
        return Priced(time, unpriced, tuple(atom for atom, _ in used))


def dumps(costs: Costs) -> str:
    """The costs as TOML."""
    parts = ["# Costs for wsw run --on model --costs; each with its origin.\n"]
    for atom in costs.atoms:
        lines = [f"\n[[costs]]\nevent = {_text(atom.event)}"]
        lines += [f"{name} = {getattr(atom, name):.6g}" for name in Spread._fields]
        lines += [f"unit = {_text(atom.unit)}", f"origin = {_text(atom.origin)}"]
        lines += [f"covers = [{', '.join(map(_text, atom.covers))}]"] if atom.covers else []
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def _text(text: str) -> str:
    # A JSON string of ASCII is a TOML basic string, except that TOML has no surrogates.
    return json.dumps(text.encode("utf-8", "replace").decode("utf-8"), ensure_ascii=False).replace("\x7f", "\\u007f")


def loads(text: str, where: str = "costs") -> Costs:
    """The costs in a TOML text.

    Raises:
        UsageError: It is no TOML, or not of this form.
    """
    import tomllib

    try:
        entries = tomllib.loads(text)["costs"]
        return Costs(tuple(_atom(entry) for entry in entries))
    except KeyError as error:
        raise UsageError(f"{printable(where)}: no {error.args[0]!r}; wsw calibrate writes such files") from error
    except UsageError as error:
        raise UsageError(f"{printable(where)}: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{printable(where)} is no file of costs: {printable(str(error))}") from error


def load(path: Path) -> Costs:
    """The costs in a file.

    Raises:
        MissingError: It cannot be read.
        UsageError: See :func:`loads`.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{printable(str(path))} is no regular file, so no file of costs")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        why = printable(error.strerror or str(error))
        raise MissingError(f"cannot read costs from {printable(str(path))}: {why}") from error
    except ValueError as error:
        raise UsageError(f"{printable(str(path))} is no file of costs: it is no text") from error
    return loads(text, str(path))


def _atom(entry: Mapping[str, Any]) -> Atom:
    low, mid, high = (float(entry[name]) for name in Spread._fields)
    event, unit, origin = (_string(entry[name]) for name in ("event", "unit", "origin"))
    return Atom(event, low, mid, high, unit, origin, tuple(_strings(entry.get("covers", []))))


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value


def _strings(values: Iterable[object]) -> Iterable[str]:
    return map(_string, values)
