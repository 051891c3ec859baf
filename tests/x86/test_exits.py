"""Exit reasons. Expected names: kvm_exit in recordings, and Linux's uapi asm/vmx.h and asm/svm.h."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import MissingError, UsageError
from worldswitch.x86.exits import (
    ISA_SVM,
    ISA_VMX,
    ExitTables,
    builtin,
    isa_name,
    known,
    reason_name,
    reason_number,
    userspace_reason,
)

DATA = Path(__file__).parents[1] / "data"

# A sample of each group of VMX_EXIT_REASONS and SVM_EXIT_REASONS, Linux 7.2.
VMX = {
    0: "EXCEPTION_NMI",
    1: "EXTERNAL_INTERRUPT",
    7: "INTERRUPT_WINDOW",
    10: "CPUID",
    12: "HLT",
    18: "VMCALL",
}
VMX |= {28: "CR_ACCESS", 29: "DR_ACCESS", 32: "MSR_WRITE", 48: "EPT_VIOLATION", 49: "EPT_MISCONFIG"}
VMX |= {52: "PREEMPTION_TIMER", 74: "BUS_LOCK", 75: "NOTIFY", 77: "TDCALL", 84: "MSR_READ_IMM"}
SVM = {
    0x0: "read_cr0",
    0x10: "write_cr0",
    0x14: "write_cr4",
    0x4E: "PF excp",
    0x53: "XF excp",
    0x60: "interrupt",
}
SVM |= {0x65: "cr0_sel_write", 0x69: "read_rt", 0x72: "cpuid", 0x7B: "io", 0x7C: "msr", 0x81: "hypercall"}
SVM |= {0x90: "write_cr0_trap", 0xA5: "buslock", 0xA6: "idle-halt", 0x400: "npf", 0x403: "vmgexit"}
SVM |= {0x80000010: "vmgexit_page_state_change", 0xFFFFFFFF: "invalid_guest_state"}


@pytest.mark.parametrize(
    ("isa", "number", "name"),
    [(ISA_VMX, n, name) for n, name in VMX.items()] + [(ISA_SVM, n, name) for n, name in SVM.items()],
)
def test_names_are_those_kvm_prints(isa: int, number: int, name: str) -> None:
    assert reason_name(isa, number) == name
    assert reason_number(name) == (isa, number)
    assert known(isa, number)


def test_every_reason_printed_in_a_recording_is_in_the_tables() -> None:
    printed = set()
    for text in DATA.glob("*/*.txt"):
        printed |= set(
            re.findall(r"kvm_exit:.*?reason ([A-Za-z][A-Za-z0-9_-]*(?: excp)?) rip", text.read_text(errors="replace"))
        )
    assert printed >= {"CR_ACCESS", "PF excp", "npf", "cr0_sel_write"}
    assert [name for name in printed if reason_number(name) is None] == []


def test_failed_vmentry_is_appended_as_a_flag() -> None:
    assert reason_name(ISA_VMX, 0x80000021) == "INVALID_STATE FAILED_VMENTRY"
    assert reason_number("INVALID_STATE FAILED_VMENTRY") == (ISA_VMX, 0x80000021)
    assert known(ISA_VMX, 0x80000021)


def test_flags_without_a_name_are_printed_as_a_number() -> None:
    assert reason_name(ISA_VMX, 0x88000021) == "INVALID_STATE FAILED_VMENTRY 0x8000000"


def test_a_reason_in_no_table_is_hexadecimal() -> None:
    assert reason_name(ISA_VMX, 35) == "0x23"
    assert reason_name(ISA_SVM, 0x999) == "0x999"
    assert not known(ISA_VMX, 35)


def test_a_printed_number_needs_the_isa() -> None:
    assert reason_number("0x23") is None
    assert reason_number("0x23", ISA_VMX) == (ISA_VMX, 35)
    assert reason_number("0x23 FAILED_VMENTRY", ISA_VMX) == (ISA_VMX, 0x80000023)


def test_an_unheard_of_isa_is_a_number() -> None:
    assert reason_name(7, 3) == "0x3"
    assert isa_name(7) == "isa 7"
    assert not known(7, 3)


def test_the_minus_one_of_svm_is_invalid_guest_state_at_any_width() -> None:
    assert {reason_name(ISA_SVM, n) for n in (-1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)} == {"invalid_guest_state"}


def test_names_of_older_kernels_are_understood() -> None:
    assert reason_number("PENDING_INTERRUPT") == (ISA_VMX, 7)


def test_reasons_kvm_prints_as_a_number_have_the_manuals_name() -> None:
    assert reason_name(ISA_VMX, 6) == "OTHER_SMI"
    assert reason_number("SEAMCALL") == (ISA_VMX, 76)


def test_no_two_names_share_a_number_unless_one_is_an_alias() -> None:
    for table in builtin().isas.values():
        assert {table.numbers[name] for name in table.names.values()} == set(table.names)


def test_exits_to_userspace_have_the_names_of_struct_kvm_run() -> None:
    assert [userspace_reason(n) for n in (2, 5, 6, 17, 39)] == [
        "KVM_EXIT_IO",
        "KVM_EXIT_HLT",
        "KVM_EXIT_MMIO",
        "KVM_EXIT_INTERNAL_ERROR",
        "KVM_EXIT_MEMORY_FAULT",
    ]
    assert userspace_reason(1234) == "1234"


@given(isa=st.integers(0, 3), reason=st.integers(0, 0xFFFFFFFF))
def test_a_printed_name_gives_its_number_back(isa: int, reason: int) -> None:
    assert reason_number(reason_name(isa, reason), isa) == (isa, reason)


PVM = """
[isa.3]
name = "PVM"
source = "the PVM patches"

