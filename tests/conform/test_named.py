"""The list of named differences: short, whole, and each with a program that could show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.cli.conditions import CPUS, MMUS
from worldswitch.conform.named import MOST, UNDONE, Named, named
from worldswitch.conform.session import host_of
from worldswitch.conform.table import load
from worldswitch.guest.paths import places
from worldswitch.guest.toml import loads
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.rules import find
from worldswitch.kvm.vcpu import run

TABLE = Path(__file__).parents[2] / "docs/conformance.json"


def test_there_are_at_most_five() -> None:
    ids = [one.id for one in named()]
    assert len(ids) <= MOST == 5
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("one", named(), ids=lambda one: one.id)
def test_each_is_whole(one: Named) -> None:
    assert find(one.rule).id == one.rule
    assert len(one.reason.split()) > 10
    assert set(one.cpus) <= set(CPUS)
    assert one.cpus
    assert set(one.mmus) <= set(MMUS)
    assert one.mmus
    assert bool(one.undone) != bool(one.host)
    assert not one.host or getattr(Host(), one.host) is True
    assert not one.undone or one.undone in UNDONE


@pytest.mark.parametrize("one", named(), ids=lambda one: one.id)
def test_each_has_a_minimal_program_that_the_model_runs(one: Named) -> None:
    program = loads(one.program)
    assert sum(1 for _ in places(program)) <= 8
    kernel = one.kernels[0] if one.kernels else "6.12"
    run(program, Policy.of(kernel, one.cpus[0], one.mmus[0], []), host=host_of(one.cpus[0]))


@pytest.mark.parametrize("one", named(), ids=lambda one: one.id)
def test_each_explains_something_in_the_table(one: Named) -> None:
    """A name that no row has any more has to go."""
    rows = load(TABLE)
    there = [row for row in rows if one.seen_at(row["kernel"], row["cpu"], row["mmu"])]
    assert one.id in {id for row in there for names in row["by_name"] for id in names.split(",")}
