"""``wsw calibrate``: costs, each with its origin, from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import DONE, options
from worldswitch.errors import MissingError, NotTold, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.costs.atoms import Atom, Costs
    from worldswitch.costs.calibrate import Skipped


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("-o", "--output", metavar="COSTS", help="Write them to this file, for wsw run --on model --costs.")
@click.option("--published", "steps", type=int, metavar="STEPS", help="From wsw tables, if STEPS steps were made.")
@click.option(
    "--parallel", type=click.FloatRange(0, min_open=True), default=1, help="Steps made at once.  [default: 1]"
)
@click.option("--ghz", type=click.FloatRange(0, min_open=True), help="Of the TSC, to turn cycles into ns.")
@options.as_json
@options.as_python
def calibrate(
    files: tuple[str, ...],
    output: str | None,
    steps: int | None,
    parallel: float,
    ghz: float | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Take costs of exits and root reloads from measurements.

    A FILE is a result of wsw run --on kvm --save, or the output of kvm-unit-tests' vmexit. If several tell of the same
    event, the first kind wins: results, then vmexit, then the published tables.
    """
    if as_python:
        click.echo("from worldswitch.cli.calibrate import costs_of\nfrom worldswitch.costs.atoms import dumps\n")
        click.echo(f"costs, skipped = costs_of({list(files)!r}, {steps!r}, {parallel!r}, {ghz!r})\nprint(dumps(costs))")
        return DONE
    costs, skipped = costs_of(files, steps, parallel, ghz)
    if output is not None:
        from worldswitch.costs.atoms import dumps

        _write(output, dumps(costs))
    if as_json:
        options.print_json(to_json(costs, skipped))
    else:
        click.echo(describe(costs, skipped), nl=False)
    return DONE


def costs_of(
    files: Sequence[str], steps: int | None = None, parallel: float = 1, ghz: float | None = None
) -> tuple[Costs, list[Skipped]]:
    """The costs that files and, for a number of *steps*, the published tables tell, and what told none.

    Raises:
        UsageError: There is nothing to take costs from, or a file is of another kind.
        MissingError: A file cannot be read.
        NotTold: No cost comes out.
    """
    from worldswitch.costs.atoms import Costs
    from worldswitch.costs.calibrate import from_results, from_unit_tests
    from worldswitch.record.resultfile import load

    if not files and steps is None:
        raise UsageError("nothing to take costs from; give files, or --published 500000")
    results = [name for name in files if _is_result(name)]
    lines = [line for name in files if name not in results for line in _unit_tests(name)]
    measured, skipped = from_results((name, load(name)) for name in results)
    tested, others = from_unit_tests(lines, ghz)
    first: dict[str, Atom] = {}
    for atom in (*measured, *tested, *_from_tables(steps, parallel)):
        first.setdefault(atom.event, atom)
    skipped += others
    if not first:
        why = "; ".join(f"{one.what}: {one.why}" for one in skipped) or "there was nothing timed in them"
        raise NotTold(f"no cost can be told from {printable(', '.join(files))}: {printable(why)}")
    return Costs(tuple(first.values())), skipped


def _is_result(name: str) -> bool:
    try:
        with Path(name).open("rb") as file:
            return file.read(4096).lstrip()[:1] == b"{"
    except OSError as error:
        raise MissingError(f"cannot read {printable(name)}: {printable(error.strerror or str(error))}") from error


def _unit_tests(name: str) -> Iterator[tuple[str, str, int]]:
    from worldswitch.trace import open_trace

    found = open_trace(name)
    if "kvm_unit_tests" not in found.events:
        raise UsageError(f"{printable(name)} is no result of wsw run --save and has no lines of kvm-unit-tests' vmexit")
    table = found.table("kvm_unit_tests")
    for test, cycles in zip(table["name"].tolist(), table["cycles"].tolist(), strict=True):
        yield name, str(test), int(cycles)


def _from_tables(steps: int | None, parallel: float) -> Iterator[Atom]:
    if steps is None:
        return
    from worldswitch.costs.beside import beside
    from worldswitch.costs.calibrate import from_published
    from worldswitch.costs.published import published

    if steps not in published().readings:
        known = " or ".join(map(str, published().readings))
        raise UsageError(f"--published {steps}: the benchmark made {known} steps (wsw tables says why)")
    yield from from_published(beside(published()), steps, parallel)


def _write(output: str, text: str) -> None:
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MissingError(f"cannot write {printable(output)}: {printable(error.strerror or str(error))}") from error


def to_json(costs: Costs, skipped: list[Skipped]) -> dict[str, Any]:
    """The JSON document."""
    return {
        "costs": [
            {
                "event": atom.event,
                "low": atom.low,
                "mid": atom.mid,
                "high": atom.high,
                "unit": atom.unit,
                "origin": atom.origin,
                "covers": list(atom.covers),
            }
            for atom in costs.atoms
        ],
        "skipped": [{"what": one.what, "why": one.why} for one in skipped],
    }


def describe(costs: Costs, skipped: list[Skipped]) -> str:
    """The costs, where they are from, and what gave none, as text."""
    from worldswitch.report.tables import paragraphs, table

    rows = [
        [atom.event, _shown(atom, atom.mid), f"{_shown(atom, atom.low)} – {_shown(atom, atom.high)}"]
        for atom in costs.atoms
    ]
    text = table(["cost of", "", "low – high"], rows, left=["cost of"])
    origins: dict[str, list[str]] = {}
    for atom in costs.atoms:
        origins.setdefault(atom.origin, []).append(atom.event)
    parts = [text, paragraphs("From", (f"{', '.join(events)}: {origin}" for origin, events in origins.items()))]
    parts.append(paragraphs("No cost is from", (f"{one.what}: {one.why}" for one in skipped)))
    return "\n".join(part for part in parts if part)


def _shown(atom: Atom, value: float) -> str:
    from worldswitch.units import format_ns

    return format_ns(value) if atom.unit == "ns" else f"{value:,.0f} cycles"
