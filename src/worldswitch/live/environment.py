"""What a measurement on this host was made on: processor, kernel, the KVM module that answered, its parameters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from worldswitch.live.permissions import ROOT, read
from worldswitch.record.result import Environment

_TWO_DIMENSIONAL = {"kvm_intel": "ept", "kvm_amd": "npt"}
_VENDORS = dict.fromkeys(("kvm_intel", "GenuineIntel"), "intel")
_VENDORS.update(dict.fromkeys(("kvm_amd", "AuthenticAMD", "HygonGenuine"), "amd"))
_ON = ("Y", "1")


def environment(root: Path = ROOT) -> Environment:
    """This host, as far as it tells; what is not to be known is None or left out."""
    host = os.uname()
    module = vendor_module(root)
    parameters: dict[str, str] = {}
    for name in ("kvm", module):
        parameters.update(_parameters(root, name) if name else ())
    return Environment(_cpuinfo(root, "model name"), host.release, host.version, module, parameters)


def vendor_module(root: Path = ROOT) -> str | None:
    """The module that runs guests beside ``kvm``: ``kvm_intel``, ``kvm_amd`` or another; None if none is there.

    Both may be built in; then the processor's flags tell which one it is.
    """
    try:
        found = sorted(path.name for path in (root / "sys/module").glob("kvm_*"))
    except OSError:
        return None
    flags = (_cpuinfo(root, "flags") or "").split()
    for flag, name in (("vmx", "kvm_intel"), ("svm", "kvm_amd")):
        if flag in flags and name in found:
            return name
    others = [name for name in found if name not in _TWO_DIMENSIONAL]
    return next(iter(others or found), None)


def cpu(around: Environment, root: Path = ROOT) -> str | None:
    """``intel`` or ``amd``: whose exits the module speaks of, else whose processor it is."""
    return _VENDORS.get(around.vendor_module or "") or _VENDORS.get(_cpuinfo(root, "vendor_id") or "")


def mmu(around: Environment) -> str | None:
    """``tdp``, ``legacy`` or ``shadow``, by the parameters; None for a module that does not say.

    ``kvm.tdp_mmu`` counts only with two-dimensional paging (kvm_mmu_init_tdp_mmu, arch/x86/kvm/mmu/tdp_mmu.c).
    """
    switch = _TWO_DIMENSIONAL.get(around.vendor_module or "")
    value = around.parameters.get(f"{around.vendor_module}.{switch}")
    if switch is None or value is None:
        return None
    if value not in _ON:
        return "shadow"
    return "tdp" if around.parameters.get("kvm.tdp_mmu") in _ON else "legacy"


def _parameters(root: Path, module: str) -> Iterator[tuple[str, str]]:
    try:
        paths = sorted((root / "sys/module" / module / "parameters").iterdir())
    except OSError:
        return
    for path in paths:
        value = read(path)
        if value is not None:
            yield f"{module}.{path.name}", value


def _cpuinfo(root: Path, key: str) -> str | None:
    found = re.search(rf"^{key}\s*:\s*(.+)$", read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return found[1].strip() if found else None
