"""``wsw compare``: two saved Results side by side, counts exactly, times with an interval and a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import DONE, FOUND, options
from worldswitch.record.result import BY_REASON

if TYPE_CHECKING:
    from worldswitch.record.result import Cell
    from worldswitch.stats.compare import Comparison, Count, Pair, Time

_WHERE = ("program", "on", "kernel", "cpu", "mmu")


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("--ignore", multiple=True, metavar="CONDITION", help="Let cells differ in this too; may be repeated.")
@click.option("--margin", type=float, default=0.01, show_default=True, help="Share within which times are equal.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="With which all intervals hold.")
@options.as_json
@options.as_python
def compare(
    a: str, b: str | None, ignore: tuple[str, ...], margin: float, confidence: float, as_json: bool, as_python: bool
) -> int:
    """Say in what B differs from A, two results that wsw run --save wrote; or the cells of A among themselves.

    Cells are compared that differ in one condition at most (kernel, mmu, a parameter ...). Exit status 1: B has more of
    a count, or is told apart as slower.
    """
    if as_python:
        click.echo("from worldswitch.record.resultfile import load\nfrom worldswitch.stats.compare import compare\n")
        click.echo(f"a = load({a!r})\nb = {f'load({b!r})' if b else 'a'}")
        click.echo(f"found = compare(a, b, ignore={list(ignore)!r}, confidence={confidence!r}, margin={margin!r})")
        click.echo("for pair in found.pairs:\n    print(pair.compared, pair.counts, pair.times)\nprint(found.worse)")
        return DONE
    from worldswitch.record.resultfile import load
    from worldswitch.stats.compare import compare as ask

    first = load(a)
    found = ask(first, load(b) if b else first, ignore=ignore, confidence=confidence, margin=margin)
    if as_json:
        options.print_json(to_json(found))
    else:
        click.echo(describe(found), nl=False)
    return FOUND if found.worse else DONE


def to_json(found: Comparison) -> dict[str, Any]:
    """The JSON document of a comparison."""
    return {
        "worse": found.worse,
        "confidence": found.confidence,
        "confidence_each": found.each,
        "margin": found.margin,
        "pairs": [_pair_document(pair) for pair in found.pairs],
        "only_a": [dict(cell.dimensions) for cell in found.only_a],
        "only_b": [dict(cell.dimensions) for cell in found.only_b],
    }


def _pair_document(pair: Pair) -> dict[str, Any]:
    return {
        "a": dict(pair.a.dimensions),
        "b": dict(pair.b.dimensions),
        "compared": pair.compared._asdict() if pair.compared else None,
        "counts": [
            {
                "name": count.name,
                "a": count.a,
                "b": count.b,
                "verdict": str(count.verdict),
                "worse": count.worse,
                "why": count.why or None,
            }
            for count in pair.counts
        ],
        "times": [_time_document(time) for time in pair.times],
    }


def _time_document(time: Time) -> dict[str, Any]:
    return {
        "name": time.name,
        "unit": time.unit,
        "a": {"n": time.a.n, "median": time.a.median},
        "b": {"n": time.b.n, "median": time.b.median},
        "shift": time.shift._asdict() if time.shift else None,
        "verdict": str(time.verdict),
        "worse": time.worse,
        "why": time.why or None,
    }


def describe(found: Comparison) -> str:
    """The comparison as text a person reads."""
    from worldswitch.report.tables import paragraphs, table, wrapped

    parts = []
    for pair in found.pairs:
        counts = (_count_row(count) for count in pair.counts if count.a or count.b)
        rows = [*counts, *map(_time_row, pair.times)]
        columns = ("", "A", "B", "difference", "verdict", "why")
        left = ("", "verdict", "why")
        title = wrapped(_title(pair))
        parts.append(table(columns, rows, title, left) if rows else f"{title}\nnothing that both sides measured\n")
    parts.append(paragraphs("Only in A", map(_name, found.only_a)))
    parts.append(paragraphs("Only in B", map(_name, found.only_b)))
    parts.append(paragraphs("Notes", _notes(found)))
    return "\n".join(part for part in parts if part)


def _title(pair: Pair) -> str:
    each = f", per {pair.a.unit}" if pair.a.unit and pair.a.unit == pair.b.unit else ""
    if pair.compared is None:
        return f"{_name(pair.a)}: two measurements under the same conditions{each}"
    name = pair.compared.name
    sides = " against ".join("none" if v is None else str(v) for v in (pair.compared.b, pair.compared.a))
    return f"{_name(pair.a, name)}: {name} {sides}{each}"


def _name(cell: Cell, without: str = "") -> str:
    """What tells a cell from others, in few words."""
    flat = cell.flat_dimensions()
    known = [str(flat[name]) for name in _WHERE if name != without and flat.get(name) is not None]
    changed = [
        f"{name.removeprefix('parameters.')}={value}"
        for name, value in flat.items()
        if name.startswith("parameters.") and name != without and value is not None
    ]
    return ", ".join([*known, *changed])


def _count_row(count: Count) -> tuple[Any, ...]:
    reason = count.name.removeprefix(f"{BY_REASON}.")
    return (
        count.name if reason == count.name else f"exits, {reason}",
        f"{count.a:,.6g}",
        f"{count.b:,.6g}",
        f"{count.b - count.a:+,.6g}" if count.a != count.b else "",
        _verdict(count.verdict, count.worse),
        count.why,
    )


def _time_row(time: Time) -> tuple[Any, ...]:
    return (
        time.name,
        _quantity(time.a.median, time.unit),
        _quantity(time.b.median, time.unit),
        _shift(time),
        _verdict(time.verdict, time.worse),
        time.why,
    )


def _shift(time: Time) -> str:
    if time.shift is None:
        return ""
    if not time.a.median:
        return " to ".join(_quantity(value, time.unit) for value in (time.shift.low, time.shift.high))
    low, mid, high = (_percent(100 * value / abs(time.a.median)) for value in time.shift)
    return f"{mid} % ({low} to {high})"


def _percent(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 9.95 else f"{value:+.1f}" if abs(value) >= 0.95 else f"{value:+.2f}"


def _verdict(verdict: str, worse: bool) -> str:
    return f"{verdict} !" if worse else str(verdict)


def _quantity(value: float, unit: str) -> str:
    from worldswitch.units import format_ns

    return format_ns(value) if unit == "ns" else f"{value:,.6g} {unit}".rstrip()


def _notes(found: Comparison) -> Iterator[str]:
    if any(pair.times for pair in found.pairs):
        yield (
            f"all intervals hold together with {100 * found.confidence:g} %, each alone with {100 * found.each:.4g} %; "
            f"times are equal if the whole interval lies within {100 * found.margin:g} % of A"
        )
        yield "A and B were measured one after the other: what else changed on the host in between is in the difference"
    if found.worse:
        yield "!: B is worse here, so the exit status is 1"
