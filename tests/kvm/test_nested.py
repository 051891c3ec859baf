"""Control registers of L2. Expected: what x86/vmx_tests.c of kvm-unit-tests reports as right in its test "CR shadowing"
(cr_shadowing_main and cr_shadowing_exit_handler), and nested.c of 5.10.223 and 7.2.13."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import UsageError
from worldswitch.kvm.nested import (
    Sees,
    Vmcs02,
    Vmcs12,
    effective,
    entered,
    goes_to_l1,
    left,
    owned_by_l2,
    read_shadow,
    returned,
    write,
    written_back,
)
from worldswitch.kvm.ownership import owned
from worldswitch.kvm.policy import Policy
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, CR4, bit_mask

OLD, NEW = Policy.of("5.10"), Policy.of("7.2")
L2 = Registers(0x80050033, 0x2000, bit_mask(CR4, "PAE"), 0xD00)
# Register, its value in L2, the two bits the test masks, the first of them owned by L2 if L1 does not mask it.
SHADOWED = [(CR0, L2.cr0, "MP", "TS"), (CR4, L2.cr4, "DE", "TSD")]


@pytest.mark.parametrize("policy", [OLD, NEW], ids=["5.10", "7.2"])
@pytest.mark.parametrize(("register", "value", "one", "other"), SHADOWED)
def test_cr_shadowing(policy: Policy, register: int, value: int, one: str, other: str) -> None:
    """Rules nested-read-shadow and nested-write-back: the stages of kvm-unit-tests' "CR shadowing" in their order."""
    both = bit_mask(register, one, other)
    free = Vmcs12(value)
    l2 = entered(policy, register, free)
    assert l2.read == value  # read through
    value ^= both
    seen_by, l2 = write(policy, free, l2, value, L2)
    assert seen_by is not Sees.L1  # write through
    assert l2.read == written_back(free, l2) == value
    shown = value ^ both
    masked = Vmcs12(value, both, shown & both)
    l2 = entered(policy, register, masked)
    assert l2.read == shown  # read shadow
    seen_by, l2 = write(policy, masked, l2, shown, L2)
    assert seen_by is Sees.NOBODY  # same value
    assert written_back(masked, l2) == value
    for name in (one, other):  # different value
        assert write(policy, masked, l2, shown ^ bit_mask(register, name), L2) == (Sees.L1, l2)


def test_what_l2_owns() -> None:
    """Rule nested-owned."""
    wp, cet = bit_mask(CR0, "WP"), bit_mask(CR4, "CET")
    assert entered(NEW, CR0, Vmcs12(L2.cr0)).owned == owned(NEW).cr0 == bit_mask(CR0, "TS", "WP")
    assert entered(NEW, CR0, Vmcs12(L2.cr0, mask=wp)).owned == bit_mask(CR0, "TS")
    assert entered(OLD, CR0, Vmcs12(L2.cr0)).owned == bit_mask(CR0, "TS")
    assert entered(NEW, CR4, Vmcs12(L2.cr4)).owned & cet and not entered(NEW, CR4, Vmcs12(L2.cr4, cet)).owned & cet
    assert owned_by_l2(0b1111, Vmcs12(0, mask=0b0101)) == 0b1010


@pytest.mark.parametrize(
    ("word", "mask", "shadow", "value", "to_l1"),
    [
        ("mov", ("WP",), ("WP",), (), True),
        ("mov", ("WP",), (), (), False),
        ("mov", ("WP",), ("WP",), ("WP", "AM"), False),  # AM is not L1's
        ("mov", ("WP", "AM"), ("WP",), ("WP", "AM"), True),
        ("clts", ("TS",), ("TS",), (), True),
        ("clts", ("TS",), (), (), False),
        ("clts", (), ("TS",), (), False),
        ("lmsw", ("TS",), (), ("TS",), True),
        ("lmsw", ("MP", "EM"), ("MP",), ("MP", "TS"), False),
        ("lmsw", ("MP",), ("MP",), (), True),
        ("lmsw", ("PE",), (), ("PE",), True),
        ("lmsw", ("PE",), ("PE",), (), False),  # LMSW cannot clear PE
        ("lmsw", ("WP",), ("WP",), (), False),  # beyond its four bits
    ],
)
def test_exits_that_go_to_l1(
    word: str, mask: tuple[str, ...], shadow: tuple[str, ...], value: tuple[str, ...], to_l1: bool
) -> None:
    """Rule nested-cr-exit-to-l1."""
    vmcs12 = Vmcs12(L2.cr0, bit_mask(CR0, *mask), bit_mask(CR0, *shadow))
    assert goes_to_l1(vmcs12, bit_mask(CR0, *value), word) is to_l1


