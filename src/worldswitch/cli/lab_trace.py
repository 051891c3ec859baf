"""KVM's events recorded inside a machine of the lab, and the recording saved in the form its name asks for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from worldswitch.cli.convert import chosen, write
from worldswitch.errors import MissingError, printable

if TYPE_CHECKING:
    from worldswitch.lab.jobs import JobResult

_TOOLS = {"perf.data": "perf", "trace.dat": "trace-cmd"}
TRACEFS = "tracefs"
"""Records as text, and needs no tool."""


def recorder(output: str) -> str:
    """What records for a file of that name: the tool whose own format it is, else whatever is there."""
    from worldswitch.lab import cache

    own = _TOOLS.get(chosen(output).format)
    if own:
        return own
    return next((tool for tool in ("trace-cmd", "perf") if cache.find("tools", tool)), TRACEFS)


def keep(result: JobResult, tool: str, output: str) -> str:
    """Save the recording among the files of *result*; a sentence about it.

    Raises:
        MissingError: There is none, or it cannot be written.
    """
    from worldswitch.lab.jobs import TRACERS

    data = result.files.get(TRACERS[tool])
    if data is None:
        said = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = printable(said[0]) if said else "it said nothing"
        raise MissingError(f"{tool} left no recording in the guest: {why}")
    target = chosen(output)
    try:
        if _TOOLS.get(target.format) == tool:
            Path(output).write_bytes(data)
        else:
            with tempfile.TemporaryDirectory(prefix="wsw-lab-") as folder:
                from worldswitch.trace import open_source

                raw = Path(folder, TRACERS[tool])
                raw.write_bytes(data)
                write(open_source(raw), target)
    except OSError as error:
        if isinstance(error, MissingError):
            raise
        raise MissingError(f"cannot write {printable(output)}: {error.strerror}; give --trace another name") from None
    return f"{printable(output)}: recorded by {tool}"
