"""Which kernel facts and which policy a host has, as far as its files tell."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.errors import WorldswitchError
from worldswitch.kvm import distributions
from worldswitch.kvm.policy import FEATURES, Policy

if TYPE_CHECKING:
    from worldswitch.host.facts import Host
    from worldswitch.kvm.facts import Kernel

_SETTINGS = {
    "kvm": (
        "tdp_mmu", "nx_huge_pages", "nx_huge_pages_recovery_ratio", "nx_huge_pages_recovery_period_ms",
    ),
    "kvm_intel": ("ept", "unrestricted_guest", "allow_smaller_maxphyaddr", "cet"),
    "kvm_amd": ("npt",),
}  # fmt: skip
# /proc/cpuinfo shows SHSTK only as what user space may use of it.
_FLAGS = {"PKU": ("pku",), "SHSTK": ("user_shstk", "shstk"), "IBT": ("ibt",), "LAM": ("lam",)}


class KernelTold(NamedTuple):
    """A kernel's facts and how they were told; or None and why not."""

    kernel: Kernel | None
    how: str
    why: str


class PolicyTold(NamedTuple):
    """A policy; or None and why not."""

    policy: Policy | None
    why: str


def kernel_of(host: Host) -> KernelTold:
    """The facts of a host's kernel, by its version strings."""
    long = host.version if "Debian" in host.version else ""
    return _told(host.text("/proc/version_signature") or "", long, host.release)


# Many hosts of a fleet have the same kernel.
@lru_cache(maxsize=256)
def _told(*texts: str) -> KernelTold:
    why = "the kernel's release was not read"
    for text in filter(None, texts):
        try:
            told = distributions.kernel_of(text)
            if told.version is not None:
                return KernelTold(told.kernel(), told.how, "")
            why = told.why
        except WorldswitchError as error:
            why = str(error)
    return KernelTold(None, "", why)


def policy_of(host: Host) -> PolicyTold:
    """Kernel, processor and parameters of a host as KVM's rules take them."""
    if host.kernel is None:
        return PolicyTold(None, host.kernel_why)
    vendor = _vendor(host)
    if not vendor:
        return PolicyTold(None, "whose the processor is was not read, or is not known")
    try:
        return PolicyTold(Policy.of(host.kernel, vendor, "default", dict(_settings(host, vendor))), "")
    except WorldswitchError as error:
        return PolicyTold(None, f"its settings do not fit the kernel's facts: {error}")


def _vendor(host: Host) -> str:
    loaded = {"kvm_intel": "intel", "kvm_amd": "amd"}
    found = [vendor for module, vendor in loaded.items() if module in host.modules]
    return found[0] if len(found) == 1 else host.cpu.vendor


def _settings(host: Host, vendor: str) -> Iterator[tuple[str, str]]:
    for module in ("kvm", f"kvm_{vendor}"):
        for name in _SETTINGS[module]:
            value = host.parameter(module, name)
            if value:
                yield f"{module}.{name}", value
    if host.favordynmods and host.kernel is not None and host.kernel.has("cgroup-favordynmods"):
        yield "favordynmods", "1"
    if host.cpu.flags:
        for feature in FEATURES:
            if not host.cpu.flags.intersection(_FLAGS.get(feature, (feature.lower(),))) and feature != "VMX":
                yield f"cpuid.{feature}", "0"
