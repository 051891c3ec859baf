"""Published measurements beside what the model predicts, and beside a null model that knows nothing of KVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from worldswitch.report import draw
from worldswitch.report.document import Column, Figure, Finding, Origin, Part, Section, Table
from worldswitch.report.words import percent, sentence

if TYPE_CHECKING:
    from worldswitch.costs.beside import Beside, Comparison
    from worldswitch.costs.published import Table as Host

_LEGEND = (("c0", "published"), ("c1", "model"), ("c7", "null model"))


def part(names: Sequence[str], ident: str) -> Part:
    """The tables *names* (all if empty).

    Raises:
        UnknownNameError: There is no such table.
    """
    from worldswitch.costs.beside import beside, median_error, null_median_error
    from worldswitch.costs.published import published

    known = published()
    shown = [table for name in names for table in known.only(name)] if names else list(known.tables)
    found = beside(known)
    held = found.held_out()
    figures = [_figure(found, host, f"{ident}-{place}") for place, host in enumerate(shown)]
    lead = (
        f"{found.fit.parameters} numbers are fitted to {len(found.cells) - len(held)} of {len(found.cells)} cells; the "
        f"{len(held)} others are predicted, {percent(median_error(held))} off in the median (the null model "
        f"{percent(null_median_error(held))}). Cells used for the fit are named so."
    )
    reasons = {miss.what: miss.reason for miss in known.misses}
    notes = [f"Missed: {name}: {sentence(reasons.get(name, 'no reason is given'))}" for name in found.misses()]
    notes += [f"These tables cannot tell: {sentence(text)}" for text in known.untold]
    finding = Finding(
        "notice",
        f"The model is {percent(median_error(held))} off in the median over {len(held)} published times it was not "
        "fitted to.",
        why=[
            f"The null model, which knows nothing of KVM but the hosts' speeds and like cells, is "
            f"{percent(null_median_error(held))} off: the model adds orders and ratios where there is no like cell."
        ],
        about="published tables",
        link=f"{ident}-tables",
        weight=25.0,
    )
    section = Section(f"{ident}-tables", "Times", lead, figures, notes=notes)
    return Part(ident, "published", "Published tables beside the model", [], [section], [finding])


def _figure(found: Comparison, host: Host, ident: str) -> Figure:
    cells = [one for one in found.cells if one.table.id == host.id]
    values = [value for one in cells for value in (one.cell.seconds, one.model, one.null) if value is not None]
    axis = draw.scale(value * 1e9 for value in values)
    lines = [
        draw.Row(
            f"{one.cell.row} · {one.cell.column}",
            "used for the fit" if one.cell.fit else "",
            draw.dots(_points(one, axis)),
            f"{one.cell.seconds:g} s · model {one.model:.3g} s ({percent(one.error, True)})",
        )
        for one in cells
    ]
    columns = [
        Column("row", "code"), Column("column", "code"), Column("published", "seconds"), Column("model", "seconds"),
        Column("error", "share"), Column("null model", "seconds"), Column("its error", "share"),
        Column("used for the fit"),
    ]  # fmt: skip
    rows = [
        [one.cell.row, one.cell.column, one.cell.seconds, one.model, one.error, one.null, one.null_error,
         one.cell.fit or "no"]
        for one in cells
    ]  # fmt: skip
    return Figure(
        ident,
        host.title,
        "Seconds of the published benchmark, on a logarithmic axis.",
        Origin(host.source, f"wsw tables {host.id}", "counts of the executable KVM times fitted costs"),
        Table(columns, rows),
        draw.rows(lines, "; ".join(f"{line.label}: {line.value}" for line in lines), axis.axis()),
        legend=_LEGEND,
    )


def _points(one: Beside, axis: draw.Scale) -> list[draw.Dot]:
    points = [draw.Dot("c7", "hollow", f"null model {one.null:.3g} s", axis.at(one.null * 1e9))] if one.null else []
    points.append(draw.Dot("c1", "square", f"model {one.model:.3g} s", axis.at(one.model * 1e9)))
    return [*points, draw.Dot("c0", "circle", f"published {one.cell.seconds:g} s", axis.at(one.cell.seconds * 1e9))]
