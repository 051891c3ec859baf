"""create-vm on the model: bursts of VMs simulated, as a cell beside those of real machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.live.cells import CREATE_VM

if TYPE_CHECKING:
    from worldswitch.costs.create_vm import CostSet
    from worldswitch.kit.running import Settings
    from worldswitch.kvm.policy import Policy
    from worldswitch.record.result import Cell, Metric
    from worldswitch.simulation.create_vm import Latencies, Scenario, Simulated

LATE = "late"
PREFIX = "sim."
"""Names after ``--set`` that are conditions of the simulation."""
_KNOWN = ("cpus", "hz", "load", "seed", "pause_ms", "interrupted", "arrival")
_FAVORDYNMODS, _CGROUP = "favordynmods", "cgroup"


@dataclass(frozen=True, slots=True)
class Bursts:
    """How VMs are to be created, of the words after ``--set``: what a policy has no place for.

    Attributes:
        cpus: CPUs; 0 leaves the default.
        load: ``idle`` or ``busy``: grace periods by the kernel's constants instead of a cost; empty for the cost.
        given: Other ``sim.`` conditions by name, parsed.
    """

    late: bool = False
    cgroup: str | None = None
    cpus: int = 0
    load: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


def take(parameters: dict[str, str], smp: int) -> Bursts:
    """What is for the simulation among *parameters*; what a policy has no place for is taken out of them.

    Raises:
        UnknownNameError: A ``sim.`` condition nobody knows, or a control group.
        UsageError: One that makes no sense.
    """
    from worldswitch.kvm.vmcreate import Cgroup

    late = parameters.get(_FAVORDYNMODS) == LATE
    if late:
        del parameters[_FAVORDYNMODS]
    cgroup = parameters.get(_CGROUP)
    if cgroup is not None:
        Cgroup.of(cgroup)
    given: dict[str, Any] = {}
    load = ""
    for name in [name for name in parameters if name.startswith(PREFIX)]:
        value = parameters.pop(name)
        short = name.removeprefix(PREFIX)
        if short not in _KNOWN:
            known = [PREFIX + one for one in _KNOWN]
            raise UnknownNameError("condition of the simulation", name, known, f"There are {', '.join(known)}")
        if short == "load":
            load = value
        else:
            given.update(_arrival(value) if short == "arrival" else _number(name, short, value))
    return Bursts(late, cgroup, smp, load, given)


def _number(name: str, short: str, value: str) -> dict[str, Any]:
    if not (value.isascii() and value.isdigit() and len(value) < 8):
        raise UsageError(f"--set {name}={printable(value)}: say a whole number")
    if short == "cpus" and not int(value):
        raise UsageError(f"--set {name}=0: nothing runs without a CPU; leave it out for one CPU for each VM of a burst")
    return {"pause_s": int(value) / 1000} if short == "pause_ms" else {short: int(value)}


def _arrival(value: str) -> dict[str, Any]:
    kind, colon, rate = value.partition(":")
    try:
        per_s = float(rate) if colon else 0.0
    except ValueError:
        per_s = -1.0
    if not 0 <= per_s < float("inf"):
        raise UsageError(f"--set sim.arrival={printable(value)}: say burst, rate:VMS_A_SECOND or poisson:VMS_A_SECOND")
    return {"arrival": kind, "per_s": per_s}


def cell(policy: Policy, settings: Settings, bursts: Bursts, costs: CostSet) -> Cell:
    """The cell of create-vm on the host that *policy* describes.

    Raises:
        UsageError: A number is out of its range, or a setting makes no sense there.
    """
    from worldswitch.costs.create_vm import grace_period_cost
    from worldswitch.kvm.vmcreate import GRACE_PERIOD
    from worldswitch.record.result import Cell
    from worldswitch.simulation.create_vm import simulate

    scenario = _scenario(settings, bursts)
    if bursts.load:
        waits = grace_period_cost(scenario.hz, scenario.cpus or scenario.burst, bursts.load)
        costs = costs._replace(costs={**costs.costs, GRACE_PERIOD: waits})
    found = simulate(policy, scenario, costs.costs)
    metrics = [*_metrics("create_vm", found.create, scenario), *_metrics("first_run", found.first_run, scenario)]
    asked = settings.create_vm
    parameters = {
        "vms": scenario.vms, "burst": scenario.burst, "workers": asked.get("workers", "processes"),
        "first_run": scenario.first_run, "cgroup": asked.get("cgroup"), "pause_s": scenario.pause_s,
    }  # fmt: skip
    return Cell(
        dimensions={
            "on": "model",
            "program": CREATE_VM,
            "parameters": parameters,
            "kernel": str(policy.kernel),
            "cpu": str(policy.vendor),
            "mmu": str(policy.mmu),
            "module": "kvm_intel" if policy.vendor == "intel" else "kvm_amd",
        },
        n=scenario.burst * scenario.rounds,
        unit="VM",
        counters={"eintr": scenario.interrupted * scenario.burst * scenario.rounds},
        time_ns=None if found.create is None else found.create.at(50),
        create_vm_ns=() if found.create is None else tuple(round(value) for value in found.create.mid),
        metrics=tuple(metrics),
        notes=(*policy.notes, *_notes(policy, scenario, found, costs, asked)),
    )


def _scenario(settings: Settings, bursts: Bursts) -> Scenario:
    from worldswitch.kvm.vmcreate import Cgroup
    from worldswitch.simulation.create_vm import Scenario

    asked = settings.create_vm
    if bursts.cgroup is not None:
        cgroup = Cgroup.of(bursts.cgroup)
    else:
        cgroup = Cgroup.OWN if "cpuset" in str(asked.get("cgroup") or "").split("/") else Cgroup.ROOT
    scenario = Scenario(
        vms=asked.get("vms", 0),
        burst=asked.get("burst", 1),
        rounds=settings.repeat or 1,
        cpus=bursts.cpus,
        cgroup=cgroup,
        late=bursts.late,
        first_run=bool(asked.get("first_run")),
    )
    return replace(scenario, **bursts.given)


def _metrics(name: str, found: Latencies | None, scenario: Scenario) -> Iterator[Metric]:
    """The latencies with the mid costs, and beside them those with all costs low, and high."""
    from worldswitch.record.result import Metric

    if found is None:
        return
    for suffix, values in (("", found.mid), ("_low", found.low), ("_high", found.high)):
        yield Metric(name + suffix, "ns", tuple(round(value) for value in values), together=scenario.burst)


def _notes(
    policy: Policy, scenario: Scenario, found: Simulated, costs: CostSet, asked: Mapping[str, Any]
) -> Iterator[str]:
    from worldswitch.simulation.create_vm import caveats

    yield from (f"no time: {name} has no cost in {costs.name}" for name in found.missing)
    yield from (f"time by the cost of {name}: {cost.origin}" for name, cost in found.used.items())
    yield from caveats(policy, scenario, costs.costs)
    if asked.get("workers") == "threads":
        yield "threads of one process take turns at its address space, which has no cost of its own and is not counted"
