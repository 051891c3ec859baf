"""Which CPUID features KVM offers to a guest under a policy, on a processor that has all its vendor ever made."""

from __future__ import annotations

from worldswitch.kvm.policy import FEATURES, Policy, Vendor
from worldswitch.kvm.validity import reserved
from worldswitch.x86.registers import CR4, bit_mask

_NEVER = frozenset(("KL", "PKS", "UINTR", "LASS", "FRED", "SMX"))
"""CPUID features that KVM offers to no guest (cpuid.c, kvm_set_cpu_caps; up to 7.2.13)."""
_CET = ("SHSTK", "IBT")


def offers(policy: Policy, feature: str) -> bool:
    """Whether the guest's CPUID has a feature."""
    name = feature.upper()
    if name in policy.hidden:
        return False
    if name in _CET:
        return name in policy.cet
    if name in _NEVER:
        return False
    if name in FEATURES:
        return not reserved(policy) & bit_mask(CR4, FEATURES[name])
    return True


def why_not(policy: Policy, feature: str) -> str:
    """Why KVM does not offer a feature, and what would have it; empty if it does."""
    name = feature.upper()
    if offers(policy, name):
        return ""
    if name in policy.hidden:
        return f"cpuid.{name}=0 hides it"
    if name in _NEVER:
        return "no KVM known here offers it"
    if name in _CET:
        return _why_not_cet(policy, name)
    if name == "LAM" and policy.vendor is Vendor.INTEL:
        return f"LAM for guests {policy.kernel.origins['lam-virtualized']}"
    if name == "PKU" and not policy.tdp:
        return f"it needs {_paging(policy)}, and this is shadow paging"
    return f"{policy.vendor} processors lack it"


def _why_not_cet(policy: Policy, name: str) -> str:
    if not policy.has("cet-virtualized"):
        return f"CET for guests {policy.kernel.origins['cet-virtualized']}"
    if not policy.tdp:
        return f"CET for guests needs {_paging(policy)}, and this is shadow paging"
    if policy.vendor is Vendor.AMD and name == "IBT":
        return "amd processors lack it"
    settings = dict(policy.settings)
    off = [one for one in ("kvm_intel.cet", "kvm_intel.unrestricted_guest") if settings.get(one) is not None]
    off += ["kvm_intel.allow_smaller_maxphyaddr"] * ("kvm_intel.allow_smaller_maxphyaddr" in settings)
    return " and ".join(f"{one}={settings[one]}" for one in off) + " forbids CET for guests"


def _paging(policy: Policy) -> str:
    return "EPT" if policy.vendor is Vendor.INTEL else "NPT"
