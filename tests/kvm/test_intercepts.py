"""Exits of instructions. Expected: vmx_exec_control, handle_cr, handle_dr and vmx_update_exception_bitmap of vmx.c,
init_vmcb and direct_access_msrs of svm.c, in 5.10.223 to 7.2.13; the counts of real KVM in vmx_counts.txt for CPUID."""

from __future__ import annotations

import pytest

from worldswitch.kvm.intercepts import (
    cr_exit,
    dr_exit,
    emulates_soft_interrupt,
    exception_exit,
    instruction_exit,
    msr_exit,
    short_cr0_write_exit,
)
from worldswitch.kvm.policy import Policy
from worldswitch.x86.exits import reason_name
from worldswitch.x86.msrs import MSRS
from worldswitch.x86.registers import CR0, bit_mask

EPT, NO_EPT = Policy.of("6.12"), Policy.of("6.12", mmu="shadow")
NPT, NO_NPT = Policy.of("6.12", "amd"), Policy.of("6.12", "amd", "shadow")
ON = 0x80050033
WP = bit_mask(CR0, "WP")


def _name(reason: tuple[int, int] | None) -> str | None:
    return None if reason is None else reason_name(*reason)


@pytest.mark.parametrize(
    ("word", "vmx", "svm"),
    [
        ("cpuid", "CPUID", "cpuid"),
        ("hlt", "HLT", "hlt"),
        ("io", "IO_INSTRUCTION", "io"),
        ("vmcall", "VMCALL", "hypercall"),
    ],
)
def test_instructions_that_exit(word: str, vmx: str, svm: str) -> None:
    """Rule instruction-exits."""
    assert {_name(instruction_exit(policy, word)) for policy in (EPT, NO_EPT)} == {vmx}
    assert {_name(instruction_exit(policy, word)) for policy in (NPT, NO_NPT)} == {svm}
    for other, names in (("invlpg", ("INVLPG", "invlpg")), ("invpcid", ("INVPCID", "invpcid"))):
        assert instruction_exit(EPT, other) is None and instruction_exit(NPT, other) is None
        assert (_name(instruction_exit(NO_EPT, other)), _name(instruction_exit(NO_NPT, other))) == names


# Register, written, then EPT, no EPT, NPT, no NPT.
ACCESSES = [
    (0, False, (None, None, None, None)),
    (2, False, (None, None, None, None)),
    (3, False, (None, "CR_ACCESS", None, "read_cr3")),
    (3, True, (None, "CR_ACCESS", None, "write_cr3")),
    (4, False, (None, None, "read_cr4", "read_cr4")),
    (8, False, ("CR_ACCESS", "CR_ACCESS", None, None)),
    (8, True, ("CR_ACCESS", "CR_ACCESS", "write_cr8", "write_cr8")),
]


@pytest.mark.parametrize(("cr", "write", "expected"), ACCESSES)
def test_accesses_to_control_registers(cr: int, write: bool, expected: tuple[str | None, ...]) -> None:
    """Rule cr-access-exits."""
    assert tuple(_name(cr_exit(policy, cr, write, ON)) for policy in (EPT, NO_EPT, NPT, NO_NPT)) == expected


def test_reads_of_cr0_exit_under_svm_while_hardware_and_guest_differ() -> None:
    assert _name(cr_exit(NO_NPT, 0, False, ON & ~WP)) == "read_cr0"
    assert cr_exit(NPT, 0, False, ON & ~WP) is None


def test_lmsw_and_clts() -> None:
    """Rule lmsw-clts-exits."""
    ts, mp, em = (bit_mask(CR0, name) for name in ("TS", "MP", "EM"))
    assert short_cr0_write_exit(EPT, ts, ON | ts, lmsw=False) is None
    assert short_cr0_write_exit(EPT, ts, ON, lmsw=True) is None
    assert {_name(short_cr0_write_exit(EPT, changed, ON, lmsw=True)) for changed in (mp, em, mp | ts)} == {"CR_ACCESS"}
    assert _name(short_cr0_write_exit(NPT, 0, ON, lmsw=True)) == "cr0_sel_write"
    assert short_cr0_write_exit(NPT, ts, ON | ts, lmsw=False) is None
    assert _name(short_cr0_write_exit(NO_NPT, ts, ON & ~WP | ts, lmsw=False)) == "write_cr0"


