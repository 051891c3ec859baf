"""The published tables: as they were published, counted by the model, predicted, and judged."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise

import pytest

from worldswitch.costs.beside import (
    MOST_FITTED,
    WITHIN,
    Comparison,
    beside,
    null_ratio_error,
    per_step,
    ratio_error,
)
from worldswitch.costs.published import STAGES, Cell, Published, Table, published
from worldswitch.errors import UnknownNameError


@cache
def found() -> Comparison:
    return beside(published())


def cell(table: str, column: str, stage: str) -> tuple[Table, Cell]:
    (one,) = published().only(table)
    return one, next(c for c in one.cells if (c.column, c.stage) == (column, stage))


def test_the_seconds_are_those_of_the_mails() -> None:
    """The rows of Message-IDs 20230322013731.102955-1, 026dcbfe-a306-85c3-600e-17cae3d3b7c5 and 4114d399-8649-..."""

    def row(table: str, column: str) -> list[float]:
        return [c.seconds for c in published().only(table)[0].cells if c.column == column]

    assert row("next-2023-03", "TDP") == [9.45, 5.63, 3.47]
    assert row("next-2023-03", "legacy") == [8.43, 5.39, 3.51]
    assert row("next-2023-03", "shadow") == [70.3, 70.2, 67.8]
    assert row("5.10.177", "TDP") == [88.7, 4.92]
    assert row("5.15.106", "TDP") == [66.1, 4.79]
    assert row("cet-2025", "TDP") == [2.4647, 1.5648]
    assert sum(len(table.cells) for table in published().tables) == 52


def test_every_table_names_its_source_and_its_kernels() -> None:
    from worldswitch.kvm.facts import kernel

    for table in published().tables:
        assert table.source
        assert {c.stage for c in table.cells} == set(table.stages) <= set(STAGES)
        assert all(kernel(spec) for spec in table.stages.values())


def test_the_noise_is_that_of_the_shadow_pairs() -> None:
    """Standard deviation of the changes of the pairs before and after the last patch, of two cells each."""
    import statistics

    changes = []
    for table in published().tables:
        shadow = [c.seconds for c in table.cells if c.mmu == "shadow"]
        changes += [after / before - 1 for before, after in pairwise(shadow)]
    assert len(changes) == 8
    assert statistics.stdev(changes) / 2**0.5 == pytest.approx(published().noise, abs=0.0007)


@pytest.mark.parametrize(
    ("table", "column", "stage", "counts"),
    [
        # 8 writes of WP a step with PCIDs: an exit each while intercepted, and a reload until roots are kept.
        ("next-2023-03", "TDP", "intercepted", {"exit.cr": 8, "root_reload.tdp": 8}),
        ("next-2023-03", "legacy", "intercepted", {"exit.cr": 8, "root_reload.legacy": 8}),
        ("next-2023-03", "TDP", "kept", {"exit.cr": 8}),
        ("next-2023-03", "TDP", "owned", {}),
        # Shadow paging knows no patch: 8 writes of CR0 and 10 of CR3.
        ("next-2023-03", "shadow", "intercepted", {"exit.cr": 18, "root_reload.shadow": 12}),
        ("next-2023-03", "shadow", "owned", {"exit.cr": 18, "root_reload.shadow": 12}),
        # AMD keeps its exits; CET with its interception has as many as WP had.
        ("amd-2023", "TDP", "kept", {"exit.cr": 8}),
        ("cet-2025", "TDP", "kept", {"exit.cr": 8}),
        ("cet-2025", "TDP", "owned", {}),
    ],
)
def test_what_the_model_counts_in_a_step(table: str, column: str, stage: str, counts: dict[str, float]) -> None:
    assert per_step(*cell(table, column, stage)) == {"work.ssdd": 1, **counts}


def test_only_the_tdp_mmu_of_old_kernels_faults_its_pages_in_again() -> None:
    """It has a set of tables for each value of WP, and the one for WP clear is freed with each use of it."""
    for table in published().tables:
        for one in table.cells:
            rebuilt = one.mmu == "tdp" and one.stage == "intercepted" and table.id in ("5.10.177", "5.15.106")
            assert ("exit.violation" in per_step(table, one)) == rebuilt, (table.id, one)


def test_few_cells_are_fitted_and_no_more_costs_than_cells() -> None:
    fitted = [one for one in found().cells if one.cell.fit]
    assert len(fitted) <= MOST_FITTED
    assert found().fit.parameters <= len(fitted)


def test_predicted_ratios_are_within_15_percent_and_better_than_without_physics() -> None:
    judged = found().judged()
    assert {ratio.stages for ratio in judged} == {"intercepted/kept", "kept/owned"}
    assert not any(one.cell.fit == "atoms" and (one.table.id, one.cell.column) == (r.table, r.column)
                   for r in judged for one in found().cells)  # fmt: skip
    assert ratio_error(judged) <= WITHIN
    assert ratio_error(judged) < null_ratio_error(judged)


def test_every_order_is_right() -> None:
    assert len(found().orders) > 100
    assert [one.name for one in found().orders if not one.right] == []


def test_the_old_tdp_mmu_is_dearer_than_shadow_paging() -> None:
    model = {one.name: one.model for one in found().cells}
    for table in ("5.10.177", "5.15.106"):
        assert model[f"{table}/before/TDP"] > model[f"{table}/before/shadow"] > 5 * model[f"{table}/before/legacy"]


def test_every_miss_has_a_reason_and_nothing_else_is_listed() -> None:
    assert found().faults() == []
    assert {miss.what for miss in published().misses} == set(found().misses())


def test_a_wrong_cell_is_found() -> None:
    changed = _with("6.2.10", "before", "TDP", 80.0)
    faults = beside(changed).faults()
    assert "cell 6.2.10/before/TDP is wrong, and no reason is given" in faults


def test_a_reason_for_what_is_right_is_found() -> None:
    changed = _with("5.4.240", "before", "shadow", 70.0)
    assert "cell 5.4.240/before/shadow is listed as a miss, and is none" in beside(changed).faults()


def test_a_ratio_that_is_too_far_off_is_found() -> None:
    changed = _with("queue-2023-01", "before", "legacy", 16.0)
    assert any("a predicted ratio is" in fault for fault in beside(changed).faults())


def test_the_wrong_order_is_found() -> None:
    changed = _with("next-2023-03", "patches 1-3", "legacy", 3.0)
    wrong = [one.name for one in beside(changed).orders if not one.right]
    assert "next-2023-03 legacy owned > legacy kept" in wrong


def test_a_held_out_cell_changes_no_prediction() -> None:
    changed = beside(_with("6.2.10", "before", "TDP", 80.0))
    assert [one.model for one in changed.cells] == [one.model for one in found().cells]


def test_with_twice_the_writes_the_cells_stay() -> None:
    """What the tables cannot tell: how many writes a step makes."""
    twice = {"ssdd:pcid=true": "ssdd", "ssdd:pcid=true,cet=true": "ssdd:cet=true"}
    tables = tuple(dataclasses.replace(table, program=twice[table.program]) for table in published().tables)
    other = beside(dataclasses.replace(published(), tables=tables))
    assert other.fit.costs["exit.cr"] == pytest.approx(found().fit.costs["exit.cr"] / 2)
    for one, same in zip(other.cells, found().cells, strict=True):
        assert one.model == pytest.approx(same.model, rel=2 * published().noise)


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: 6\.1\.23"):
        published().only("6.1.32")


def _with(table: str, row: str, column: str, seconds: float) -> Published:
    def cells(one: Table) -> tuple[Cell, ...]:
        def at(c: Cell) -> bool:
            return (one.id, c.row, c.column) == (table, row, column)

        assert one.id != table or any(map(at, one.cells))
        return tuple(dataclasses.replace(c, seconds=seconds) if at(c) else c for c in one.cells)

    tables = tuple(dataclasses.replace(one, cells=cells(one)) for one in published().tables)
    return dataclasses.replace(published(), tables=tables)
