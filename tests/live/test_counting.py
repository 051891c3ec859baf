from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.live import counting, interrupts
from worldswitch.live.counting import Counted, Counter, carried_on, lowest_twice, per_pass
from worldswitch.live.machine import Outcome

# proc(5), /proc/interrupts: a column for each CPU online; ERR has one for all.
INTERRUPTS = """            CPU0       CPU2
 24:          1        100  IO-APIC   5-edge      ACPI:Ged
LOC:         20       2000   Local timer interrupts
ERR:          7
"""


def outcome(exits: int, irqs: int = 0, *, wall: int = 1000, **others: int) -> Outcome:
    counters = {"exits": exits, "irq_exits": irqs, "fpu_reload": exits, **others}
    return Outcome(counters, "KVM_GET_STATS_FD", frozenset(), {"HLT": 1}, (None,), wall, 0, 10**6)


class Host:
    """Runs by script: the exits of each, and the interrupts that came meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *runs: tuple[Outcome, int]) -> None:
        self.runs = list(runs)
        self.total = 0
        monkeypatch.setattr(interrupts, "taken", lambda cpus: self.total)
        monkeypatch.setattr(counting, "_await_tick", lambda: None)

    def run(self, n: int, around: Callable[[], contextlib.AbstractContextManager[object]]) -> Outcome:
        with around():
            done, more = self.runs.pop(0)
            self.total += more
        return done


def test_interrupts_of_the_cpus_used_are_summed(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/interrupts").write_text(INTERRUPTS)
    assert interrupts.taken([0], tmp_path) == 21
    assert interrupts.taken([0, 2], tmp_path) == 2121
    assert interrupts.taken([1], tmp_path) is None
    assert interrupts.taken([0], tmp_path / "nowhere") is None


def test_only_runs_without_interrupts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, *((outcome(e), k) for e, k in ((12, 2), (12, 2), (10, 0), (11, 1), (10, 0), (99, 0))))
    counted = Counter(host.run, [0], "kvm_pvm").count(5)
    assert counted is not None
    assert (counted.counters["exits"], counted.proven, counted.runs, counted.unsteady) == (10, True, 5, ())
    assert counted.interrupts == 5
    assert len(host.runs) == 1


def test_a_kvm_that_counts_interrupts_needs_no_quiet_run(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, (outcome(12, 2), 3), (outcome(11, 0), 3), (outcome(14, 4), 5))
    counted = Counter(host.run, [0], "kvm_intel").count(5)
    assert counted is not None
    assert (counted.counters["exits"], counted.proven, counted.interrupts) == (10, False, 7)


def test_the_hosts_own_statistics_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, (outcome(1), 0), (outcome(1), 0))
    counted = Counter(host.run, [0], None).count(5)
    assert counted is not None
    assert set(counted.counters) == {"exits"}


def test_no_quiet_run_in_sight_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, *[(outcome(10 + i), 1) for i in range(24)])
    assert Counter(host.run, [0], None).count(5, give_up=True) is None
    assert len(host.runs) == 12


def test_counts_that_never_agree_are_unsteady(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, *[(outcome(30 - i), 1) for i in range(24)])
    counted = Counter(host.run, [0], None).count(5)
    assert counted is not None
    assert (counted.unsteady, counted.counters["exits"]) == (("exits",), 7)


def test_long_runs_are_not_made_often(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, *[(outcome(10, wall=10**9), 1) for _ in range(24)])
    counted = Counter(host.run, [0], None).count(5)
    assert counted is not None
    assert (counted.runs, counted.proven, counted.unsteady) == (4, False, ())


class Events:
    """A tracer that saw these exits, run by run."""

    def __init__(self, *seen: dict[str, int] | None) -> None:
        self.seen = list(seen)
        self.on = contextlib.nullcontext

    def exits(self) -> dict[str, int] | None:
        return self.seen.pop(0)


def reasons_of(monkeypatch: pytest.MonkeyPatch, *seen: dict[str, int] | None) -> dict[str, int] | None:
    host = Host(monkeypatch, *[(outcome(10), 1) for _ in range(24)])
    return Counter(host.run, [0], "kvm_amd").by_reason(5, Events(*seen))  # type: ignore[arg-type]


def test_reasons_are_those_two_runs_agree_on_without_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ({"hlt": 1, "npf": 5, "interrupt": 3}, {"hlt": 1, "npf": 4}, {"hlt": 1, "npf": 4, "nmi": 1})
    assert reasons_of(monkeypatch, *runs) == {"hlt": 1, "npf": 4}


def test_a_reason_only_one_run_has_is_not_the_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reasons_of(monkeypatch, {"hlt": 1, "vintr": 1}, {"hlt": 1}, {"hlt": 1}) == {"hlt": 1}


def test_events_that_do_not_come_or_are_lost_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reasons_of(monkeypatch, {}) is None
    assert reasons_of(monkeypatch, {"hlt": 1}, None) is None


def counts(n: int, exits: int, faults: int, *, proven: bool = True) -> Counted:
    return Counted(n, {"exits": exits, "pf_fixed": faults}, 0, 2, (), proven, outcome(exits), n)


def test_exits_of_a_long_run_follow_where_all_else_does() -> None:
    # One exit and two faults once, then two exits and no fault per pass; interrupts made 9 more exits.
    longer = carried_on(counts(32, 65, 2), counts(64, 129, 2), counts(1000, 2010, 2))
    assert longer is not None
    assert (longer.counters, longer.exits_n, longer.n) == ({"exits": 2001, "pf_fixed": 2}, 64, 1000)


@pytest.mark.parametrize(
    ("half", "whole", "far"),
    [
        (counts(32, 65, 32), counts(64, 129, 64), counts(1000, 2010, 64)),  # the pages were all touched at 64
        (counts(32, 65, 2), counts(64, 130, 2), counts(1000, 2010, 2)),  # no whole number per pass
    ],
)
def test_they_do_not_where_passes_differ(half: Counted, whole: Counted, far: Counted) -> None:
    assert carried_on(half, whole, far) is None


def test_per_pass_is_whole_where_it_can_be() -> None:
    found = per_pass({"exits": 2001, "pf_fixed": 3}, {"exits": 1}, 1000)
    assert found == {"exits": 2, "pf_fixed": 0.003}
    assert isinstance(found["exits"], int)
    assert per_pass({"exits": 1}, {}, 0) == {}


@settings(deadline=None)
@given(st.lists(st.integers(0, 5)))
def test_lowest_twice_is_the_lowest_of_those_there_twice(values: list[int]) -> None:
    assert lowest_twice(values) == min((v for v in values if values.count(v) > 1), default=None)
