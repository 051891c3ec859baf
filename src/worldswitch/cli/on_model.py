"""The executable KVM as a machine of ``wsw run``: any kernel, processor and MMU, counted and not timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from worldswitch.cli import cost_sets, model_create_vm, model_trace, recording_target
from worldswitch.errors import UnknownNameError, UsageError, WorldswitchError, printable
from worldswitch.kit.running import Failure, Say, Settings, Told, Work
from worldswitch.live.cells import CREATE_VM

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions, Place
    from worldswitch.costs.atoms import Costs
    from worldswitch.guest.image import Report
    from worldswitch.kvm.host import Host
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import Run
    from worldswitch.record.result import Cell, Environment, FaultSeen

ON = "model"
_HOST = "host."
"""Names after ``--set`` that are conditions of the host, not parameters: ``host.huge_pages``."""
_VALUES = {"0": False, "1": True}


class OnModel:
    """Every host that *conditions* ask for.

    Raises:
        UsageError: They name no kernel, contradict themselves, or set what there is not.
    """

    def __init__(self, conditions: Conditions) -> None:
        if not conditions.kernels:
            raise UsageError("--on model needs a kernel: --kernel K,... such as 6.12 (wsw kernels lists what is known)")
        parameters = dict(conditions.parameters)
        self._host = _host({name: parameters.pop(name) for name in list(parameters) if name.startswith(_HOST)})
        self._bursts = model_create_vm.take(parameters, conditions.smp)
        self._given = dict(conditions.parameters)
        self._costs = cost_sets.guest_costs(conditions.costs)
        self._costs_named = conditions.costs
        self._parameters = parameters
        self._places = tuple(conditions.places())
        for place in self._places:
            self._policy(place, {})
        self._trace = conditions.trace
        if self._trace is not None:
            recording_target.check(self._trace)

    def environment(self) -> Environment:
        """None: nothing was measured anywhere."""
        from worldswitch.record.result import Environment

        return Environment()

    def run(self, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
        """See :class:`worldswitch.cli.machines.Machine`."""
        if not any(one.spec == CREATE_VM for one in work):
            self._refuse_bursts()
        elif self._trace is not None:
            raise UsageError(
                f"--trace on the model records guests, and for {CREATE_VM} none runs; leave one of them out"
            )
        for place in self._places:
            policy = self._policy(place, settings.features)
            for one in work:
                say(f"{one.spec} on {policy.kernel} {policy.vendor} {policy.mmu}")
                try:
                    cell = self._cell(one, policy, settings)
                    yield cell
                    if self._trace is not None:
                        say(Told(self._recorded(one, cell, policy, len(work))))
                except WorldswitchError as error:
                    yield Failure(one.spec, error)

    def _refuse_bursts(self) -> None:
        for name in self._given:
            if name.startswith(model_create_vm.PREFIX):
                raise UsageError(f"--set {name} is for the program {CREATE_VM}, which is not among those to run")

    def _policy(self, place: Place, features: Mapping[str, bool]) -> Policy:
        from worldswitch.kvm.offers import offers, why_not
        from worldswitch.kvm.policy import Policy

        hidden = [f"cpuid.{name}=0" for name, shown in features.items() if not shown]
        given = [f"{name}={value}" for name, value in self._parameters.items()]
        policy = Policy.of(place.kernel, place.cpu, place.mmu, [*given, *hidden])
        for name in (name for name, shown in features.items() if shown and not offers(policy, name)):
            raise UsageError(
                f"--set cpuid.{name}=1: the model shows guests no more than KVM of {policy.kernel} offers on "
                f"{policy.vendor} with mmu {policy.mmu}: {why_not(policy, name)}"
            )
        return policy

    def _cell(self, work: Work, policy: Policy, settings: Settings) -> Cell:
        from worldswitch.guest import library
        from worldswitch.kvm.vcpu import run

        if work.spec == CREATE_VM:
            costs = cost_sets.creation_costs(self._costs_named)
            return self._conditioned(model_create_vm.cell(policy, settings, self._bursts, costs), {})
        if work.image is None or work.spec.endswith(".img"):
            raise UsageError(
                f"the model runs guest programs as they are written, and {printable(work.spec)} is none; it runs with "
                "--on kvm or --on lab"
            )
        program = library.program(work.spec)
        n = program.default_n if settings.n is None else settings.n
        none, found = (run(program, policy, passes, host=self._host, image=work.image) for passes in (0, n))
        cell = self._conditioned(_cell_of(work, program.unit, policy, none, found), settings.features)
        if self._costs is not None:
            return priced(cell, str(policy.mmu), self._costs)
        if self._costs_named is not None:
            from dataclasses import replace

            named = printable(str(self._costs_named))
            note = f"no time: the costs {named} are those of creating VMs; wsw calibrate writes costs of guests"
            return replace(cell, notes=(*cell.notes, note))
        return cell

    def _recorded(self, work: Work, cell: Cell, policy: Policy, programs: int) -> str:
        """Run what gave *cell* once more and keep what happens; where that went."""
        from worldswitch.guest import library
        from worldswitch.kvm.vcpu import run

        assert self._trace is not None
        program = library.program(work.spec)
        model_trace.refuse_large(program, cell)
        found = run(program, policy, cell.n, host=self._host, image=work.image, record=True)
        output = model_trace.name_of(self._trace, work.spec, policy, programs, len(self._places))
        return model_trace.keep(found, policy, ("wsw", "run", work.spec, "--on", ON, "-n", str(cell.n)), output)

    def _conditioned(self, cell: Cell, features: Mapping[str, bool]) -> Cell:
        """The cell with what was set among its dimensions."""
        from dataclasses import replace

        dimensions = dict(cell.dimensions)
        if features:
            dimensions["cpuid"] = dict(features)
        if self._given:
            dimensions["set"] = self._given
        return replace(cell, dimensions=dimensions)


def priced(cell: Cell, mmu: str, costs: Costs) -> Cell:
    """The cell with the time of a unit by *costs*, and a note on where that is from or why there is none."""
    from dataclasses import replace

    from worldswitch.costs.atoms import WORK
    from worldswitch.costs.events import events
    from worldswitch.record.result import BY_REASON

    counts = {name: value for name, value in cell.per_op.items() if not isinstance(value, Mapping)}
    reasons = cell.per_op[BY_REASON]
    assert isinstance(reasons, Mapping)
    work = {} if cell.unit[:1].isdigit() else {f"{WORK}{cell.dimensions['program']}": 1.0}
    found = costs.price({**work, **events(counts, reasons, mmu)})
    notes = [f"no time: {event} {why}" for event, why in found.unpriced.items()]
    if found.time is not None:
        notes += [f"time by the cost of {atom.event}: {atom.origin}" for atom in found.used]
        if not any(atom.event.startswith(WORK) for atom in found.used):
            notes.append(
                "time is that of the exits; the guest's own work is in it only as far as a cost's origin says so"
            )
    return replace(cell, time_ns=found.time, notes=(*cell.notes, *notes))


def _host(given: Mapping[str, str]) -> Host:
    from worldswitch.kvm.host import Host

    known = [_HOST + one.name for one in fields(Host)]
    chosen: dict[str, bool] = {}
    for name, value in given.items():
        if name not in known:
            raise UnknownNameError("condition of the host", name, known, f"There are {', '.join(known)}")
        if value not in _VALUES:
            raise UsageError(f"--set {name}={printable(value)}: say 1 or 0")
        chosen[name.removeprefix(_HOST)] = _VALUES[value]
    return Host(**chosen)


def _cell_of(work: Work, unit: str, policy: Policy, none: Run, found: Run) -> Cell:
    from worldswitch.live.cells import PASSES
    from worldswitch.record.result import Cell

    image = work.image
    assert image is not None
    name = image.name.partition(":")[0] if image.parameters else image.name
    reports = [report for report in found.reports if report is not None]
    return Cell(
        dimensions={
            "on": ON,
            "program": name,
            "parameters": image.parameters,
            "kernel": str(policy.kernel),
            "cpu": str(policy.vendor),
            "mmu": str(policy.mmu),
            "module": "kvm_intel" if policy.vendor == "intel" else "kvm_amd",
        },
        n=found.n,
        unit=unit,
        counters={**_counts(found), PASSES: found.n},
        per_op=_each(_counts(found), _counts(none), found.n),
        faults=tuple(fault for report in reports for fault in _distinct(report)),
        faults_total=sum(report.faults for report in reports),
        values={path: value for report in reports for path, value in report.values.items()},
        notes=tuple(policy.notes),
    )


def _counts(found: Run) -> dict[str, Any]:
    from worldswitch.live.cells import NAMES
    from worldswitch.record.result import BY_REASON

    named: dict[str, Any] = {NAMES.get(name, name): value for name, value in found.counters.items()}
    return {**named, BY_REASON: dict(found.exits_by_reason)}


def _each(counts: Mapping[str, Any], without: Mapping[str, Any], n: int) -> dict[str, Any]:
    """What one unit adds; what it adds nothing to is left out of the reasons."""
    each: dict[str, Any] = {}
    for name, value in counts.items():
        if isinstance(value, Mapping):
            each[name] = {key: one for key, one in _each(value, without.get(name, {}), n).items() if one}
        else:
            more = value - without.get(name, 0)
            each[name] = more // n if n and not more % n else more / n if n else 0
    return each


def _distinct(report: Report) -> Iterator[FaultSeen]:
    from collections import Counter

    from worldswitch.record.result import FaultSeen

    for fault, count in Counter(report.log).items():
        yield FaultSeen(fault.operation, fault.vector, fault.error_code, fault.cr2, fault.rip, count)
