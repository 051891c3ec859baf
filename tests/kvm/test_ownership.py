"""Guest-owned bits. Expected: KVM_POSSIBLE_CR0/4_GUEST_BITS and set_cr4_guest_host_mask of the kernels named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.kvm.ownership import owned, owned_cr0, owned_cr4, svm_cr0_exits, svm_cr4_exits, write_exits
from worldswitch.kvm.policy import Policy
from worldswitch.x86.registers import CR0, CR4, bit_mask, bit_names

BASE = {"PVI", "DE", "PCE", "OSFXSR", "OSXMMEXCPT", "TSD", "FSGSBASE"}

# kernel: CR0 with EPT, CR0 without, CR4 with EPT beyond BASE
OWNED = {
    "5.10.223": ({"TS"}, {"TS"}, {"PGE"}),
    "6.1.190": ({"TS", "WP"}, {"TS"}, {"PGE"}),
    "6.12.117": ({"TS", "WP"}, {"TS"}, {"PGE"}),
    "7.2.13": ({"TS", "WP"}, {"TS"}, {"PGE", "CET"}),
    "7.3-rc7": ({"TS", "WP"}, {"TS"}, {"PGE", "CET"}),
}


@pytest.mark.parametrize("kernel", OWNED)
def test_owned_bits_of_each_kernel(kernel: str) -> None:
    """Rules cr0-guest-owned and cr4-guest-owned."""
    with_ept, without_ept, cr4 = OWNED[kernel]
    ept, shadow = Policy.of(kernel), Policy.of(kernel, mmu="shadow")
    assert set(bit_names(CR0, owned(ept).cr0)) == with_ept
    assert set(bit_names(CR0, owned(shadow).cr0)) == without_ept
    assert set(bit_names(CR4, owned(ept).cr4)) == BASE | cr4
    assert set(bit_names(CR4, owned(shadow).cr4)) == BASE


def test_wp_is_owned_with_ept_even_without_unrestricted_guest() -> None:
    policy = Policy.of("6.1", settings=["unrestricted_guest=0"])
    assert owned_cr0(policy) == bit_mask(CR0, "TS", "WP")


@pytest.mark.parametrize(
    ("version", "is_owned"), [("6.1.28", False), ("6.1.29", True), ("6.2.15", False), ("6.2.16", True)]
)
def test_wp_is_owned_from_the_stable_version_that_took_it_over(version: str, is_owned: bool) -> None:
    assert bool(owned_cr0(Policy.of(version)) & bit_mask(CR0, "WP")) == is_owned


def test_a_bit_whose_feature_the_guest_lacks_stays_with_the_host() -> None:
    policy = Policy.of("6.12", settings=["cpuid.FSGSBASE=0"])
    assert not owned_cr4(policy) & bit_mask(CR4, "FSGSBASE")


def test_before_5_10_a_bit_whose_feature_the_guest_lacks_was_owned_like_the_others() -> None:
    policy = Policy.of("5.4.0", settings=["cpuid.LA57=0"])
    assert owned_cr4(policy) & bit_mask(CR4, "LA57")


@pytest.mark.parametrize("setting", ["cet=0", "unrestricted_guest=0", "allow_smaller_maxphyaddr=1"])
def test_cet_is_the_hosts_where_kvm_does_not_offer_it(setting: str) -> None:
    assert not owned_cr4(Policy.of("7.2", settings=[setting])) & bit_mask(CR4, "CET")


def test_one_of_shstk_and_ibt_is_enough_for_cet() -> None:
    one, none = (Policy.of("7.2", settings=s) for s in (["cpuid.IBT=0"], ["cpuid.IBT=0", "cpuid.SHSTK=0"]))
    assert owned_cr4(one) & bit_mask(CR4, "CET")
    assert not owned_cr4(none) & bit_mask(CR4, "CET")


def test_a_fact_can_be_added_to_a_kernel_without_it() -> None:
    assert owned_cr0(Policy.of("6.2.0+cr0-wp-owned")) & bit_mask(CR0, "WP")


@pytest.mark.parametrize("kernel", OWNED)
def test_under_svm_the_guest_owns_nothing(kernel: str) -> None:
    assert owned(Policy.of(kernel, "amd")) == (0, 0)


@pytest.mark.parametrize("kernel", OWNED)
@given(changed=st.integers(1, 2**32 - 1))
def test_svm_cr0_writes_exit_but_for_ts_and_mp(kernel: str, changed: int) -> None:
    """Rule svm-cr0-intercept: kvm-unit-tests svm, selective CR0 intercept; APM volume 2."""
    policy = Policy.of(kernel, "amd")
    assert svm_cr0_exits(policy, changed) == bool(changed & ~bit_mask(CR0, "TS", "MP"))


def test_svm_cr0_writes_all_exit_while_hardware_and_guest_differ() -> None:
    """svm_set_cr0: without nested paging the hardware has WP set; recorded as write_cr0 in svm-5.10-shadow."""
    wp = bit_mask(CR0, "PE", "ET", "PG", "WP")
    shadow = Policy.of("5.10", "amd", "shadow")
    assert svm_cr0_exits(shadow, bit_mask(CR0, "TS"), wp & ~bit_mask(CR0, "WP"))
    assert not svm_cr0_exits(shadow, bit_mask(CR0, "TS"), wp)


@given(changed=st.integers(0, 2**32 - 1))
def test_svm_cr4_writes_always_exit(changed: int) -> None:
    """Rule svm-cr4-intercept."""
    assert svm_cr4_exits(changed)
    assert write_exits(Policy.of("7.2", "amd"), CR4, changed)


@given(changed=st.integers(0, 2**32 - 1), register=st.sampled_from([CR0, CR4]))
def test_under_vmx_a_write_exits_exactly_if_it_changes_a_bit_of_the_host(changed: int, register: int) -> None:
    """SDM volume 3: MOV to CR exits iff a bit of the guest/host mask differs from the read shadow."""
    policy = Policy.of("7.2")
    mine = owned(policy)[0 if register == CR0 else 1]
    assert write_exits(policy, register, changed) == bool(changed & ~mine)
