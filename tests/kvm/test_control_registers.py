"""What CR0 and CR4 writes do. Expected: counts of real KVM (vmx_counts.txt), the recordings in tests/data, and
kvm_set_cr0, kvm_set_cr4, kvm_post_set_cr0 and kvm_post_set_cr4 of 5.10.223, 6.1.190, 6.12.117 and 7.2.13."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import UsageError
from worldswitch.kvm.control_registers import (
    After,
    Flush,
    MmuWork,
    Roots,
    after_cr0,
    after_cr4,
    change,
    roots_after_reset,
    tdp_role_bits,
    write,
)
from worldswitch.kvm.policy import Policy
from worldswitch.x86.exits import reason_name
from worldswitch.x86.registers import CR0, CR4, bit_mask, parse_bit

COUNTED = ("5.10.223", "6.1.190", "6.12.117", "7.2.13", "7.3-rc7")
LONG_MODE = bit_mask(CR0, "PE", "ET", "NE", "WP", "PG")
REAL = bit_mask(CR0, "ET")

NOTHING, INIT, UNLOAD, RESET = MmuWork.NOTHING, MmuWork.INIT_ONLY, MmuWork.UNLOAD, MmuWork.FULL_RESET
NONE, CURRENT, GUEST = Flush.NONE, Flush.CURRENT, Flush.GUEST


def _counted() -> list[tuple[str, str, str, str]]:
    rows = []
    for line in (Path(__file__).parent / "vmx_counts.txt").read_text().splitlines():
        if not line.startswith("#"):
            bit, ept, *cells = line.split()
            rows += [(bit, ept, kernel, cell) for kernel, cell in zip(COUNTED, cells, strict=True) if cell != "-"]
    return rows


@pytest.mark.parametrize(("bit", "ept", "kernel", "cell"), _counted())
def test_exits_and_flushes_per_pair_as_counted_in_real_kvm(bit: str, ept: str, kernel: str, cell: str) -> None:
    policy = Policy.of(kernel, mmu="default" if ept == "on" else "shadow")
    named = parse_bit(bit)
    old = LONG_MODE if named.register == CR0 else bit_mask(CR4, "PAE")
    there = write(policy, named.register, old, old ^ named.mask)
    back = write(policy, named.register, old ^ named.mask, old)
    exits, flushes = cell.split("/")
    assert there.exits + back.exits == int(exits)
    if flushes != "?":
        assert (there.flush is not NONE) + (back.flush is not NONE) == int(flushes)


# The cost of one CR0.WP pair: exits, work per write.
PAIR = [
    ("5.10", "intel", "default", 2, RESET),
    ("6.1", "intel", "default", 0, NOTHING),
    ("6.12", "intel", "default", 0, NOTHING),
    ("7.2", "intel", "default", 0, NOTHING),
    ("5.10", "amd", "default", 2, RESET),
    ("6.1", "amd", "default", 2, INIT),
    ("6.12", "amd", "default", 2, INIT),
    ("5.10", "intel", "shadow", 2, RESET),
    ("6.1", "intel", "shadow", 2, RESET),
    ("6.12", "amd", "shadow", 2, RESET),
]


@pytest.mark.parametrize(("kernel", "cpu", "mmu", "exits", "work"), PAIR)
def test_the_cost_of_a_wp_pair(kernel: str, cpu: str, mmu: str, exits: int, work: MmuWork) -> None:
    policy = Policy.of(kernel, cpu, mmu)
    wp = bit_mask(CR0, "WP")
    pair = [write(policy, CR0, LONG_MODE, LONG_MODE ^ wp), write(policy, CR0, LONG_MODE ^ wp, LONG_MODE)]
    assert sum(one.exits for one in pair) == exits
    assert {one.mmu for one in pair} == {work}


# (changed, old, mmu): what 5.10, 6.1 and 6.12+ do; the columns of kvm_post_set_cr0.
WP, PG, AM, TS = (bit_mask(CR0, name) for name in ("WP", "PG", "AM", "TS"))
CR0_ROWS = [
    (WP, REAL, "legacy", RESET, INIT, NOTHING),
    (WP, REAL, "shadow", RESET, RESET, NOTHING),
    (WP, LONG_MODE, "legacy", RESET, INIT, INIT),
    (WP, LONG_MODE, "shadow", RESET, RESET, RESET),
    (WP | TS, LONG_MODE, "legacy", RESET, RESET, RESET),
    (WP | AM, LONG_MODE, "legacy", RESET, RESET, RESET),
    (PG, LONG_MODE, "legacy", RESET, RESET, RESET),
    (PG, REAL, "legacy", RESET, RESET, RESET),
    (AM, LONG_MODE, "legacy", NOTHING, NOTHING, NOTHING),
]


@pytest.mark.parametrize(("changed", "old", "mmu", "in_5_10", "in_6_1", "in_6_12"), CR0_ROWS)
def test_after_a_cr0_write(
    changed: int, old: int, mmu: str, in_5_10: MmuWork, in_6_1: MmuWork, in_6_12: MmuWork
) -> None:
    """Rule cr0-after-write."""
    for kernel, expected in (("5.10", in_5_10), ("6.1", in_6_1), ("6.12", in_6_12), ("7.2", in_6_12), ("7.3", in_6_12)):
        assert after_cr0(Policy.of(kernel, mmu=mmu), old, old ^ changed).mmu is expected, kernel


def test_clearing_pg_asks_for_a_guest_flush_from_6_1_on() -> None:
    assert after_cr0(Policy.of("5.10"), LONG_MODE, LONG_MODE ^ PG).flush is NONE
    assert after_cr0(Policy.of("6.1"), LONG_MODE, LONG_MODE ^ PG).flush is GUEST
    assert after_cr0(Policy.of("6.1"), LONG_MODE ^ PG, LONG_MODE).flush is NONE


def test_et_written_as_0_is_stored_as_1_and_so_does_not_spoil_a_wp_only_change() -> None:
    et = bit_mask(CR0, "ET")
    assert after_cr0(Policy.of("6.12"), LONG_MODE, LONG_MODE ^ WP ^ et).mmu is INIT


def test_a_wp_toggle_with_et_written_as_0_exits_even_where_wp_is_owned() -> None:
    """SDM volume 3: the operand as given is compared with the read shadow, whose ET is 1."""
    et = bit_mask(CR0, "ET")
    outcome = write(Policy.of("6.12"), CR0, LONG_MODE, LONG_MODE ^ WP ^ et)
    assert (outcome.exits, outcome.mmu) == (True, INIT)


def _cr4(*names: str) -> int:
    return bit_mask(CR4, *names)


# (bits, set or cleared, mmu): after the write in 5.10 and in 6.1 to 7.3; the rows of kvm_post_set_cr4.
CR4_ROWS = [
    ("PSE", True, "legacy", After(RESET, NONE), After(RESET, NONE)),
    ("PAE", True, "legacy", After(RESET, NONE), After(RESET, CURRENT)),
    ("PAE", False, "legacy", After(RESET, NONE), After(RESET, CURRENT)),
    ("SMEP", True, "legacy", After(RESET, NONE), After(RESET, CURRENT)),
    ("SMEP", False, "legacy", After(RESET, NONE), After(RESET, NONE)),
    ("SMAP", True, "legacy", After(RESET, NONE), After(RESET, NONE)),
    ("PKE", True, "legacy", After(RESET, NONE), After(RESET, NONE)),
    ("LA57", True, "legacy", After(NOTHING, NONE), After(RESET, NONE)),
    ("PGE", True, "legacy", After(RESET, NONE), After(NOTHING, GUEST)),
    ("PGE", False, "legacy", After(RESET, NONE), After(NOTHING, GUEST)),
    ("PCIDE", False, "legacy", After(RESET, NONE), After(NOTHING, GUEST)),
    ("PCIDE", True, "legacy", After(NOTHING, NONE), After(NOTHING, NONE)),
    ("PCIDE", True, "shadow", After(NOTHING, NONE), After(UNLOAD, NONE)),
    ("CET", True, "legacy", After(NOTHING, NONE), After(NOTHING, NONE)),
    ("UMIP", True, "legacy", After(NOTHING, NONE), After(NOTHING, NONE)),
    ("OSXSAVE", True, "legacy", After(NOTHING, NONE), After(NOTHING, NONE)),
]


@pytest.mark.parametrize(("bit", "rises", "mmu", "in_5_10", "later"), CR4_ROWS)
def test_after_a_cr4_write(bit: str, rises: bool, mmu: str, in_5_10: After, later: After) -> None:
    """Rule cr4-after-write."""
    without, with_it = 0, _cr4(bit)
    old, new = (without, with_it) if rises else (with_it, without)
    assert after_cr4(Policy.of("5.10", mmu=mmu), old, new) == in_5_10
    for kernel in ("6.1", "6.12", "7.2", "7.3"):
        assert after_cr4(Policy.of(kernel, mmu=mmu), old, new) == later, kernel


def test_smap_did_not_reset_the_mmu_before_5_9() -> None:
    assert after_cr4(Policy.of("5.4.0"), 0, _cr4("SMAP")).mmu is NOTHING
    assert after_cr4(Policy.of("5.4"), 0, _cr4("SMAP")).mmu is RESET


@pytest.mark.parametrize(
    ("kernel", "mmu", "sole", "roots"),
    [
        ("5.10", "legacy", True, Roots.FOUND),
        ("6.12", "legacy", True, Roots.FOUND),
        ("6.12", "shadow", True, Roots.FOUND),
        ("5.10", "tdp", True, Roots.REBUILT),  # recorded in svm-5.10-npt-tdpmmu: 4 refaults per toggle
        ("5.15", "tdp", True, Roots.REBUILT),
        ("6.1.49", "tdp", True, Roots.REBUILT),
        ("6.1.49", "tdp", False, Roots.REFERENCED),
        ("6.1.50", "tdp", True, Roots.REFERENCED),
        ("6.2", "tdp", True, Roots.REBUILT),
        ("6.12", "tdp", True, Roots.REFERENCED),
    ],
)
def test_roots_after_a_full_reset(kernel: str, mmu: str, sole: bool, roots: Roots) -> None:
    """Rule roots-after-reset."""
    assert roots_after_reset(Policy.of(kernel, mmu=mmu), sole=sole) is roots


@pytest.mark.parametrize(
    ("kernel", "mmu", "bits"),
    [
        (
            "5.10",
            "legacy",
            ("CR0.WP", "EFER.NXE"),
        ),  # recorded in vmx-5.10-ept: 8 EPT violations, 4 for each value of WP
        ("5.15", "legacy", ("CR0.WP", "EFER.NXE")),
        ("5.19.0", "legacy", ()),
        ("6.1", "tdp", ()),
        ("5.10", "shadow", ()),
    ],
)
def test_sets_of_tdp_page_tables(kernel: str, mmu: str, bits: tuple[str, ...]) -> None:
    """Rule tdp-root-role."""
    assert tdp_role_bits(Policy.of(kernel, mmu=mmu)) == bits


def test_a_wp_change_goes_to_other_tables_where_the_role_holds_it() -> None:
    assert change(Policy.of("5.10"), CR0, WP).other_tables
    assert not change(Policy.of("6.12", "amd"), CR0, WP).other_tables
    assert change(Policy.of("6.12", mmu="shadow"), CR0, WP).other_tables


def test_the_exit_reasons_of_svm_are_those_recorded() -> None:
    """svm-*-npt and svm-5.10-shadow: clearing WP exits as cr0_sel_write; setting it again under shadow as write_cr0."""
    nested, shadow = Policy.of("5.10", "amd"), Policy.of("5.10", "amd", "shadow")

    def reason(policy: Policy, old: int) -> str:
        return reason_name(*(write(policy, CR0, old, old ^ WP).reason or (0, 0)))

    assert [reason(nested, LONG_MODE), reason(nested, LONG_MODE ^ WP)] == ["cr0_sel_write"] * 2
    assert [reason(shadow, LONG_MODE), reason(shadow, LONG_MODE ^ WP)] == ["cr0_sel_write", "write_cr0"]


def test_an_unknown_old_value_matters_only_where_the_direction_does() -> None:
    smep = _cr4("SMEP")
    assert change(Policy.of("6.12"), CR0, WP).sure
    unsure = change(Policy.of("6.12"), CR4, smep)
    assert (unsure.sure, unsure.mmu, unsure.flush) == (False, RESET, CURRENT)
    assert change(Policy.of("6.12"), CR4, smep, old=smep).flush is NONE


@given(
    kernel=st.sampled_from(COUNTED),
    cpu=st.sampled_from(["intel", "amd"]),
    mmu=st.sampled_from(["tdp", "legacy", "shadow"]),
    register=st.sampled_from([CR0, CR4]),
    old=st.integers(0, 2**32 - 1),
    changed=st.integers(0, 2**32 - 1),
)
def test_without_an_exit_nothing_follows(
    kernel: str, cpu: str, mmu: str, register: int, old: int, changed: int
) -> None:
    outcome = change(Policy.of(kernel, cpu, mmu), register, changed, old)
    assert outcome.sure
    if not outcome.exits:
        assert (outcome.reason, outcome.mmu, outcome.flush, outcome.roots) == (None, NOTHING, NONE, Roots.KEPT)
    assert (outcome.roots is Roots.KEPT) == (outcome.mmu in (NOTHING, INIT))


def test_other_registers_are_refused() -> None:
    with pytest.raises(UsageError, match="CR3"):
        write(Policy.of("6.1"), 3, 0, 1)
