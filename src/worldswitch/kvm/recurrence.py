"""Repetition without executing it all: when a VM's whole state recurs, what follows is known and only counted.

Exact: the state compared holds everything that decides what happens next, so counters are those of the unrolled run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from worldswitch.kvm.machine import INSTANTS

if TYPE_CHECKING:
    from worldswitch.kvm.execute import Guest
    from worldswitch.kvm.shadow_pages import Pages
    from worldswitch.kvm.steps import Step

T = TypeVar("T")
FEWEST = 12
"""Repetitions below this are executed without looking for a cycle: a look costs as much as some passes."""


class Repeats(Protocol):
    """What can make passes: one vCPU's program, or those of a VM together.

    Attributes:
        period: Passes after which accesses that move with the pass start over.
        guests: Those that take part.
    """

    @property
    def period(self) -> int: ...

    @property
    def guests(self) -> tuple[Guest, ...]: ...

    def passes(self, steps: tuple[Step, ...], first: int, end: int) -> None:
        """Passes *first* to *end* - 1 of *steps*."""


def repeat(guest: Repeats, count: int, steps: tuple[Step, ...], whole: bool = False) -> int:
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

    __slots__ = ("counts", "done", "own", "phase", "registers", "rest")

    def __init__(self, guest: Repeats, done: int) -> None:
        self.done, self.phase = done, done % guest.period
        self.registers, self.rest = _registers(guest), _rest(guest)
        self.own = [_Counted(one) for one in guest.guests]
        self.counts = _shared_counts(guest.guests[0].m.vm.pages)

    def recurs(self, guest: Repeats, done: int) -> bool:
        """Whether all that decides what happens next is as it was."""
        if done % guest.period != self.phase or _registers(guest) != self.registers:
            return False
        return _rest(guest) == self.rest

    def skip(self, guest: Repeats, done: int, count: int) -> int:
        """Count what the repetitions to come repeat, in whole cycles; how many repetitions that is."""
        cycle = done - self.done
        times = (count - done) // cycle
        for one, before in zip(guest.guests, self.own, strict=True):
            if faults := one.faults - before.faults:
                # Faults go on to log themselves; what reaches a new page of the log must be executed.
                times = min(times, one.log_room() // faults)
        for one, before in zip(guest.guests, self.own, strict=True):
            before.repeat(one, times)
        pages = guest.guests[0].m.vm.pages
        if pages is not None:
            for name, value in _shared_counts(pages).items():
                pages.counts[name] += times * (value - self.counts.get(name, 0))
        return times * cycle


class _Counted:
    """What one vCPU had counted."""

    __slots__ = ("faults", "reasons", "retries", "stats", "userspace")

    def __init__(self, guest: Guest) -> None:
        machine = guest.m
        machine.settle()
        self.faults, self.retries = guest.faults, guest.retries
        self.reasons, self.stats, self.userspace = (
            Counter(machine.reasons), Counter(machine.stats), Counter(machine.userspace)
        )  # fmt: skip

    def repeat(self, guest: Guest, times: int) -> None:
        """Count what has come since again, *times* times."""
        machine = guest.m
        machine.settle()
        _again(machine.reasons, self.reasons, times)
        _again(machine.stats, self.stats, times)
        _again(machine.userspace, self.userspace, times)
        guest.repeat_faults(guest.faults - self.faults, guest.retries - self.retries, times)


def _again(now: Counter[T], then: Counter[T], times: int) -> None:
    for name in list(now):
        now[name] += times * (now[name] - then[name])


def _registers(guest: Repeats) -> list[object]:
    return [(one.m.registers_state(), one.state()) for one in guest.guests]


def _rest(guest: Repeats) -> tuple[object, ...]:
    return guest.guests[0].m.vm.state(), [one.m.rest_state() for one in guest.guests]


def _shared_counts(pages: Pages | None) -> dict[str, int]:
    """What is counted of the VM's shadow pages."""
    return {} if pages is None else {name: n for name, n in pages.counts.items() if name not in INSTANTS}
