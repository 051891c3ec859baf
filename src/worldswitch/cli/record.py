"""``wsw record``: record the KVM events that the other commands need."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from worldswitch.cli import options
from worldswitch.errors import TraceFormatError, UsageError, printable
from worldswitch.units import format_size, parse_duration

if TYPE_CHECKING:
    from worldswitch.live.record import Plan, Recording, Request
    from worldswitch.record.trace import Meta


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@click.option(
    "-o", "--output", metavar="OUT", help="File to write.  [default: kvm.perf.data, with tracefs kvm.trace.txt.gz]"
)
@click.option(
    "--events", default="default", metavar="SET|EVENT,...", help="default, cr, all, or events.  [default: default]"
)
@click.option("--pid", "pids", type=int, multiple=True, help="Only this process, all its threads; may be repeated.")
@click.option("--vm", "vms", type=int, multiple=True, help="The same, of a process that holds a VM.")
@click.option("-a", "--all-cpus", "everywhere", is_flag=True, help="Every VM of this host while CMD runs.")
@click.option("--seconds", metavar="S", help="Stop after this time: 10, 500ms, 2min.")
@click.option("--filter", "exit_filter", metavar="EXPR", help="Kernel-side filter on kvm_exit, or: cr.")
@click.option("--tool", type=click.Choice(("perf", "tracefs")), help="What records.  [default: perf if there is one]")
@click.option("--dry-run", is_flag=True, help="Print the commands that would record, and do nothing.")
@options.as_json
@options.as_python
def record(
    program: tuple[str, ...],
    output: str | None,
    events: str,
    pids: tuple[int, ...],
    vms: tuple[int, ...],
    everywhere: bool,
    seconds: str | None,
    exit_filter: str | None,
    tool: str | None,
    dry_run: bool,
    as_json: bool,
    as_python: bool,
) -> int:
    """Record the KVM events that analyze and whatif need, in few bytes.

    With CMD: the VMs that it and what it starts run, until it ends. Without: every VM of this host, until --seconds or
    Ctrl-C. An OUT that exists is kept as OUT.old.

    \b
    --events  default  what analyze and whatif use
              cr       only what tells the cost of control-register writes
              all      every event of kvm and kvmmmu; many bytes
    --filter cr records only control-register exits, so other exits and their cost are not in the file.
    """
    from worldswitch.live.record import Request, carry_out, plan

    limit = None if seconds is None else parse_duration(seconds) / 1e9
    request = Request(output, events, program, pids, vms, everywhere, limit, exit_filter, tool)
    if as_python:
        click.echo(_python(request))
        return 0
    how = plan(request)
    if dry_run:
        click.echo(how.shell())
        return 0
    _announce(how, request, as_json)
    _report(how, carry_out(how), as_json)
    return 0


def _announce(how: Plan, request: Request, as_json: bool) -> None:
    if how.because:
        click.echo(f"wsw: recording through tracefs: {how.because}", err=True)
    if not how.program and request.seconds is None and not as_json:
        click.echo(f"wsw: recording to {printable(str(how.output))}; Ctrl-C ends it", err=True)


def _report(how: Plan, done: Recording, as_json: bool) -> None:
    """One line (or document) about the recording, from the recording itself."""
    meta = read_back(done.path)
    counts = {name: n for name, n in meta.events.items() if n}
    following = shlex.join(["wsw", "analyze", str(done.path)]) if counts else None
    notes = _notes(how, done, counts, meta)
    if as_json:
        options.print_json(
            {
                "output": str(done.path),
                "tool": done.tool,
                "size_bytes": done.size,
                "events": counts,
                "absent": list(how.absent),
                "lost": meta.lost,
                "complete": meta.complete,
                "command_status": done.status,
                "interrupted": done.interrupted,
                "notes": notes,
                "next": following,
            }
        )
        return
    for note in notes:
        click.echo(f"wsw: {note}", err=True)
    lost = f"{meta.lost:,} LOST" if meta.lost else "none lost"
    then = f"; next: {printable(following)}" if following else ""
    click.echo(
        f"{printable(str(done.path))}: {format_size(done.size)}, {sum(counts.values()):,} events, {lost}{then}",
        err=True,
    )


def read_back(path: Path) -> Meta:
    """What the recording itself says of what is in it."""
    from worldswitch.record.trace import Meta
    from worldswitch.trace import open_source

    try:
        source = open_source(path)
    except TraceFormatError:
        # A text without a single event is nothing a reader can know.
        return Meta(source=str(path))
    for _ in source.batches({}):
        pass
    return source.meta


def _notes(how: Plan, done: Recording, counts: dict[str, int], meta: Meta) -> list[str]:
    notes = list(meta.damage)
    if done.status:
        ended = f"with status {done.status}" if done.status > 0 else f"by signal {-done.status}"
        notes.append(f"the command {printable(how.program[0])} ended {ended}; the recording is kept")
    if meta.lost:
        slow = "through perf, " if how.tool == "tracefs" else ""
        notes.append(f"events were lost: record {slow}fewer (--events cr), fewer VMs (--vm), or onto a faster disk")
    if not counts:
        where = "; CMD and what it started ran no VM; -a records every VM of this host" if how.program else ""
        notes.append(f"no event was recorded{where}")
    elif "kvm:kvm_exit" in how.events and "kvm_exit" not in counts:
        notes.append(
            "there is no kvm_exit in it: no vCPU ran, a filter let none pass, or this is a software KVM that emits none"
        )
    return notes


def _python(request: Request) -> str:
    from dataclasses import fields

    given = {f.name: getattr(request, f.name) for f in fields(request) if getattr(request, f.name) != f.default}
    if any("\n" in word for word in (request.output or "", *request.program)):
        raise UsageError("a name holds a line break; write the call by hand")
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return "\n".join(
        [
            "from worldswitch.live.record import Request, record",
            "from worldswitch.trace import open_source",
            "",
            f"recording = record(Request({arguments}))",
            "source = open_source(recording.path)",
            "for batch in source.batches({}):",
            "    pass",
            "print(recording, source.meta.events, source.meta.lost)",
        ]
    )
