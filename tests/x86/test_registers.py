"""Register bits. Expected positions: Intel SDM volume 3 section 2.5, AMD APM volume 2 section 3.1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.x86.registers import CR0, CR4, EFER, REGISTERS, RegisterBit, bit_mask, bit_names, parse_bit


def test_wp_is_bit_16_of_cr0() -> None:
    assert parse_bit("CR0.WP") == RegisterBit(CR0, 16, "WP")
    assert parse_bit("CR0.WP").mask == 0x10000


@pytest.mark.parametrize(
    ("register", "mask", "names"),
    [
        (CR0, 0x80050033, ("PE", "MP", "ET", "NE", "WP", "AM", "PG")),  # what Linux runs with
        (CR4, 0x80, ("PGE",)),
        (CR4, 0x100000, ("SMEP",)),
        (CR4, 0x800000, ("CET",)),
        (CR4, 0x1_0000_0000, ("FRED",)),
        (CR4, 1 << 40, ("bit 40",)),
        (EFER, 0xD01, ("SCE", "LME", "LMA", "NXE")),
        (8, 0x3, ("bit 0", "bit 1")),
        (CR0, 0, ()),
    ],
)
def test_names_of_bits(register: int, mask: int, names: tuple[str, ...]) -> None:
    assert bit_names(register, mask) == names


@given(st.sampled_from(sorted(REGISTERS)), st.integers(0, 2**64 - 1))
def test_names_give_the_mask_back(register: int, mask: int) -> None:
    assert bit_mask(register, *bit_names(register, mask)) == mask


@given(st.sampled_from(sorted(REGISTERS)), st.integers(0, 63))
def test_a_printed_bit_is_parsed_back(register: int, position: int) -> None:
    bit = RegisterBit(register, position, bit_names(register, 1 << position)[0])
    assert parse_bit(str(bit)) == bit


def test_case_and_common_short_names_do_not_matter() -> None:
    assert parse_bit("efer.nx") == RegisterBit(EFER, 11, "NXE")
    assert parse_bit("cr4.bit 23") == RegisterBit(CR4, 23, "CET")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("WP", "write register.bit, such as CR0.WP"),
        ("CR4.WP2", "unknown bit of CR4 'WP2'"),
        ("CR4.SMPE", "nearest: .*SMEP"),
        ("CR1.X", "unknown register 'CR1'"),
        ("CR0.bit 64", "unknown bit of CR0"),
        ("CR0.", "unknown bit of CR0"),
    ],
)
def test_what_is_no_bit_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_bit(text)


def test_an_unknown_bit_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        bit_mask(CR0, "SMEP")


@given(st.text(max_size=30))
def test_any_text_is_a_bit_or_refused(text: str) -> None:
    try:
        bit = parse_bit(text)
    except UsageError:
        return
    assert parse_bit(str(bit)) == bit
