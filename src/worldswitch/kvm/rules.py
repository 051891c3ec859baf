"""The registry of KVM's rules: what each says, since when, from which commit, and where it is tested.

A rule is one function in one place. ``@rule`` registers it; the model, the what-if, the doctor and
``wsw rules`` call or list that function, and nothing says the same thing a second time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from worldswitch.errors import UnknownNameError

_MODULES = (
    "cet", "ownership", "control_registers", "validity", "intercepts", "permissions", "roles", "guest_walk", "roots",
    "host", "tdp", "shadow_pages", "shadow", "register_writes", "rcu_sync", "vmcreate", "nx", "nx_recovery", "nested",
    "vectoring",
)  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])


class Rule(NamedTuple):
    """One rule of KVM's. Rules are imported by the field kit too, so this module runs on Python 3.9.

    Attributes:
        id: Its name.
        sentence: What it says.
        function: The function that is the rule.
        tested: ``file::test`` that holds it against its source.
        depends: Ids of the facts that decide how the function answers, the deciding one first.
        stated: The source, where no fact states it.
        since: First release of the answer given today; empty if that is the first fact's.
        until: First release that answers otherwise; empty if none does.
        unverified: Why it was not held against a running KVM; empty if it was.
    """

    id: str
    sentence: str
    function: Callable[..., Any]
    tested: str
    depends: tuple[str, ...] = ()
    stated: str = ""
    since: str = ""
    until: str = ""
    unverified: str = ""

    @property
    def verified(self) -> bool:
        """Whether it was held against a running KVM, or what one recorded."""
        return not self.unverified

    @property
    def source(self) -> str:
        """``Since Linux commit <12 hex> ("subject") (vX.Y), X. Before that, Y.``, one or more of them."""
        from worldswitch.kvm.facts import facts

        known = facts()
        stated = [self.stated] if self.stated else []
        return " ".join(stated + [known[name].statement for name in self.depends])

    @property
    def first_release(self) -> str:
        """The release since which the function gives today's answer."""
        from worldswitch.kvm.facts import facts

        return self.since or facts()[self.depends[0]].since

    @property
    def where(self) -> str:
        """Module and function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


_registered: dict[str, Rule] = {}


def rule(
    *,
    id: str,
    sentence: str,
    tested: str,
    depends: tuple[str, ...] = (),
    source: str = "",
    since: str = "",
    until: str = "",
    unverified: str = "",
) -> Callable[[_F], _F]:
    """Register the decorated function as the rule *id* (see :class:`Rule`); it is returned as it is."""

    def register(function: _F) -> _F:
        _registered[id] = Rule(id, sentence, function, tested, depends, source, since, until, unverified)
        return function

    return register


def rules() -> Mapping[str, Rule]:
    """All rules by id."""
    for module in _MODULES:
        importlib.import_module(f"worldswitch.kvm.{module}")
    return MappingProxyType(dict(sorted(_registered.items())))


def find(name: str) -> Rule:
    """The rule *name*.

    Raises:
        UnknownNameError: There is none; names the nearest.
    """
    known = rules()
    if name not in known:
        raise UnknownNameError("rule", name, known, "`wsw rules` lists them")
    return known[name]
