"""What n passes of a guest program count, freed from what the host did meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from worldswitch.live import interrupts, reasons
from worldswitch.live.machine import Outcome

Run = Callable[[int, Callable[[], contextlib.AbstractContextManager[object]]], Outcome]
"""Runs n passes, with what is entered around them."""

_MOST_RUNS = 24
_HOPELESS_AFTER = 12
"""Runs of which the host interrupted every one, after which another will not be spared."""
_ENOUGH_NS = 10**9
"""Runs that take this long together are not made more often than four times."""
_COARSE = 6
"""CLOCK_MONOTONIC_COARSE: include/uapi/linux/time.h."""
_EXITS, _IRQS = "exits", "irq_exits"

COUNT_INTERRUPTS = ("kvm_intel", "kvm_amd")
"""Modules that count each exit by an interrupt of the host in irq_exits (handle_external_interrupt, vmx.c;
intr_interception, svm.c). With others only a run without any interrupt is sure to count the guest's own exits."""
HOSTS_OWN = frozenset(
    (
        "irq_exits", "request_irq_exits", "signal_exits", "host_state_reload", "fpu_reload", "req_event", "l1d_flush",
        "preemption_reported", "preemption_other", "directed_yield_attempted", "directed_yield_successful",
        "halt_successful_poll", "halt_attempted_poll", "halt_poll_invalid", "halt_wakeup", "halt_poll_success_ns",
        "halt_poll_fail_ns", "halt_wait_ns", "max_mmu_rmap_size", "max_mmu_page_hash_collisions", "mmu_recycled",
    )
)  # fmt: skip
"""Statistics that depend on what else the host does, or that are a peak; what a guest does per pass does not show in
them."""


@dataclass(frozen=True)
class Counted:
    """What runs of n passes agree on.

    Attributes:
        n: Passes.
        exits_n: Passes of the runs its exits were counted in; fewer than *n* where :func:`carried_on`.
        counters: Statistics of the guest's own doing; ``exits`` without those by interrupts.
        interrupts: Exits by interrupts, all runs together.
        runs: How many.
        unsteady: Counters no two runs agree on; of each, the lowest is given.
        proven: Two runs that agree met no interrupt at all.
        outcome: One of the runs that made so many exits.
    """

    n: int
    counters: Mapping[str, int]
    interrupts: int
    runs: int
    unsteady: tuple[str, ...]
    proven: bool
    outcome: Outcome
    exits_n: int


class _Run(NamedTuple):
    """One run: its counters, ``exits`` less irq_exits, and the interrupts its CPUs took (None: not known)."""

    counters: dict[str, int]
    irq_exits: int
    interrupts: int | None
    outcome: Outcome


@dataclass
class Counter:
    """Counts runs.

    Attributes:
        run: Does one.
        cpus: The host CPUs they run on.
        module: The vendor's module.
    """

    run: Run
    cpus: Sequence[int]
    module: str | None
    _taken: int | None = None

    def count(self, n: int, *, give_up: bool = False) -> Counted | None:
        """Run *n* passes until two runs agree that the host did not disturb.

        Where none such come, the lowest counts are given that two runs agree on; with *give_up* None.
        """
        runs: list[_Run] = []
        while len(runs) < _MOST_RUNS and not self._settled(runs):
            if give_up and len(runs) >= _HOPELESS_AFTER and all(run.interrupts for run in runs):
                return None
            if len(runs) >= 4 and sum(run.outcome.wall_ns for run in runs) > _ENOUGH_NS:
                break
            if runs and runs[-1].interrupts:
                _await_tick()
            runs.append(self._once(n))
        if give_up and not self._settled(runs):
            return None
        return self._told(n, runs)

    def disturbed(self, n: int, outcomes: Sequence[Outcome] = ()) -> Counted:
        """Two runs of *n* passes, or those that were made, whatever the host did meanwhile.

        All but the exits can be relied on.
        """
        if len(outcomes) > 1:
            return self._told(n, [_noted(outcome, None) for outcome in outcomes])
        return self._told(n, [self._once(n) for _ in range(2)])

    def _once(self, n: int) -> _Run:
        outcome = self.run(n, self._watched)
        return _noted(outcome, self._taken)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        before = interrupts.taken(self.cpus)
        yield
        after = interrupts.taken(self.cpus)
        self._taken = None if before is None or after is None else after - before

    def _settled(self, runs: Sequence[_Run]) -> bool:
        if len(runs) > 1 and not runs[0].counters:
            return True
        if self._proven(runs):
            return True
        if self.module not in COUNT_INTERRUPTS or len(runs) < 2:
            return False
        lowest = min(run.counters.get(_EXITS, 0) for run in runs)
        return not _unsteady(runs) and lowest_twice([run.counters.get(_EXITS, 0) for run in runs]) == lowest

    def _proven(self, runs: Sequence[_Run]) -> bool:
        undisturbed = [run for run in runs if run.interrupts == 0]
        return len(undisturbed) > 1 and not _unsteady(undisturbed)

    def _told(self, n: int, runs: Sequence[_Run]) -> Counted:
        proven = self._proven(runs)
        used = [run for run in runs if run.interrupts == 0] if proven else runs
        counters = {name: _told(_values(name, used)) for name in used[0].counters}
        exits = counters.get(_EXITS, 0)
        extra = sum(max(0, run.counters.get(_EXITS, 0) - exits) for run in runs)
        best = next((run for run in used if run.counters.get(_EXITS, 0) == exits), used[0])
        irqs = sum(run.irq_exits for run in runs)
        return Counted(n, counters, irqs + extra, len(runs), tuple(_unsteady(used)), proven, best.outcome, n)

    def by_reason(self, n: int, tracer: reasons.Tracer) -> dict[str, int] | None:
        """Exits of *n* passes by reason, without interrupts: of each reason the lowest that two runs agree on.

        None if the events do not come although there were exits, were lost, or do not agree.
        """
        seen: list[dict[str, int]] = []
        while len(seen) < _MOST_RUNS:
            outcome = self.run(n, tracer.on)
            found = tracer.exits()
            if found is None or (not found and (outcome.counters.get(_EXITS, 1))):
                return None
            seen.append({name: times for name, times in found.items() if name not in reasons.INTERRUPTS})
            names = {name for one in seen for name in one}
            told = {name: lowest_twice([one.get(name, 0) for one in seen]) for name in sorted(names)}
            if len(seen) > 1 and None not in told.values():
                return {name: times for name, times in told.items() if times}
        return None


