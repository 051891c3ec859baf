"""Exits over time: bins by vCPU and reason, which the page's script draws and zooms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.errors import printable
from worldswitch.report.document import Figure, Origin, Section, command
from worldswitch.report.draw import REST, colour
from worldswitch.report.study import MOST_LANES
from worldswitch.report.timebins import OWN, SHARED
from worldswitch.report.words import many
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.report.study import Study

MOST_REASONS = 7
_OTHERS = "other reasons"


def reason_order(study: Study) -> list[str]:
    """Reasons with a colour of their own, those that take most time first."""
    named = [row.reason for row in study.account.exits if row.count and row.reason is not None]
    return named[:MOST_REASONS] if len(named) > MOST_REASONS + 1 else named


def colours(study: Study) -> dict[str, str]:
    """Reason -> colour class, the same in all pictures of a trace."""
    return {name: colour(place) for place, name in enumerate(reason_order(study))}


def sections(study: Study, ident: str) -> Iterator[Section]:
    """The timeline; nothing for a trace without exits."""
    cells = study.cells
    if not len(cells.slot):
        return
    shown = _lanes(study)
    order = reason_order(study)
    others = any(name not in order for name in study.names.values())
    series = [*order, *([_OTHERS] if others else [])]
    reasons = [(colour(i) if name != _OTHERS else REST, name) for i, name in enumerate(series)]
    data = {
        "first": cells.first_ns,
        "width": cells.width_ns,
        "bins": cells.bins,
        "reasons": [{"name": printable(name), "colour": tone} for tone, name in reasons],
        "lanes": [{"name": printable(name), "series": _series(study, who, series)} for name, who in shown],
    }
    lead = (
        f"Every one of the {study.account.count:,} exits is in one of {cells.bins:,} bins of "
        f"{format_ns(cells.width_ns)}; "
        "an exit and all its time are in the bin in which it starts. Drag to zoom, or use the buttons or the keys "
        "+ − ← → and Home. Zoomed out, several bins are drawn as one, added up."
    )
    if study.sharing:
        lead += f" The {MOST_LANES} vCPUs that cost most have a lane each; {study.sharing:,} more share the last one."
        if study.sharing + MOST_LANES > OWN:
            lead += f" They are among the {OWN} that had cost most when bins became too few for all."
    origin = Origin(
        study.path,
        command("analyze", study.path),
        f"kvm_exit paired with the next kvm_entry of its thread, counted in {many(cells.bins, 'bin')} of "
        f"{cells.width_ns:,} ns on the trace's clock; for single exits: "
        f"{command('convert', study.path, '-o', 'OUT.json')} (ui.perfetto.dev)",
    )
    figure = Figure(
        f"{ident}-timeline",
        "Exits over time",
        lead,
        origin,
        legend=reasons,
        data=data,
    )
    yield Section(f"{ident}-time", "Over time", figures=[figure])


def _lanes(study: Study) -> list[tuple[str, int]]:
    """Name and vCPU (``who``) of each lane, those that cost most first, and last the one that others share."""
    cells = study.cells
    whos, place = np.unique(cells.who, return_inverse=True)
    totals = np.bincount(place, cells.ns)
    order = [who for who in whos[np.argsort(-totals, kind="stable")].tolist() if who != SHARED]
    lanes = [(_lane_name(study, who), who) for who in order]
    return [*lanes, (f"{study.sharing:,} more vCPUs", SHARED)] if study.sharing else lanes


def _lane_name(study: Study, who: int) -> str:
    one = study.threads[who]
    vcpu = f"vCPU {one.vcpu}" if one.vcpu is not None else f"thread {one.tid}"
    if len({thread.vm for thread in study.threads.values()}) > 1:
        vcpu = f"VM {one.vm} {vcpu}"
    return f"{vcpu} ({one.comm})" if one.comm else vcpu


def _series(study: Study, who: int, series: list[str]) -> list[list[int]]:
    """For each reason the bins that hold something: distance from the one before, exits, ns; flat."""
    cells = study.cells
    mine = cells.who == np.uint64(who)
    place = {number: series.index(name) if name in series else len(series) - 1 for number, name in study.names.items()}
    numbers, inverse = np.unique(cells.number[mine], return_inverse=True)
    of = np.array([place[number] for number in numbers.tolist()], np.int64)[inverse]
    found = []
    for index in range(len(series)):
        here = of == index
        slots, where = np.unique(cells.slot[mine][here], return_inverse=True)
        count = np.bincount(where, cells.count[mine][here]).astype(np.int64)
        ns = np.bincount(where, cells.ns[mine][here]).astype(np.int64)
        gaps = np.diff(slots, prepend=0)
        flat: list[Any] = np.stack([gaps, count, ns], axis=1).reshape(-1).tolist() if len(slots) else []
        found.append(flat)
    return found
