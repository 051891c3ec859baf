"""What ``--costs`` names: a set of costs of creating VMs that ships, or a file of costs for guests and for VMs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worldswitch.costs.atoms import Costs
    from worldswitch.costs.create_vm import CostSet


def guest_costs(word: Path | None) -> Costs | None:
    """Costs of what guests do; None if none are given. A set that ships holds none of them.

    Raises:
        MissingError: The file cannot be read, and no set has that name.
        UsageError: It is no file of costs.
    """
    if word is None or _is_set(word):
        return None
    from worldswitch.costs.atoms import load

    return load(word)


def creation_costs(word: Path | None) -> CostSet:
    """Costs of creating VMs: the set *word* names, what a file has of them, or the default set.

    Raises:
        MissingError: The file cannot be read, and no set has that name.
        UsageError: It is no file of costs.
    """
    from worldswitch.costs import create_vm

    if word is None or _is_set(word):
        return create_vm.cost_set(create_vm.DEFAULT if word is None else str(word))
    from worldswitch.costs.atoms import load
    from worldswitch.record.result import Spread

    own = {
        atom.event: create_vm.Cost(Spread(atom.low, atom.mid, atom.high), atom.origin)
        for atom in load(word).atoms
        if atom.unit == "ns"
    }
    return create_vm.with_defaults(create_vm.CostSet(str(word), str(word), own))


def origins(word: Path | None) -> dict[str, str]:
    """Where each cost that was given is from."""
    if word is None:
        return {}
    if _is_set(word):
        return {name: cost.origin for name, cost in creation_costs(word).costs.items()}
    costs = guest_costs(word)
    return {} if costs is None else {atom.event: atom.origin for atom in costs.atoms}


def _is_set(word: Path) -> bool:
    from worldswitch.costs.create_vm import published

    return str(word) in published().sets and not word.exists()
