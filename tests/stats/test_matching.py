"""Which cells are compared, and what is said where none may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.record.result import Cell, Environment, Provenance, Result
from worldswitch.stats.matching import Match, match

INTEL = Environment("Xeon", "6.12.1", None, "kvm_intel", {"kvm.nx_huge_pages": "Y", "kvm_intel.ept": "Y"})
AMD = Environment("EPYC", "6.12.1", None, "kvm_amd", {"kvm.nx_huge_pages": "Y", "kvm_amd.npt": "1"})


def cell(environment: Environment | None = None, **dimensions: Any) -> Cell:
    usual = {"on": "kvm", "kernel": "6.12.1", "cpu": "intel", "mmu": "tdp", "module": "kvm_intel", "program": "cr0-wp"}
    return Cell({**usual, **dimensions}, environment=environment)


def result(*cells: Cell, environment: Environment = INTEL) -> Result:
    return Result(cells, Provenance("1"), environment)


def pairs(a: Result, b: Result, *ignore: str) -> list[tuple[int, int, str | None]]:
    return [(one.a, one.b, one.compared and one.compared.name) for one in match(a, b, ignore).pairs]


def refused(a: Result, b: Result) -> str:
    with pytest.raises(UsageError) as wrong:
        match(a, b)
    return str(wrong.value)


def test_cells_that_differ_in_nothing_are_compared() -> None:
    a = result(cell(), cell(program="cpuid"))
    b = result(cell(program="cpuid"), cell(), cell(program="io"))
    found = match(a, b)
    assert found.pairs == (Match(0, 1, None), Match(1, 0, None))
    assert (found.only_a, found.only_b) == ((), (2,))


def test_cells_that_differ_in_the_kernel_alone() -> None:
    a = result(cell(kernel="5.10"), cell(kernel="5.10", program="io"))
    b = result(cell(kernel="6.1", program="io"), cell(kernel="6.1"))
    found = match(a, b)
    assert [(one.a, one.b) for one in found.pairs] == [(0, 1), (1, 0)]
    assert str(found.pairs[0].compared) == "kernel (5.10 and 6.1)"


def test_one_against_several() -> None:
    a, b = result(cell(kernel="5.10")), result(cell(kernel="6.1"), cell(kernel="6.12"))
    assert pairs(a, b) == [(0, 0, "kernel"), (0, 1, "kernel")]


def test_the_condition_with_most_pairs_is_compared_along() -> None:
    a = result(cell(kernel="5.10"), cell(kernel="5.10", program="io"))
    b = result(cell(kernel="6.1"), cell(kernel="6.1", program="io"), cell(kernel="5.10", mmu="shadow"))
    assert pairs(a, b) == [(0, 0, "kernel"), (1, 1, "kernel")]


def test_programs_are_compared_only_if_there_is_nothing_else() -> None:
    a = result(cell(program="nop"), cell(program="cr0-wp", kernel="5.10"))
    assert pairs(a, result(cell(program="cpuid"))) == [(0, 0, "program")]
    assert pairs(a, result(cell(program="cpuid"), cell(program="cr0-wp", kernel="6.1"))) == [(1, 1, "kernel")]


def test_parameters_of_programs_are_conditions() -> None:
    a, b = result(cell(parameters={"vms": 0, "burst": 1})), result(cell(parameters={"vms": 800, "burst": 1}))
    assert pairs(a, b) == [(0, 0, "parameters.vms")]


def test_no_control_group_is_a_value() -> None:
    a, b = result(cell(parameters={"cgroup": None})), result(cell(parameters={"cgroup": "vms"}))
    assert pairs(a, b) == [(0, 0, "parameters.cgroup")]


def test_module_parameters_are_conditions() -> None:
    never = replace(INTEL, parameters={**INTEL.parameters, "kvm.nx_huge_pages": "never"})
    assert pairs(result(cell()), result(cell(), environment=never)) == [(0, 0, "kvm.nx_huge_pages")]


def test_the_processor_is_a_condition() -> None:
    assert pairs(result(cell()), result(cell(replace(INTEL, cpu_model="i7")))) == [(0, 0, "processor")]


def test_two_conditions_are_refused_with_both() -> None:
    said = refused(result(cell()), result(cell(kernel="5.10", mmu="shadow")))
    assert "nearest two differ in kernel (6.12.1 and 5.10) and mmu (tdp and shadow)" in said
    assert "--ignore mmu" in said


def test_a_kernel_and_a_processor_are_two() -> None:
    said = refused(result(cell()), result(cell(kernel="5.10"), environment=replace(INTEL, cpu_model="i7")))
    assert "kernel" in said
    assert "processor (Xeon and i7)" in said


def test_the_nearest_two_are_named() -> None:
    a = result(cell(program="io", mmu="shadow", kernel="5.10"), cell(mmu="shadow", kernel="5.10"))
    assert "differ in kernel (5.10 and 6.12.1) and mmu (shadow and tdp)" in refused(a, result(cell()))


def test_what_is_ignored_may_differ() -> None:
    a, b = result(cell()), result(cell(kernel="5.10", mmu="shadow"))
    assert pairs(a, b, "mmu") == [(0, 0, "kernel")]
    assert pairs(a, b, "mmu", "kernel") == [(0, 0, None)]


def test_a_condition_nobody_knows_is_not_ignored() -> None:
    with pytest.raises(UnknownNameError, match="unknown condition 'kernal'; nearest: kernel"):
        match(result(cell()), result(cell()), ["kernal"])


def test_intel_against_amd_is_one_condition() -> None:
    a, b = result(cell()), result(cell(cpu="amd", module="kvm_amd"), environment=AMD)
    assert pairs(a, b) == [(0, 0, "cpu")]


def test_the_mmu_stands_for_its_parameters() -> None:
    shadow = replace(INTEL, parameters={**INTEL.parameters, "kvm_intel.ept": "N"})
    assert pairs(result(cell()), result(cell(mmu="shadow"), environment=shadow)) == [(0, 0, "mmu")]


def test_the_model_against_this_host_is_one_condition() -> None:
    model = cell(Environment(), on="model", module=None)
    assert pairs(result(model), result(cell())) == [(0, 0, "on")]


def test_what_one_side_does_not_know_is_no_difference() -> None:
    a, b = result(cell(module=None), environment=Environment()), result(cell())
    assert pairs(a, b) == [(0, 0, None)]
    older = replace(INTEL, parameters={})
    assert pairs(result(cell(kernel="5.4"), environment=older), b) == [(0, 0, "kernel")]


def test_cells_that_are_there_twice_are_taken_in_turn() -> None:
    assert pairs(result(cell(), cell()), result(cell(), cell())) == [(0, 0, None), (1, 1, None)]


def test_the_cells_of_one_result_among_themselves() -> None:
    one = result(cell(kernel="5.10"), cell(kernel="6.1"), cell(kernel="6.12"), cell(program="io", mmu="shadow"))
    assert pairs(one, one) == [(0, 1, "kernel"), (0, 2, "kernel"), (1, 2, "kernel")]
    assert match(one, one).only_a == match(one, one).only_b == (3,)


@pytest.mark.parametrize("cells", [(), (cell(),)])
def test_nothing_to_compare(cells: tuple[Cell, ...]) -> None:
    one = result(*cells)
    assert "there are no two cells to compare" in refused(one, one)


def test_hostile_strings_do_not_reach_the_terminal() -> None:
    said = refused(result(cell()), result(cell(kernel="\x1b[2J", mmu="\x1b[31m")))
    assert "\x1b" not in said
