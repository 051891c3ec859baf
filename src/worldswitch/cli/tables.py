"""``wsw tables``: published measurements beside the model and beside a null model, with every error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import DONE, FOUND, options

if TYPE_CHECKING:
    from worldswitch.costs.beside import Beside, Comparison, Ratio
    from worldswitch.costs.published import Table


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--check", is_flag=True, help="Exit status 1 if something is wrong that is not listed with a reason.")
@options.as_json
@options.as_markdown
@options.as_python
def tables(name: str | None, check: bool, as_json: bool, as_python: bool) -> int:
    """Show published measurements beside what the model predicts, all of them or only table NAME.

    A few cells, marked *, give the costs of what the model counts; the others are predicted. The null model has the
    median of all like cells, and no counts.
    """
    if as_python:
        click.echo("from worldswitch.costs.beside import beside\nfrom worldswitch.costs.published import published\n")
        click.echo("found = beside(published())")
        click.echo("for one in found.cells:\n    print(one.name, one.cell.seconds, one.model, one.null, one.error)")
        click.echo("print(found.faults())" if check else "print(found.misses())")
        return DONE
    from worldswitch.costs.beside import beside
    from worldswitch.costs.published import published

    known = published()
    shown = known.only(name) if name else known.tables
    found = beside(known)
    faults = found.faults() if check else []
    if as_json:
        options.print_json({**to_json(found, shown), **({"faults": faults} if check else {})})
    else:
        click.echo(describe(found, shown), nl=False)
    for fault in faults:
        click.echo(f"wsw: {fault}", err=True)
    return FOUND if faults else DONE


def to_json(found: Comparison, shown: tuple[Table, ...]) -> dict[str, Any]:
    """The JSON document; ``held_out``, ``costs`` and ``misses`` are those of all tables, whichever are shown."""
    from worldswitch.costs.beside import median_error, null_median_error, null_ratio_error, ratio_error

    names = {table.id for table in shown}
    judged = found.judged()
    return {
        "tables": [
            {
                "id": table.id,
                "title": table.title,
                "source": table.source,
                "group": table.group,
                "kernels": dict(table.stages),
                "cpu": table.cpu,
                "program": table.program,
                "cells": [_cell_document(one) for one in found.cells if one.table.id == table.id],
            }
            for table in shown
        ],
        "ratios": [_ratio_document(ratio) for ratio in found.ratios if ratio.table in names],
        "held_out": {
            "cells": len(found.held_out()),
            "median_error": median_error(found.held_out()),
            "null_median_error": null_median_error(found.held_out()),
            "ratios": len(judged),
            "ratio_error_max": ratio_error(judged),
            "null_ratio_error_max": null_ratio_error(judged),
        },
        "orders": {"pairs": len(found.orders), "wrong": [one.name for one in found.orders if not one.right]},
        "costs": [
            {
                "event": event,
                "seconds": seconds,
                "spread": found.fit.spread[event],
                "ns": {str(steps): seconds / steps * 1e9 for steps in found.published.readings},
            }
            for event, seconds in found.fit.costs.items()
        ],
        "scales": dict(found.fit.scales),
        "noise": found.published.noise,
        "readings": {str(steps): why for steps, why in found.published.readings.items()},
        "misses": [{"what": name, "reason": _reasons(found).get(name)} for name in found.misses()],
        "untold": list(found.published.untold),
    }


def _cell_document(one: Beside) -> dict[str, Any]:
    cell = one.cell
    return {
        "row": cell.row,
        "column": cell.column,
        "mmu": cell.mmu,
        "stage": cell.stage,
        "published_s": cell.seconds,
        "published_spread_s": cell.spread,
        "model_s": one.model,
        "null_s": one.null,
        "error": one.error,
        "null_error": one.null_error,
        "used_for_fit": bool(cell.fit),
        "fit": cell.fit or None,
    }


def _ratio_document(ratio: Ratio) -> dict[str, Any]:
    return {
        "table": ratio.table,
        "column": ratio.column,
        "ratio": ratio.stages,
        "published": ratio.published,
        "model": ratio.model,
        "null": ratio.null,
        "error": ratio.error,
        "null_error": ratio.null_error,
        "held_out": ratio.held_out,
        "judged": ratio.judged and ratio.held_out,
    }


def _reasons(found: Comparison) -> dict[str, str]:
    return {miss.what: miss.reason for miss in found.published.misses}


def describe(found: Comparison, shown: tuple[Table, ...]) -> str:
    """The tables, the ratios, the costs, and what is wrong or not known, as text."""
    from worldswitch.report.tables import paragraphs, table, wrapped

    names = {one.id for one in shown}
    parts = []
    for one in shown:
        rows = [_cell_row(cell) for cell in found.cells if cell.table.id == one.id]
        columns = ("row", "column", "published", "model", "error", "null", "null's")
        title = f"{one.id}: {one.title}, seconds\n{wrapped(one.source)}"
        parts.append(table(columns, rows, title, ("row", "column")))
    ratios = [_ratio_row(ratio) for ratio in found.ratios if ratio.table in names]
    headings = ("table", "column", "stages", "published", "model", "error", "null", "null's", "")
    parts.append(table(headings, ratios, "Ratios; o: predicted, and judged", ("table", "column", "stages")))
    parts.append(_costs(found))
    parts.append(paragraphs("In all", _summary(found)))
    reasons = _reasons(found)
    missed = (f"{name}: {reasons.get(name, 'no reason is given')}" for name in found.misses())
    parts.append(paragraphs("What misses", missed))
    parts.append(paragraphs("What these tables cannot tell", found.published.untold))
    return "\n".join(part for part in parts if part)


def _cell_row(one: Beside) -> tuple[Any, ...]:
    return (
        one.cell.row,
        one.cell.column,
        f"{one.cell.seconds:g}" + ("*" if one.cell.fit else ""),
        f"{one.model:.3g}",
        _percent(one.error),
        None if one.null is None else f"{one.null:.3g}",
        _percent(one.null_error),
    )


def _ratio_row(ratio: Ratio) -> tuple[Any, ...]:
    return (
        ratio.table,
        ratio.column,
        ratio.stages,
        f"{ratio.published:.2f}",
        f"{ratio.model:.2f}",
        _percent(ratio.error),
        None if ratio.null is None else f"{ratio.null:.2f}",
        _percent(ratio.null_error),
        "o" if ratio.judged and ratio.held_out else "",
    )


def _costs(found: Comparison) -> str:
    from worldswitch.report.tables import table
    from worldswitch.units import format_ns

    readings = sorted(found.published.readings)
    rows = [
        (
            event,
            f"{seconds:.3g} s",
            f"{100 * found.fit.spread[event]:.1f} %",
            *(format_ns(seconds / steps * 1e9) for steps in readings),
        )
        for event, seconds in found.fit.costs.items()
    ]
    columns = ("cost of", "in the run", "sd", *(f"each, {steps:,} steps" for steps in readings))
    title = "Costs, fitted to the cells marked *, one step at a time (P at once: P times as much)"
    scales = ", ".join(f"{group} {scale:.3g}" for group, scale in found.fit.scales.items())
    return table(columns, rows, title, ("cost of",)) + f"Speeds of hosts, as times: {scales}\n"


def _summary(found: Comparison) -> Iterator[str]:
    from worldswitch.costs.beside import median_error, null_median_error, null_ratio_error, ratio_error

    fitted = [one for one in found.cells if one.cell.fit]
    held, judged = found.held_out(), found.judged()
    wrong = sum(1 for one in found.orders if not one.right)
    count = found.fit.parameters
    yield f"{count} numbers are fitted to {len(fitted)} of {len(found.cells)} cells; {len(held)} are held out"
    yield (
        f"cells held out: median error {100 * median_error(held):.1f} %, "
        f"the null model's {100 * null_median_error(held):.1f} %; a cell's noise is {100 * found.published.noise:.1f} %"
    )
    yield (
        f"{len(judged)} predicted ratios: at most {100 * ratio_error(judged):.1f} % off, "
        f"those of the null model {100 * null_ratio_error(judged):.1f} %"
    )
    pairs = len(found.orders)
    yield f"{pairs} pairs of a table differ by more than noise; the model has {wrong or 'none'} the wrong way round"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:+.1f} %"
