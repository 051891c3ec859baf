"""``wsw compare``: two Results or two traces side by side, counts exactly, times with an interval and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from worldswitch.cli import DONE, FOUND, options
from worldswitch.errors import MissingError, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.stats.compare import Comparison

_SAME_WORK = (1, 1)


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("--ignore", multiple=True, metavar="CONDITION", help="Let them differ in this too; may be repeated.")
@click.option("--margin", type=float, default=0.01, show_default=True, help="Share within which times are equal.")
@click.option(
    "--at-least", metavar="DURATION", default="1ns", show_default=True, help="Within it times are equal, too."
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="With which all verdicts hold.")
@click.option("--same-work", is_flag=True, help="Traces: both hold the same work; compare numbers, not rates.")
@click.option("--operations", metavar="A,B", help="Traces: how many operations each holds; compare exits of one.")
@options.exit_tables
@click.option("--junit", metavar="FILE", help="Write the verdicts as JUnit XML too, for a CI system.")
@options.as_json
@options.as_markdown
@options.as_python
def compare(
    a: str,
    b: str | None,
    ignore: tuple[str, ...],
    margin: float,
    at_least: str,
    confidence: float,
    same_work: bool,
    operations: str | None,
    tables: Path | None,
    junit: str | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Say in what B differs from A: two results that wsw run --save wrote, two traces, or the cells of one result.

    Cells of results are compared that differ in one condition at most (kernel, mmu, a parameter ...), traces that were
    recorded alike. Exit status 1: B has more of a count, or is told apart as slower.
    """
    from worldswitch.units import parse_duration

    work = _work(same_work, operations)
    least = float(parse_duration(at_least))
    if junit is not None:
        options.refuse_same([path for path in (a, b) if path is not None], junit, "--junit")
    traces = _are_traces(a, b)
    if not traces and (work or tables):
        raise UsageError("--same-work, --operations and --exit-reasons are for traces, and these are results")
    given = {"ignore": list(ignore), "confidence": confidence, "margin": margin, "at_least": least}
    if as_python:
        click.echo(_python(a, b, {**given, **({"operations": work} if work else {})}, traces, tables))
        return DONE
    if traces:
        assert b is not None
        from worldswitch.cli.progress import watched
        from worldswitch.trace import open_source
        from worldswitch.trace.compare import compare as ask_traces

        sides = [watched(open_source(path), path) for path in (a, b)]
        found = ask_traces(
            *sides, ignore=ignore, confidence=confidence, margin=margin, at_least=least, operations=work,
            tables=options.load_tables(tables),
        )  # fmt: skip
    else:
        from worldswitch.record.resultfile import load
        from worldswitch.stats.compare import compare as ask

        first = load(a)
        second = load(b) if b else first
        found = ask(first, second, ignore=ignore, confidence=confidence, margin=margin, at_least=least)
    return show(found, as_json, junit)


def show(found: Comparison, as_json: bool, junit: str | None = None) -> int:
    """Print *found*, write it as JUnit XML if asked to; the exit status."""
    from worldswitch.cli import compare_text

    if as_json:
        options.print_json(compare_text.to_json(found))
    else:
        click.echo(compare_text.describe(found), nl=False)
    # Last: what has been found is not lost to a full disk.
    if junit is not None:
        write_junit(found, junit)
    return FOUND if found.worse else DONE


def write_junit(found: Comparison, path: str) -> None:
    """Write *found* to *path* as JUnit XML.

    Raises:
        MissingError: It cannot be written there.
    """
    from worldswitch.cli.compare_text import suites
    from worldswitch.record.whole import write_whole
    from worldswitch.report.junit import junit

    try:
        write_whole(path, junit(suites(found)))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MissingError(f"cannot write {printable(path)}: {why}; give --junit another name") from None


def _work(same_work: bool, operations: str | None) -> tuple[int, int] | None:
    if operations is None:
        return _SAME_WORK if same_work else None
    if same_work:
        raise UsageError("--same-work and --operations contradict each other; say one of them")
    first, _, second = operations.partition(",")
    if not all(one.isascii() and one.isdigit() and 0 < int(one) < 1 << 63 for one in (first, second)):
        raise UsageError(f"--operations {printable(operations)!r} is not two numbers of operations, such as 1000,1500")
    return int(first), int(second)


def _are_traces(a: str, b: str | None) -> bool:
    """Whether both are traces; if not, both are results.

    Raises:
        UsageError: One is a trace and the other a result, or there is one trace only.
    """
    kinds = [is_trace(path) for path in (a, b) if path is not None]
    if kinds[0] is not kinds[-1]:
        names = [printable(str(path)) for path in (a, b)]
        trace, result = names if kinds[0] else reversed(names)
        raise UsageError(
            f"{trace} is a trace and {result} a result: what was recorded is not compared with what was run; "
            "give two of a kind"
        )
    if kinds[0] and b is None:
        raise UsageError(f"{printable(a)} is a trace; give a second one to compare it with")
    if kinds[0] and a == b == "-":
        raise UsageError("standard input holds one trace; give the other as a file")
    return kinds[0]


def is_trace(path: str) -> bool:
    """Whether *path* is a folder or standard input, or a file that does not begin as JSON does."""
    if path == "-" or Path(path).is_dir():
        return True
    try:
        with Path(path).open("rb") as source:
            head = source.read(64)
    except (OSError, ValueError):
        return False  # whoever reads it will say what is wrong with it
    return not head.lstrip().startswith((b"{", b"[")) and bool(head.strip())


def _python(a: str, b: str | None, given: dict[str, object], traces: bool, tables: Path | None) -> str:
    words = ", ".join(f"{name}={value!r}" for name, value in given.items())
    after = "for pair in found.pairs:\n    print(pair.compared, pair.counts, pair.times)\nprint(found.worse)"
    if traces:
        head = "from worldswitch.trace import open_source\nfrom worldswitch.trace.compare import compare\n"
        if tables is not None:
            head += "from worldswitch.x86.exits import ExitTables\n"
            words += f", tables=ExitTables.load({str(tables)!r})"
        return f"{head}\nfound = compare(open_source({a!r}), open_source({b!r}), {words})\n{after}"
    head = "from worldswitch.record.resultfile import load\nfrom worldswitch.stats.compare import compare\n"
    return f"{head}\na = load({a!r})\nb = {f'load({b!r})' if b else 'a'}\nfound = compare(a, b, {words})\n{after}"
