"""What can go wrong, as a tree.

::

    WorldswitchError                 every error this package raises on purpose
    ├── UsageError                   (ValueError)   the request itself makes no sense
    │   └── UnknownNameError         (LookupError)  a kernel, fact, event, reason ... nobody knows
    ├── TraceFormatError             (ValueError)   the file is not, or no longer, a trace we can read
    ├── NotTold                      (ValueError)   the answer is not in the data
    └── MissingError                 (OSError)      a device, permission, program or file is not there

Each message says what, where, the nearest thing that exists, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable


class WorldswitchError(Exception):
    """Root of all errors raised on purpose."""


class UsageError(WorldswitchError, ValueError):
    """The request contradicts itself or names something of the wrong kind."""


class UnknownNameError(UsageError, LookupError):
    """A name that is in no table; the message names the nearest ones.

    Args:
        kind: What the name should have been, such as ``"kernel"``.
        name: The name as given.
        known: All names that exist.
        remedy: What to do about it; appended as its own sentence.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        import difflib

        near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.5)
        text = f"unknown {kind} {printable(name)!r}"
        if near:
            text += f"; nearest: {', '.join(near)}"
        if remedy:
            text += f". {remedy}"
        super().__init__(text)


class TraceFormatError(WorldswitchError, ValueError):
    """Not a trace, or one damaged before the first event."""


class NotTold(WorldswitchError, ValueError):
    """The data does not hold the answer (as opposed to: there is nothing to answer)."""


class MissingError(WorldswitchError, OSError):
    """Something needed is not on this machine; the message says how to get it."""


def printable(text: str) -> str:
    """*text* with every character that could steer a terminal or break a line written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