def test_lmsw_as_the_emulator_has_it() -> None:
    # target/i386/tcg/sysemu/misc_helper.c, helper_write_crN (7.2.22).
    ts, mp, em = (bit_mask(CR0, name) for name in ("TS", "MP", "EM"))
    assert {short_cr0_write_exit(NPT, changed, ON, True, always=False) for changed in (0, ts, mp, ts | mp)} == {None}
    assert _name(short_cr0_write_exit(NPT, em | ts, ON, True, always=False)) == "cr0_sel_write"
    assert _name(short_cr0_write_exit(NO_NPT, ts, ON & ~WP | ts, True, always=False)) == "write_cr0"


def test_registers_that_are_passed_through() -> None:
    """Rule msr-exits."""
    assert msr_exit(EPT, MSRS["FS_BASE"], True) is None and msr_exit(NPT, MSRS["FS_BASE"], True) is None
    assert _name(msr_exit(EPT, MSRS["PAT"], False)) == "MSR_READ"
    assert _name(msr_exit(EPT, MSRS["EFER"], True)) == "MSR_WRITE"
    assert _name(msr_exit(NPT, MSRS["EFER"], False)) == "msr"
    assert msr_exit(NPT, MSRS["LSTAR"], True) is None and _name(msr_exit(EPT, MSRS["LSTAR"], True)) == "MSR_WRITE"
    assert msr_exit(EPT, MSRS["TSC"], False) is None and _name(msr_exit(EPT, MSRS["TSC"], True)) == "MSR_WRITE"
    old = Policy.of("5.10", "amd")
    for name in ("SYSENTER_ESP", "SYSENTER_EIP"):
        assert msr_exit(NPT, MSRS[name], True) is None and msr_exit(EPT, MSRS[name], False) is None
        assert _name(msr_exit(old, MSRS[name], True)) == "msr"
    with_cet = Policy.of("7.2")
    assert msr_exit(with_cet, MSRS["S_CET"], True) is None and msr_exit(with_cet, MSRS["PL0_SSP"], False) is None
    assert _name(msr_exit(with_cet, MSRS["INTERRUPT_SSP_TABLE_ADDR"], True)) == "MSR_WRITE"
    assert _name(msr_exit(EPT, MSRS["S_CET"], True)) == "MSR_WRITE"


def test_only_the_first_access_to_a_debug_register_exits() -> None:
    """Rule debug-register-exits."""
    assert _name(dr_exit(EPT, 6, False, given=False)) == "DR_ACCESS"
    assert _name(dr_exit(NPT, 6, False, given=False)) == "read_dr6"
    assert _name(dr_exit(NPT, 7, True, given=False)) == "write_dr7"
    assert dr_exit(EPT, 6, True, given=True) is None


def test_an_interrupted_soft_interrupt() -> None:
    """Rule soft-interrupt-reinjected: kvm_amd of 6.1.190 and 6.12.117 in the lab emulated the two INT3 whose delivery
    met a page fault, 5.10.223 none (svm_complete_interrupts)."""
    for kernel, emulates in (("5.10", False), ("6.1", True), ("6.12", True), ("7.2", True)):
        assert emulates_soft_interrupt(Policy.of(kernel, "amd", "shadow"), next_rip=False) is emulates
    assert not emulates_soft_interrupt(NPT, next_rip=True)
    assert not emulates_soft_interrupt(EPT, next_rip=False)


def test_exceptions_that_exit() -> None:
    """Rule exception-exits."""
    for vector, svm in ((1, "DB excp"), (6, "UD excp"), (17, "AC excp"), (18, "MC excp")):
        assert _name(exception_exit(EPT, vector)) == "EXCEPTION_NMI"
        assert _name(exception_exit(NPT, vector)) == svm
    assert exception_exit(EPT, 14) is None and exception_exit(NPT, 14) is None
    assert (_name(exception_exit(NO_EPT, 14)), _name(exception_exit(NO_NPT, 14))) == ("EXCEPTION_NMI", "PF excp")
    for vector in (0, 3, 13):
        assert exception_exit(NO_EPT, vector) is None
