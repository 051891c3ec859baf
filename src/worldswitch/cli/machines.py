"""The machines a program can be run on, behind one Protocol: ``wsw run`` knows no more of them than this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from worldswitch.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.kit.running import Failure, Say, Settings, Work
    from worldswitch.record.result import Cell, Environment


class Machine(Protocol):
    """Runs programs, under one set of conditions or under several."""

    def environment(self) -> Environment:
        """What it runs on, where that is one place; the cells say what differs."""

    def run(self, work: Sequence[Work], settings: Settings, say: Say) -> Iterator[Cell | Failure]:
        """A cell for each program under each set of conditions, as soon as it is finished, or why there is none.

        Args:
            work: In the order to run.
            settings: How.
            say: Called with how far it is, as often as one likes.

        Raises:
            MissingError: Nothing (more) can run here. What was given before is finished and stays.
        """


_HOMES = {
    "kvm": ("worldswitch.cli.on_kvm", "OnKvm"),
    "lab": ("worldswitch.cli.on_lab", "OnLab"),
    "model": ("worldswitch.cli.on_model", "OnModel"),
}
"""Name after ``--on`` -> where its class is; imported when it is asked for, and called with the conditions."""


def machines(names: str, conditions: Conditions) -> list[tuple[str, Machine]]:
    """The machines in a list with commas, under *conditions* where they have a choice.

    Raises:
        UnknownNameError: One nobody knows.
        UsageError: One is named twice, or none.
    """
    words = [word.strip() for word in names.split(",") if word.strip()]
    if not words:
        raise UsageError(f"--on names no machine; write {' or '.join(_HOMES)}")
    found: list[tuple[str, Machine]] = []
    for word in words:
        if word not in _HOMES:
            raise UnknownNameError("machine", word, _HOMES, f"--on takes {', '.join(_HOMES)}.")
        if any(word == name for name, _ in found):
            raise UsageError(f"--on names {word} twice")
        module, name = _HOMES[word]
        found.append((word, getattr(import_module(module), name)(conditions)))
    return found
