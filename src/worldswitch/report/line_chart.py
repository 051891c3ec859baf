"""A line chart as a small SVG file of its own, and as one line of blocks for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_BLOCKS = "▁▂▃▄▅▆▇█"
_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8a5a9e", "#8c6d1f", "#444444")
_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 860, 190, 90, 20, 40, 56


class Line(NamedTuple):
    """A name, and a value for each place on the time axis."""

    name: str
    values: Sequence[float]


class Panel(NamedTuple):
    """Lines that share one axis from zero up, and what is measured along it."""

    title: str
    lines: Sequence[Line]


def blocks(values: Sequence[float]) -> str:
    """One block a value, from zero to the largest."""
    most = max(values, default=0) or 1
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(value / most * (len(_BLOCKS) - 1) + 0.5))] for value in values)


def svg(title: str, times: Sequence[float], unit: str, panels: Sequence[Panel]) -> str:
    """The chart: panels below one another over the same *times*, in *unit*."""
    height = _TOP + len(panels) * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>'
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, times, unit, _TOP + number * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, times: Sequence[float], unit: str, top: float) -> list[str]:
    bottom, right = top + _PANEL, _WIDTH - _RIGHT
    most = max((value for line in panel.lines for value in line.values), default=0) or 1
    last = max(times, default=0) or 1
    parts = [f'<text x="{_LEFT}" y="{top + 12}">{escape(panel.title)}</text>']
    for share in (0, 0.5, 1):
        y = bottom - share * (_PANEL - 24)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(most * share)}</text>')
        x = _LEFT + share * (right - _LEFT)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(last * share)} {unit}</text>')
    for number, line in enumerate(panel.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{_LEFT + time / last * (right - _LEFT):.1f},{bottom - value / most * (_PANEL - 24):.1f}"
            for time, value in zip(times, line.values, strict=True)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{points}"/>')
        x = _LEFT + number * min(190, (right - _LEFT) // len(panel.lines))
        parts.append(f'<text x="{x}" y="{bottom + 34}" fill="{colour}">― {escape(line.name)}</text>')
    return parts


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
