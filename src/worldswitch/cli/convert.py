"""``wsw convert``: a trace in another format."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from worldswitch.cli import options
from worldswitch.cli.compare import is_trace
from worldswitch.errors import MissingError, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.record.trace import EventSource
    from worldswitch.trace.writers.catalog import Written

FORMATS = ("parquet", "perfetto", "ftrace", "trace.dat", "perf.data", "csv", "prometheus")
_ENDINGS = {
    ".json": "perfetto",
    ".txt": "ftrace",
    ".dat": "trace.dat",
    ".data": "perf.data",
    ".parquet": "parquet",
    ".csv": "csv",
    ".prom": "prometheus",
    "": "parquet",
}
_COMPRESSIONS = {"trace.dat": ("none", "zlib", "zstd"), "perf.data": ("none", "zstd")}
STDOUT = "-"
"""As a name: standard output."""
_LEVEL = 3
_ALL = ((None, None), None, None, None)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to write, and how."""

    output: str
    format: str
    version: int
    compression: str

    @property
    def piped(self) -> bool:
        """Whether the output is standard output or another thing that cannot seek."""
        if self.output == STDOUT:
            return True
        path = Path(self.output)
        return path.exists() and not path.is_dir() and not stat.S_ISREG(path.stat().st_mode)


@click.command()
@click.argument("trace")
@click.option("-o", "--output", required=True, metavar="OUT", help="File or folder to write; - is standard output.")
@click.option("--to", type=click.Choice(FORMATS), help="Format.  [default: told by OUT's ending]")
@click.option("--file-version", type=click.Choice(("6", "7")), help="Version of a trace.dat.  [default: 7]")
@click.option(
    "--compression",
    type=click.Choice(("none", "zlib", "zstd")),
    help="Of a trace.dat version 7 (zlib, zstd) or a perf.data (zstd).  [default: none]",
)
@options.limits("events")
@options.as_json
@options.as_python
def convert(
    trace: str,
    output: str,
    to: str | None,
    file_version: str | None,
    compression: str | None,
    vcpu: int | None,
    tid: int | None,
    vm: int | None,
    time: str | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Write TRACE in another format; or a result that wsw run --save wrote, as csv, parquet (one file) or prometheus.

    \b
    OUT's ending    format
    .parquet, none  a folder of one Parquet file per event, which open_trace and every command read
    .json           Perfetto's, for ui.perfetto.dev: a track per vCPU, a slice per exit
    .txt            the text of tracefs
    .dat            trace.dat, for trace-cmd and KernelShark
    .data           perf.data, for perf (on standard output its pipe form)
    .csv            a row per event
    .prom           OpenMetrics text: exits by VM, vCPU and reason, for Prometheus

    OUT appears only when it is whole.
    """
    target = chosen(output, to, file_version, compression)
    limits = (options.parse_time(time), vcpu, vm, tid)
    if not is_trace(trace):
        from worldswitch.cli.convert_result import convert_result

        options.refuse_same([trace], target.output)
        return convert_result(trace, target, limits != _ALL, as_json, as_python)
    if as_python:
        click.echo(_python(trace, target, limits))
        return 0
    if as_json and target.output == STDOUT:
        raise UsageError("--json and -o - both want standard output; write OUT to a file")
    _refuse_same(trace, target)
    source = _opened(trace, limits)
    written = write(source, target)
    _report(source, target, written, as_json)
    return 0


def chosen(
    output: str, to: str | None = None, file_version: str | None = None, compression: str | None = None
) -> Target:
    """What the options, or the ending of *output*, ask for."""
    form = to or _told_by_name(output)
    if file_version and form != "trace.dat":
        raise UsageError(f"--file-version is for trace.dat, not for {form}")
    known = _COMPRESSIONS.get(form, ())
    if compression and compression not in known:
        choice = f"has {', '.join(known)}" if known else "has its own or none"
        raise UsageError(f"{form} has no compression {compression}; it {choice}")
    if file_version == "6" and compression not in (None, "none"):
        raise UsageError("trace.dat version 6 has no compression; leave out --file-version 6 or --compression")
    return Target(output, form, int(file_version or 7), compression or "none")


def _told_by_name(output: str) -> str:
    if output == STDOUT:
        raise UsageError(f"-o - needs --to: one of {', '.join(FORMATS[1:])}")
    ending = "" if Path(output).is_dir() else Path(output).suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"{printable(output)!r} does not tell the format; add --to: one of {', '.join(FORMATS)}")
    return _ENDINGS[ending]


def _refuse_same(trace: str, target: Target) -> None:
    if target.output == STDOUT:
        if target.format == "parquet":
            raise UsageError("a folder of Parquet files cannot go to standard output; give -o a name")
        return
    output = Path(target.output)
    options.refuse_same([trace], target.output)
    if output.is_dir() and target.format != "parquet":
        raise UsageError(f"{printable(target.output)} is a folder; {target.format} is written to a file")


def _opened(trace: str, limits: tuple[Any, ...]) -> EventSource:
    """The source, limited to what was asked for."""
    from worldswitch.cli.progress import watched
    from worldswitch.record.slicing import VCPU_EVENTS, Limits, Sliced, threads_of_vcpu
    from worldswitch.trace import open_source

    (first, last), vcpu, vm, tid = limits
    source = open_source(trace)
    threads = None
    if vcpu is not None:
        # Which threads run a vCPU is known only at the end, so the trace is read twice, or held.
        if trace == "-":
            from worldswitch.record.trace import Trace

            source = Trace.read(watched(source, trace))
            threads = threads_of_vcpu(source.batches(), vcpu)
        else:
            threads = threads_of_vcpu(watched(open_source(trace), trace).batches(VCPU_EVENTS), vcpu)
    source = watched(source, trace)
    if limits == _ALL:
        return source
    return Sliced(source, Limits(first, last, threads, vm, tid))


def write(source: EventSource, target: Target) -> Written:
    """Write all of *source*; a file appears only when it is whole."""
    if target.format == "parquet":
        from worldswitch.record.parquet import save
        from worldswitch.trace.writers.catalog import Written

        return Written(save(source, target.output))
    binary = target.format in ("trace.dat", "perf.data")
    with _output(target, binary) as stream:
        return _writer(target)(source, stream)


def _writer(target: Target) -> Callable[[EventSource, IO[Any]], Written]:
    if target.format == "perfetto":
        from worldswitch.report.perfetto import write_perfetto

        return write_perfetto
    if target.format in ("csv", "prometheus"):
        from worldswitch.cli.convert_result import write_trace_csv, write_trace_metrics

        return write_trace_csv if target.format == "csv" else write_trace_metrics
    if target.format == "ftrace":
        from worldswitch.trace.writers.ftrace_text import write_ftrace_text

        return write_ftrace_text
    if target.format == "trace.dat":
        from worldswitch.trace.writers.tracedat import TraceDatOptions, write_tracedat

        chosen = TraceDatOptions(target.version, target.compression)
        return lambda source, stream: write_tracedat(source, stream, chosen)
    from worldswitch.trace.writers.perfdata import PerfOptions, write_perfdata

    how = PerfOptions(pipe=target.piped, level=_LEVEL if target.compression == "zstd" else None)
    return lambda source, stream: write_perfdata(source, stream, how)


@contextlib.contextmanager
def _output(target: Target, binary: bool) -> Iterator[IO[Any]]:
    """A stream whose file gets its name only if all went well."""
    if target.output == STDOUT:
        yield sys.stdout.buffer if binary else sys.stdout
        (sys.stdout.buffer if binary else sys.stdout).flush()
        return
    path = Path(target.output)
    if "\0" in target.output or not path.name:
        raise UsageError(f"{printable(target.output)!r} is no name for a file")
    name = printable(target.output)
    part = path if target.piped else path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    mode, encoding = ("b", None) if binary else ("", "utf-8")
    try:
        with part.open(("w" if target.piped else "x") + mode, encoding=encoding) as stream:
            yield stream
        if part is not path:
            part.replace(path)
    except OSError as error:
        if isinstance(error, MissingError | BrokenPipeError):
            raise
        raise MissingError(f"cannot write {name}: {error.strerror or error}") from None
    finally:
        if part is not path:
            part.unlink(missing_ok=True)


def _report(source: EventSource, target: Target, written: Written, as_json: bool) -> None:
    meta = source.meta
    notes = [*written.notes, *meta.damage]
    if written.skipped:
        left = ", ".join(f"{printable(name)} ({count})" for name, count in sorted(written.skipped.items()))
        notes.append(f"{target.format} cannot hold these events, which are left out: {left}")
    for note in notes:
        click.echo(f"wsw: {note}", err=True)
    if as_json:
        options.print_json(
            {
                "output": target.output,
                "format": target.format,
                "events": written.events,
                "skipped": dict(written.skipped),
                "lost": meta.lost,
                "complete": meta.complete,
                "notes": notes,
            }
        )
    elif target.output != STDOUT:
        click.echo(f"{written.events} events written to {printable(target.output)} ({target.format})", err=True)


def _python(trace: str, target: Target, limits: tuple[Any, ...]) -> str:
    time, vcpu, vm, tid = limits
    given = {"time": time if time != (None, None) else None, "vcpu": vcpu, "vm": vm, "tid": tid}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    lines = ["from worldswitch.trace import open_trace"]
    opened = f"trace = open_trace({trace!r})" + (f".slice({arguments})" if arguments else "")
    if target.format == "parquet":
        return "\n".join([*lines, "", opened, f"trace.save({target.output!r})"])
    if target.format in ("csv", "prometheus"):
        from worldswitch.cli.convert_result import python_of_trace

        return python_of_trace(opened, target.output, target.format)
    module, function, how, mode = {
        "perfetto": ("report.perfetto", "write_perfetto", "", "w"),
        "ftrace": ("trace.writers.ftrace_text", "write_ftrace_text", "", "w"),
        "trace.dat": (
            "trace.writers.tracedat",
            "write_tracedat",
            f"TraceDatOptions(version={target.version}, compression={target.compression!r})",
            "wb",
        ),
        "perf.data": (
            "trace.writers.perfdata",
            "write_perfdata",
            f"PerfOptions(pipe={target.piped}, level={_LEVEL if target.compression == 'zstd' else None})",
            "wb",
        ),
    }[target.format]
    names = ", ".join(sorted([function, *([how.partition("(")[0]] if how else [])]))
    lines += [f"from worldswitch.{module} import {names}", "", opened]
    stream = "sys.stdout.buffer" if mode == "wb" else "sys.stdout"
    call = f"{function}(trace, {{}}{', ' + how if how else ''})"
    if target.output == STDOUT:
        return "\n".join(["import sys", "", *lines, call.format(stream)])
    return "\n".join([*lines, f"with open({target.output!r}, {mode!r}) as stream:", "    " + call.format("stream")])
