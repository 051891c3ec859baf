"""Results, and traces as tables and metrics, for ``wsw convert``."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

import click

from worldswitch.cli import DONE, options
from worldswitch.errors import MissingError, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.cli.convert import Target
    from worldswitch.record.result import Result
    from worldswitch.record.trace import EventSource
    from worldswitch.trace.writers.catalog import Written

_FORMATS = ("csv", "parquet", "prometheus")
_STDOUT = "-"


def convert_result(path: str, target: Target, limited: bool, as_json: bool, as_python: bool) -> int:
    """Write the result in *path* to *target*.

    Raises:
        UsageError: The format is for traces, or a limit was given that is.
    """
    if limited:
        raise UsageError(f"--time, --vcpu, --vm and --pid are for traces, and {printable(path)} is a result")
    if target.format not in _FORMATS:
        raise UsageError(f"a result is written as {', '.join(_FORMATS)} (.csv, .parquet, .prom), not {target.format}")
    if target.format == "parquet" and target.output == _STDOUT:
        raise UsageError("Parquet does not go to standard output; give -o a name")
    if as_python:
        click.echo(_python(path, target))
        return DONE
    from worldswitch.record.resultfile import load

    result = load(path)
    if target.format == "parquet":
        from worldswitch.report.sheets import rows_of, write_parquet

        try:
            write_parquet(*rows_of(result), target.output)
        except OSError as error:
            raise MissingError(f"cannot write {printable(target.output)}: {error.strerror or error}") from None
    else:
        _write_text(_text(result, target.format), target.output)
    if as_json:
        options.print_json({"output": target.output, "format": target.format, "cells": len(result.cells)})
    elif target.output != _STDOUT:
        click.echo(f"{len(result.cells)} cells written to {printable(target.output)} ({target.format})", err=True)
    return DONE


def _text(result: Result, form: str) -> str:
    import io

    if form == "prometheus":
        from worldswitch.record.openmetrics import exposition
        from worldswitch.report.metrics import of_result

        return exposition(of_result(result))
    from worldswitch.report.sheets import rows_of, write_csv

    out = io.StringIO(newline="")
    write_csv(*rows_of(result), out)
    return out.getvalue()


def _write_text(text: str, output: str) -> None:
    from worldswitch.record.whole import write_whole

    if output == _STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_whole(output, text.encode())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MissingError(f"cannot write {printable(output)}: {why}; give -o another name") from None


def write_trace_csv(source: EventSource, stream: IO[str]) -> Written:
    """Write a row for each event of *source*."""
    from worldswitch.record.trace import Trace
    from worldswitch.report.sheets import events_of, write_csv
    from worldswitch.trace.writers.catalog import Written

    trace = Trace.read(source)
    write_csv(*events_of(trace), stream)
    return Written(len(trace))


def write_trace_metrics(source: EventSource, stream: IO[str]) -> Written:
    """Write what an account of *source* says."""
    from worldswitch.record.openmetrics import exposition
    from worldswitch.report.metrics import of_account
    from worldswitch.trace.account import account
    from worldswitch.trace.writers.catalog import Written

    found = account(source)
    stream.write(exposition(of_account(found)))
    return Written(sum(found.meta.events.values()))


def python_of_trace(opened: str, output: str, form: str) -> str:
    """The calls that do the same for a trace."""
    head = ["import sys", ""] if output == _STDOUT else []
    head.append("from worldswitch.trace import open_trace")
    if form == "csv":
        head.append("from worldswitch.report.sheets import events_of, write_csv")
        call = "write_csv(*events_of(trace), {})"
    else:
        head += [
            "from worldswitch.record.openmetrics import exposition",
            "from worldswitch.report.metrics import of_account",
            "from worldswitch.trace.account import account",
        ]
        call = "{}.write(exposition(of_account(account(trace))))"
    if output == _STDOUT:
        return "\n".join([*head, "", opened, call.format("sys.stdout")])
    return "\n".join([*head, "", opened, f"with open({output!r}, 'w') as stream:", "    " + call.format("stream")])


def _python(path: str, target: Target) -> str:
    head = ["import sys", ""] if target.output == _STDOUT else []
    head.append("from worldswitch.record.resultfile import load")
    stream = "sys.stdout" if target.output == _STDOUT else "stream"
    if target.format == "prometheus":
        head += [
            "from worldswitch.record.openmetrics import exposition",
            "from worldswitch.report.metrics import of_result",
        ]
        call = f"{stream}.write(exposition(of_result(result)))"
    elif target.format == "csv":
        head.append("from worldswitch.report.sheets import rows_of, write_csv")
        call = f"write_csv(*rows_of(result), {stream})"
    else:
        head.append("from worldswitch.report.sheets import rows_of, write_parquet")
        call = f"write_parquet(*rows_of(result), {target.output!r})"
    lines = [*head, "", f"result = load({path!r})"]
    if stream == "stream" and target.format != "parquet":
        return "\n".join([*lines, f"with open({target.output!r}, 'w') as stream:", f"    {call}"])
    return "\n".join([*lines, call])
