"""Interrupts of the host: how many some CPUs took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
