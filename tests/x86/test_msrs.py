"""Names of MSRs. Numbers: Intel SDM volume 4, table 2-2; AMD APM volume 2, appendix A."""

from __future__ import annotations

import pytest

from worldswitch.errors import UnknownNameError
from worldswitch.x86.msrs import MSRS, msr_name, msr_number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("EFER", 0xC0000080),
        ("IA32_PAT", 0x277),
        ("msr_lstar", 0xC0000082),
        ("SFMASK", 0xC0000084),
        ("PL0_SSP", 0x6A4),
        ("S_CET", 0x6A2),
        ("TSC_AUX", 0xC0000103),
        ("SPEC_CTRL", 0x48),
    ],
)
def test_the_number_of_a_name(name: str, number: int) -> None:
    assert msr_number(name) == number


def test_names_and_numbers_are_each_others() -> None:
    assert {msr_number(msr_name(number)) for number in MSRS.values()} == set(MSRS.values())
    assert len(set(MSRS.values())) == len(MSRS)
    assert msr_name(0x12345) == "0x12345"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model-specific register 'LSTR'; nearest: LSTAR"):
        msr_number("LSTR")
