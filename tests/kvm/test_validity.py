"""Refused CR0 and CR4 values. Expected: kvm_set_cr0 and kvm_set_cr4 of 5.10.223, 6.1.190, 6.12.117, 7.2.13; the
processor's own part: Intel SDM volume 2, MOV to control registers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.validity import refuses_cr0, refuses_cr4, reserved
from worldswitch.x86 import control
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, CR4, REGISTERS, bit_mask

LONG = Registers(0x80050033, 0x2000, bit_mask(CR4, "PAE"), 0xD00)
CODE32 = LONG._replace(long_code=False)
REAL = Registers(0x10, 0, 0, 0, long_code=False)


def _cr0(*names: str) -> int:
    return bit_mask(CR0, *names)


def _cr4(*names: str) -> int:
    return bit_mask(CR4, *names)


# State, value, refused by 5.10, 6.1, 6.12, 7.2: the table of conditions.
CR0_ROWS = [
    (LONG, LONG.cr0, "nnnn"),
    (LONG, LONG.cr0 | 1 << 32, "yyyy"),
    (LONG, LONG.cr0 | 1 << 63, "yyyy"),
    (LONG, LONG.cr0 | _cr0("NW"), "yyyy"),
    (LONG, LONG.cr0 | _cr0("NW", "CD"), "nnnn"),
    (LONG, LONG.cr0 | _cr0("CD"), "nnnn"),
    (LONG, LONG.cr0 & ~_cr0("PE"), "yyyy"),
    (LONG, LONG.cr0 | 1 << 6, "nnnn"),  # a reserved bit of the low half is dropped
    (LONG, LONG.cr0 & ~_cr0("PG"), "nyyy"),
    (CODE32, LONG.cr0 & ~_cr0("PG"), "nnnn"),
    (CODE32._replace(cr4=_cr4("PAE", "PCIDE")), LONG.cr0 & ~_cr0("PG"), "yyyy"),
    (REAL._replace(cr0=0x11, efer=0x100), _cr0("PE", "PG"), "yyyy"),  # long mode without PAE
    (REAL._replace(cr0=0x11, efer=0x100, cr4=_cr4("PAE")), _cr0("PE", "PG"), "nnnn"),
    (REAL._replace(cr0=0x11, efer=0x100, cr4=_cr4("PAE"), long_code=True), _cr0("PE", "PG"), "yyyy"),
    (LONG._replace(cr4=_cr4("PAE", "CET")), LONG.cr0 & ~_cr0("WP"), "nnny"),
    (LONG._replace(cr4=_cr4("PAE", "CET")), LONG.cr0, "nnnn"),
]


@pytest.mark.parametrize(("now", "value", "expected"), CR0_ROWS)
def test_cr0_values_that_are_refused(now: Registers, value: int, expected: str) -> None:
    """Rule cr0-refused."""
    kernels = ("5.10.223", "6.1.190", "6.12.117", "7.2.13")
    assert "".join("ny"[refuses_cr0(Policy.of(kernel), now, value)] for kernel in kernels) == expected


CR4_ROWS = [
    (LONG, LONG.cr4, "nnnn"),
    (LONG, LONG.cr4 | 1 << 15, "yyyy"),
    (LONG, LONG.cr4 | 1 << 63, "yyyy"),
    (LONG, LONG.cr4 | _cr4("CET"), "yyyn"),
    (LONG._replace(cr0=LONG.cr0 & ~_cr0("WP")), LONG.cr4 | _cr4("CET"), "yyyy"),
    (LONG, LONG.cr4 | _cr4("LAM_SUP"), "yynn"),
    (LONG, LONG.cr4 | _cr4("SMXE"), "yyyy"),
    (LONG, LONG.cr4 & ~_cr4("PAE"), "yyyy"),
    (LONG, LONG.cr4 | _cr4("LA57"), "yyyy"),
    (REAL, _cr4("LA57"), "nnnn"),
    (LONG, LONG.cr4 | _cr4("PCIDE"), "nnnn"),
    (LONG._replace(cr3=0x2001), LONG.cr4 | _cr4("PCIDE"), "yyyy"),
    (LONG._replace(cr3=0x2001, cr4=LONG.cr4 | _cr4("PCIDE")), LONG.cr4 | _cr4("PCIDE", "PGE"), "nnnn"),
    (REAL, _cr4("PCIDE"), "yyyy"),
    (LONG, LONG.cr4 | _cr4("SMEP", "SMAP", "PKE", "UMIP", "FSGSBASE", "VMXE", "OSXSAVE"), "nnnn"),
]


@pytest.mark.parametrize(("now", "value", "expected"), CR4_ROWS)
def test_cr4_values_that_are_refused(now: Registers, value: int, expected: str) -> None:
    """Rule cr4-refused."""
    kernels = ("5.10.223", "6.1.190", "6.12.117", "7.2.13")
    assert "".join("ny"[refuses_cr4(Policy.of(kernel), now, value)] for kernel in kernels) == expected


def test_a_bit_whose_feature_is_hidden_is_refused() -> None:
    policy = Policy.of("6.12", settings=["cpuid.smep=0", "cpuid.pku=0"])
    assert refuses_cr4(policy, LONG, LONG.cr4 | _cr4("SMEP")) and refuses_cr4(policy, LONG, LONG.cr4 | _cr4("PKE"))
    assert not refuses_cr4(policy, LONG, LONG.cr4 | _cr4("SMAP"))
    assert refuses_cr4(Policy.of("7.2", "amd"), LONG, LONG.cr4 | _cr4("VMXE"))


values = st.lists(st.sampled_from(list(REGISTERS[CR0].values()))).map(lambda bits: sum(1 << b for b in set(bits)))
values4 = st.lists(st.sampled_from(list(REGISTERS[CR4].values()))).map(lambda bits: sum(1 << b for b in set(bits)))


@given(values, values4, st.sampled_from([0, 0x800, 0xD00]), st.booleans())
def test_the_newest_kvm_refuses_in_cr0_what_the_processor_does(
    value: int, cr4: int, efer: int, long_code: bool
) -> None:
    now = Registers(LONG.cr0 if efer else 0x11, 0x2000, cr4, efer, long_code)
    assert refuses_cr0(Policy.of("7.2"), now, value) == control.refuses_cr0(now, value)


@given(values4, values4, st.sampled_from([0, 0x800, 0xD00]), st.booleans(), st.sampled_from([0x2000, 0x2005]))
def test_the_newest_kvm_refuses_in_cr4_what_the_processor_does(
    value: int, old: int, efer: int, wp: bool, cr3: int
) -> None:
    now = Registers(LONG.cr0 if wp else LONG.cr0 & ~_cr0("WP"), cr3, old, efer)
    policy = Policy.of("7.2")
    assert refuses_cr4(policy, now, value) == control.refuses_cr4(now, value, reserved(policy))
