"""``wsw fleet``: many traces, sweeps of many cells, snapshots of many hosts; here or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from worldswitch.cli import DONE, FOUND, options
from worldswitch.cli.termination import ended_politely
from worldswitch.errors import UsageError
from worldswitch.kit.doctor import PROFILES

if TYPE_CHECKING:
    from worldswitch.fleet.cluster import Wanted
    from worldswitch.fleet.engine import Pool
    from worldswitch.fleet.folder import Folder
    from worldswitch.fleet.pieces import Say

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--workers", type=click.IntRange(0, 4096), help="Processes; 0: in this one.  [default: one a CPU]"),
    click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler that runs, such as tcp://10.0.0.1:8786."),
    click.option("--tls-ca-file", metavar="FILE", help="Of the scheduler's certificate authority, for tls://."),
    click.option("--tls-cert", metavar="FILE", help="This client's certificate."),
    click.option("--tls-key", metavar="FILE", help="Its key."),
    click.option("--retry", is_flag=True, help="Try once more what could not be read or run before."),
)


def _engine(command: F) -> F:
    """A command with the options of who does the work."""
    for decorator in reversed(_OPTIONS):
        command = decorator(command)
    return command


@click.group()
def fleet() -> None:
    """Work on many traces, cells or snapshots, on this machine or on a Dask cluster.

    What is finished is kept in the folder after -o. Ask the same again to go on after an interruption; the result is
    the same, byte by byte, whatever did the work. What cannot be read is named and left out, and the exit status is 1.
    """


@fleet.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH|GLOB|URL...")
@click.option("-o", "--output", required=True, metavar="DIR|URL", help="Where tables go, and what is finished.")
@click.option("--to", metavar="KERNEL[+FACT]", help="Say what the fleet would save on that kernel.")
@click.option("--from", "from_", metavar="KERNEL", help="The kernel of traces that do not name theirs.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Say what a setting would save.")
@click.option(
    "--names", default="", metavar="REGEX", help="Groups (?P<host>...) and (?P<class>...) of paths name hosts."
)
@click.option(
    "--largest", default="2GiB", show_default=True, metavar="SIZE", help="Leave larger files out, and name them."
)
@_engine
@options.as_json
@options.as_python
def analyze(
    paths: tuple[str, ...],
    output: str,
    to: str | None,
    from_: str | None,
    settings: tuple[str, ...],
    names: str,
    largest: str,
    retry: bool,
    as_json: bool,
    as_python: bool,
    **who: Any,
) -> int:
    """Account for the world switches of many traces: by kernel, vendor and class of host; outliers; savings.

    A folder stands for all files in it. Tables are Parquet files under DIR: traces, hosts, groups, reasons, cr_writes,
    detections, failed; summary.json has the rest.
    """
    from worldswitch.fleet.traces import TraceWork

    _insist_on_names(names)
    work = TraceWork(to, from_, settings, names, _size(largest), str(Path.cwd()))
    _insist_on_question(work.to, work.from_, work.settings)
    wanted = _wanted(who)
    if as_python:
        given = {one.name: getattr(work, one.name) for one in fields(work)}
        default = TraceWork()
        call = ", ".join(
            f"{name}={value!r}" for name, value in given.items() if value != getattr(default, name) and name != "folder"
        )
        click.echo(
            _python(
                wanted, output,
                ["from worldswitch.fleet.analyze import analyze, summary", "from worldswitch.fleet.find import find",
                 "from worldswitch.fleet.traces import TraceWork"],
                f"summary(analyze(find({list(paths)!r}), TraceWork({call}), folder, pool, say, {retry}))",
            ), nl=False,
        )  # fmt: skip
        return DONE
    from worldswitch.cli.fleet_text import analyzed
    from worldswitch.fleet.analyze import analyze as run
    from worldswitch.fleet.analyze import summary
    from worldswitch.fleet.find import find

    inputs = find(paths)
    with _at_work(wanted, output) as (folder, pool, say):
        found = run(inputs, work, folder, pool, say, retry)
    _show(summary(found) if as_json else analyzed(found, output, to or ", ".join(settings)))
    return FOUND if len(found.tables["failed"]) else DONE


@fleet.command()
@click.argument("spec", metavar="SPEC.toml")
@click.option("-o", "--output", required=True, metavar="DIR|URL", help="Where the dataset goes.")
@click.option("--root", "roots", multiple=True, metavar="DIR", help="A folder that files the spec names may be in.")
@_engine
@options.as_json
@options.as_python
def sweep(
    spec: str, output: str, roots: tuple[str, ...], retry: bool, as_json: bool, as_python: bool, **who: Any
) -> int:
    """Run every combination of programs, kernels, processors and settings that SPEC lists, or a sample of them.

    The dataset is under DIR/cells: Parquet files in folders named by the axes the spec says to partition by. Values
    that exclude each other give a row with the status refused; a cell that could not be run is failed.
    """
    wanted = _wanted(who)
    if as_python:
        click.echo(
            _python(
                wanted, output,
                ["from worldswitch.cli.fleet_cells import run_cells", "from worldswitch.fleet.spec import load",
                 "from worldswitch.fleet.sweep import sweep"],
                f"sweep(load({spec!r}, {list(roots)!r}), run_cells, folder, pool, say, {retry})",
            ), nl=False,
        )  # fmt: skip
        return DONE
    from worldswitch.cli.fleet_cells import run_cells
    from worldswitch.cli.fleet_text import swept
    from worldswitch.fleet.spec import load
    from worldswitch.fleet.sweep import FAILED
    from worldswitch.fleet.sweep import sweep as run

    chosen = load(spec, roots)
    with _at_work(wanted, output) as (folder, pool, say):
        found = run(chosen, run_cells, folder, pool, say, retry)
    errors = [{"error": error, "cells": count} for error, count in found.errors]
    _show({"cells": found.cells, "status": found.status, "errors": errors} if as_json else swept(found, output))
    return FOUND if found.status.get(FAILED) else DONE


@fleet.command()
@click.argument("snapshots", nargs=-1, required=True, metavar="SNAPSHOT.tar|DIR|GLOB|URL...")
@click.option("-o", "--output", metavar="DIR|URL", help="Where tables go, and what is finished.  [default: nowhere]")
@click.option("--profile", type=click.Choice(PROFILES), default="default", help="What the hosts are for.")
@_engine
@options.as_json
@options.as_python
def doctor(
    snapshots: tuple[str, ...],
    output: str | None,
    profile: str,
    retry: bool,
    as_json: bool,
    as_python: bool,
    **who: Any,
) -> int:
    """Judge the snapshots of many hosts (wsw doctor --snapshot): the worst first, and which fix mends how many."""
    import tempfile

    from worldswitch.fleet.doctor import SnapshotWork

    wanted, work = _wanted(who), SnapshotWork(profile, str(Path.cwd()))
    if as_python:
        click.echo(
            _python(
                wanted, output or "fleet",
                ["from worldswitch.fleet.doctor import SnapshotWork, doctor, summary",
                 "from worldswitch.fleet.find import find"],
                f"summary(doctor(find({list(snapshots)!r}), SnapshotWork({profile!r}), folder, pool, say, {retry}))",
            ), nl=False,
        )  # fmt: skip
        return DONE
    from worldswitch.cli.fleet_text import judged
    from worldswitch.fleet.doctor import doctor as run
    from worldswitch.fleet.doctor import summary
    from worldswitch.fleet.find import find

    inputs = find(snapshots)
    with (
        tempfile.TemporaryDirectory(prefix="wsw-fleet-") as passing,
        _at_work(wanted, output or passing) as (folder, pool, say),
    ):
        found = run(inputs, work, folder, pool, say, retry)
    _show(summary(found) if as_json else judged(found))
    return FOUND if found.failed else DONE


def _show(what: dict[str, Any] | str) -> None:
    if isinstance(what, str):
        click.echo(what, nl=False)
    else:
        options.print_json(what)


def _wanted(who: dict[str, Any]) -> Wanted:
    from worldswitch.fleet.cluster import Tls, Wanted, insist_on_possible

    insist_on_possible(who["workers"], who["scheduler"])
    tls = [who[name] for name in ("tls_ca_file", "tls_cert", "tls_key")]
    if any(tls) and not all(tls):
        raise UsageError("TLS needs all three: --tls-ca-file, --tls-cert and --tls-key")
    if any(tls) and who["scheduler"] is None:
        raise UsageError("TLS is for --scheduler; a cluster that this command starts cannot be reached from elsewhere")
    return Wanted(who["scheduler"], who["workers"], Tls(*tls) if all(tls) else None)


@contextmanager
def _at_work(wanted: Wanted, output: str) -> Iterator[tuple[Folder, Pool, Say]]:
    """The folder, held; who does the work; and a line that says how far it is."""
    from worldswitch.cli.progress import Line
    from worldswitch.fleet.cluster import cluster
    from worldswitch.fleet.engine import Here
    from worldswitch.fleet.folder import Folder

    folder, line = Folder(output), Line()
    with ended_politely(), folder.held():
        try:
            if wanted.workers == 0:
                yield folder, Here(), line.say
            else:
                with cluster(wanted) as pool:
                    if pool.dashboard:
                        click.echo(f"Dask's dashboard: {pool.dashboard}", err=True)
                    yield folder, pool, line.say
        finally:
            line.clear()


def _size(text: str) -> int:
    """Bytes of a size such as ``2GiB``.

    Raises:
        UsageError: It is none.
    """
    import re

    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(i?b)?\s*", text, re.IGNORECASE)
    if not found or len(found[1]) > 12:
        raise UsageError(f"--largest {text!r} is no size; write a number and a unit, such as 512MiB or 4GiB")
    return int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ")


def _insist_on_names(names: str) -> None:
    import re

    try:
        groups = re.compile(names).groupindex
    except re.error as error:
        raise UsageError(f"--names {names!r} is no regular expression: {error}") from None
    if names and not {"host", "class"} & set(groups):
        raise UsageError(f"--names {names!r} has neither a group (?P<host>...) nor (?P<class>...)")


def _insist_on_question(to: str | None, from_: str | None, settings: tuple[str, ...]) -> None:
    """Refuse what no trace could answer, before the first is read."""
    from worldswitch.kvm.distributions import kernel_named
    from worldswitch.kvm.policy import Policy

    for name in (to, from_):
        if name is not None:
            kernel_named(name)
    if from_ is not None and to is None and not settings:
        raise UsageError("--from is for a question; ask it with --to KERNEL or --set NAME=VALUE")
    errors = []
    for vendor in ("intel", "amd") if settings else ():
        try:
            Policy.of(to or "6.12", vendor, "default", list(settings))
        except UsageError as error:
            errors.append(error)
    if len(errors) == 2:
        raise errors[0]


def _python(wanted: Wanted, output: str, imports: list[str], call: str) -> str:
    given = {one.name: getattr(wanted, one.name) for one in fields(wanted)}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    here = wanted.workers == 0
    names = ", ".join(["Wanted", "cluster", *(["Tls"] if wanted.tls else [])])
    engine = "from worldswitch.fleet.engine import Here" if here else f"from worldswitch.fleet.cluster import {names}"
    lines = sorted([*imports, engine, "from worldswitch.fleet.folder import Folder"])
    body = ["", "def say(line):", "    pass", "", "", f"folder = Folder({output!r})"]
    if here:
        body += ["with folder.held():", "    pool = Here()", f"    print({call})"]
    else:
        # Workers import the file that starts them.
        body += [
            'if __name__ == "__main__":',
            f"    with folder.held(), cluster(Wanted({arguments})) as pool:",
            f"        print({call})",
        ]
    return "\n".join([*lines, "", *body, ""])
