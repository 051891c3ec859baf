"""Traces in, answers out: readers, accounting, detectors, what-if, writers."""

from __future__ import annotations

from pathlib import Path

from worldswitch.record.trace import Trace
from worldswitch.trace.readers import open_source

__all__ = ["open_source", "open_trace"]


def open_trace(path: str | Path) -> Trace:
    """Read a whole trace into memory; see :func:`open_source` for what can be read."""
    return Trace.read(open_source(path))
