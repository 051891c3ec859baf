"""NX huge pages of many VMs over time. Expected: what the waiting times and KVM's rules say in closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from worldswitch.costs.atoms import Atom
from worldswitch.errors import UsageError
from worldswitch.kvm import nx
from worldswitch.kvm.facts import kernel
from worldswitch.simulation.nx_fleet import REPORTED, Fleet, follow

OLD, NEW = kernel("6.12").has, kernel("7.2").has
RIGHT = kernel("7.2-nx-recovery-counts-amiss").has
ON = nx.Parameters(True)
FLEET = Fleet(vms=200, hours=6)
NEVER_AGAIN = 10**15


def test_the_same_seed_gives_the_same_numbers_and_another_others() -> None:
    assert follow(NEW, ON, FLEET) == follow(NEW, ON, FLEET)
    assert follow(NEW, ON, FLEET).intervals != follow(NEW, ON, replace(FLEET, seed=2)).intervals


@pytest.mark.parametrize("has", [OLD, NEW])
def test_pages_are_split_once_or_after_a_recovery(has: nx.Has) -> None:
    """No page is split twice without a zap between, and none is zapped that is not split."""
    executions = again = zapped = 0
    for each in follow(has, ON, FLEET).intervals:
        executions, again, zapped = executions + each.executions, again + each.again, zapped + each.zapped
        assert again <= zapped <= executions + again
        assert executions <= FLEET.vms * FLEET.executed
        assert each.split_most <= FLEET.executed


def test_first_executions_come_as_the_waiting_time_says() -> None:
    """A share of 1 - exp(-t/mean): of 200 x 64 pages in 10 minutes with a mean of 10 minutes."""
    first = follow(NEW, ON, replace(FLEET, hours=1), intervals=6).intervals[0]
    pages, share = FLEET.vms * FLEET.executed, 1 - math.exp(-1)
    assert abs(first.executions - pages * share) < 5 * math.sqrt(pages * share * (1 - share))


def test_without_re_execution_the_default_recovers_a_sixtieth_a_minute() -> None:
    """One VM, 60 pages executed at once, quotas ceil(n/60): 60 passes with one page each."""
    fleet = Fleet(vms=1, hours=1, executed=60, first_ms=1, again_ms=NEVER_AGAIN)
    intervals = follow(OLD, ON, fleet, intervals=60).intervals
    assert [each.zapped for each in intervals] == [1] * 60
    assert [each.split for each in intervals] == list(range(60, 0, -1))


@pytest.mark.parametrize(("has", "zapped"), [(OLD, [8, 4, 2, 1, 1, 0]), (RIGHT, [8, 4, 2, 1, 1, 0]), (NEW, [8, 8, 0])])
def test_a_counter_that_only_grows_zaps_more(has: nx.Has, zapped: list[int]) -> None:
    """The passes of tests/kvm/test_nx_recovery.py, of 16 pages with ratio 2."""
    fleet = Fleet(vms=1, hours=len(zapped) * 0.5, executed=16, first_ms=1, again_ms=NEVER_AGAIN)
    intervals = follow(has, nx.Parameters(True, ratio=2), fleet, intervals=len(zapped)).intervals
    assert [each.zapped for each in intervals] == zapped


def test_the_shadow_mmus_own_counter_is_right() -> None:
    fleet = Fleet(vms=1, hours=1.5, executed=16, first_ms=1, again_ms=NEVER_AGAIN)
    intervals = follow(NEW, nx.Parameters(True, ratio=2), fleet, mmu="shadow", intervals=3).intervals
    assert [each.zapped for each in intervals] == [8, 4, 2]


def test_in_the_end_splits_balance_recovery() -> None:
    """Steady state of n split pages of 64: ceil(n/60) = 1 or 2 zapped a minute, so at least one a minute and VM."""
    last = follow(OLD, ON, FLEET, intervals=6).intervals[-1]
    assert last.passes == 60
    assert FLEET.vms * 60 <= last.zapped <= FLEET.vms * 120
    assert abs(last.again - last.zapped) < 0.02 * last.zapped


@pytest.mark.parametrize(
    ("parameters", "split"),
    [(nx.Parameters(False), 0), (nx.Parameters(False, never=True), 0), (nx.Parameters(True, ratio=0), 64)],
)
def test_without_recovery_all_executed_pages_stay_as_they_are(parameters: nx.Parameters, split: int) -> None:
    line = follow(NEW, parameters, replace(FLEET, first_ms=1000))
    assert line.period_ms is None
    assert [each.zapped for each in line.intervals] == [0] * 24
    assert [each.passes for each in line.intervals] == [0] * 24
    assert line.intervals[-1].split == split * FLEET.vms
    assert line.huge_share[-1] == 1 - split / FLEET.huge_pages


def test_vms_that_opted_out_split_nothing() -> None:
    some = follow(NEW, nx.Parameters(True, ratio=0), replace(FLEET, first_ms=1000, opted_out=0.25))
    assert some.intervals[-1].split == 64 * 150


@pytest.mark.parametrize(
    ("ratio", "period", "passes"), [(60, 0, 60), (1, 0, 1), (60, 100, 36_000), (3600, 0, 3600), (60, 90_000, 40)]
)
def test_passes_come_every_period(ratio: int, period: int, passes: int) -> None:
    line = follow(NEW, nx.Parameters(True, ratio=ratio, period_ms=period), Fleet(vms=1, hours=1), intervals=1)
    assert [each.passes for each in line.intervals] == [passes]


def test_5_10_has_a_pass_a_minute_whatever_the_ratio() -> None:
    line = follow(kernel("5.10").has, nx.Parameters(True, ratio=1000), Fleet(vms=1, hours=1), intervals=1)
    assert (line.intervals[0].passes, line.stops_faults) == (60, True)


def test_a_spike_is_zaps_times_the_cost_of_one() -> None:
    fleet = Fleet(vms=1, hours=1, executed=16, first_ms=1, again_ms=NEVER_AGAIN)
    line = follow(OLD, nx.Parameters(True, ratio=2), fleet, intervals=2)
    assert line.spikes(REPORTED) == ((800_000.0, 800_000.0), (400_000.0, 400_000.0))
    with pytest.raises(UsageError, match="needs one in ns"):
        line.spikes(Atom("nx-zap-spike", 1, 2, 3, "cycles", "a test"))


def test_the_reported_cost_names_where_it_is_from() -> None:
    assert "tuned#363" in REPORTED.origin


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"vms": 0}, "at least one VM"),
        ({"hours": math.inf}, "no time"),
        ({"hours": math.nan}, "no time"),
        ({"executed": 2000}, "more than the 1024"),
        ({"opted_out": 1.5}, "between 0 and 1"),
    ],
)
def test_fleets_that_make_no_sense_are_refused(wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        replace(FLEET, **wrong)  # type: ignore[arg-type]


def test_what_would_take_too_long_is_refused_before_it_begins() -> None:
    with pytest.raises(UsageError, match="864,000,000,000 steps"):
        follow(NEW, nx.Parameters(True, period_ms=1), Fleet())