def test_a_write_that_l0_handles() -> None:
    """Rule nested-effective-value: AM is L0's, WP is L1's; L2 changes AM and writes the WP it was shown."""
    am, wp = bit_mask(CR0, "AM"), bit_mask(CR0, "WP")
    vmcs12 = Vmcs12(L2.cr0, mask=wp, shadow=0)
    l2 = entered(NEW, CR0, vmcs12)
    assert l2.read == L2.cr0 & ~wp
    value = L2.cr0 & ~wp & ~am
    seen_by, l2 = write(NEW, vmcs12, l2, value, L2)
    assert seen_by is Sees.L0
    assert effective(vmcs12, value) == l2.guest == L2.cr0 & ~am
    assert l2.read == value
    assert written_back(vmcs12, l2) == L2.cr0 & ~am  # L1 finds WP as it gave it


def test_wp_is_free_for_l2_where_l1_lets_it_be_and_kvm_owns_it_not() -> None:
    """kvm-behaviour: an L2 whose L1 masks WP exits to L1 twice a pair; one whose L1 does not, as L1 itself would."""
    off = L2.cr0 & ~bit_mask(CR0, "WP")
    free, masked = Vmcs12(L2.cr0), Vmcs12(L2.cr0, bit_mask(CR0, "WP"), bit_mask(CR0, "WP"))
    for policy, expected in ((OLD, Sees.L0), (NEW, Sees.NOBODY)):
        assert write(policy, free, entered(policy, CR0, free), off, L2).seen_by is expected
        assert write(policy, masked, entered(policy, CR0, masked), off, L2).seen_by is Sees.L1


def test_cet_without_wp_is_refused_by_whoever_sees_it() -> None:
    with_cet = L2._replace(cr4=L2.cr4 | bit_mask(CR4, "CET"))
    off, free = L2.cr0 & ~bit_mask(CR0, "WP"), Vmcs12(L2.cr0)
    for value in (off, off & ~bit_mask(CR0, "AM")):  # judged by the processor, and by KVM
        l2 = entered(NEW, CR0, free)
        assert write(NEW, free, l2, value, with_cet) == (Sees.REFUSED, l2)
        assert write(NEW, free, l2, value, L2).seen_by is not Sees.REFUSED


def test_back_in_l1() -> None:
    """Rule nested-return."""
    vmcs12 = Vmcs12(L2.cr0, bit_mask(CR0, "WP"), 0)
    found, l1 = left(NEW, vmcs12, entered(NEW, CR0, vmcs12), host=L2.cr0)
    assert found == vmcs12
    assert (l1.owned, l1.read) == (owned(NEW).cr0, L2.cr0)
    assert returned(OLD, CR0, L2.cr0).owned == bit_mask(CR0, "TS")


def test_only_cr0_and_cr4_under_vmx() -> None:
    with pytest.raises(UsageError, match="VMX only"):
        entered(Policy.of("7.2", "amd"), CR0, Vmcs12(0))
    with pytest.raises(UsageError, match="not of CR3"):
        entered(NEW, 3, Vmcs12(0))


words = st.integers(0, 2**32 - 1)


@given(guest=words, mask=words, shadow=words)
def test_l2_reads_what_l1_wants_and_leaves_what_l1_masks(guest: int, mask: int, shadow: int) -> None:
    vmcs12 = Vmcs12(guest, mask, shadow)
    l2 = entered(NEW, CR0, vmcs12)
    assert l2.read == read_shadow(vmcs12) == guest & ~mask | shadow & mask
    assert written_back(vmcs12, l2) == guest
    assert written_back(vmcs12, Vmcs02(CR0, ~guest, l2.owned, l2.shadow)) & mask == guest & mask
