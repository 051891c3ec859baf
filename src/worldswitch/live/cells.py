"""What was measured on this host, as cells of a Result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from worldswitch.record.result import BY_REASON, Cell, FaultSeen, Metric, Spread

if TYPE_CHECKING:
    from worldswitch.guest.image import Fault, Image
    from worldswitch.live.bench import Measurement, Times
    from worldswitch.live.create_vm import Creation, Creations
    from worldswitch.live.environment import Here

ON = "kvm"
CREATE_VM = "create-vm"
PASSES = "passes"
"""The counter of passes in the run that was counted, which may be fewer than those of a timed one."""
NAMES = {"tlb_flush": "tlb_flushes", "nx_lpage_splits": "nx_splits"}
"""Statistics of KVM that a Result has under another name."""


def program_cell(image: Image, found: Measurement, features: Mapping[str, bool], host: Here) -> Cell:
    """The cell of a guest program; *features* are those the guest was shown or not shown on request."""
    name = image.name.partition(":")[0] if image.parameters else image.name
    dimensions: dict[str, Any] = {"on": ON, "program": name, "parameters": image.parameters, **host.dimensions}
    if features:
        dimensions["cpuid"] = dict(features)
    return Cell(
        dimensions=dimensions,
        n=found.n,
        unit=found.unit,
        counters={**_counts(found.counters, found.exits_by_reason), PASSES: found.count_n},
        per_op=_counts(found.per_op, found.reasons_per_op),
        time_ns=Spread(*found.times.best[:3]) if found.times else None,
        metrics=tuple(_times(found.times)) if found.times else (),
        faults=tuple(_distinct(found.faults)),
        faults_total=found.faults_total,
        values=found.values,
        steady=found.steady,
        notes=tuple(_notes(found)),
    )


def _counts(counters: Mapping[str, Any], reasons: Mapping[str, float]) -> dict[str, Any]:
    named: dict[str, Any] = {NAMES.get(name, name): value for name, value in counters.items()}
    return {**named, BY_REASON: dict(reasons)} if counters else {}


def _times(times: Times) -> Iterator[Metric]:
    yield Metric("wall", "ns", times.wall_values, times.warmups)
    if times.tsc_values:
        yield Metric("tsc", "ns", times.tsc_values)
    if times.cycles:
        yield Metric("cycles", "cycles", times.cycles)


def _distinct(faults: Iterable[Fault]) -> Iterator[FaultSeen]:
    counts: dict[Fault, int] = {}
    for fault in faults:
        counts[fault] = counts.get(fault, 0) + 1
    for fault, count in counts.items():
        yield FaultSeen(fault.operation, fault.vector, fault.error_code, fault.cr2, fault.rip, count)


def _notes(found: Measurement) -> Iterator[str]:
    if found.statistics_from is None:
        yield "this kernel gives no statistics (Linux 5.14 does; before, debugfs as root), so no exits are counted"
    elif found.unsteady:
        yield f"no two runs agreed on {', '.join(found.unsteady)}: the host was busy; try again, or fewer with -n"
    if found.count_n != found.n:
        yield f"counted in runs of {found.count_n:,}, timed in runs of {found.n:,}"
    if found.exits_n != found.count_n:
        yield f"exits were counted in runs of {found.exits_n:,}, because the host interrupts longer ones"
    if found.reasons_why and found.exits_by_reason:
        yield f"exits are told apart only as far as KVM's statistics do: {found.reasons_why}"
    if found.retries:
        yield f"{found.retries:,} operations were tried again after a fault"
    if found.times and found.times.tsc is None:
        yield "times are by this host's clock around the whole run, start and end of the guest subtracted"


def creations_cell(found: Creations, host: Here) -> Cell:
    """The cell of the host program create-vm; one unit is a VM."""
    plan = found.plan
    parameters: dict[str, Any] = {
        "vms": plan.vms, "burst": plan.burst, "workers": plan.workers, "first_run": plan.first_run,
        "cgroup": plan.cgroup, "pause_s": plan.pause_s,
    }  # fmt: skip
    metrics = [_latency("create_vm", found, "create_ns"), _latency("close_vm", found, "close_ns")]
    if plan.first_run:
        metrics.insert(1, _latency("first_run", found, "first_run_ns"))
    notes = []
    if found.favordynmods is not None:
        notes.append(f"cgroup2 is mounted {'with' if found.favordynmods else 'without'} favordynmods")
    if found.stopped:
        notes.append(f"stopped after {found.rounds} of {plan.rounds} rounds: {found.stopped}")
    return Cell(
        dimensions={"on": ON, "program": CREATE_VM, "parameters": parameters, **host.dimensions},
        n=len(found.creations),
        unit="VM",
        counters={"eintr": found.eintr},
        create_vm_ns=found.create_ns,
        metrics=tuple(metrics),
        steady=not found.stopped,
        notes=tuple(notes),
    )


def _latency(name: str, found: Creations, attribute: str) -> Metric:
    def values(creations: tuple[Creation, ...]) -> tuple[int, ...]:
        return tuple(getattr(one, attribute) for one in creations)

    return Metric(name, "ns", values(found.creations), values(found.warmups), together=found.plan.burst)
