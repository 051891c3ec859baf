"""Differences between model and reality that are known: each with its rule, the reason and a minimal program."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from worldswitch.conform.seen import Difference
from worldswitch.guest.paths import places
from worldswitch.guest.program import Program

MOST = 5
"""More than so many there may not be."""


@dataclass(frozen=True, slots=True)
class Named:
    """A known difference.

    Attributes:
        id: Its name. *rule*: The rule of ``wsw rules`` that it is an exception to. *reason*: Why the two differ.
        program: The smallest program that shows it, as TOML.
        cpus, mmus, kernels: Where it is seen; kernels as the start of a version, none for all.
        operations: Words of operations a program must have for it.
        kinds: The kinds of differences it makes (:attr:`Difference.kind`); others are none of it.
    """

    id: str
    rule: str
    reason: str
    program: str
    cpus: tuple[str, ...]
    mmus: tuple[str, ...]
    kernels: tuple[str, ...]
    operations: tuple[str, ...]
    kinds: tuple[str, ...]

    def explains(self, program: Program, found: Sequence[Difference], kernel: str, cpu: str, mmu: str) -> bool:
        """Whether it is all that differs."""
        words = {place.operation.word for place in places(program)}
        return (
            cpu in self.cpus
            and mmu in self.mmus
            and (not self.kernels or any(kernel == one or kernel.startswith(f"{one}.") for one in self.kernels))
            and words.issuperset(self.operations)
            and all(one.kind in self.kinds for one in found)
        )


@cache
def named() -> tuple[Named, ...]:
    """All of them."""
    text = resources.files(__package__).joinpath("named.toml").read_text(encoding="utf-8")
    return tuple(_named(one) for one in tomllib.loads(text).get("difference", ()))


def _named(entry: dict[str, Any]) -> Named:
    several = ("cpus", "mmus", "kernels", "operations", "kinds")
    values: dict[str, Any] = {name: tuple(value) if name in several else value for name, value in entry.items()}
    return Named(**values)
