"""What lets writers of a per-CPU lock share one wait for an RCU grace period: ``struct rcu_sync``.

Readers of such a lock need no shared memory while its state is idle. A writer must first make them use it, and wait
until all have seen that: one grace period. Afterwards they go back, also after a grace period, and a writer that comes
in between waits for nothing. Standard library, Python 3.9.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from worldswitch.kvm.rules import rule


class State(enum.Enum):
    """``gp_state``; from *PASSED* on readers are known to be on the slow path."""

    IDLE = 0
    ENTER = 1
    PASSED = 2
    EXIT = 3
    REPLAY = 4


class Wait(enum.Enum):
    """What a writer that enters waits for."""

    NOTHING = "nothing"
    GRACE_PERIOD = "a grace period of its own"
    ANOTHER = "the grace period another writer waits for"


class RcuSync(NamedTuple):
    """One lock's state, and how many writers are inside: ``gp_count``."""

    state: State = State.IDLE
    writers: int = 0


FAVORED = RcuSync(State.PASSED, 1)
"""As favordynmods leaves it: somebody has entered who does not exit."""


@rule(
    id="rcu-sync-enter",
    sentence="The first writer of a per-CPU lock waits for a grace period; those who come during it share that wait, "
    "and those who come before readers are back on their fast path wait for none.",
    source='Since Linux commit 89da3b94bb97 ("rcu/sync: Simplify the state machine") (v5.3), writers share the state '
    "machine of kernel/rcu/sync.c as described. Before that, the states had other names and the same effect.",
    since="5.3",
    tested="tests/kvm/test_rcu_sync.py::test_writers_in_quick_succession_share_one_grace_period",
)
def entered(sync: RcuSync) -> tuple[RcuSync, Wait]:
    """rcu_sync_enter: the state after it, and what the writer has to wait for (kernel/rcu/sync.c of 6.1.192)."""
    if sync.state is State.IDLE:
        return RcuSync(State.ENTER, sync.writers + 1), Wait.GRACE_PERIOD
    wait = Wait.ANOTHER if sync.state is State.ENTER else Wait.NOTHING
    return RcuSync(sync.state, sync.writers + 1), wait


def left(sync: RcuSync) -> tuple[RcuSync, bool]:
    """rcu_sync_exit: the state after it, and whether it asks for a callback (:func:`elapsed`) after a grace period."""
    writers = sync.writers - 1
    if writers:
        return RcuSync(sync.state, writers), False
    if sync.state is State.PASSED:
        return RcuSync(State.EXIT, 0), True
    return RcuSync(State.REPLAY if sync.state is State.EXIT else sync.state, 0), False


def elapsed(sync: RcuSync) -> tuple[RcuSync, bool]:
    """rcu_sync_func, after a grace period: the state, and whether it asks for another callback.

    A writer that waited for its own grace period calls this too, which lets those in that share it.
    """
    if sync.writers:
        return RcuSync(State.PASSED, sync.writers), False
    if sync.state is State.REPLAY:
        return RcuSync(State.EXIT, 0), True
    return RcuSync(State.IDLE, 0), False
