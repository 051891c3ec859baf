"""``wsw analyze``: what the world switches in a trace cost, and why they happened."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options
from worldswitch.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from worldswitch.trace.account import Account

BY = ("reason", "vcpu", "vm")
SHOWN = 20


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@options.filters
@click.option("--by", "by", metavar="KEYS", help="Rows of the exit table: some of reason,vcpu,vm. [default: reason]")
@click.option("--top", type=click.IntRange(0), default=5, show_default=True, help="Hot places of each kind to list.")
@options.exit_tables
@click.option("--fail-on", "fail_on", multiple=True, metavar="DETECTOR", help="Exit with 1 if it saw something.")
@options.as_json
@options.as_markdown
@options.as_python
def analyze(
    traces: tuple[str, ...],
    vcpu: int | None,
    tid: int | None,
    vm: int | None,
    time: str | None,
    reasons: tuple[str, ...],
    than: str | None,
    by: str | None,
    top: int,
    tables: Path | None,
    fail_on: tuple[str, ...],
    as_json: bool,
    as_python: bool,
) -> int:
    """Say what the world switches in each TRACE cost, and why they happened.

    TRACE is a perf.data, a trace.dat, text of tracefs, trace-cmd report or perf script (also as pasted into a mail),
    strace output, or a table of perf kvm stat, kvm_stat or kvm-unit-tests; plain or compressed; - is standard input.
    """
    from worldswitch.trace.detect import DETECTORS

    for name in fail_on:
        if name not in DETECTORS:
            raise UnknownNameError("detector", name, DETECTORS, f"Known are {', '.join(DETECTORS)}.")
    keys = _keys(by)
    if as_python:
        click.echo(_python(traces, (vcpu, tid, vm, time, reasons, than), by, tables))
        return 0
    exit_tables = options.load_tables(tables)
    only = options.make_filter(vcpu, tid, vm, time, reasons, than, exit_tables)
    from worldswitch.cli.progress import watched
    from worldswitch.trace.account import BY as ALL
    from worldswitch.trace.account import account
    from worldswitch.trace.readers import open_source

    results = []
    for trace in traces:
        source = watched(open_source(trace), trace)
        grouping = keys if keys is not None else (ALL if as_json else ("reason",))
        result = account(source, only, exit_tables, by=grouping, hot=top)
        results.append(result)
        if not as_json:
            if len(traces) > 1:
                click.echo(f"{'' if len(results) == 1 else chr(10)}== {result.meta.source}")
            click.echo(describe(result), nl=False)
    if as_json:
        documents = [_document(result) for result in results]
        options.print_json(documents[0] if len(documents) == 1 else {"traces": documents})
    sys.stdout.flush()
    seen = {detection.id for result in results for detection in result.detections}
    return 1 if seen & set(fail_on) else 0


def _keys(by: str | None) -> tuple[str, ...] | None:
    if by is None:
        return None
    keys = tuple(part.strip() for part in by.split(","))
    for key in keys:
        if key not in BY:
            raise UnknownNameError("key for --by", key, BY, f"Known are {', '.join(BY)}.")
    return keys


def to_json(result: Account) -> dict[str, Any]:
    """The JSON document of one account."""
    whole = _document(result)
    rows = ("exits", "cr_writes", "vcpus", "hot", "detectors")
    return {key: [asdict(row) for row in value] if key in rows else value for key, value in whole.items()}


def _document(result: Account) -> dict[str, Any]:
    """The same with the rows as they are; printing turns them into JSON one by one."""
    meta = result.meta.as_json()
    events = meta.pop("events")
    return {
        "meta": meta,
        "exits": result.exits,
        "cr_writes": result.cr_writes,
        "vcpus": result.vcpus,
        "hot": result.hot,
        "detectors": result.detections,
        "tables": result.tables,
        "events": {name: n for name, n in events.items() if n},
    }


def describe(result: Account) -> str:
    """The account as text a person reads, at most 100 columns wide."""
    from worldswitch.cli.analyze_text import text

    return text(result, SHOWN)


def _python(
    traces: tuple[str, ...],
    given: tuple[int | None, int | None, int | None, str | None, tuple[str, ...], str | None],
    by: str | None,
    tables: Path | None,
) -> str:
    vcpu, tid, vm, time, reasons, than = given
    lines = [
        "from worldswitch.trace import open_source",
        "from worldswitch.trace.account import Filter, account",
    ]
    names = ""
    if tables is not None or reasons:
        lines.append("from worldswitch.x86.exits import ExitTables, reason_number")
    if tables is not None:
        names = ", tables=tables"
        lines.append(f"tables = ExitTables.load({str(tables)!r})")
    only = options.make_filter(vcpu, tid, vm, time, reasons, than, options.load_tables(tables))
    lines.append(f"only = {only!r}")
    if by is not None:
        names += f", by={_keys(by)!r}"
    lines.append(f"for path in {list(traces)!r}:")
    lines.append(f"    result = account(open_source(path), only{names})")
    lines.append("    print(result.exits, result.cr_writes, result.detections)")
    if any("\n" in trace for trace in traces):
        raise UsageError("a trace's name holds a line break; rename it")
    return "\n".join(lines)
