"""Features that are not offered, and why. Expected: kvm_initialize_cpu_caps, vmx_set_cpu_caps and svm_set_cpu_caps of
7.2.13, and what shows there since when (facts.toml)."""

from __future__ import annotations

import pytest

from worldswitch.kvm.offers import offers, why_not
from worldswitch.kvm.policy import FEATURES, Policy


@pytest.mark.parametrize(
    ("kernel", "cpu", "mmu", "settings", "feature", "why"),
    [
        ("5.10", "intel", "default", [], "shstk", "CET for guests comes with mainline 6.18"),
        ("7.2", "intel", "shadow", [], "shstk", "CET for guests needs EPT, and this is shadow paging"),
        ("7.2", "amd", "shadow", [], "shstk", "CET for guests needs NPT, and this is shadow paging"),
        ("7.2", "intel", "default", ["ept=0"], "ibt", "CET for guests needs EPT, and this is shadow paging"),
        ("7.2", "intel", "default", ["cet=0"], "ibt", "kvm_intel.cet=0 forbids CET for guests"),
        ("7.2", "intel", "default", ["unrestricted_guest=0"], "shstk",
         "kvm_intel.unrestricted_guest=0 forbids CET for guests"),
        ("7.2", "intel", "default", ["allow_smaller_maxphyaddr=1"], "shstk",
         "kvm_intel.allow_smaller_maxphyaddr=1 forbids CET for guests"),
        ("7.2", "amd", "default", [], "ibt", "amd processors lack it"),
        ("7.2", "intel", "default", ["cpuid.shstk=0"], "shstk", "cpuid.SHSTK=0 hides it"),
        ("6.12", "amd", "shadow", [], "pku", "it needs NPT, and this is shadow paging"),
        ("6.12", "amd", "default", [], "vmx", "amd processors lack it"),
        ("7.2", "intel", "default", [], "fred", "no KVM known here offers it"),
    ],
)  # fmt: skip
def test_why_a_feature_is_not_offered(
    kernel: str, cpu: str, mmu: str, settings: list[str], feature: str, why: str
) -> None:
    policy = Policy.of(kernel, cpu, mmu, settings)
    assert not offers(policy, feature)
    assert why_not(policy, feature) == why


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12", "7.2"])
@pytest.mark.parametrize("cpu", ["intel", "amd"])
@pytest.mark.parametrize("mmu", ["default", "shadow"])
def test_what_is_not_offered_has_a_reason_and_nothing_else(kernel: str, cpu: str, mmu: str) -> None:
    policy = Policy.of(kernel, cpu, mmu)
    for feature in (*FEATURES, "SMX", "INVPCID", "NX"):
        assert offers(policy, feature) == (not why_not(policy, feature)), feature
