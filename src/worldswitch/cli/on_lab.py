"""The lab as a machine of ``wsw run``: real kernels with real KVM, in emulators."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from worldswitch.cli import lab_programs, lab_trace, recording_target
from worldswitch.cli.lab_spots import Spot, in_spot, spots
from worldswitch.cli.side_by_side import side_by_side
from worldswitch.errors import MissingError, UsageError, WorldswitchError
from worldswitch.kit.running import Failure, Say, Settings, Told, Work
from worldswitch.lab import artifacts

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.record.result import Cell, Environment

AT_ONCE = 2
"""Emulators at once unless told otherwise; each keeps a CPU busy."""
_EACH = 60.0
"""Seconds of wall time that a machine has for each program, besides those the lab gives it to boot."""


class OnLab:
    """Every machine that *conditions* ask for, one start each for all programs.

    Raises:
        UsageError: They ask for none, or for a recording in no format or that would replace something else.
        MissingError: A build they name is not here, or the folder for the recording.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._spots = tuple(spots(conditions))
        self._at_once = conditions.jobs or min(AT_ONCE, os.cpu_count() or 1)
        if conditions.trace is not None:
            several = len(self._spots) > 1
            for spot in self._spots:
                recording_target.check(_recording(conditions.trace, spot, several))

    def environment(self) -> Environment:
        """None: each cell has its own."""
        from worldswitch.record.result import Environment

        return Environment()

    def run(self, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
        """See :class:`worldswitch.cli.machines.Machine`. The cells of a machine come together, when it has ended."""
        several = len(self._spots) > 1
        tasks = [partial(run_spot, spot, work, settings, several) for spot in self._spots]
        for found in side_by_side(tasks, self._at_once, say):
            yield from found


def run_spot(spot: Spot, work: Sequence[Work], settings: Settings, several: bool, say: Say) -> list[Cell | Failure]:
    """What came of *work* in one machine.

    If the machine does not come to its end, each program gets a start of its own, so that one takes no other with it.

    Args:
        several: There are other machines, so a recording needs a name of its own.
    """
    from worldswitch.lab.failures import MachineError

    trace = spot.conditions.trace
    if trace is not None:
        trace = _recording(trace, spot, several)
    try:
        return list(_start(spot, work, settings, trace, say))
    except MachineError as error:
        if len(work) < 2 or error.stage != "running" or trace is not None:
            return [Failure(spot.name, _plain(error))]
        say(f"{spot.name}: failed while running; running each program alone")
        return [one for single in work for one in _alone(spot, single, settings, say)]
    except WorldswitchError as error:
        return [Failure(spot.name, _plain(error))]


def _recording(output: str, spot: Spot, several: bool) -> str:
    """Where the recording of one machine goes; *several*: there are others."""
    return recording_target.named(output, spot.words) if several else output


def _alone(spot: Spot, work: Work, settings: Settings, say: Say) -> list[Cell | Failure]:
    try:
        return list(_start(spot, [work], settings, None, say))
    except WorldswitchError as error:
        return [Failure(work.spec, in_spot(error, spot))]


def _start(
    spot: Spot, work: Sequence[Work], settings: Settings, trace: str | None, say: Say
) -> Iterator[Cell | Failure]:
    from worldswitch.cli.lab_kit import lab_kit
    from worldswitch.lab import jobs
    from worldswitch.lab import machine as lab

    tasks = lab_programs.tasks(work, settings)
    todo = [task.job for task in tasks]
    tool = None if trace is None else lab_trace.recorder(trace)
    if tool is not None:
        if len(todo) > 1:
            raise UsageError("--trace records one command; run create-vm and guest programs one after the other")
        todo = [jobs.traced(todo[0], tool)]
    machine = spot.machine((tool,) if tool in artifacts.TOOLS else (), lab_kit())
    limit = lab.DEADLINE[machine.cpu] + _EACH * len(work)
    done = lab.run(machine, todo, deadline=limit, progress=say)
    for task, result in zip(tasks, done.results, strict=True):
        yield from lab_programs.outcomes(task, result, spot, machine, done)
    if trace is not None and tool is not None:
        try:
            say(Told(lab_trace.keep(done.results[0], tool, trace)))
        except WorldswitchError as error:  # of what was counted nothing is lost
            yield Failure(spot.name, _plain(error))


def _plain(error: WorldswitchError) -> WorldswitchError:
    """*error* as one of the two kinds an exit status knows; others may not survive the way between processes."""
    return (MissingError if isinstance(error, MissingError) else UsageError)(str(error))
