"""Interrupts of the host, told from a guest's own exits: each of them makes at most one exit of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from worldswitch.live.permissions import ROOT


def taken(cpus: Sequence[int], root: Path = ROOT) -> int | None:
    """Interrupts of every kind *cpus* took since boot, by /proc/interrupts (proc(5)); None if it cannot be read."""
    try:
        lines = (root / "proc/interrupts").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    heads = lines[0].split() if lines else []
    columns = [place for place, head in enumerate(heads) if head[3:].isdecimal() and int(head[3:]) in cpus]
    total = 0
    for line in lines[1:]:
        counts = line.split()[1 : 1 + len(heads)]
        # ERR and MIS have one column for all CPUs.
        if len(counts) == len(heads):
            total += sum(int(counts[place]) for place in columns if counts[place].isdecimal())
    return total if columns else None


class Sample(NamedTuple):
    """One run: the exits counted, and the interrupts that may have caused some of them (None: not known)."""

    exits: int
    interrupts: int | None


class Told(NamedTuple):
    """A count told from the interrupts.

    Attributes:
        exits: The exits of the guest itself.
        sure: At least two runs agree on it.
        proven: And no other count fits the interrupts that were taken.
    """

    exits: int
    sure: bool
    proven: bool


def tell(samples: Sequence[Sample]) -> Told:
    """The exits every run made, from at least one run of the same guest.

    A run's own exits are at most those counted and at least those less its interrupts. Where these bounds meet, over
    all runs, the count is proven; else it is the lowest that two runs agree on, and where no two do, the lowest.
    """
    found = sorted(one.exits for one in samples)
    known = [one.exits - one.interrupts for one in samples if one.interrupts is not None]
    most, least = found[0], max(known, default=0)
    if len(samples) > 1 and most == least:
        return Told(most, sure=True, proven=True)
    agreed = lowest_twice(found)
    return Told(most if agreed is None else agreed, sure=agreed is not None, proven=False)


def lowest_twice(values: Sequence[int]) -> int | None:
    """The lowest value that is there at least twice; None if none is."""
    ordered = sorted(values)
    return next((ordered[i] for i in range(len(ordered) - 1) if ordered[i] == ordered[i + 1]), None)
