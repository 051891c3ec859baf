"""rcu_sync. Expected: kernel/rcu/sync.c of Linux 6.1.192, and writes to cgroup.procs timed on Linux 6.18
(tests/simulation/recorded/moves.json)."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worldswitch.kvm.rcu_sync import FAVORED, RcuSync, State, Wait, elapsed, entered, left

MOVES = json.loads((Path(__file__).parents[1] / "simulation/recorded/moves.json").read_text())


def test_writers_in_quick_succession_share_one_grace_period() -> None:
    """Rule rcu-sync-enter."""
    first, wait = entered(RcuSync())
    assert wait is Wait.GRACE_PERIOD
    second, wait = entered(first)
    assert wait is Wait.ANOTHER
    passed, again = elapsed(second)
    assert (passed, again) == (RcuSync(State.PASSED, 2), False)
    gone, callback = left(left(passed)[0])
    assert (gone.state, callback) == (State.EXIT, True)
    assert entered(gone)[1] is Wait.NOTHING


def test_a_writer_that_comes_and_goes_while_readers_are_on_their_way_back_keeps_them_one_more_period() -> None:
    replay, callback = left(entered(RcuSync(State.EXIT))[0])
    assert (replay.state, callback) == (State.REPLAY, False)
    again, callback = elapsed(replay)
    assert (again.state, callback) == (State.EXIT, True)
    assert elapsed(again) == (RcuSync(), False)


def test_a_writer_that_is_inside_when_the_period_ends_holds_the_state() -> None:
    assert elapsed(RcuSync(State.EXIT, 1)) == (RcuSync(State.PASSED, 1), False)


def test_with_favordynmods_nobody_ever_waits() -> None:
    sync, wait = entered(FAVORED)
    assert wait is Wait.NOTHING
    assert left(sync) == (FAVORED, False)


def test_the_real_kernel_lets_a_second_writer_in_at_once_for_one_grace_period() -> None:
    """A grace period is one to four jiffies of 4 ms there: below that no write waits, above it all do."""
    soon = [second for gap, pairs in MOVES["after"].items() if int(gap) <= 2 for _, second in pairs]
    late = [second for gap, pairs in MOVES["after"].items() if int(gap) >= 16 for _, second in pairs]
    assert max(soon) < 1000 < 3000 < min(late)


class Lock(RuleBasedStateMachine):
    """Writers come and go, and grace periods end, in any order the kernel allows."""

    def __init__(self) -> None:
        super().__init__()
        self.sync = RcuSync()
        self.waiting = 0  # writers for the grace period of the first
        self.inside = 0
        self.callbacks = 0

    @rule()
    def enter(self) -> None:
        self.sync, wait = entered(self.sync)
        if wait is Wait.NOTHING:
            self.inside += 1
        else:
            assert (wait is Wait.GRACE_PERIOD) == (self.waiting == 0)
            self.waiting += 1

    @precondition(lambda self: self.waiting)
    @rule()
    def pass_grace_period(self) -> None:
        self.sync, again = elapsed(self.sync)
        assert not again
        self.inside, self.waiting = self.inside + self.waiting, 0

    @precondition(lambda self: self.inside)
    @rule()
    def leave(self) -> None:
        self.sync, callback = left(self.sync)
        self.inside -= 1
        self.callbacks += callback

    @precondition(lambda self: self.callbacks)
    @rule()
    def call_back(self) -> None:
        self.sync, again = elapsed(self.sync)
        self.callbacks += again - 1

    @invariant()
    def readers_are_on_the_slow_path_while_a_writer_is_inside(self) -> None:
        assert not self.inside or self.sync.state.value >= State.PASSED.value
        assert self.sync.writers == self.inside + self.waiting

    @invariant()
    def one_callback_at_most_brings_them_back(self) -> None:
        assert self.callbacks == (self.sync.state in (State.EXIT, State.REPLAY))


Lock.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLock = Lock.TestCase
