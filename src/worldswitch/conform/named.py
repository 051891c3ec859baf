"""Differences between model and reality that are known: each with its rule, the reason and a minimal program."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from worldswitch.conform.seen import Difference, Seen, differences
from worldswitch.guest.paths import places
from worldswitch.guest.program import Program

_PF, _P, _RSVD = 14, 1, 8
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
        undone: Which of :data:`UNDONE` takes it out of what was seen; empty if nothing can, and then a program that
            differs in *kinds* alone has it.
    """

    id: str
    rule: str
    reason: str
    program: str
    cpus: tuple[str, ...]
    mmus: tuple[str, ...]
    kernels: tuple[str, ...]
    operations: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    undone: str = ""

    def seen_at(self, kernel: str, cpu: str, mmu: str) -> bool:
        """Whether it is seen there."""
        versions = not self.kernels or any(kernel == one or kernel.startswith(f"{one}.") for one in self.kernels)
        return versions and cpu in self.cpus and mmu in self.mmus

    def explains(self, program: Program, found: Sequence[Difference]) -> bool:
        """Whether it is all that differs in a program that has what it takes."""
        words = {place.operation.word for place in places(program)}
        return not self.undone and words.issuperset(self.operations) and all(one.kind in self.kinds for one in found)


def explained(
    program: Program, model: Seen, real: Seen, ignored: Mapping[str, int], place: tuple[str, str, str]
) -> str:
    """Ids of the named differences that are all that differs, joined by commas; empty if they are not.

    Args:
        ignored: See :func:`worldswitch.conform.seen.not_compared`.
        place: Kernel version, processor, way to page.
    """
    used = []
    for one in named():
        if one.undone and one.seen_at(*place) and (without := UNDONE[one.undone](real)) != real:
            used.append(one.id)
            real = without
    left = differences(model, real, ignored)
    if not left:
        return ",".join(used)
    by = next((one.id for one in named() if one.seen_at(*place) and one.explains(program, left)), "")
    return ",".join([*used, by]) if by else ""


def _present_where_reserved(seen: Seen) -> Seen:
    """With P in the error code of every page fault by a reserved bit."""
    log = tuple(
        one._replace(error_code=one.error_code | _P) if one.vector == _PF and one.error_code & _RSVD else one
        for one in seen.log
    )
    return replace(seen, log=log)


UNDONE: Mapping[str, Callable[[Seen], Seen]] = {"rsvd-without-p": _present_where_reserved}
"""Ways to take a difference out of what was seen on a real KVM."""


@cache
def named() -> tuple[Named, ...]:
    """All of them."""
    text = resources.files(__package__).joinpath("named.toml").read_text(encoding="utf-8")
    return tuple(_named(one) for one in tomllib.loads(text).get("difference", ()))


def _named(entry: dict[str, Any]) -> Named:
    several = ("cpus", "mmus", "kernels", "operations", "kinds")
    values: dict[str, Any] = {name: tuple(value) if name in several else value for name, value in entry.items()}
    return Named(**values)
