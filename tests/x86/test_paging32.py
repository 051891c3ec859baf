"""32-bit paging. Expected: Intel SDM volume 3, section 4.3, tables 4-3 to 4-6, and sections 4.6 and 4.7."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.x86 import paging32
from worldswitch.x86.access import Controls, Kind
from worldswitch.x86.paging32 import large_address, large_entry, page_fault, reserved_bits, slot

P, W, U, PS = 1, 2, 4, 0x80
ALL = P | W | U
READ, WRITE, FETCH = Kind.READ, Kind.WRITE, Kind.FETCH
EC_P, EC_W, EC_U, EC_RSVD, EC_I = 1, 2, 4, 8, 16


def test_ten_bits_of_the_address_choose_an_entry_of_each_table() -> None:
    """4.3: bits 31:22 index the page directory, bits 21:12 the page table."""
    assert (slot(0xFFC0_1000, 2), slot(0xFFC0_1000, 1)) == (1023, 1)
    assert (slot(0x0040_0000, 2), slot(0x003F_F000, 1)) == (1, 1023)
    assert paging32.ENTRIES * paging32.ENTRY_SIZE == 4096


@pytest.mark.parametrize(
    ("maxphyaddr", "pse36", "reserved"),
    [
        # Table 4-4: M is the minimum of 40 and MAXPHYADDR; bits (M-20):13 are the address's, 21:(M-19) reserved.
        (36, True, range(17, 22)),
        (39, True, range(20, 22)),
        (40, True, range(21, 22)),
        (52, True, range(21, 22)),
        (32, True, range(13, 22)),
        # 4.3: without PSE-36, bits 21:13 are reserved.
        (52, False, range(13, 22)),
    ],
)
def test_reserved_bits_of_a_large_page(maxphyaddr: int, pse36: bool, reserved: range) -> None:
    assert reserved_bits(2, P | PS, maxphyaddr, pse36=pse36) == sum(1 << bit for bit in reserved)


def test_no_other_entry_has_reserved_bits() -> None:
    """Tables 4-5 and 4-6; bit 7 of a page-table entry is PAT, and PS is ignored while CR4.PSE is clear."""
    assert reserved_bits(2, P, 32) == reserved_bits(1, P | PS, 32) == reserved_bits(2, P | PS, 32, pse=False) == 0


@given(st.integers(0, (1 << 18) - 1))
def test_a_large_page_lies_anywhere_below_a_tebibyte(number: int) -> None:
    entry = large_entry(number * paging32.LARGE, ALL)
    assert entry < 1 << 32
    assert large_address(entry) == number * paging32.LARGE
    assert not entry & reserved_bits(2, entry, 40)


@pytest.mark.parametrize(
    ("entries", "kind", "user", "controls", "code"),
    [
        ((0,), READ, False, Controls(), 0),
        ((ALL, 0), WRITE, True, Controls(), EC_W | EC_U),
        ((ALL, ALL), WRITE, True, Controls(), None),
        ((P | U, ALL), WRITE, True, Controls(), EC_P | EC_W | EC_U),
        ((ALL, P | W), READ, True, Controls(), EC_P | EC_U),
        ((ALL, P | U), WRITE, False, Controls(wp=False), None),
        ((ALL, P | U), WRITE, False, Controls(wp=True), EC_P | EC_W),
        # A page of 4 MiB ends the walk; without CR4.PSE the bit is ignored and the walk goes on.
        ((ALL | PS,), WRITE, True, Controls(), None),
        ((ALL | PS | 1 << 21,), WRITE, True, Controls(), EC_P | EC_RSVD | EC_W | EC_U),
        # 4.7: I/D needs CR4.SMEP, or NXE with a paging mode that has XD; this one has none, so any page is executable.
        ((ALL, P), FETCH, True, Controls(nxe=True), EC_P | EC_U),
        ((ALL, ALL), FETCH, False, Controls(smep=True), EC_P | EC_I),
        ((ALL, ALL), FETCH, False, Controls(nxe=True), None),
        ((ALL, ALL), READ, False, Controls(smap=True), EC_P),
        # Protection keys exist with 4-level and 5-level paging only.
        ((ALL, ALL), READ, True, Controls(pke=True, pkru=0xFFFF_FFFF), None),
    ],
)
def test_accesses(entries: tuple[int, ...], kind: Kind, user: bool, controls: Controls, code: int | None) -> None:
    assert page_fault(entries, kind, user, controls) == code


def test_without_pse_a_directory_entry_leads_to_a_table() -> None:
    assert page_fault((ALL | PS | 1 << 21, P), READ, True, Controls(), pse=False) == EC_P | EC_U
    with pytest.raises(ValueError, match="do not reach a page"):
        page_fault((ALL | PS,), READ, True, Controls(), pse=False)
