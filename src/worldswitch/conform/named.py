"""Differences between model and reality that are known: each with its rule, the reason and a minimal program."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

from worldswitch.conform.seen import Seen, differences

_PF, _P, _RSVD = 14, 1, 8
MOST = 5
"""More than so many there may not be."""


@dataclass(frozen=True, slots=True)
class Named:
    """A known difference, which says exactly what there is to see: with it undone, nothing differs.

    Attributes:
        id: Its name. *rule*: The rule of ``wsw rules`` that it is an exception to. *reason*: Why the two differ.
        program: The smallest program that shows it, as TOML.
        cpus, mmus, kernels: Where it is seen; kernels as the start of a version, none for all.
        undone: Which of :data:`UNDONE` takes it out of what was seen; or empty, and then
        host: the field of :class:`worldswitch.kvm.host.Host` without which the model does as the emulator.
    """

    id: str
    rule: str
    reason: str
    program: str
    cpus: tuple[str, ...]
    mmus: tuple[str, ...]
    kernels: tuple[str, ...]
    undone: str = ""
    host: str = ""

    def seen_at(self, kernel: str, cpu: str, mmu: str) -> bool:
        """Whether it is seen there."""
        versions = not self.kernels or any(kernel == one or kernel.startswith(f"{one}.") for one in self.kernels)
        return versions and cpu in self.cpus and mmu in self.mmus


Expect = Callable[[frozenset[str]], Seen]
"""What the model says of a program on a host without those fields of :class:`worldswitch.kvm.host.Host`."""


def explained(expect: Expect, real: Seen, ignored: Mapping[str, int], place: tuple[str, str, str]) -> str:
    """Ids of the fewest named differences that are all that differs, joined by commas; empty if there are none.

    Args:
        ignored: See :func:`worldswitch.conform.seen.not_compared`.
        place: Kernel version, processor, way to page.
    """
    here = [one for one in named() if one.seen_at(*place)]
    for count in range(1, len(here) + 1):
        for some in combinations(here, count):
            without = real
            for one in some:
                without = UNDONE[one.undone](without) if one.undone else without
            model = expect(frozenset(one.host for one in some if one.host))
            if not differences(model, without, ignored):
                return ",".join(one.id for one in some)
    return ""


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
    several = ("cpus", "mmus", "kernels")
    values: dict[str, Any] = {name: tuple(value) if name in several else value for name, value in entry.items()}
    return Named(**values)
