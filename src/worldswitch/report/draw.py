"""Pictures as HTML and SVG: every length a share of the width, so that they fit any screen and print sharp.

Colours are classes (``c0`` to ``c7``, ``rest``, ``good``, ``bad``) to which the page's style sheet gives a value for
light and one for dark. All texts are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from worldswitch.errors import printable
from worldswitch.units import format_ns

COLOURS = 8
REST = "rest"
_DECADE = 10
_FEW_DECADES = 3.3
_TICKS_APART = 11.0
"""Least distance of ticks, in percent of the width."""


class Segment(NamedTuple):
    """Part of a bar: colour class, what it is, and where it begins and ends, as shares of the width (0 to 1)."""

    colour: str
    what: str
    begin: float
    end: float


class Row(NamedTuple):
    """A line of a chart: its label, a smaller second one, the drawing, and the value as text."""

    label: str
    below: str
    drawing: Markup
    value: str


def colour(place: int) -> str:
    """The class of the *place*-th of several things."""
    return f"c{place}" if place < COLOURS else REST


def bar(segments: Iterable[Segment], interval: tuple[float, float] | None = None) -> Markup:
    """One horizontal bar; *interval* is drawn as a whisker."""
    parts = [
        Markup('<rect class="{}" x="{}%" y="15%" width="{}%" height="70%"><title>{}</title></rect>').format(
            one.colour, _percent(one.begin), _percent(max(one.end - one.begin, 0.0015)), one.what
        )
        for one in segments
    ]
    if interval is not None:
        low, high = (_percent(share) for share in interval)
        parts.append(
            Markup(
                '<line class="whisker" x1="{0}%" x2="{1}%" y1="50%" y2="50%"/>'
                '<line class="whisker" x1="{0}%" x2="{0}%" y1="28%" y2="72%"/>'
                '<line class="whisker" x1="{1}%" x2="{1}%" y1="28%" y2="72%"/>'
            ).format(low, high)
        )
    return Markup('<svg class="bar" width="100%" height="22" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def rows(lines: Iterable[Row], described: str, axis: Markup | None = None) -> Markup:
    """A chart of *lines*; *described* is what a screen reader says of it."""
    body = Markup("").join(
        Markup(
            '<div class="row"><div class="label">{}{}</div><div class="mark">{}</div><div class="value">{}</div></div>'
        ).format(
            printable(one.label),
            Markup('<span class="below">{}</span>').format(printable(one.below)) if one.below else "",
            one.drawing,
            printable(one.value),
        )
        for one in lines
    )
    around = Markup(
        '<div class="row axis"><div class="label"></div><div class="mark">{}</div><div class="value"></div></div>'
    )
    foot = around.format(axis) if axis is not None else ""
    return Markup('<div class="rows" role="img" aria-label="{}">{}{}</div>').format(printable(described), body, foot)


def amounts(lines: Sequence[tuple[str, str, float, str]], described: str, tone: str = "c0") -> Markup:
    """Bars from zero of ``(label, below, amount, shown)``, the largest as wide as there is room."""
    most = max((amount for _, _, amount, _ in lines), default=0) or 1
    return rows(
        (
            Row(label, below, bar([Segment(tone, f"{label}: {shown}", 0, amount / most)]), shown)
            for label, below, amount, shown in lines
        ),
        described,
    )


class Scale(NamedTuple):
    """A logarithmic axis of durations from *low* to *high*, ns."""

    low: float
    high: float

    def at(self, ns: float) -> float:
        """Where a duration is, 0 to 1."""
        whole = math.log(self.high / self.low)
        return min(1.0, max(0.0, math.log(max(ns, 1e-9) / self.low) / whole)) if whole else 0.5

    def axis(self) -> Markup:
        """Its ticks."""
        wide = math.log10(self.high / self.low) > _FEW_DECADES
        steps = (1,) if wide else (1, 2, 5)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        shown, before = [], -100.0
        for tick in ticks:
            at = 100 * self.at(tick)
            if self.low <= tick <= self.high and at - before >= _TICKS_APART:
                shown.append((at, _round(tick)))
                before = at
        parts = Markup("").join(
            Markup(
                '<line class="tick" x1="{0}%" x2="{0}%" y1="0" y2="5"/>'
                '<text x="{0}%" y="18" text-anchor="{2}">{1}</text>'
            ).format(f"{at:.2f}", text, "start" if at < 4 else "end" if at > 96 else "middle")
            for at, text in shown
        )
        return Markup('<svg class="ticks" width="100%" height="22" aria-hidden="true">{}</svg>').format(parts)


def scale(values: Iterable[float]) -> Scale:
    """An axis that holds all *values*, with a little room."""
    some = [max(value, 1.0) for value in values] or [1.0, 10.0]
    return Scale(min(some) / 1.1, max(*some, min(some) * 1.5) * 1.1)


class Mark(NamedTuple):
    """A line across a distribution: its class, its name, and where (ns)."""

    kind: str
    name: str
    ns: float


def distribution(
    bins: Sequence[tuple[float, float, float]], axis: Scale, marks: Iterable[Mark], tone: str = "c0"
) -> Markup:
    """``(from ns, to ns, how many)`` as columns over a logarithmic axis, the highest as high as there is room."""
    most = max((count for _, _, count in bins), default=0) or 1
    columns = Markup("").join(
        Markup('<rect class="{}" x="{}%" y="{}%" width="{}%" height="{}%"><title>{}</title></rect>').format(
            tone,
            _percent(axis.at(low)),
            f"{96 - 90 * count / most:.1f}",
            _percent(max(axis.at(high) - axis.at(low), 0.004)),
            f"{max(90 * count / most, 1.5):.1f}",
            f"{format_ns(low)} to {format_ns(high)}: {count:,}",
        )
        for low, high, count in bins
    )
    lines = Markup("").join(
        Markup('<line class="mark {}" x1="{}%" x2="{}%" y1="0" y2="96%"><title>{}</title></line>').format(
            one.kind, _percent(axis.at(one.ns)), _percent(axis.at(one.ns)), f"{one.name} {format_ns(one.ns)}"
        )
        for one in marks
    )
    return Markup(
        '<svg class="spread" width="100%" height="44" aria-hidden="true">'
        '<line class="ground" x1="0" x2="100%" y1="96%" y2="96%"/>{}{}</svg>'
    ).format(columns, lines)


class Dot(NamedTuple):
    """A point on a line: colour class, shape (``circle``, ``square``, ``hollow``), name, and place, 0 to 1."""

    colour: str
    shape: str
    name: str
    at: float


def dots(points: Sequence[Dot], joined: bool = True) -> Markup:
    """Points on one line, joined by a thin one."""
    places = [one.at for one in points]
    line = (
        Markup('<line class="join" x1="{}%" x2="{}%" y1="50%" y2="50%"/>').format(
            _percent(min(places)), _percent(max(places))
        )
        if joined and len(places) > 1
        else Markup("")
    )
    return Markup('<svg class="dots" width="100%" height="22" aria-hidden="true">{}{}</svg>').format(
        line, Markup("").join(_dot(one) for one in points)
    )


def _dot(one: Dot) -> Markup:
    at = _percent(one.at)
    if one.shape == "square":
        return Markup('<svg x="{}%" y="50%" overflow="visible"><rect class="{}" x="-5" y="-5" width="10" height="10">'
                      "<title>{}</title></rect></svg>").format(at, one.colour, printable(one.name))  # fmt: skip
    hollow = " hollow" if one.shape == "hollow" else ""
    return Markup('<circle class="{}" cx="{}%" cy="50%" r="5.5"><title>{}</title></circle>').format(
        one.colour + hollow, at, printable(one.name)
    )


def binned(values: Iterable[float]) -> list[tuple[float, float, float]]:
    """Durations in bins as :class:`~worldswitch.report.timebins.DurationBins` has them, eight to each doubling."""
    counts: dict[int, int] = {}
    for value in values:
        mantissa, power = math.frexp(max(value, 1.0))
        place = power * _DECADE + int((mantissa - 0.5) * 16)
        counts[place] = counts.get(place, 0) + 1
    return [
        (_edge(place), _edge(place + 1 if place % _DECADE < 7 else place - 7 + _DECADE), count)
        for place, count in sorted(counts.items())
    ]


def _edge(place: int) -> float:
    power, eighth = divmod(place, _DECADE)
    return math.ldexp(0.5 + eighth / 16, power)


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.2f}"


def _round(ns: float) -> str:
    """A tick's duration without needless digits: ``10 µs``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns:g} ns"
