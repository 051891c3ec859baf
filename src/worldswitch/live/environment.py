"""What a measurement on this host was made on, as a Result says it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from worldswitch.live import module
from worldswitch.live.permissions import ROOT
from worldswitch.record.result import Environment

_VENDORS = {
    "kvm_intel": "intel", "GenuineIntel": "intel",
    "kvm_amd": "amd", "AuthenticAMD": "amd", "HygonGenuine": "amd",
}  # fmt: skip


class Here(NamedTuple):
    """This host: *environment*, and the values of the dimensions a cell has from it."""

    environment: Environment
    dimensions: dict[str, str | None]


def here(root: Path = ROOT) -> Here:
    """This host; ``cpu`` is whose exits the module speaks of (``intel``, ``amd``), else whose processor it is."""
    host = module.environment(root)
    cpu = _VENDORS.get(host.module or "") or _VENDORS.get(host.cpu_vendor or "")
    environment = Environment(host.cpu_model, host.kernel, host.kernel_version, host.module, host.parameters)
    return Here(environment, {"kernel": host.kernel, "cpu": cpu, "mmu": host.mmu, "module": host.module})
