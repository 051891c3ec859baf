"""What another kernel or setting would have saved: a waterfall from what was recorded to what would be left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from worldswitch.report import draw
from worldswitch.report.document import Column, Figure, Origin, Section, Table, command
from worldswitch.report.words import sentence, share
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.report.study import Study
    from worldswitch.trace.whatif import Exits, WhatIf


def sections(study: Study, ident: str) -> Iterator[Section]:
    """One figure for each kernel asked about."""
    figures = [_figure(study, answer, f"{ident}-whatif-{place}") for place, answer in enumerate(study.answers)]
    notes = [f"{target + ': ' if target else ''}{why}" for target, why in study.refused]
    for answer in study.answers:
        notes += [f"Inferred: {sentence(text)}" for text in answer.inferred]
        notes += [f"Cannot be told: {sentence(text)}" for text in answer.cannot_tell]
        notes += [sentence(text) for text in answer.notes]
        if answer.method_why:
            notes.append(f"Judged by facts, not replayed: {answer.method_why}.")
    if figures or notes:
        lead = (
            "The register writes and page faults of the trace under the rules of both hosts. A saving is what "
            "the removed "
            "exits took from exit to entry, tracing included; the processor's own part of a world switch comes on top."
        )
        yield Section(f"{ident}-whatif", "What if?", lead if figures else "", figures, notes=list(dict.fromkeys(notes)))


def _figure(study: Study, answer: WhatIf, ident: str) -> Figure:
    whole = answer.total_ns or 1
    low, mid, high = answer.saving_ns
    left = answer.total_ns
    lines = [
        draw.Row(
            "recorded",
            f"{answer.before.kernel}",
            draw.bar([draw.Segment("rest", "recorded", 0, 1)]),
            f"{format_ns(answer.total_ns)} · {answer.exits:,} exits",
        )
    ]
    for exits in answer.removed:
        begin = left - exits.total_ns
        lines.append(
            draw.Row(
                _name(exits),
                exits.why,
                draw.bar([draw.Segment("good", f"saves {format_ns(exits.total_ns)}", begin / whole, left / whole)]),
                f"− {format_ns(exits.total_ns)} · {exits.count:,} exits",
            )
        )
        left = begin
    gone = sum(exits.count for exits in answer.removed)
    lines.append(
        draw.Row(
            "left",
            str(answer.after.kernel),
            draw.bar([draw.Segment("c0", "left", 0, left / whole)], ((whole - high) / whole, (whole - low) / whole)),
            f"{format_ns(left)} · {answer.exits - gone:,} exits",
        )
    )
    columns = [
        Column("reason", "code"), Column("what"), Column("becomes"), Column("exits", "count"), Column("time", "ns"),
        Column("known"), Column("why"),
    ]  # fmt: skip
    rows = [
        [exits.reason, _name(exits), becomes, exits.count, exits.total_ns, _known(exits), exits.why]
        for becomes, some in (("gone", answer.removed), ("stays", answer.stays))
        for exits in some
    ]
    saved = (
        f"{format_ns(mid)} less (95 %: {format_ns(low)} to {format_ns(high)}), {share(mid, answer.total_ns)} of "
        "the time "
        "outside the guest. The whisker is the interval of what is left."
        if answer.removed
        else "No exit of the trace would be gone."
    )
    return Figure(
        ident,
        f"From {answer.before.kernel} to {answer.after.kernel}",
        saved,
        Origin(
            study.path,
            _command(study.path, answer, [word for one in study.settings for word in ("--set", one)]),
            f"{answer.method}; the trace's kernel: {answer.source.how}; interval by a block bootstrap of the "
            "removed exits",
        ),
        Table(columns, rows),
        draw.rows(lines, f"Waterfall: {format_ns(answer.total_ns)} recorded, {format_ns(left)} left"),
    )


def _command(path: str, answer: WhatIf, settings: Sequence[str]) -> str:
    assumed = ("--from", answer.assumed_from) if answer.assumed_from else ()
    return command("whatif", path, *assumed, "--to", str(answer.after.kernel), *settings)


def _name(exits: Exits) -> str:
    bits = "" if exits.changed is None else "." + ("+".join(exits.changed) or "nothing")
    return f"refaults after {exits.register}{bits}" if exits.refault else f"{exits.register}{bits} writes"


def _known(exits: Exits) -> str:
    return "yes" if exits.known else "no" if exits.changed is None else "inferred"
