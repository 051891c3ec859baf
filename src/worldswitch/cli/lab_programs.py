"""Programs as jobs for the field kit inside a machine of the lab, and what it printed of them as cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.cli import MISSING, USAGE
from worldswitch.errors import MissingError, UsageError, WorldswitchError, printable
from worldswitch.kit.running import Failure, Settings, Work
from worldswitch.record import resultfile

if TYPE_CHECKING:
    from pathlib import Path

    from worldswitch.cli.lab_spots import Spot
    from worldswitch.lab.jobs import Job, JobResult
    from worldswitch.lab.machine import Machine, Run
    from worldswitch.record.result import Cell, Environment

ON = "lab"
MOST_PASSES = 200
"""Passes of a program's body unless asked for others: exact counts need few, and emulators are slow."""
EMULATED = "times are the emulator's: they compare within one emulator, and say nothing of hardware"
_NO_TIMES = 0


class Task(NamedTuple):
    """Programs that one command of the field kit runs in the guest, guests' in this order."""

    work: tuple[Work, ...]
    job: Job


def tasks(work: Sequence[Work], settings: Settings) -> list[Task]:
    """All of *work*, in as few commands as can be, as each loads Python and the kit anew.

    Times are only taken where :attr:`~worldswitch.kit.running.Settings.repeat` asks for them.
    """
    guests = tuple(one for one in work if one.image is not None)
    others = [one for one in work if one.image is None]
    found = [_guests(guests, settings)] if guests else []
    return found + [Task((one,), _job((one.spec, *_create_vm(settings)), {})) for one in others]


def _guests(work: tuple[Work, ...], settings: Settings) -> Task:
    files: dict[str, bytes | Path] = {}
    words = ["--repeat", str(_NO_TIMES if settings.repeat is None else settings.repeat)]
    words += ["--deadline", str(settings.deadline)]
    if settings.n is not None:
        words += ["-n", str(settings.n)]
    for name, shown in settings.features.items():
        words += ["--set", f"cpuid.{name}={shown:d}"]
    for place, one in enumerate(work):
        assert one.image is not None
        image = replace(one.image, default_n=min(one.image.default_n, MOST_PASSES))
        files[_file(place)] = image.to_bytes()
        words += ["--image", _file(place)]
    return Task(work, _job(words, files))


def _file(place: int) -> str:
    return f"{place}.img"


def _create_vm(settings: Settings) -> Iterator[str]:
    if settings.repeat is not None:
        yield from ("--repeat", str(settings.repeat))
    for name, value in settings.create_vm.items():
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(value)


def _job(words: Iterable[str], files: Mapping[str, bytes | Path]) -> Job:
    from worldswitch.lab.jobs import KIT, Job

    return Job((KIT, "run", "--json", *words), files)


def outcomes(task: Task, result: JobResult, spot: Spot, machine: Machine, run: Run) -> Iterator[Cell | Failure]:
    """What the kit said of each program of *task*: a cell, or why there is none."""
    from worldswitch.cli.lab_spots import in_spot

    def failure(spec: str, error: WorldswitchError) -> Failure:
        return Failure(spec, in_spot(error, spot))

    document = _document(result)
    failures = _failures(document, task) if document else {}
    try:
        found = resultfile.loads(json.dumps(document)) if document else None
    except resultfile.ResultFormatError as error:
        document, found, result = None, None, replace(result, stderr=f"its result cannot be read: {error}".encode())
    cells = iter(found.cells if found else ())
    for one in task.work:
        if one.spec in failures:
            kind = UsageError if result.status == USAGE else MissingError
            yield failure(one.spec, kind(failures[one.spec]))
        elif found and (cell := next(cells, None)):
            yield _here(cell, found.environment_of(cell), spot, machine, run)
        else:
            yield failure(one.spec, _said(result))


def _failures(document: Mapping[str, Any], task: Task) -> dict[str, str]:
    """Spec of each program that failed -> why; the kit knows guests by their files."""
    specs = {_file(place): one.spec for place, one in enumerate(task.work) if one.image is not None}
    told = document.get("failures", ())
    return {specs.get(one["program"], one["program"]): str(one["error"]) for one in told}


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
    return MissingError(f"the guest's field kit ended with status {result.status} and no result: {said}")


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
    yield "clock", EMULATED
    yield "restored", "yes" if run.restored else "no"
    yield "cpus", str(machine.smp)
    yield "memory", f"{machine.memory} MiB"
    yield "kernel_arguments", run.about.kernel_arguments
    if machine.kernel.package:
        yield "package", machine.kernel.package
    if machine.build:
        yield "build", machine.build.name
        yield "built_from", json.dumps(machine.build.stamp, sort_keys=True, default=str)
