"""Rates between two samples: of each VM, each of its vCPUs, and by exit reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldswitch.live.folders import Lack, Reading
from worldswitch.live.reasons import from_statistics
from worldswitch.live.sampling import Sample
from worldswitch.live.statsfd import INSTANTS

_NS = 1e9


@dataclass(frozen=True, slots=True)
class VmRates:
    """What one VM did between two samples.

    Attributes:
        name, pid, process, vcpu_count: See :class:`~worldswitch.live.folders.Reading`.
        seconds: Between its two readings; 0 for a VM seen for the first time, of which no rate is known.
        rates: Statistic -> how often a second, of those that only grow.
        states: Statistic -> its value, of those that are a state.
        totals: Statistic -> its value since the VM began, or was reset, of those that only grow.
        vcpus: vCPU -> its rates, of those that are known one by one.
        reasons: (vCPU or None, reason) -> exits a second. Of trace events, or as far as statistics tell them.
        traced: Which of both.
        reset: Somebody wrote 0 to a statistic in between, whose rate is that since then.
    """

    name: str
    pid: int
    process: str
    vcpu_count: int | None
    seconds: float
    rates: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    vcpus: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    reasons: Mapping[tuple[int | None, str], float] = field(default_factory=dict)
    traced: bool = False
    reset: bool = False

    @property
    def new(self) -> bool:
        """Seen for the first time."""
        return not self.seconds

    def by_reason(self) -> dict[str, float]:
        """Exits a second by reason, the most first."""
        found: dict[str, float] = {}
        for (_, reason), rate in self.reasons.items():
            found[reason] = found.get(reason, 0.0) + rate
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


@dataclass(frozen=True, slots=True)
class Rates:
    """What all VMs did between two samples.

    Attributes:
        seconds: Between them.
        vms: Those there are now.
        gone: Names of those that have ended in between.
        lacks: What is missing, why, and the remedy.
    """

    seconds: float
    vms: tuple[VmRates, ...] = ()
    gone: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()
    traced: bool = False

    def total(self, name: str) -> float:
        """The rate of a statistic, of all VMs together."""
        return sum(vm.rates.get(name, 0.0) for vm in self.vms)

    def by_reason(self) -> dict[str, float]:
        """Exits a second by reason, of all VMs together, the most first."""
        found: dict[str, float] = {}
        for vm in self.vms:
            for (_, reason), rate in vm.reasons.items():
                found[reason] = found.get(reason, 0.0) + rate
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def between(before: Sample | None, after: Sample) -> Rates:
    """The rates from *before* to *after*; of the first sample there are only states."""
    earlier = {(one.name, one.inode): one for one in before.vms} if before else {}
    vms = tuple(_of(earlier.pop((one.name, one.inode), None), one) for one in after.vms)
    seconds = (after.at_ns - before.at_ns) / _NS if before else 0.0
    names = {one.name for one in after.vms}
    gone = tuple(name for name, _ in earlier if name not in names)
    return Rates(seconds, vms, gone, after.lacks, after.traced)


def _of(before: Reading | None, after: Reading) -> VmRates:
    states: dict[str, int] = {}
    totals: dict[str, int] = {}
    for name, value in after.counters.items():
        (states if name in INSTANTS else totals)[name] = value
    head = (after.name, after.pid, after.process, after.vcpu_count)
    if before is None or after.at_ns <= before.at_ns:
        return VmRates(*head, 0.0, states=states, totals=totals, traced=after.reasons is not None)
    seconds = (after.at_ns - before.at_ns) / _NS
    rates, reset = _rates(before.counters, totals, seconds)
    vcpus = {}
    for number, values in after.vcpus.items():
        if number in before.vcpus:
            one, again = _rates(before.vcpus[number], values, seconds)
            vcpus[number] = {name: rate for name, rate in one.items() if name not in INSTANTS}
            reset = reset or again
    reasons: dict[tuple[int | None, str], float] = {}
    if after.reasons is not None:
        reasons = _grown(before.reasons, after.reasons, seconds)
    elif "exits" in rates:
        reasons = {(None, reason): rate for reason, rate in told(rates).items()}
        for number, one in vcpus.items():
            if "exits" in one:
                reasons.update({(number, reason): rate for reason, rate in told(one).items()})
        if any(number is not None for number, _ in reasons):
            reasons = {key: rate for key, rate in reasons.items() if key[0] is not None}
    return VmRates(*head, seconds, rates, states, totals, vcpus, reasons, after.reasons is not None, reset)


def _rates(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> tuple[dict[str, float], bool]:
    """Rates of what both have; and whether something was set back, which then has grown from 0."""
    rates, reset = {}, False
    for name, value in after.items():
        if name in before:
            grown = value - before[name]
            if grown < 0 and name not in INSTANTS:
                grown, reset = value, True
            rates[name] = grown / seconds
    return rates, reset


def _grown(
    before: Mapping[tuple[int | None, str], int] | None, after: Mapping[tuple[int | None, str], int], seconds: float
) -> dict[tuple[int | None, str], float]:
    """Exits by reason a second; none for the sample that tracing began at."""
    if before is None:
        return {}
    grown = {key: (count - before.get(key, 0)) / seconds for key, count in after.items()}
    return {key: rate for key, rate in grown.items() if rate > 0}


def told(rates: Mapping[str, float]) -> dict[str, float]:
    """Exits a second by reason, as far as rates of statistics tell them; interrupts, which are counted, among them."""
    interrupts = rates.get("irq_exits", 0.0)
    whole = {name: round(rate * 1000) for name, rate in rates.items()}
    whole["exits"] = max(0, whole.get("exits", 0) - round(interrupts * 1000))
    found = {reason: count / 1000 for reason, count in from_statistics(whole, {}).items() if count}
    return {**({"interrupt": interrupts} if interrupts else {}), **found}
