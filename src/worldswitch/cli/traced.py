"""A command run under the recorder, and its recording saved in the form its name asks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from worldswitch.cli import INTERRUPTED, recording_target
from worldswitch.cli.convert import STDOUT, Target, write
from worldswitch.cli.record import read_back
from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.units import format_size

if TYPE_CHECKING:
    from worldswitch.live.record import Recording
    from worldswitch.record.trace import Meta

_RAW = "perf.data"


def run_traced(arguments: Sequence[str], output: str) -> int:
    """Run ``wsw`` with *arguments* while KVM's events are recorded, and save those to *output*.

    Returns:
        The exit status of the command.

    Raises:
        UsageError: *output* does not tell the format, or is standard output.
        MissingError: Nothing here can record; see :func:`worldswitch.live.record.plan`.
    """
    from worldswitch.live.record import Request, carry_out, plan

    if output == STDOUT:
        raise UsageError("a recording is read back at its end, so it cannot go to standard output; name a file")
    target = recording_target.target(output)
    program = (sys.executable, "-c", "from worldswitch.cli import main; main()", *arguments)
    path = Path(output)
    raw = path.with_name(f".{path.name[:200]}.{os.getpid()}.recording")
    how = plan(Request(str(raw), program=program))
    try:
        done = carry_out(how)
        meta = read_back(raw)
        counts = {name: n for name, n in meta.events.items() if n}
        notes = list(_notes(meta, counts))
        size = _save(raw, target, done)
    finally:
        raw.unlink(missing_ok=True)
    if how.because:
        notes.insert(0, f"recorded through tracefs: {how.because}")
    for note in notes:
        click.echo(f"wsw: {note}", err=True)
    lost = f"{meta.lost:,} LOST" if meta.lost else "none lost"
    click.echo(f"{printable(output)}: {size}{sum(counts.values()):,} events, {lost}", err=True)
    return INTERRUPTED if done.status is None else done.status if done.status >= 0 else 128 - done.status


def _notes(meta: Meta, counts: Mapping[str, int]) -> Iterator[str]:
    yield from meta.damage
    if meta.lost:
        yield "events were lost; run fewer programs, or fewer units of them (-n), or record onto a faster disk"
    if not counts:
        yield "no event was recorded: no vCPU ran"
    elif "kvm_exit" not in counts:
        yield "there is no kvm_exit in the recording: no vCPU ran, or this is a software KVM that emits none"


def _save(raw: Path, target: Target, done: Recording) -> str:
    """Put the recording where it belongs; its size, where it is one file."""
    from worldswitch.trace import open_source

    path = Path(target.output)
    if target.format == _RAW and done.tool == "perf":
        try:
            raw.replace(path)
        except OSError as error:
            raise MissingError(f"cannot write {printable(str(path))}: {error.strerror}") from None
    else:
        write(open_source(raw), target)
    return f"{format_size(path.stat().st_size)}, " if path.is_file() else ""