def _noted(outcome: Outcome, taken: int | None) -> _Run:
    irqs = outcome.counters.get(_IRQS, 0)
    counters = {name: value for name, value in outcome.counters.items() if name not in HOSTS_OWN}
    if _EXITS in counters:
        counters[_EXITS] -= irqs
    return _Run(counters, irqs, taken, outcome)


def carried_on(half: Counted, whole: Counted, far: Counted) -> Counted | None:
    """*far*, a long run that interrupts disturbed, with the exits that *half* and *whole* foretell for it.

    From *half* to *whole*, undisturbed runs of twice as many passes, each counter must have grown by a whole number per
    pass, and, going on so, have come to be what *far* has, all but the exits: then each pass did the same, and so it
    exited as often. None if that is not so.
    """
    passes = whole.n - half.n
    if far.unsteady not in ((), (_EXITS,)) or set(far.counters) != set(whole.counters) or _EXITS not in far.counters:
        return None
    counters = {}
    for name, value in whole.counters.items():
        each, rest = divmod(value - half.counters.get(name, 0), passes)
        counters[name] = value + each * (far.n - whole.n)
        if rest or (name != _EXITS and counters[name] != far.counters[name]):
            return None
    extra = 2 * max(0, far.counters[_EXITS] - counters[_EXITS])
    return Counted(far.n, counters, extra, far.runs, (), half.proven and whole.proven, far.outcome, exits_n=whole.n)


def _await_tick() -> None:
    """Return just after a timer tick, so that the next is as far away as it can be.

    The coarse clock goes forward by the tick (time(7), "CLOCK_MONOTONIC_COARSE"); at most 20 ms are waited, where no
    processor ticks.
    """
    first, end = time.clock_gettime(_COARSE), time.monotonic() + 0.02
    while time.clock_gettime(_COARSE) == first and time.monotonic() < end:
        pass


def _values(name: str, runs: Sequence[_Run]) -> list[int]:
    return [run.counters[name] for run in runs]


def _unsteady(runs: Sequence[_Run]) -> list[str]:
    """The counters no two of *runs* agree on."""
    return [name for name in runs[0].counters if lowest_twice(_values(name, runs)) is None]


def _told(values: Sequence[int]) -> int:
    """The lowest value two runs agree on; where no two do, the lowest."""
    found = lowest_twice(values)
    return min(values) if found is None else found


def lowest_twice(values: Sequence[int]) -> int | None:
    """The lowest value that is there at least twice; None if none is."""
    ordered = sorted(values)
    return next((ordered[i] for i in range(len(ordered) - 1) if ordered[i] == ordered[i + 1]), None)


def per_pass(whole: Mapping[str, int], none: Mapping[str, int], n: int) -> dict[str, float]:
    """(whole - none) / n for each counter; a whole number where it is one."""
    if not n:
        return {}
    found = {}
    for name, value in whole.items():
        more = value - none.get(name, 0)
        found[name] = more // n if more % n == 0 else more / n
    return found
