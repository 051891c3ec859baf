"""What n passes of a guest program count, freed from what the host did meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from worldswitch.live import interrupts, reasons
from worldswitch.live.interrupts import lowest_twice
from worldswitch.live.machine import Outcome

Run = Callable[[int, Callable[[], contextlib.AbstractContextManager[object]]], Outcome]
"""Runs n passes, with what is entered around them."""

_MOST_RUNS = 16
_ENOUGH_NS = 10**9
"""Runs that take this long together are not made more often than four times."""
_EXITS, _IRQS = "exits", "irq_exits"
_COUNTS_INTERRUPTS = ("kvm_intel", "kvm_amd")
"""Modules that count each exit by an interrupt of the host in irq_exits (handle_external_interrupt, vmx.c;
intr_interception, svm.c)."""

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
        counters: Statistics of the guest's own doing; ``exits`` without those by interrupts.
        interrupts: Exits by interrupts, all runs together.
        runs: How many.
        unsteady: Counters no two runs agree on; of each, the lowest is given.
        proven: No other number of exits fits the interrupts the host took.
        outcome: One of the runs that made so many exits.
        by_reason: Exits by reason as kvm_exit has them; None where it was not asked for or never came.
    """

    n: int
    counters: Mapping[str, int]
    interrupts: int
    runs: int
    unsteady: tuple[str, ...]
    proven: bool
    outcome: Outcome
    by_reason: Mapping[str, int] | None = None


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
    _taken: list[int | None] = field(default_factory=list)

    def count(self, n: int) -> Counted:
        """Run *n* passes until the counts are told, or 16 times."""
        outcomes: list[Outcome] = []
        samples: list[interrupts.Sample] = []
        while len(outcomes) < _MOST_RUNS:
            outcome = self.run(n, self._watched)
            outcomes.append(outcome)
            samples.append(self._sample(outcome))
            if len(outcomes) > 1 and self._settled(samples, outcomes):
                break
            if len(outcomes) >= 4 and sum(one.wall_ns for one in outcomes) > _ENOUGH_NS:
                break
        return self._told(n, outcomes, samples)

    def _settled(self, samples: Sequence[interrupts.Sample], outcomes: Sequence[Outcome]) -> bool:
        if not outcomes[0].counters:
            return True
        told = interrupts.tell(samples)
        lowest = min(one.exits for one in samples)
        enough = told.proven or (self.module in _COUNTS_INTERRUPTS and told.sure and told.exits == lowest)
        return enough and not self._unsteady(outcomes)

    def _sample(self, outcome: Outcome) -> interrupts.Sample:
        known = self._taken.pop()
        irqs = outcome.counters.get(_IRQS, 0)
        return interrupts.Sample(
            outcome.counters.get(_EXITS, 0) - irqs, None if known is None else max(0, known - irqs)
        )

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        before = interrupts.taken(self.cpus)
        yield
        after = interrupts.taken(self.cpus)
        self._taken.append(None if before is None or after is None else after - before)

    def _unsteady(self, outcomes: Sequence[Outcome]) -> list[str]:
        return [name for name in _own(outcomes) if name != _EXITS and not _agreed(name, outcomes)]

    def _told(self, n: int, outcomes: Sequence[Outcome], samples: Sequence[interrupts.Sample]) -> Counted:
        told = interrupts.tell(samples)
        unsteady = self._unsteady(outcomes)
        counters = {name: min(_agreed(name, outcomes) or _values(name, outcomes)) for name in _own(outcomes)}
        extra = sum(one.exits - told.exits for one in samples if one.exits > told.exits)
        if _EXITS in counters:
            counters[_EXITS] = told.exits
            unsteady += [] if told.sure else [_EXITS]
        best = next((o for o, one in zip(outcomes, samples) if one.exits == told.exits), outcomes[0])  # noqa: B905
        irqs = sum(outcome.counters.get(_IRQS, 0) for outcome in outcomes)
        return Counted(n, counters, irqs + extra, len(outcomes), tuple(unsteady), told.proven, best)

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


def _own(outcomes: Sequence[Outcome]) -> list[str]:
    """The statistics of the guest's own doing."""
    return [name for name in outcomes[0].counters if name not in HOSTS_OWN]


def _values(name: str, outcomes: Sequence[Outcome]) -> list[int]:
    return [outcome.counters[name] for outcome in outcomes]


def _agreed(name: str, outcomes: Sequence[Outcome]) -> list[int]:
    """The lowest value two runs agree on, in a list; an empty one if no two do."""
    found = lowest_twice(_values(name, outcomes))
    return [] if found is None else [found]


def per_pass(whole: Mapping[str, int], none: Mapping[str, int], n: int) -> dict[str, float]:
    """(whole - none) / n for each counter; a whole number where it is one."""
    if not n:
        return {}
    found = {}
    for name, value in whole.items():
        more = value - none.get(name, 0)
        found[name] = more // n if more % n == 0 else more / n
    return found
