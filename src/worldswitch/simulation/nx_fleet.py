"""NX huge pages of a host full of VMs, over time: executed pages are split, recovery makes them huge again.

Every VM has so many huge pages of which some hold code. Such a page waits for its first execution, is split by it,
is zapped by a recovery pass, and waits for the next execution, which splits it again. The waiting times are
exponential; what a pass takes is KVM's rule (:mod:`worldswitch.kvm.nx_recovery`). All VMs run from the start, and
their passes count as simultaneous, which changes no sum over an hour.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.costs.atoms import Atom
from worldswitch.errors import UsageError
from worldswitch.kvm import nx, nx_recovery
from worldswitch.units import format_ns

if TYPE_CHECKING:
    import numpy as np

    from worldswitch.kvm.nx_recovery import Mmu

REPORTED = Atom(
    "nx-zap-spike",
    100_000,
    100_000,
    100_000,
    "ns",
    "redhat-performance/tuned#363 (2021): spikes of about 100 us in oslat, all isolated CPUs fault after one zap",
)
"""What one zap was reported to cost the real-time guests of one host; another host's will differ."""

LONGEST_STEP_MS = 60_000
MOST_STEPS = 200_000_000
"""VMs times steps: beyond it a run takes minutes."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """VMs that are alike. The defaults are examples, not measurements, but for what the kernel sets itself.

    Attributes:
        vms: How many.
        hours: How long they are followed.
        huge_pages: 2 MiB pages of memory each has.
        executed: Of these, how many hold code that ever runs.
        first_ms: Mean time until such a page is executed first.
        again_ms: Mean time until a recovered page is executed again.
        opted_out: Share of the VMs that opted out of the mitigation.
        seed: Of the random numbers.
    """

    vms: int = 10_000
    hours: float = 24.0
    huge_pages: int = 1024
    executed: int = 64
    first_ms: int = 600_000
    again_ms: int = 300_000
    opted_out: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.vms, self.huge_pages, self.first_ms, self.again_ms) < 1 or self.executed < 0:
            raise UsageError("a fleet has at least one VM and one huge page each, and times of at least 1 ms")
        if not 0 < self.hours < math.inf:
            raise UsageError(f"{self.hours} hours is no time to follow a fleet for")
        if self.executed > self.huge_pages:
            raise UsageError(f"{self.executed} executed pages are more than the {self.huge_pages} huge pages of a VM")
        if not 0 <= self.opted_out <= 1:
            raise UsageError(f"a share of {self.opted_out} VMs cannot opt out; it lies between 0 and 1")


class Interval(NamedTuple):
    """What happened in a stretch of time, over all VMs.

    Attributes:
        end_ms: When it ended.
        split: Pages that were split, on average over the interval's steps, before the pass of the step if it has one.
        split_most: Those of one VM, at the most.
        executions: Splits that came from a first execution.
        again: Splits of pages that had been recovered.
        zapped: Pages that recovery zapped; each costs its VM a fault at least.
        passes: Recovery passes of each VM.
        pass_most: Pages zapped in the largest pass of one VM.
    """

    end_ms: int
    split: float
    split_most: int
    executions: int
    again: int
    zapped: int
    passes: int
    pass_most: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """How a fleet fared.

    Attributes:
        fleet: What was followed.
        parameters: kvm.ko's.
        period_ms: Time between two passes; None without recovery.
        stops_faults: Faults of a VM wait while its pages are recovered.
        intervals: In order of time.
    """

    fleet: Fleet
    parameters: nx.Parameters
    period_ms: int | None
    stops_faults: bool
    intervals: tuple[Interval, ...]

    @property
    def huge_share(self) -> tuple[float, ...]:
        """Share of all memory that is mapped huge, on average over each interval."""
        memory = self.fleet.vms * self.fleet.huge_pages
        return tuple(1 - one.split / memory for one in self.intervals)

    def spikes(self, cost: Atom) -> tuple[tuple[float, float], ...]:
        """What the zaps of one pass cost one VM in ns, in each interval: the mean of all passes, and the most.

        Raises:
            UsageError: The cost is in cycles.
        """
        if cost.unit != "ns":
            raise UsageError(f"the cost of a zap is {cost.mid:g} {cost.unit}; a spike needs one in ns")
        runs = self.fleet.vms
        return tuple(
            (cost.mid * one.zapped / (one.passes * runs) if one.passes else 0.0, cost.mid * one.pass_most)
            for one in self.intervals
        )


def follow(
    has: Callable[[str], bool],
    parameters: nx.Parameters,
    fleet: Fleet,
    *,
    mmu: Mmu = "tdp",
    intervals: int = 24,
    say: Callable[[float], None] | None = None,
) -> Timeline:
    """A fleet on a kernel with these facts and parameters; the same for the same seed.

    Args:
        has: ``Kernel.has``.
        parameters: As :func:`worldswitch.kvm.nx.load` or ``write`` gives them.
        fleet: The VMs.
        mmu: Whose tables map them: the TDP MMU's, or ``shadow`` for the legacy MMU and shadow paging.
        intervals: Parts of equal length that are summed up; fewer if there are not that many steps.
        say: Called after each of them with the share that is done.

    Raises:
        UsageError: So many VMs, for so long, with so short a period take too long.
    """
    period = nx.recovery_period(has, parameters)
    steps = _Steps.of(fleet, period, intervals)
    state = _Pages(has, parameters, fleet, mmu, steps.length_ms)
    for number in range(steps.total):
        state.execute()
        if period is not None and (number + 1) % steps.per_pass == 0:
            state.recover()
        if steps.ends_interval(number):
            state.close(round((number + 1) * steps.length_ms))
            if say:
                say((number + 1) / steps.total)
    return Timeline(fleet, parameters, period, nx_recovery.stops_faults(has, mmu), tuple(state.intervals))


class _Steps(NamedTuple):
    """Time in equal steps, so many to a recovery pass."""

    total: int
    length_ms: float
    per_pass: int
    intervals: int

    @classmethod
    def of(cls, fleet: Fleet, period: int | None, intervals: int) -> _Steps:
        period = period or LONGEST_STEP_MS
        per_pass = -(-period // LONGEST_STEP_MS)
        length = period / per_pass
        count = max(1, round(fleet.hours * nx.HOUR_MS / length))
        if count * fleet.vms > MOST_STEPS:
            raise UsageError(
                f"{fleet.vms:,} VMs for {fleet.hours:g} hours in steps of {format_ns(length * 1e6)} are "
                f"{count * fleet.vms:,} steps, and more than {MOST_STEPS:,} take too long; say fewer VMs or hours"
            )
        return cls(count, length, per_pass, max(1, min(intervals, count)))

    def ends_interval(self, number: int) -> bool:
        """Whether the step of this number, from 0, is the last of an interval."""
        return (number + 1) * self.intervals // self.total > number * self.intervals // self.total


class _Pages:
    """The executed pages of every VM by state, and sums since the last interval ended."""

    def __init__(
        self, has: Callable[[str], bool], parameters: nx.Parameters, fleet: Fleet, mmu: Mmu, step_ms: float
    ) -> None:
        import numpy as np

        self._random = np.random.default_rng(fleet.seed)
        self._ratio = parameters.ratio
        # Where recovery subtracts from the other MMU's counter, this one only grows.
        self._grows = nx_recovery.subtracted_from(has, mmu) != mmu
        active = fleet.vms - round(fleet.vms * fleet.opted_out)
        pages = fleet.executed if nx.splits(parameters) else 0
        self._fresh = np.zeros(fleet.vms, dtype=np.int64)
        self._fresh[:active] = pages
        self._idle = np.zeros_like(self._fresh)
        self._split = np.zeros_like(self._fresh)
        self._counter = np.zeros(fleet.vms, dtype=np.uint64)
        self._first = -math.expm1(-step_ms / fleet.first_ms)
        self._again = -math.expm1(-step_ms / fleet.again_ms)
        self.intervals: list[Interval] = []
        self._begin()

    def _begin(self) -> None:
        self._steps = self._split_sum = self._split_most = 0
        self._executions = self._repeated = self._zapped = self._passes = self._pass_most = 0

    def execute(self) -> None:
        """One step of the guests."""
        self._executions += self._split_some(self._fresh, self._first)
        self._repeated += self._split_some(self._idle, self._again)
        self._steps += 1
        self._split_sum += int(self._split.sum())
        self._split_most = max(self._split_most, int(self._split.max()))

    def recover(self) -> None:
        """One pass in each VM."""
        import numpy as np

        wanted: Any = nx_recovery.quota(self._counter, self._ratio)  # type: ignore[arg-type]
        zapped = np.minimum(wanted, self._split.astype(np.uint64))
        if not self._grows:
            self._counter -= zapped
        taken = zapped.astype(np.int64)
        self._split -= taken
        self._idle += taken
        self._zapped += int(taken.sum())
        self._passes += 1
        self._pass_most = max(self._pass_most, int(taken.max()))

    def close(self, end_ms: int) -> None:
        """End an interval."""
        self.intervals.append(
            Interval(
                end_ms,
                self._split_sum / self._steps,
                self._split_most,
                self._executions,
                self._repeated,
                self._zapped,
                self._passes,
                self._pass_most,
            )
        )
        self._begin()

    def _split_some(self, waiting: np.ndarray[Any, Any], chance: float) -> int:
        """Execute each of the *waiting* pages with this chance; how many that were."""
        if not waiting.any():
            return 0
        executed = self._random.binomial(waiting, chance)
        waiting -= executed
        self._split += executed
        self._counter += executed.astype(self._counter.dtype)
        return int(executed.sum())