[isa.3.reasons]
SYSCALL = 1
HYPERCALL = 2
"""


def test_users_add_a_table_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "pvm.toml"
    file.write_text(PVM)
    tables = ExitTables.load(file)
    assert reason_name(3, 2, tables) == "HYPERCALL"
    assert reason_number("SYSCALL", tables=tables) == (3, 1)
    assert isa_name(3, tables) == "PVM"
    assert reason_name(ISA_VMX, 28, tables) == "CR_ACCESS"
    assert not known(3, 2)


def test_users_name_a_reason_the_shipped_table_lacks(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    file.write_text("[isa.1.reasons]\nNEW_THING = 99\n")
    tables = ExitTables.load(file)
    assert reason_name(ISA_VMX, 0x80000063, tables) == "NEW_THING FAILED_VMENTRY"
    assert reason_name(ISA_VMX, 28, tables) == "CR_ACCESS"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[isa.3\n", "line 1"),
        ("\n\n[isa.3.reasons]\nA = 'x'\n", "line 4: A must be a whole number"),
        ("[isa.3.reasons]\nA = -1\n", "line 2: A must be a whole number"),
        ("[isa.3.reasons]\nA = true\n", "line 2: A must be a whole number"),
        ("[isa.1.reasons]\nA = 0x10000\n", "line 2: A = 0x10000 has bits outside the mask"),
        ("[isa.1.flags]\nA = 1\n", "line 2: flag A = 0x1 lies inside the mask"),
        ("[isa.pvm]\n", r"line 1: \[isa.pvm\]: the part after the point is the number"),
        ("[isa.3]\nreason = {}\n", "line 2: .* has no entry 'reason', only name"),
        ("[isa.3]\nname = 3\n", "line 2: name of .* must be a string"),
        ("[isa.3]\nreasons = 3\n", "line 2: .* must be a table of name = number"),
        ("isa = 3\n", "line 1: isa must be a table"),
        ("[userspace.reasons]\nKVM_EXIT_NEW = 1.5\n", "line 2: KVM_EXIT_NEW must be a whole number"),
        ("surprise = 1\n", "line 1: the file has no entry 'surprise'"),
        ("a = " + "[" * 100000, "not a TOML file"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        ExitTables.load(file)


def test_a_table_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        ExitTables.load(file)


def test_a_missing_table_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"cannot read .*none.toml: No such file"):
        ExitTables.load(tmp_path / "none.toml")


@given(st.text(max_size=200))
def test_any_text_as_a_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("tables") / "t.toml"
    file.write_text(text, encoding="utf-8", errors="ignore")
    try:
        tables = ExitTables.load(file)
    except UsageError:
        return
    assert reason_name(ISA_VMX, 28, tables)
