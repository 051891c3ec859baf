"""Durations and sizes: parse what people type, format what they read."""

from __future__ import annotations

import re

from worldswitch.errors import UsageError

_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(ns|us|µs|μs|ms|s|m|min|h)?\s*\Z")
_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_LONGEST = 2.0**63
_NS |= {"m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


def parse_duration(text: str, default_unit: str = "s") -> int:
    """Nanoseconds of a duration such as ``1ms``, ``2.5us`` or ``0.25`` (in *default_unit*).

    Raises:
        UsageError: *text* is not a number with a known unit.
    """
    found = _DURATION.match(text)
    if not found:
        raise UsageError(f"{text!r} is not a duration; write a number and a unit, such as 1ms, 250us or 2s")
    value = float(found[1]) * _NS[found[2] or default_unit]
    if value >= _LONGEST:
        raise UsageError(f"{text!r} is longer than any trace; 64 bits of nanoseconds hold 292 years")
    return round(value)


def format_ns(value: float | None) -> str:
    """A duration to three digits in the unit that gives one to three before the point: ``81.5 µs``."""
    if value is None:
        return "-"
    if abs(value) < 999.5:
        return f"{value:.0f} ns"
    for unit, scale in (("µs", 1e3), ("ms", 1e6)):
        if abs(value) < 999.5 * scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value / 1e9)} s"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:,.0f}"


def format_size(value: float) -> str:
    """A number of bytes with a binary unit: ``64.8 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
