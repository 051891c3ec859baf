"""Several vCPUs of one VM, in a fixed order.

Real vCPUs run at the same time, and what they do to each other depends on who comes first. Here they take turns, so
that a program gives the same counts each time: they are entered one after the other, each up to its first pass; then
each makes its first pass, in the order of their numbers, then each its second; after the last pass each ends. Where
they meet, each runs up to that point, and then each goes on. What one does to the others (flushes of all TLBs, roots
that are gone) is done before their next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from worldswitch.guest import operations as ops
from worldswitch.kvm.execute import Guest
from worldswitch.kvm.steps import Step
from worldswitch.kvm.vm import Vm

_OVER = object()


class Turns:
    """The vCPUs of a program under way.

    Attributes:
        body: Stands for those of all.
        period: Passes after which the accesses of all start over.
    """

    __slots__ = ("_meets", "_vm", "body", "guests", "period")

    def __init__(self, vm: Vm, guests: Sequence[Guest]) -> None:
        self._vm, self.guests = vm, tuple(guests)
        self.body: tuple[Step, ...] = ()
        self.period = max(guest.period for guest in guests)  # they are powers of two
        self._meets = any(_meets(guest.body) for guest in guests)

    def start(self) -> None:
        """From the first instruction of each to its first pass."""
        self._take_turns([_start(guest) for guest in self.guests])

    def passes(self, steps: tuple[Step, ...], first: int, end: int) -> None:
        """Passes *first* to *end* - 1 of each body."""
        for number in range(first, end):
            if self._meets:
                self._take_turns([_one_pass(guest, number) for guest in self.guests])
                continue
            for guest in self.guests:
                self._vm.act(guest.m)
                guest.passes(guest.body, number, number + 1)

    def finish(self) -> None:
        """From the last pass of each to its final HLT."""
        self._take_turns([_finish(guest) for guest in self.guests])

    def _take_turns(self, parts: Iterable[Iterator[None]]) -> None:
        """Run all to their ends, each up to where it meets the others before any goes on."""
        left = list(zip(self.guests, parts, strict=True))
        while left:
            for turn in list(left):
                guest, part = turn
                self._vm.act(guest.m)
                if next(part, _OVER) is _OVER:
                    left.remove(turn)


def _start(guest: Guest) -> Iterator[None]:
    guest.begin()
    yield from _up_to_meetings(guest, guest.setup)
    guest.begin_passes()


def _one_pass(guest: Guest, number: int) -> Iterator[None]:
    guest.pass_begins(number)
    yield from _up_to_meetings(guest, guest.body)
    if not guest.is_long:
        guest.pass_ends()


def _finish(guest: Guest) -> Iterator[None]:
    guest.end_passes()
    yield from _up_to_meetings(guest, guest.end)
    guest.stop()


def _up_to_meetings(guest: Guest, steps: tuple[Step, ...]) -> Iterator[None]:
    """Execute operations; wait behind each that meets."""
    done = 0
    for place, step in enumerate(steps):
        if not _meets((step,)):
            continue
        guest.perform(steps[done:place])
        done = place + 1
        if isinstance(step.operation, ops.Repeat):
            outer = guest.index
            for number in range(step.operation.count):
                guest.pass_begins(number, False)
                yield from _up_to_meetings(guest, step.body)
            guest.pass_begins(outer, False)
        else:
            guest.perform((step,))
            yield
    guest.perform(steps[done:])


def _meets(steps: tuple[Step, ...]) -> bool:
    """Whether a meeting is among *steps* or in a repeat among them; there is none elsewhere."""
    return any(isinstance(step.operation, ops.Meet) or _meets(step.body) for step in steps)
