"""KVM's events recorded inside a machine of the lab, and the recording saved in the form its name asks for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from worldswitch.cli.convert import STDOUT, chosen, write
from worldswitch.errors import MissingError, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.lab.jobs import JobResult

_TOOLS = {"perf.data": "perf", "trace.dat": "trace-cmd"}
TRACEFS = "tracefs"
"""Records as text, and needs no tool."""


def check(output: str) -> None:
    """Refuse a name that tells no format, or where nothing can be written, before anything is started.

    Raises:
        UsageError: It is one of these, or standard output.
        MissingError: It lies in a folder that is not there.
    """
    if output == STDOUT:
        raise UsageError("a recording goes to a file or folder; give --trace its name")
    try:
        target = chosen(output)
    except UsageError:
        raise UsageError(
            f"--trace {printable(output)!r} does not tell the format; name a folder, or a file that ends in .data, "
            ".dat, .txt or .json"
        ) from None
    if target.format == "parquet":
        from worldswitch.record.parquet import check_place

        check_place(Path(output))
    elif not Path(output).absolute().parent.is_dir():
        raise MissingError(f"no folder for {printable(output)}; make it, or give --trace another name")


def recorder(output: str) -> str:
    """What records for a file of that name: the tool whose own format it is, else whatever is there."""
    from worldswitch.lab import cache

    own = _TOOLS.get(chosen(output).format)
    if own:
        return own
    return next((tool for tool in ("trace-cmd", "perf") if cache.find("tools", tool)), TRACEFS)


def named(output: str, words: Sequence[str]) -> str:
    """*output* with *words* in its name, which tell it from recordings of other machines."""
    path = Path(output)
    safe = ["".join(c if c.isalnum() or c in "._" else "-" for c in word) for word in words]
    return str(path.with_name("-".join([path.stem, *safe]) + path.suffix))


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
