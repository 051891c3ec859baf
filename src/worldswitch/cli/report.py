"""``wsw report``: one HTML file of any traces, results, hosts and conformance tables."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import DONE, options
from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.kit.doctor import PROFILES

if TYPE_CHECKING:
    from collections.abc import Sequence

_STDOUT = "-"
_ALL = "all"


@click.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@click.option("-o", "--output", metavar="OUT.html", help="File to write; - is standard output.")
@click.option("--to", multiple=True, metavar="KERNEL[+FACT]", help="A kernel to ask about. [default: the newest]")
@click.option("--from", "from_", metavar="KERNEL", help="Kernel of the traces, where their files do not name it.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the host asked about.")
@click.option("--published", multiple=True, metavar="NAME", help="Add this published table beside the model, or all.")
@click.option("--profile", type=click.Choice(PROFILES), default="default", help="By which snapshots are judged.")
@click.option("--top", type=click.IntRange(0), default=20, show_default=True, help="Hot places of each kind to list.")
@options.exit_tables
@click.option("--title", default="", help="Title of the page.")
@options.as_json
@options.as_python
def report(
    inputs: tuple[str, ...],
    output: str | None,
    to: tuple[str, ...],
    from_: str | None,
    settings: tuple[str, ...],
    published: tuple[str, ...],
    profile: str,
    top: int,
    tables: Path | None,
    title: str,
    as_json: bool,
    as_python: bool,
) -> int:
    """Write a page about INPUTs that opens in any browser and needs nothing else.

    \b
    INPUT is  a trace            as wsw analyze reads it; the page has its timeline and what-ifs
              a saved result     of wsw run --save
              a host             a snapshot, or what wsw doctor --json printed
              conformance        a table of wsw conform -o

    Each is told by its content. OUT appears only when it is whole. With --json what the page holds is printed, and no
    page is needed.
    """
    if not inputs and not published:
        raise UsageError("name what to report: traces, saved results, snapshots; or --published all")
    if output is None and not (as_json or as_python):
        raise UsageError("say where to write the page: -o report.html")
    names = None if not published else () if _ALL in published else published
    if as_python:
        click.echo(_python(inputs, output, (to, from_, settings, top, tables), names, profile, title), nl=False)
        return DONE
    if output is not None:
        _refuse(inputs, output, as_json)
    from worldswitch.cli.progress import watched
    from worldswitch.report.build import report as build
    from worldswitch.report.document import to_json
    from worldswitch.report.study import Question

    found = build(
        inputs,
        Question(to, from_, settings, top, options.load_tables(tables)),
        published=names,
        profile=profile,
        title=title,
        command=_command(),
        made=_now(),
        watch=watched,
    )
    if output is not None:
        from worldswitch.report.html import html

        _write(output, html(found))
    if as_json:
        options.print_json(to_json(found))
    elif output != _STDOUT:
        click.echo(f"{printable(str(output))}: {_first(found.findings)}")
    return DONE


def _first(findings: Sequence[Any]) -> str:
    return printable(findings[0].headline) if findings else "nothing stands out"


def _refuse(inputs: tuple[str, ...], output: str, as_json: bool) -> None:
    """What cannot be written is said before anything is read."""
    if output == _STDOUT:
        if as_json:
            raise UsageError("--json and -o - both want standard output; write the page to a file")
        return
    if "\0" in output or not output:
        raise UsageError(f"{printable(output)!r} is no name for a file")
    target, shown = Path(output), printable(output)
    if target.is_dir():
        raise UsageError(f"{shown} is a folder; name a file in it, such as {shown.rstrip('/')}/report.html")
    if not target.parent.is_dir():
        raise MissingError(f"{shown} cannot be written: there is no folder {printable(str(target.parent))}")
    options.refuse_same(inputs, output)


def _write(output: str, page: str) -> None:
    data = page.encode()
    if output == _STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    from worldswitch.record.whole import write_whole

    try:
        write_whole(output, data)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MissingError(f"{printable(output)} cannot be written ({why}); name another file") from None


def _command() -> str:
    return shlex.join(["wsw", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else ""


def _now() -> str:
    from datetime import datetime

    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _python(
    inputs: tuple[str, ...],
    output: str | None,
    asked: tuple[tuple[str, ...], str | None, tuple[str, ...], int, Path | None],
    names: tuple[str, ...] | None,
    profile: str,
    title: str,
) -> str:
    to, from_, settings, top, tables = asked
    loaded = "" if tables is None else f", tables=ExitTables.load({str(tables)!r})"
    lines = [
        "from pathlib import Path",
        "from worldswitch.report.build import report",
        "from worldswitch.report.html import html",
        "from worldswitch.report.study import Question",
        *["from worldswitch.x86.exits import ExitTables"] * bool(loaded),
        "",
        f"question = Question(to={to!r}, from_={from_!r}, settings={settings!r}, hot={top!r}{loaded})",
        f"found = report({list(inputs)!r}, question, published={names!r}, profile={profile!r}, title={title!r})",
        "for one in found.findings:\n    print(one.level, one.headline)",
    ]
    if output not in (None, _STDOUT):
        lines.append(f"Path({output!r}).write_text(html(found), encoding='utf-8')")
    return "\n".join(lines) + "\n"
