"""A comparison as text, as JSON, and as the test cases of a CI system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from worldswitch.record.result import BY_REASON
from worldswitch.stats.compare import ON_TRACE
from worldswitch.stats.verdicts import RATE, Verdict

if TYPE_CHECKING:
    from worldswitch.record.result import Cell
    from worldswitch.report.junit import Suite
    from worldswitch.stats.compare import Comparison, Count, Pair
    from worldswitch.stats.verdicts import Side, Time

_WHERE = ("program", "on", "kernel", "cpu", "mmu")


def to_json(found: Comparison) -> dict[str, Any]:
    """The JSON document of a comparison."""
    return {
        "worse": found.worse,
        "confidence": found.confidence,
        "confidence_each": found.each,
        "margin": found.margin,
        "at_least_ns": found.at_least,
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
        "notes": list(_cell_notes(pair)),
    }


def _time_document(time: Time) -> dict[str, Any]:
    return {
        "name": time.name,
        "unit": time.unit,
        "a": _side_document(time, time.a),
        "b": _side_document(time, time.b),
        "shift": time.shift._asdict() if time.shift else None,
        "chance": time.chance,
        "counts_from": time.counts,
        "noise": time.noise,
        "pairs": time.pairs,
        "verdict": str(time.verdict),
        "worse": time.worse,
        "why": time.why or None,
    }


def _side_document(time: Time, side: Side) -> dict[str, Any]:
    return {"n": side.n, "mean" if time.unit == RATE else "median": side.median}


def describe(found: Comparison) -> str:
    """The comparison as text a person reads."""
    from worldswitch.report.tables import paragraphs, table, wrapped

    parts = []
    for pair in found.pairs:
        counts = (_count_row(count) for count in pair.counts if count.a or count.b)
        rows = [*counts, *map(_time_row, pair.times)]
        columns = ("", "A", "B", "difference", "verdict", "why")
        left = ("", "verdict", "why")
        title = wrapped(title_of(pair))
        parts.append(table(columns, rows, title, left) if rows else f"{title}\nnothing that both sides measured\n")
    parts.append(paragraphs("Only in A", map(_name, found.only_a)))
    parts.append(paragraphs("Only in B", map(_name, found.only_b)))
    parts.append(paragraphs("Notes", _notes(found)))
    return "\n".join(part for part in parts if part)


def suites(found: Comparison) -> Iterator[Suite]:
    """Each pair as a suite, for :func:`worldswitch.report.junit.junit`."""
    from worldswitch.report.junit import Case, Suite

    for pair in found.pairs:
        cases = []
        rows: list[tuple[Count | Time, tuple[str, str, str, str, str, str]]] = []
        rows += [(count, _count_row(count)) for count in pair.counts]
        rows += [(time, _time_row(time)) for time in pair.times]
        for one, (name, a, b, difference, verdict, why) in rows:
            said = f"{verdict.removesuffix(' !')}: {a} against {b}" + (f", {difference}" if difference else "")
            untold = f"{said}; {why}" if one.verdict is Verdict.NOT_TOLD_APART else ""
            cases.append(Case(name, said, one.worse, untold))
        yield Suite(title_of(pair), tuple(cases))


def title_of(pair: Pair) -> str:
    """What is compared, in a line: B against A."""
    each = f", per {pair.a.unit}" if pair.a.unit and pair.a.unit == pair.b.unit else ""
    if pair.compared is None:
        return f"{_name(pair.a)}: two measurements under the same conditions{each}"
    name = pair.compared.name
    first, second = pair.a.flat_dimensions(), pair.b.flat_dimensions()
    # What follows from the condition, as the MMU from the kernel, is another on either side as well.
    along = [one for one in _WHERE if one != name and one in first and one in second and first[one] != second[one]]
    also = "".join(f", {one} {second[one]} against {first[one]}" for one in along)
    sides = " against ".join("none" if v is None else str(v) for v in (pair.compared.b, pair.compared.a))
    return f"{_name(pair.a, name, *along)}: {name} {sides}{also}{each}"


def _name(cell: Cell, *without: str) -> str:
    """What tells a cell from others, in few words."""
    flat = cell.flat_dimensions()
    known = [str(flat[name]) for name in _WHERE if name not in without and flat.get(name) is not None]
    changed = [
        f"{name.removeprefix('parameters.')}={value}"
        for name, value in flat.items()
        if name.startswith("parameters.") and name not in without and value is not None
    ]
    return ", ".join(dict.fromkeys((*known, *changed)))


def _count_row(count: Count) -> tuple[str, str, str, str, str, str]:
    reason = count.name.removeprefix(f"{BY_REASON}.")
    return (
        count.name if reason == count.name else f"exits, {reason}",
        f"{count.a:,.6g}",
        f"{count.b:,.6g}",
        f"{count.b - count.a:+,.6g}" if count.a != count.b else "",
        _verdict(count.verdict, count.worse),
        count.why,
    )


def _time_row(time: Time) -> tuple[str, str, str, str, str, str]:
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

    if unit == RATE:
        return f"{value:,.4g}/s" if abs(value) < 1000 else f"{value:,.0f}/s"
    return format_ns(value) if unit == "ns" else f"{value:,.6g} {unit}".rstrip()


def _cell_notes(pair: Pair) -> Iterator[str]:
    """What to know of a recording; a run has told it itself."""
    if ON_TRACE in (pair.a.dimensions.get("on"), pair.b.dimensions.get("on")):
        for side, cell in (("A", pair.a), ("B", pair.b)):
            yield from (note if note in pair.a.notes and note in pair.b.notes else f"{side}: {note}"
                        for note in cell.notes)  # fmt: skip


def _notes(found: Comparison) -> Iterator[str]:
    yield from dict.fromkeys(note for pair in found.pairs for note in _cell_notes(pair))
    times = [time for pair in found.pairs for time in pair.times]
    measured = [time for time in times if time.chance is not None]
    if measured:
        yield (
            f"all verdicts hold together with {100 * found.confidence:g} %, each interval alone with "
            f"{100 * found.each:.4g} %; a difference counts if chance does not explain it, if it is more than "
            f"{100 * found.margin:g} % of A (times: and {found.at_least:g} ns), and more than A or B differ from "
            "themselves; equal: the whole interval is less"
        )
        paired = [time for time in measured if time.pairs]
        if paired:
            yield (
                "A and B took turns (A B B A), and what is told is the median of the differences within turns: what "
                "changed on the host meanwhile is not in it"
            )
        if len(paired) < len(measured):
            yield (
                "A and B were measured one after the other: what else changed on the host in between is in the "
                "difference"
            )
    if any(time.unit == RATE for time in times):
        yield (
            "rates are those of the load as well: if both did the same work say --same-work, or how much each did, "
            "--operations A,B, and exits are compared by number"
        )
    if found.worse:
        yield "!: B is worse here, so the exit status is 1"
