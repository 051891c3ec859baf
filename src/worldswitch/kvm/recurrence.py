"""Repetition without executing it all: when a machine's whole state recurs, what follows is known and only counted.

Exact: the state compared holds everything that decides what happens next, so counters are those of the unrolled run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from worldswitch.kvm.machine import INSTANTS, Machine

if TYPE_CHECKING:
    from worldswitch.kvm.execute import Guest
    from worldswitch.kvm.steps import Step

FEWEST = 12
"""Repetitions below this are executed without looking for a cycle: a look costs as much as some passes."""


def repeat(guest: Guest, count: int, steps: tuple[Step, ...], whole: bool = False) -> int:
    """Passes 0 to *count* - 1 of *steps*, or so many that the rest follows; how many were executed.

    Looks for a cycle as Brent does: each state is compared with one kept, which is renewed at powers of two.

    Args:
        whole: Execute all in any case.
    """
    if whole or count < FEWEST:
        guest.passes(steps, 0, count)
        return count
    done = executed = start = 0
    kept: _Kept | None = None
    ahead = 1
    while done < count:
        if kept is not None and kept.recurs(guest, done):
            done += kept.skip(guest, done, count)
            kept, start, ahead = None, done, 1
            if done == count:
                break
        if done == start + ahead:
            kept, ahead = _Kept(guest, done), 2 * ahead
        guest.passes(steps, done, done + 1)
        done += 1
        executed += 1
    return executed


class _Kept:
    """The state after a number of repetitions, and the counters then."""

    __slots__ = ("counts", "done", "faults", "phase", "reasons", "registers", "rest", "retries", "userspace")

    def __init__(self, guest: Guest, done: int) -> None:
        machine = guest.m
        machine.settle()
        self.done, self.phase = done, done % guest.period
        self.registers = (machine.registers_state(), guest.state())
        self.rest = machine.rest_state()
        self.counts = _cumulative(machine)
        self.reasons, self.userspace = Counter(machine.reasons), Counter(machine.userspace)
        self.faults, self.retries = guest.faults, guest.retries

    def recurs(self, guest: Guest, done: int) -> bool:
        """Whether all that decides what happens next is as it was."""
        if done % guest.period != self.phase or (guest.m.registers_state(), guest.state()) != self.registers:
            return False
        return guest.m.rest_state() == self.rest

    def skip(self, guest: Guest, done: int, count: int) -> int:
        """Count what the repetitions to come repeat, in whole cycles; how many repetitions that is."""
        machine, cycle, faults = guest.m, done - self.done, guest.faults - self.faults
        machine.settle()
        times = (count - done) // cycle
        if faults:
            # Faults go on to log themselves; what reaches a new page of the log must be executed.
            times = min(times, guest.log_room() // faults)
        for name, value in _cumulative(machine).items():
            _add(machine, name, times * (value - self.counts.get(name, 0)))
        for reason in list(machine.reasons):
            machine.reasons[reason] += times * (machine.reasons[reason] - self.reasons[reason])
        for name in list(machine.userspace):
            machine.userspace[name] += times * (machine.userspace[name] - self.userspace[name])
        guest.repeat_faults(faults, guest.retries - self.retries, times)
        return times * cycle


def _cumulative(machine: Machine) -> dict[str, int]:
    found = dict(machine.stats)
    if machine.shadow is not None:
        found.update({name: n for name, n in machine.shadow.pages.counts.items() if name not in INSTANTS})
    return found


def _add(machine: Machine, name: str, value: int) -> None:
    if machine.shadow is not None and name in machine.shadow.pages.counts:
        machine.shadow.pages.counts[name] += value
    else:
        machine.stats[name] += value
