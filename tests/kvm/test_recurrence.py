"""Counting what recurs gives what executing it gives: every shipped program at 1,000 passes."""

from __future__ import annotations

import pytest

from worldswitch.errors import MissingError
from worldswitch.guest import library
from worldswitch.guest.operations import Clts, Cpuid, Load, Nop, Operation, ReadDr, Repeat, Store, Vmcall, WriteCr
from worldswitch.guest.program import Pages, Program, Space, Vcpu
from worldswitch.kvm.machine import NotModelled
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.recurrence import FEWEST
from worldswitch.kvm.vcpu import Run, run

PASSES = 1000
POLICIES = [
    ("5.4", "intel", "default"),
    ("5.10", "amd", "tdp"),
    ("5.10", "intel", "shadow"),
    ("6.1", "amd", "shadow"),
    ("6.12", "intel", "default"),
    ("7.2", "amd", "default"),
]
LONG = {"access": POLICIES[1:3]}
"""Programs whose thousand passes take seconds -> the policies they run under."""
CELLS = [(name, policy) for name in library.names() for policy in LONG.get(name, POLICIES)]
PARTS = ("exits_by_reason", "counters", "userspace_exits", "reports")


def _same(one: Run, other: Run) -> None:
    for part in PARTS:
        assert getattr(one, part) == getattr(other, part), part


@pytest.mark.parametrize(("name", "host"), CELLS)
def test_recurring_passes_are_counted_as_if_executed(name: str, host: tuple[str, str, str]) -> None:
    program, policy = library.program(name), Policy.of(*host)
    try:
        short = run(program, policy, PASSES)
    except (MissingError, NotModelled):
        with pytest.raises((MissingError, NotModelled)):
            run(program, policy, PASSES, whole=True)
        return
    whole = run(program, policy, PASSES, whole=True)
    assert whole.executed == PASSES
    _same(short, whole)
    assert short.executed < 600 or (short.reports[0] and short.reports[0].faults)  # faults fill their log first


def test_most_shipped_programs_run_on_the_model() -> None:
    """So that the test above tests something: what is not offered is CET and protection keys on old hosts."""
    refused = set()
    for name in library.names():
        try:
            run(library.program(name), Policy.of("7.2"), 0)
        except (MissingError, NotModelled):
            refused.add(name)
    assert len(library.names()) >= 36
    assert len(refused) <= 2


# ---- effects of instructions on registers alone, repeated without asking the rules again

VA, PA = 0x4000_0000, 0x200000
WP, TS = WriteCr(0, toggle=("WP",)), WriteCr(0, set=("TS",))
BODIES: dict[str, list[Operation]] = {
    "a write that exits on some hosts": [WP, WP],
    "a write and what it decides about": [WP, Store(VA + 0x1000, value=1), WP, Store(VA + 0x1000, value=2)],
    "a write whose exit ends what the guest has": [ReadDr(6), WP, ReadDr(6), Cpuid(), ReadDr(6)],
    "a write that flushes": [WriteCr(4, toggle=("PGE",)), Load(VA), WP],
    "writes in blocks": [Repeat(FEWEST + 3, (WP, Load(VA), TS, Clts())), Vmcall(1), WriteCr(8, value=3)],
}


def _program(body: list[Operation]) -> Program:
    pages = (Pages(VA, PA, flags=("W",)), Pages(VA + 0x1000, PA + 0x1000, flags=()))
    return Program("effects", "x", "pass", (Vcpu(body=tuple(body)),), (Space("main", pages),))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("host", POLICIES)
def test_repeated_effects_are_those_of_the_rules(body: list[Operation], host: tuple[str, str, str]) -> None:
    """A recorded run asks the rules for each instruction, for each has events of its own."""
    program, policy = _program(body), Policy.of(*host)
    _same(run(program, policy, 30, whole=True), run(program, policy, 30, record=True))


def test_a_step_that_meets_ever_other_registers_is_still_executed() -> None:
    """More settings of the registers than effects are kept for."""
    writes = [WriteCr(8, value=value) for value in range(16)]
    body: list[Operation] = [op for write in writes for op in (write, WP, WP, Nop())]
    for host in POLICIES:
        program, policy = _program(body), Policy.of(*host)
        _same(run(program, policy, 5, whole=True), run(program, policy, 5, record=True))
