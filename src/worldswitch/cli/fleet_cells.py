"""The cells of a sweep, run on the machines that ``wsw run`` knows; workers call it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.cli.conditions import Conditions
from worldswitch.cli.machines import Machine, machines
from worldswitch.cli.work import prepare
from worldswitch.errors import MissingError, WorldswitchError
from worldswitch.fleet.spec import Value, is_file
from worldswitch.kit.running import Failure, Settings, Work

if TYPE_CHECKING:
    from worldswitch.record.result import Cell


class _Where(NamedTuple):
    """What cells have in common that can be run by one machine one after the other."""

    on: str
    kernel: str
    cpu: str
    mmu: str
    smp: int
    costs: str
    parameters: tuple[tuple[str, str], ...]
    n: int | None


def run_cells(cells: Sequence[Mapping[str, Value]], folder: str) -> list[Cell | Exception]:
    """What came of each of *cells*, in their order: a cell, or why there is none.

    Args:
        cells: Values by axis.
        folder: Names of files are relative to it.
    """
    placed = [(_where(cell, folder), _spec(cell, folder)) for cell in cells]
    found: list[Cell | Exception] = []
    for where, some in groupby(placed, key=lambda one: one[0]):
        found += _together(where, [spec for _, spec in some])
    return found


def _together(where: _Where, specs: Sequence[str]) -> list[Cell | Exception]:
    work: list[Work | WorldswitchError] = []
    for spec in specs:
        try:
            work.append(_work(spec))
        except WorldswitchError as error:
            work.append(error)
    good = [one for one in work if isinstance(one, Work)]
    outcomes = iter(_outcomes(where, good))
    return [one if isinstance(one, WorldswitchError) else next(outcomes) for one in work]


def _outcomes(where: _Where, work: Sequence[Work]) -> list[Cell | Exception]:
    found: list[Cell | Exception] = []
    try:
        for one in _machine(where).run(work, Settings(n=where.n), _say_nothing):
            found.append(one.error if isinstance(one, Failure) else one)
    except WorldswitchError as error:
        found += [error] * (len(work) - len(found))
    if len(found) < len(work):
        # A machine that failed as a whole says so once.
        last = found[-1] if found and isinstance(found[-1], Exception) else MissingError("the machine gave no result")
        found += [last] * (len(work) - len(found))
    return found


def _say_nothing(_: str) -> None:
    """Workers have no terminal."""


@lru_cache(maxsize=256)
def _machine(where: _Where) -> Machine:
    conditions = Conditions(
        kernels=(where.kernel,),
        cpus=(where.cpu,),
        mmus=(where.mmu,),
        parameters=dict(where.parameters),
        smp=where.smp,
        jobs=1,
        costs=Path(where.costs) if where.costs else None,
    )
    return machines(where.on, conditions)[0][1]


@lru_cache(maxsize=256)
def _work(spec: str) -> Work:
    return prepare([spec])[0]


def _where(cell: Mapping[str, Value], folder: str) -> _Where:
    costs, n, smp = str(cell.get("costs", "")), cell.get("n"), cell.get("smp", 0)
    parameters = {name.removeprefix("set."): _word(value) for name, value in cell.items() if name.startswith("set.")}
    return _Where(
        str(cell["on"]),
        str(cell["kernel"]),
        str(cell.get("cpu", "amd")),
        str(cell.get("mmu", "default")),
        int(smp),
        os.path.join(folder, costs) if costs and is_file("costs", costs) else costs,  # noqa: PTH118
        tuple(sorted(parameters.items())),
        None if n is None else int(n),
    )


def _spec(cell: Mapping[str, Value], folder: str) -> str:
    program = str(cell["program"])
    if is_file("program", program):
        return os.path.join(folder, program)  # noqa: PTH118
    given = [
        f"{name.removeprefix('program.')}={_word(value)}" for name, value in cell.items() if name.startswith("program.")
    ]
    return program + (":" if ":" not in program else ",") + ",".join(given) if given else program


def _word(value: Value) -> str:
    """A value as it is written on a command line."""
    return str(int(value)) if isinstance(value, bool) else str(value)
