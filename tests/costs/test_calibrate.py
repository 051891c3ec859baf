"""Costs from measurements: programs timed on real KVM, kvm-unit-tests, the published tables."""

from __future__ import annotations

from typing import Any

import pytest

from worldswitch.costs.beside import beside
from worldswitch.costs.calibrate import from_published, from_results, from_unit_tests
from worldswitch.costs.published import published
from worldswitch.record.result import Cell, Provenance, Result, Spread


def result(*cells: Cell) -> Result:
    return Result(cells, Provenance("0.1.0"))


def cell(program: str, kernel: str, mmu: str, exits: float, ns: float, **more: Any) -> Cell:
    dimensions = {"on": "kvm", "program": program, "parameters": {}, "kernel": kernel, "cpu": "intel", "mmu": mmu}
    given = {"unit": "pair", "per_op": {"exits": exits}, "time_ns": Spread(ns * 0.9, ns, ns * 1.2), **more}
    return Cell({**dimensions, **given.pop("dimensions", {})}, **given)


def test_an_exit_is_the_time_over_how_many_there_are() -> None:
    atoms, skipped = from_results([("r.json", result(cell("cr0-am", "6.12.117", "tdp", 2, 2000)))])
    (atom,) = atoms
    assert (atom.event, atom.unit) == ("exit.cr", "ns")
    assert (atom.low, atom.mid, atom.high) == pytest.approx((900, 1000, 1200))
    assert "cr0-am in r.json" in atom.origin
    assert skipped == []


def test_what_is_known_is_taken_off() -> None:
    """On 5.10 with the legacy MMU each of the 2 writes of WP exits and reloads the roots."""
    cells = [cell("cr0-wp", "5.10.223", "legacy", 2, 3000), cell("cr0-am", "5.10.223", "legacy", 2, 2000)]
    atoms, skipped = from_results([("r.json", result(*cells))])
    costs = {atom.event: atom for atom in atoms}
    assert costs["root_reload.legacy"].mid == pytest.approx((3000 - 2000) / 2)
    assert costs["root_reload.legacy"].low == pytest.approx((2700 - 2400) / 2)
    assert costs["root_reload.legacy"].high == pytest.approx((3600 - 1800) / 2)
    assert skipped == []


def test_two_times_of_one_event_give_the_middle_and_the_outermost_limits() -> None:
    files = [(name, result(cell("cr0-am", "6.12.117", "tdp", 2, ns))) for name, ns in (("a", 2000), ("b", 4000))]
    (atom,) = from_results(files)[0]
    assert (atom.low, atom.mid, atom.high) == pytest.approx((900, 1500, 2400))


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (cell("cr0-am", "6.12.117", "tdp", 3, 2000), "3 exits for each pair were measured, 2 are the model's"),
        (cell("cr0-wp", "6.12.117", "tdp", 0, 200), "it has no exits"),
        (cell("cr0-wp", "5.10.223", "legacy", 2, 3000), "costs of exit.cr, root_reload.legacy cannot be told apart"),
        (cell("cr0-am", "6.12.117", "tdp", 2, 2000, steady=False), "did not settle"),
        (cell("cr0-am", "6.12.117", "tdp", 2, 2000, time_ns=None), "it has no time"),
        (cell("cr0-am", "6.12.117", "tdp", 2, 2000, dimensions={"on": "lab"}), "only times of real KVM"),
        (cell("create-vm", "6.12.117", "tdp", 0, 2000), "the model does not follow it"),
        (cell("cr0-am", "weird", "tdp", 2, 2000), "the model does not follow it"),
    ],
)
def test_what_gives_no_cost_says_why(one: Cell, why: str) -> None:
    atoms, skipped = from_results([("r.json", result(one))])
    assert atoms == []
    assert [why in skip.why for skip in skipped] == [True], skipped


def test_less_than_nothing_is_no_cost() -> None:
    cells = [cell("cr0-wp", "5.10.223", "legacy", 2, 1000), cell("cr0-am", "5.10.223", "legacy", 2, 2000)]
    atoms, (skip,) = from_results([("r.json", result(*cells))])
    assert [atom.event for atom in atoms] == ["exit.cr"]
    assert "leaves nothing for root_reload.legacy" in skip.why


def test_unit_tests_give_cycles_and_with_a_clock_times() -> None:
    lines = [("a.txt", "cpuid", 1234), ("b.txt", "cpuid", 1300), ("a.txt", "vmcall", 1200), ("a.txt", "ipi", 3000)]
    atoms, skipped = from_unit_tests(lines, None)
    costs = {atom.event: (atom.low, atom.mid, atom.high, atom.unit) for atom in atoms}
    assert costs == {"exit.cpuid": (1234, 1267, 1300, "cycles"), "exit.hypercall": (1200, 1200, 1200, "cycles")}
    assert [skip.what for skip in skipped] == ["ipi in a.txt"]
    assert "one figure" in next(atom.origin for atom in atoms if atom.event == "exit.hypercall")
    (timed,) = from_unit_tests(lines[:1], 2.0)[0]
    assert (timed.mid, timed.unit) == (617, "ns")
    assert "2 GHz" in timed.origin


def test_published_costs_follow_the_reading() -> None:
    found = beside(published())
    few, many = ({a.event: a for a in from_published(found, steps, 1)} for steps in (100_000, 500_000))
    twice = {atom.event: atom for atom in from_published(found, 500_000, 2)}
    for event, seconds in found.fit.costs.items():
        assert few[event].mid == pytest.approx(seconds * 1e4)
        assert few[event].mid == pytest.approx(5 * many[event].mid)
        assert twice[event].mid == pytest.approx(2 * many[event].mid)
        assert many[event].low < many[event].mid < many[event].high
        assert "500,000 steps, 1 at once" in many[event].origin
    assert set(few["work.ssdd"].covers) == {"exit.exception", "exit.dr"}
