"""Settings of a machine: module parameters by name, how a vendor's KVM pages, options of the cgroup mount."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.lab.initramfs import VENDOR, module_path
from worldswitch.lab.jobs import Setup
from worldswitch.lab.modules import Module, owner

FAVORDYNMODS = "favordynmods"
MMU = ("default", "tdp", "legacy", "shadow")
_NESTED = {"amd": "kvm_amd.npt", "intel": "kvm_intel.ept"}
_ON, _OFF = frozenset(("1", "y", "yes", "on", "true")), frozenset(("0", "n", "no", "off", "false"))


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with every parameter's module.

    Attributes:
        parameters: (module, parameter, value), in the order given.
        favordynmods: Mount cgroup2 with it.
    """

    parameters: tuple[tuple[str, str, str], ...]
    favordynmods: bool = False

    def setup(self, modules: Sequence[Module]) -> Setup:
        """What the guest must do for them."""
        loaded = tuple(
            (module_path(m.name), tuple(f"{name}={value}" for owner, name, value in self.parameters if owner == m.name))
            for m in modules
        )
        requested = tuple((module, name) for module, name, _ in self.parameters)
        return Setup(modules=loaded, requested=requested, favordynmods=self.favordynmods)


def mmu(name: str, cpu: str) -> dict[str, str]:
    """The module parameters that make KVM page so: two-dimensional by the TDP MMU or the older code, or shadow paging.

    Raises:
        UnknownNameError: No such way, or no such vendor.
    """
    if name not in MMU:
        raise UnknownNameError("mmu", name, MMU)
    if cpu not in VENDOR:
        raise UnknownNameError("cpu", cpu, VENDOR)
    nested = _NESTED[cpu]
    return {
        "default": {},
        "tdp": {"kvm.tdp_mmu": "1", nested: "1"},
        "legacy": {"kvm.tdp_mmu": "0", nested: "1"},
        "shadow": {nested: "0"},
    }[name]


def paging(name: str, cpu: str, given: Mapping[str, str]) -> dict[str, str]:
    """The parameters of :func:`mmu`, beside those *given*.

    Raises:
        UnknownNameError: As there.
        UsageError: One of them is given another value.
    """
    chosen = mmu(name, cpu)
    for parameter, value in chosen.items():
        for other in (parameter, parameter.partition(".")[2]):
            if given.get(other, value) != value:
                raise UsageError(f"--mmu {name} is {parameter}={value}, and --set gives it {printable(given[other])}")
    return chosen


def resolve(settings: Mapping[str, str], modules: Sequence[Module]) -> Resolved:
    """*settings* with the module each belongs to: a name alone is looked up in kvm, then in the vendor's module.

    Raises:
        UnknownNameError: No module takes such a parameter.
        UsageError: A value cannot be one, or a parameter is given two values.
    """
    order = {"kvm": 0}
    sought = sorted(modules, key=lambda m: order.get(m.name, 1))
    values: dict[str, str] = {}
    favordynmods = False
    for key, value in settings.items():
        if key == FAVORDYNMODS:
            favordynmods = _switch(key, value)
            continue
        name = owner(key, sought)
        if not value or any(c.isspace() or c in "\"'\\" for c in value):
            raise UsageError(f"{printable(key)}={printable(value)!r} is no value of a module parameter; write one word")
        if values.get(name, value) != value:
            raise UsageError(f"{name} is set to {printable(values[name])} and to {printable(value)}; give one of them")
        values[name] = value
    parameters = tuple((*name.split(".", 1), value) for name, value in values.items())
    return Resolved(tuple((module, parameter, value) for module, parameter, value in parameters), favordynmods)


def _switch(name: str, value: str) -> bool:
    if value.lower() in _ON:
        return True
    if value.lower() in _OFF:
        return False
    raise UsageError(f"{name} is on or off, not {printable(value)!r}")
