"""Options and parsing that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.units import parse_duration

if TYPE_CHECKING:
    from worldswitch.trace.account import Filter
    from worldswitch.x86.exits import ExitTables

F = TypeVar("F", bound=Callable[..., Any])


def as_json(command: F) -> F:
    """``--json``: print one JSON document with stable keys."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")(command)


def as_markdown(command: F) -> F:
    """``--markdown``: print tables as Markdown. The command needs to know nothing of it."""

    def begin(context: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked:
            from worldswitch.report.tables import markdown

            context.with_resource(markdown())

    return click.option(
        "--markdown", is_flag=True, expose_value=False, callback=begin, help="Print tables as Markdown, to paste."
    )(command)


def as_python(command: F) -> F:
    """``--python``: print the Python that does the same, and do nothing."""
    return click.option("--python", "as_python", is_flag=True, help="Print the API calls that do the same.")(command)


def limits(what: str) -> Callable[[F], F]:
    """The options that limit which *what* (events, exits) are looked at, by where and when they were."""
    return _together(
        click.option("--vcpu", type=click.IntRange(0), help=f"Only {what} of this vCPU."),
        click.option("--pid", "tid", type=int, help=f"Only {what} of this thread, by its id in the trace."),
        click.option("--vm", type=int, help=f"Only {what} of this VM: its process id (or thread id: see vm_identity)."),
        click.option("--time", metavar="A:B", help=f"Only {what} from A to B on the trace's clock, such as 36.2:36.3."),
    )


def filters(command: F) -> F:
    """The options that limit which exits are looked at."""
    return _together(
        limits("exits"),
        click.option("--reason", "reasons", multiple=True, help="Only this exit reason; may be repeated."),
        click.option("--than", metavar="DURATION", help="Only exits that took longer, such as 1ms."),
    )(command)


def _together(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator of several, whose options are listed in this order."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def exit_tables(command: F) -> F:
    """``--exit-reasons``: names of exit reasons from a file of the user's."""
    return click.option(
        "--exit-reasons",
        "tables",
        type=click.Path(path_type=Path),
        help="TOML file with further exit reasons, such as PVM's.",
    )(command)


def load_tables(path: Path | None) -> ExitTables | None:
    """The exit tables in *path*, added to the built-in ones."""
    if path is None:
        return None
    from worldswitch.x86.exits import ExitTables

    return ExitTables.load(path)


def refuse_same(inputs: Iterable[str], output: str, option: str = "-o") -> None:
    """Refuse an output that is one of the inputs, by whatever name: writing it would destroy what was read.

    Raises:
        UsageError: It is.
    """
    for name in inputs:
        try:
            same = "-" not in (name, output) and Path(name).samefile(output)
        except (OSError, ValueError):
            continue  # one is not there; whoever reads or writes it says so
        if same:
            raise UsageError(f"{printable(output)} is one of the inputs; give {option} another name")


def parse_time(text: str | None) -> tuple[int | None, int | None]:
    """``A:B`` in ns; either may be left out.

    Raises:
        UsageError: It is not two durations, or B is before A.
    """
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    if not colon:
        raise UsageError(f"--time {text!r} has no colon; write A:B, A: or :B, such as 36.2:36.3")
    begin = parse_duration(first) if first else None
    end = parse_duration(last) if last else None
    if begin is not None and end is not None and end < begin:
        raise UsageError(f"--time {text!r} ends before it begins")
    return begin, end


def make_filter(
    vcpu: int | None,
    tid: int | None,
    vm: int | None,
    time: str | None,
    reasons: tuple[str, ...],
    than: str | None,
    tables: ExitTables | None,
) -> Filter | None:
    """The filter the options describe; None if they let everything pass."""
    from worldswitch.trace.account import Filter
    from worldswitch.x86.exits import builtin, reason_number

    numbers = set()
    for name in reasons:
        number = reason_number(name, None, tables)
        if number is None:
            names = [n for isa in (tables or builtin()).isas.values() for n in isa.numbers]
            raise UnknownNameError("exit reason", name, names, "wsw analyze without --reason lists those of a trace.")
        numbers.add(number)
    only = Filter(
        parse_time(time),
        vcpu,
        vm,
        tid,
        frozenset(numbers) if numbers else None,
        parse_duration(than) if than else None,
    )
    return None if only == Filter() else only


_ROWS_AT_ONCE = 1000


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout; each row of a list on a line of its own, so that a million take no memory.

    Rows may be dataclasses.
    """
    import json

    def plain(value: Any) -> str:
        return json.dumps(value, ensure_ascii=True, default=_fields)

    comma = "{"
    for key, value in document.items():
        click.echo(f"{comma}\n {plain(key)}: ", nl=False)
        comma = ","
        if not isinstance(value, list | tuple) or not value:
            click.echo(plain(value), nl=False)
            continue
        for begin in range(0, len(value), _ROWS_AT_ONCE):
            rows = ",\n  ".join(map(plain, value[begin : begin + _ROWS_AT_ONCE]))
            click.echo(f"{',' if begin else '['}\n  {rows}", nl=False)
        click.echo("\n ]", nl=False)
    click.echo("\n}" if document else "{}")


def _fields(row: Any) -> dict[str, Any]:
    """As dataclasses.asdict, without the copies that make it slow."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
