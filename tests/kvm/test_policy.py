"""Policies: what decides, and what contradicts itself."""

from __future__ import annotations

import pytest

from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.kvm.policy import Mmu, Policy, Vendor


@pytest.mark.parametrize(
    ("kernel", "mmu"),
    [
        ("5.4", Mmu.LEGACY),
        ("5.10", Mmu.LEGACY),
        ("5.15.0", Mmu.TDP),
        ("5.15", Mmu.LEGACY),
        ("6.1", Mmu.TDP),
        ("7.3", Mmu.TDP),
    ],
)
def test_the_default_mmu_is_the_kernels_own_choice(kernel: str, mmu: Mmu) -> None:
    assert Policy.of(kernel).mmu is mmu


@pytest.mark.parametrize(
    ("settings", "mmu"), [(["tdp_mmu=1"], Mmu.TDP), (["kvm.tdp_mmu=N"], Mmu.LEGACY), (["ept=0"], Mmu.SHADOW)]
)
def test_parameters_choose_the_mmu(settings: list[str], mmu: Mmu) -> None:
    assert Policy.of("5.10", settings=settings).mmu is mmu


def test_a_bare_name_is_looked_up_in_kvm_then_in_the_vendors_module() -> None:
    policy = Policy.of("6.1", "amd", settings=["npt=0", "nx_huge_pages=off"])
    assert policy.settings == (("kvm_amd.npt", "0"), ("kvm.nx_huge_pages", "off"))
    assert policy.mmu is Mmu.SHADOW


def test_a_mapping_of_settings_means_the_same() -> None:
    assert Policy.of("6.1", settings={"ept": "0"}) == Policy.of("6.1", settings=["ept=0"])


def test_shadow_paging_takes_unrestricted_guest_with_it() -> None:
    assert Policy.of("6.1").unrestricted_guest
    assert not Policy.of("6.1", mmu="shadow").unrestricted_guest
    assert not Policy.of("6.1", "amd").unrestricted_guest


@pytest.mark.parametrize(
    ("kernel", "cpu", "mmu", "cet"),
    [
        ("6.12", "intel", "default", False),
        ("6.18", "intel", "default", True),
        ("7.2", "intel", "shadow", False),
        ("7.2", "amd", "default", True),
        ("7.2", "amd", "shadow", False),
    ],
)
def test_cet_is_offered_where_two_dimensional_paging_is(kernel: str, cpu: str, mmu: str, cet: bool) -> None:
    assert bool(Policy.of(kernel, cpu, mmu).cet) is cet


def test_never_is_read_as_off_by_kernels_that_do_not_know_it() -> None:
    old, new = (Policy.of(kernel, settings=["nx_huge_pages=never"]) for kernel in ("5.10", "6.1"))
    assert (old.nx_huge_pages, new.nx_huge_pages) == ("off", "never")
    assert "reads nx_huge_pages=never as off" in old.notes[0]


@pytest.mark.parametrize(("value", "understood"), [("Y", "force"), ("0", "off"), ("force", "force"), ("auto", "auto")])
def test_nx_huge_pages_takes_words_and_booleans(value: str, understood: str) -> None:
    assert Policy.of("6.1", settings=[f"nx_huge_pages={value}"]).nx_huge_pages == understood


def test_a_parameter_no_rule_depends_on_is_noted() -> None:
    assert Policy.of("6.1", settings=["pml=0"]).notes == ("kvm_intel.pml: no rule here depends on it",)


@pytest.mark.parametrize(
    ("kernel", "cpu", "mmu", "settings", "complaint"),
    [
        ("6.1", "intel", "shadow", ["ept=1"], "mmu shadow means kvm_intel.ept=0"),
        ("6.1", "intel", "tdp", ["ept=0"], "mmu tdp needs kvm_intel.ept=1"),
        ("6.1", "intel", "tdp", ["tdp_mmu=0"], "mmu tdp means kvm.tdp_mmu=1"),
        ("6.1", "intel", "legacy", ["tdp_mmu=1"], "mmu legacy means kvm.tdp_mmu=0"),
        ("5.4", "intel", "tdp", [], "has no TDP MMU"),
        ("6.1", "intel", "shadow", ["unrestricted_guest=1"], "needs EPT"),
        ("6.1", "amd", "default", ["kvm_intel.ept=0"], "other vendor"),
        ("6.1", "amd", "default", ["ept=0"], "unknown setting 'ept'"),
        ("6.1", "intel", "default", ["ept=0", "kvm_intel.ept=1"], "set to 0 and to 1"),
        ("6.1", "intel", "default", ["ept=maybe"], "say 1 or 0"),
        ("6.1", "intel", "default", ["ept"], "not NAME=VALUE"),
        ("6.1", "intel", "default", ["=1"], "not NAME=VALUE"),
        ("6.1", "intel", "default", ["tdpmmu=1"], "nearest: tdp_mmu"),
        ("6.1", "intel", "default", ["kvm.tdpmmu=1"], "nearest: tdp_mmu"),
        ("6.1", "intel", "default", ["cpuid.SMAPP=0"], "nearest: SMAP"),
        ("5.10", "intel", "default", ["nx_huge_pages_recovery_period_ms=5"], "has no such parameter"),
        ("6.12", "intel", "default", ["cet=1"], "has no such parameter"),
        ("5.10", "intel", "default", ["favordynmods=1"], "never waits there"),
        ("6.1", "arm", "default", [], "One of intel, amd"),
        ("6.1", "intel", "ept", [], "One of default, tdp, legacy, shadow"),
    ],
)
def test_contradictions_are_refused_with_a_sentence(
    kernel: str, cpu: str, mmu: str, settings: list[str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Policy.of(kernel, cpu, mmu, settings)


def test_an_unknown_setting_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        Policy.of("6.1", settings=["surprise=1"])


def test_a_policy_prints_itself() -> None:
    policy = Policy.of("6.1", settings=["unrestricted_guest=0", "cpuid.pku=0", "pml=0", "favordynmods=1"])
    rows = {row.name: row.value for row in policy.table()}
    assert rows["kernel"] == str(policy.kernel)
    assert rows["mmu"] == "tdp"
    assert rows["unrestricted_guest"] == "N"
    assert rows["cpuid.PKU"] == "0"
    assert rows["kvm_intel.pml"] == "0"
    assert rows["favordynmods"] == "Y"
    assert policy.vendor is Vendor.INTEL
