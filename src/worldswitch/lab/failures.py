"""How a machine of the lab can fail, each with the last lines of its console.

::

    MissingError
    └── MachineError           a machine of the lab gave no results
        ├── MachineCrashed     it ended, panicked or reset itself
        ├── MachineHung        it was still running at its deadline
        ├── MachineRefused     the guest says what it lacks: a module parameter, a module that loads
        └── ResultMissing      it came to its end and left no, or half, results
"""

from __future__ import annotations

from collections.abc import Sequence

from worldswitch.errors import MissingError, printable

TAIL = 12
"""Lines of the console that a message shows."""


class MachineError(MissingError):
    """A machine of the lab gave no results.

    Attributes:
        console: The last lines of its console, oldest first.
        stage: Where it was: ``"booting"``, ``"ready"`` or ``"running"``.
    """

    def __init__(self, sentence: str, console: Sequence[str] = (), stage: str = "booting") -> None:
        self.console = tuple(console)
        self.stage = stage
        tail = [printable(line) for line in self.console[-TAIL:]]
        shown = "\n".join(f"  | {line}" for line in tail) if tail else "  | (nothing)"
        super().__init__(f"{sentence}; the end of its console:\n{shown}")


class MachineCrashed(MachineError):
    """It ended, panicked or reset itself."""


class MachineHung(MachineError):
    """It was still running at its deadline."""


class MachineRefused(MachineError):
    """The guest said what it lacks."""


class ResultMissing(MachineError):
    """It came to its end and left no whole results."""
