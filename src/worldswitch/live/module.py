"""Which KVM answers on this host: the vendor's module, its parameters, the MMU they choose. All of it is only read."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from worldswitch.live.permissions import ROOT, read

_TRUE = ("Y", "1")
_FLAGS = {"kvm_intel": "vmx", "kvm_amd": "svm"}


class Environment(NamedTuple):
    """The host as far as it matters to a guest.

    Attributes:
        cpu_model: As /proc/cpuinfo has it; *cpu_vendor* is the twelve letters of CPUID.
        kernel: ``uname -r``; *kernel_version* is ``uname -v``.
        module: The vendor's module: ``kvm_intel``, ``kvm_amd`` or another that stands on kvm; None if none is loaded.
        mmu: ``"tdp"`` (two-dimensional paging, TDP MMU), ``"legacy"`` (the same with the older MMU), ``"shadow"``;
            None where the parameters do not say.
        parameters: ``kvm.nx_huge_pages`` and the like -> value, of all parameters that can be read.
    """

    cpu_model: str | None
    cpu_vendor: str | None
    kernel: str
    kernel_version: str
    module: str | None
    mmu: str | None
    parameters: dict[str, str]


@lru_cache(maxsize=8)
def vendor_module(root: Path = ROOT) -> str | None:
    """The module that does kvm's work: ``kvm_intel``, ``kvm_amd`` or another that stands on kvm; None if none is there.

    Both of the first may be built in; then the processor's flags say which one works.
    """
    modules = root / "sys/module"
    found = [name for name in _FLAGS if (modules / name).is_dir()]
    if len(found) > 1:
        flags = (_first(r"^flags\s*:(.*)$", read(root / "proc/cpuinfo") or "") or "").split()
        found = [name for name in found if _FLAGS[name] in flags]
    if not found:
        # Without holders they are built in.
        for pattern in ("kvm/holders/kvm*", "kvm_*"):
            found += sorted(path.name for path in modules.glob(pattern) if path.name not in _FLAGS)
    return found[0] if found else None


def parameters(root: Path = ROOT) -> dict[str, str]:
    """The parameters of kvm and its vendor's module by full name, those that can be read."""
    found = {}
    for module in ("kvm", vendor_module(root)):
        folder = root / f"sys/module/{module}/parameters"
        if module is None or not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            value = read(path)
            if value is not None:
                found[f"{module}.{path.name}"] = value
    return found


def mmu(values: dict[str, str]) -> str | None:
    """The MMU the parameters choose, see :class:`Environment`.

    ``ept`` (kvm_intel) and ``npt`` (kvm_amd) switch two-dimensional paging; kvm's ``tdp_mmu`` chooses between the two
    MMUs for it, and is absent before Linux 5.10. A module with neither ``ept`` nor ``npt`` has to shadow.
    """
    vendor = {name.partition(".")[0] for name in values} - {"kvm"}
    for name in ("kvm_intel.ept", "kvm_amd.npt"):
        if name in values:
            if values[name] not in _TRUE:
                return "shadow"
            return "tdp" if values.get("kvm.tdp_mmu", "N") in _TRUE else "legacy"
    return "shadow" if vendor and vendor.isdisjoint(("kvm_intel", "kvm_amd")) else None


def environment(root: Path = ROOT) -> Environment:
    """This host."""
    info = read(root / "proc/cpuinfo") or ""
    values = parameters(root)
    uname = os.uname()
    return Environment(
        cpu_model=_first(r"^model name\s*:\s*(.+)$", info),
        cpu_vendor=_first(r"^vendor_id\s*:\s*(.+)$", info),
        kernel=uname.release,
        kernel_version=uname.version,
        module=vendor_module(root),
        mmu=mmu(values),
        parameters=values,
    )


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else None
