"""The lab as a machine of ``wsw run``: real kernels with real KVM, in emulators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from worldswitch.cli import lab_programs
from worldswitch.cli.lab_spots import Spot, in_spot, spots
from worldswitch.errors import WorldswitchError
from worldswitch.kit.running import Failure, Say, Settings, Work

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.record.result import Cell, Environment

_EACH = 60.0
"""Seconds of wall time that a machine has for each program, besides those the lab gives it to boot."""


class OnLab:
    """Every machine that *conditions* ask for, one start each for all programs.

    Raises:
        UsageError: They ask for none.
        MissingError: A build they name is not here.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._spots = tuple(spots(conditions))

    def environment(self) -> Environment:
        """None: each cell has its own."""
        from worldswitch.record.result import Environment

        return Environment()

    def run(self, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
        """See :class:`worldswitch.cli.machines.Machine`. The cells of a machine come together, when it has ended."""
        for spot in self._spots:
            yield from run_spot(spot, work, settings, say)


def run_spot(spot: Spot, work: Sequence[Work], settings: Settings, say: Say) -> list[Cell | Failure]:
    """What came of *work* in one machine.

    If the machine does not come to its end, each program gets a start of its own, so that one takes no other with it.
    """
    from worldswitch.lab.failures import MachineError

    try:
        return list(_start(spot, work, settings, say))
    except MachineError as error:
        if len(work) < 2 or error.stage != "running":
            return [Failure(spot.name, error)]
        say(f"{spot.name}: failed while running; running each program alone")
        return [one for single in work for one in _alone(spot, single, settings, say)]
    except WorldswitchError as error:
        return [Failure(spot.name, error)]


def _alone(spot: Spot, work: Work, settings: Settings, say: Say) -> list[Cell | Failure]:
    try:
        return list(_start(spot, [work], settings, say))
    except WorldswitchError as error:
        return [Failure(work.spec, in_spot(error, spot))]


def _start(spot: Spot, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
    from worldswitch.cli.lab_kit import lab_kit
    from worldswitch.lab import machine as lab

    machine = spot.machine((), lab_kit())
    limit = lab.DEADLINE[machine.cpu] + _EACH * len(work)
    jobs = [lab_programs.job(one, settings) for one in work]
    done = lab.run(machine, jobs, deadline=limit, progress=say)
    for one, result in zip(work, done.results, strict=True):
        yield from lab_programs.cells(one, result, spot, machine, done)
