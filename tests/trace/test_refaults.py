"""What counts as a refault: made-up guests, and the recordings' counts (tests/data/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uncompiled
from guest_build import CD, EPT_VIOLATION, EXCEPTION_NMI, PE_PG, SMEP, SVM, VMX, WP, Guest
from worldswitch.trace import refaults
from worldswitch.trace.exits import ExitPairing, pair_exits
from worldswitch.trace.readers import open_source
from worldswitch.trace.refaults import (
    AFTER_CR4,
    AGAIN,
    CR0_BETWEEN,
    CR4_BETWEEN,
    NEW_PAGE,
    NOT_A_REFAULT,
    UNMAPPED,
    RefaultFinder,
)  # fmt: skip

DATA = Path(__file__).parents[1] / "data"

FINDERS = {"as installed": RefaultFinder, "uncompiled": uncompiled.load(refaults).RefaultFinder}


def codes(guest: Guest, finder: str = "as installed") -> list[int]:
    """What is said of each page fault of *guest*."""
    look, found = FINDERS[finder]().look, []
    for _, rows in pair_exits(guest.trace()):
        found += look(rows)[refaults.is_fault(rows)].tolist()
    return found


def test_a_page_that_faults_again_after_a_write_is_a_refault() -> None:
    assert codes(Guest().fault(0x1000).write(0, PE_PG).fault(0x1234)) == [0, CR0_BETWEEN]


def test_without_a_write_between_it_is_none() -> None:
    assert codes(Guest().write(0, PE_PG).fault(0x1000).fault(0x1000)) == [NEW_PAGE, 0]


def test_new_pages_after_a_write_are_none() -> None:
    assert codes(Guest().fault(0x1000).write(0, PE_PG).fault(0x2000)) == [0, NEW_PAGE]


def test_each_fault_needs_a_write_of_its_own() -> None:
    assert codes(Guest().fault(0x1000).write(0, PE_PG).fault(0x1000).fault(0x1000)) == [0, CR0_BETWEEN, 0]


def test_later_refaults_of_a_page_are_told_from_its_first() -> None:
    guest = Guest().fault(0x1000)
    for _ in range(3):
        guest.write(0, PE_PG).fault(0x1000)
    assert codes(guest) == [0, CR0_BETWEEN, CR0_BETWEEN | AGAIN, CR0_BETWEEN | AGAIN]


def test_another_vcpus_write_does_not_count() -> None:
    assert codes(Guest().fault(0x1000, tid=1).write(0, PE_PG, tid=2).fault(0x1000, tid=1)) == [0, 0]


def test_another_vcpus_fault_does_not_count() -> None:
    guest = Guest().fault(0x1000, tid=1).write(0, PE_PG, tid=2).fault(0x1000, tid=2)
    assert codes(guest) == [0, NEW_PAGE]


@pytest.mark.parametrize("isa", [VMX, SVM])
def test_a_fault_on_a_present_page_is_none(isa: int) -> None:
    """A write to a read-only page, dirty logging, MMIO: SDM table 28-7 bits 5:3; APM 15.25.6 bit 0."""
    assert codes(Guest(isa).fault(0x1000).write(0, PE_PG).fault(0x1000, present=True)) == [0, 0]


def test_a_fault_on_a_present_page_shows_that_it_is_mapped() -> None:
    assert codes(Guest().fault(0x1000, present=True).write(0, PE_PG).fault(0x1000)) == [0, CR0_BETWEEN]


def test_both_registers_written_between_are_told() -> None:
    """A guest with CET clears CR4.CET around every window in which CR0.WP is clear."""
    guest = Guest().fault(0x1000).write(4, 0).write(0, PE_PG).write(0, PE_PG | WP).write(4, SMEP).fault(0x1000)
    assert codes(guest) == [0, CR0_BETWEEN | CR4_BETWEEN | AFTER_CR4]


def test_writes_of_other_registers_do_not_count() -> None:
    assert codes(Guest().fault(0x1000).write(3, 0x5000).write(8, 1).fault(0x1000)) == [0, 0]


def test_the_host_may_have_taken_the_page() -> None:
    rows = ExitPairing().feed(next(Guest().fault(0x1000).write(0, CD).fault(0x1000).trace().batches()))
    unmapped = np.array([0, 0, 1])
    assert RefaultFinder().look(rows, unmapped).tolist() == [0, 0, CR0_BETWEEN | UNMAPPED]


def test_a_nested_guests_addresses_are_its_own() -> None:
    """An address of L2 says nothing of the same address of L1."""
    nested = (("kvm_page_fault", {"fault_address": 0x1000}), ("kvm_nested_vmexit", {}))
    guest = Guest().fault(0x1000).write(0, PE_PG).exit(EPT_VIOLATION, within=nested).fault(0x1000)
    assert codes(guest) == [0, 0, CR0_BETWEEN]
    guest = Guest().exit(EPT_VIOLATION, within=nested).write(0, PE_PG).fault(0x1000)
    assert codes(guest) == [0, NEW_PAGE]


def test_feed_names_the_register() -> None:
    guest = Guest().fault(0x1000).write(0, PE_PG).fault(0x1000).write(4, SMEP).fault(0x1000)
    rows = ExitPairing().feed(next(guest.trace().batches()))
    assert RefaultFinder().feed(rows).tolist() == [NOT_A_REFAULT, NOT_A_REFAULT, 0, NOT_A_REFAULT, 4]


def test_a_shadow_page_fault_is_a_fault() -> None:
    fault = (("kvm_page_fault", {"fault_address": 0x1000}),)
    guest = Guest().exit(EXCEPTION_NMI, within=fault).write(0, PE_PG).exit(EXCEPTION_NMI, within=fault)
    assert codes(guest) == [0, CR0_BETWEEN]


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("svm-5.10-npt-tdpmmu/wp.perf.data.zst", 4, 796),  # 200 writes, 4 pages each time
        ("svm-5.10-npt-tdpmmu/kvmstat.perf.data.zst", 4, 796),  # without kvm_page_fault: EXITINFO2
        ("svm-5.10-npt/wp.perf.data.zst", 4, 0),  # the other set of page tables, once
        ("svm-6.1-npt/wp.perf.data.zst", 0, 0),
        ("vmx-5.10-ept/wp.trace.dat", 4, 0),
        ("vmx-5.10-ept/smep.trace.dat", 0, 0),
    ],
)
def test_refaults_of_the_recordings(name: str, first: int, again: int) -> None:
    finder, found = RefaultFinder(), [0, 0]
    for _, rows in pair_exits(open_source(DATA / name)):
        for code in finder.look(rows).tolist():
            if code & CR0_BETWEEN:
                found[bool(code & AGAIN)] += 1
    assert found == [first, again]


def by_hand(steps: list[tuple[str, int, int]]) -> list[int]:
    """The definition, without the loop's tables."""
    found, history = [], []
    for kind, value, tid in steps:
        if kind == "fault":
            mine = [(k, v) for k, v, t in history if t == tid]
            before = [i for i, (k, v) in enumerate(mine) if k == "fault" and v == value]
            between = {v for k, v in mine[before[-1] + 1 :] if k == "write"} if before else set()
            found.append((CR0_BETWEEN if 0 in between else 0) | (CR4_BETWEEN if 4 in between else 0))
        history.append((kind, value, tid))
    return found


@given(
    st.lists(st.tuples(st.sampled_from(["fault", "write"]), st.sampled_from([0, 4]), st.integers(1, 3)), max_size=40)
)
def test_refaults_are_what_their_definition_says(steps: list[tuple[str, int, int]]) -> None:
    guest = Guest()
    for kind, value, tid in steps:
        if kind == "fault":
            guest.fault(value << 12, tid)
        else:
            guest.write(value, 0, tid)
    if steps:
        found = codes(guest)
        assert [code & refaults.BETWEEN for code in found] == by_hand(steps)
        assert found == codes(guest, "uncompiled")


def test_many_threads_and_pages_grow_the_tables() -> None:
    guest = Guest()
    for tid in range(1, 700):
        guest.fault(0x1000 * tid, tid).fault(0x2000 * tid, tid).write(0, PE_PG, tid).fault(0x1000 * tid, tid)
    found = codes(guest)
    assert found.count(CR0_BETWEEN) == 699
