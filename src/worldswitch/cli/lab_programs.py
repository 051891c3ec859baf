"""Programs as jobs for the field kit inside a machine of the lab, and what it printed of them as cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldswitch.cli import MISSING, USAGE
from worldswitch.errors import MissingError, UsageError, WorldswitchError, printable
from worldswitch.kit.running import Failure, Settings, Work
from worldswitch.record import resultfile

if TYPE_CHECKING:
    from worldswitch.cli.lab_spots import Spot
    from worldswitch.lab.jobs import Job, JobResult
    from worldswitch.lab.machine import Machine, Run
    from worldswitch.record.result import Cell, Environment

ON = "lab"
MOST_PASSES, RUNS = 200, 2
"""Passes of a program's body and timed runs unless asked for others: counts need few, and emulators are slow."""
EMULATED = "times are the emulator's: they compare within one emulator, and say nothing of hardware"
_IMAGE = "program.img"


def job(work: Work, settings: Settings) -> Job:
    """What runs one program in the guest and prints its result."""
    from worldswitch.lab.jobs import KIT, Job

    words = [KIT, "run", "--json", *_options(work, settings)]
    if work.image is None:
        return Job((*words, work.spec))
    return Job((*words, "--image", _IMAGE), {_IMAGE: work.image.to_bytes()})


def _options(work: Work, settings: Settings) -> Iterator[str]:
    if work.image is not None:
        yield from ("-n", str(settings.n or min(work.image.default_n, MOST_PASSES)))
        yield from ("--repeat", str(settings.repeat or RUNS))
        yield from ("--deadline", str(settings.deadline))
        for name, shown in settings.features.items():
            yield from ("--set", f"cpuid.{name}={shown:d}")
        return
    if settings.repeat is not None:
        yield from ("--repeat", str(settings.repeat))
    for name, value in settings.create_vm.items():
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(value)


def cells(work: Work, result: JobResult, spot: Spot, machine: Machine, run: Run) -> Iterator[Cell | Failure]:
    """What the kit said of *work*: cells, or why there are none."""
    from worldswitch.cli.lab_spots import in_spot

    def failure(error: WorldswitchError) -> Failure:
        return Failure(work.spec, in_spot(error, spot))

    document = _document(result)
    if document is None:
        yield failure(_said(result))
        return
    try:
        found = resultfile.loads(json.dumps(document))
    except resultfile.ResultFormatError as error:
        yield failure(MissingError(f"the guest's result cannot be read: {error}"))
        return
    for cell in found.cells:
        yield _here(cell, found.environment_of(cell), spot, machine, run)
    for failed in document.get("failures", ()):
        kind = UsageError if result.status == USAGE else MissingError
        yield failure(kind(str(failed.get("error"))))
    if not found.cells and not document.get("failures"):
        yield failure(_said(result))


def _document(result: JobResult) -> dict[str, Any] | None:
    try:
        document = json.loads(result.stdout)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _said(result: JobResult) -> WorldswitchError:
    """The kit's last words as an error, without its name."""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    said = printable(lines[-1].removeprefix("wsw: ")) if lines else "it said nothing"
    if result.status == USAGE:
        return UsageError(said)
    if result.status == MISSING:
        return MissingError(said)
    return MissingError(f"the field kit ended with status {result.status} in the guest and no result: {said}")


def _here(cell: Cell, around: Environment, spot: Spot, machine: Machine, run: Run) -> Cell:
    """*cell*, found in the guest, as one of the lab."""
    kernel = machine.kernel
    dimensions = {**cell.dimensions, "on": ON, "kernel": kernel.version if kernel.package else kernel.release}
    if spot.build:
        dimensions["build"] = spot.build
    if spot.conditions.parameters:
        dimensions["set"] = dict(spot.conditions.parameters)
    if machine.smp > 1:
        dimensions["smp"] = machine.smp
    environment = replace(around, parameters=dict(run.about.parameters), machine=dict(_stamp(machine, run)))
    timed = cell.time_ns is not None or cell.create_vm_ns is not None
    notes = (*cell.notes, EMULATED) if timed else cell.notes
    return replace(cell, dimensions=dimensions, environment=environment, notes=notes)


def _stamp(machine: Machine, run: Run) -> Iterator[tuple[str, str]]:
    """What the machine was, beyond what its kernel says of itself."""
    yield "emulator", run.emulator
    yield "clock", "emulated"
    yield "restored", "yes" if run.restored else "no"
    yield "cpus", str(machine.smp)
    yield "memory", f"{machine.memory} MiB"
    yield "kernel_arguments", run.about.kernel_arguments
    if machine.kernel.package:
        yield "package", machine.kernel.package
    if machine.build:
        yield "build", machine.build.name
        yield "built_from", json.dumps(machine.build.stamp, sort_keys=True, default=str)
