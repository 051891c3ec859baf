"""The published measurements as data: what was measured on which kernel, by which message, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import get_data
from typing import Any

from worldswitch.errors import UnknownNameError

REFERENCE = "A"
"""The group of hosts whose speed is 1."""
STAGES = ("intercepted", "kept", "owned")
"""In the order of the patches, each cheaper than the one before."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One published time.

    Attributes:
        column: As printed; *mmu* is what it was: ``tdp``, ``legacy`` or ``shadow``.
        stage: One of :data:`STAGES`.
        fit: ``atoms`` or ``scale`` where the cell is used for a fit of those, else empty.
        spread: Standard error in seconds, where one was printed.
    """

    row: str
    column: str
    mmu: str
    stage: str
    seconds: float
    fit: str = ""
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements of one host.

    Attributes:
        group: Hosts of one group are taken to be equally fast.
        program: The guest program that stands for the benchmark.
        stages: Stage -> the kernel, as :func:`worldswitch.kvm.facts.kernel` takes it.
    """

    id: str
    title: str
    source: str
    group: str
    cpu: str
    program: str
    stages: Mapping[str, str]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """Something the model gets wrong, by name (see :mod:`worldswitch.costs.beside`), and the reason as far as known."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """All that was published.

    Attributes:
        noise: Relative standard deviation of one cell; *noise_source* says how that is known.
        readings: Number of steps the benchmark may have made -> why.
        untold: What no fit of these cells can tell, a clause each.
    """

    tables: tuple[Table, ...]
    noise: float
    noise_source: str
    readings: Mapping[int, str]
    misses: tuple[Miss, ...]
    untold: tuple[str, ...]

    def only(self, name: str) -> tuple[Table, ...]:
        """The table *name*.

        Raises:
            UnknownNameError: There is none.
        """
        found = tuple(table for table in self.tables if table.id == name)
        if not found:
            raise UnknownNameError("table", name, [t.id for t in self.tables], "`wsw tables` shows them all")
        return found


@cache
def published() -> Published:
    """The measurements that ship."""
    import tomllib

    return read(tomllib.loads((get_data(__package__, "published.toml") or b"").decode("utf-8")))


def read(document: Mapping[str, Any]) -> Published:
    """The measurements in a document of the form of ``published.toml``."""
    return Published(
        tuple(_table(entry) for entry in document["tables"]),
        document["noise"]["per_cell"],
        document["noise"]["source"],
        {int(steps): why for steps, why in document["readings"].items()},
        tuple(Miss(**entry) for entry in document.get("misses", ())),
        tuple(document.get("untold", ())),
    )


def _table(entry: Mapping[str, Any]) -> Table:
    cells = tuple(Cell(**{"mmu": cell["column"].lower(), **cell}) for cell in entry["cells"])
    return Table(**{"cpu": "intel", **entry, "cells": cells})
