"""Short numbers, sparklines and bar charts of ``wsw top``: text of a known width."""

from __future__ import annotations

from collections.abc import Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"


def counted(number: int, what: str) -> str:
    """``1 VM``, ``3 VMs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def short(value: float) -> str:
    """A rate or count in at most six columns, with three digits or more: ``3.2``, ``1,234``, ``45.6k``, ``1.23M``."""
    size = abs(value)
    if size < 0.05:
        return "0"
    if size < 9.95:
        return f"{value:.1f}"
    if size < 9_999.5:
        return f"{value:,.0f}"
    for unit, scale in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        scaled = size / scale
        if scaled < 999.5 or unit == "T":
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{value / scale:.{digits}f}{unit}"
    raise AssertionError("unreachable")


def short_bytes(value: float) -> str:
    """Bytes in at most six columns: ``512M``, ``1.50G``."""
    if value < 1024:
        return f"{value:.0f}"
    for unit in ("K", "M", "G", "T"):
        value /= 1024
        if value < 999.5 or unit == "T":
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f}{unit}"
    raise AssertionError("unreachable")


def sparkline(values: Sequence[float], width: int, top: float = 0.0) -> str:
    """The last *width* values as one line of bars, the newest at its right; full height is the largest, or *top*."""
    shown = list(values)[-width:]
    top = max(top, *shown) if shown else top
    steps = "".join(EIGHTHS[_eighth(value, top, 8)] for value in shown)
    return steps.rjust(width)


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """The last *width* values as bars of *height* lines, the topmost line first."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    levels = [0] * (width - len(shown)) + [_eighth(value, top, 8 * height) for value in shown]
    return [
        "".join(EIGHTHS[min(8, max(0, level - 8 * line))] for level in levels) for line in range(height - 1, -1, -1)
    ]


def bar(share: float, width: int) -> str:
    """A horizontal bar, filled by *share* of 1."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")).ljust(width)


def _eighth(value: float, top: float, steps: int) -> int:
    """Of 0 to *steps*; what is more than nothing shows."""
    return 0 if value <= 0 or top <= 0 else max(1, round(min(1.0, value / top) * steps))
