"""The example tables of PVM's exits in docs/examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.x86.exits import ExitTables, builtin, isa_name, known, reason_name

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PVM = 3
"""KVM_ISA_PVM: message 20240226143630.33643-43-jiangshanlai@gmail.com."""


@pytest.mark.parametrize(
    ("number", "name"),
    [
        # The "unknown kvm exit codes" perf printed for PVM in https://github.com/virt-pvm/linux/issues/8, and the page
        # faults it took for VMX's INVLPG, with the names of the patch that defines them.
        (65536, "SYSCALL"),
        (131072, "HYPERCALL"),
        (196608, "ERETU"),
        (262144, "ERETS"),
        (327680, "INTERRUPT"),
        (14, "PF excp"),
        (1025, "FAILED_VMENTRY"),
    ],
)
def test_the_published_numbers_have_their_names(number: int, name: str) -> None:
    tables = ExitTables.load(EXAMPLES / "pvm-exits.toml")
    assert reason_name(PVM, number, tables) == name
    assert isa_name(PVM, tables) == "PVM"


def test_trees_without_erets_number_interrupts_one_lower() -> None:
    # arch/x86/include/uapi/asm/pvm_trace.h of github.com/aledbf/linux at 3dec8e0da5ff.
    tables = ExitTables.load(EXAMPLES / "pvm-exits-without-erets.toml")
    assert reason_name(PVM, 4 << 16, tables) == "INTERRUPT"
    assert reason_name(PVM, 5 << 16, tables) == "INT80"
    assert reason_name(PVM, (2 << 16) + 9, tables) == "HC_WRMSR"


def test_the_tables_that_ship_do_not_know_pvm() -> None:
    assert PVM not in builtin().isas
    assert not known(PVM, 1 << 16)


def test_loading_pvm_leaves_vmx_and_svm_alone() -> None:
    tables = ExitTables.load(EXAMPLES / "pvm-exits.toml")
    assert {isa: tables.isas[isa] for isa in (1, 2)} == dict(builtin().isas)
