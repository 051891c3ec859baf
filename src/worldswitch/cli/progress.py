"""Progress of long reads: a bar on a terminal, a plain line every few seconds elsewhere; nothing in the first
second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from worldswitch.errors import printable
from worldswitch.record.trace import Batch, EventSource, Meta, Selection

_QUIET = 1.0
_EVERY = 5.0
_REDRAW = 0.1


def watched(source: EventSource, name: str) -> EventSource:
    """*source*, saying on stderr how far its reading has come."""
    return _Watched(source, printable(name))


class _Watched:
    """Passes everything on."""

    def __init__(self, source: EventSource, name: str) -> None:
        self._source = source
        self._name = name

    @property
    def meta(self) -> Meta:
        return self._source.meta

    @meta.setter
    def meta(self, meta: Meta) -> None:
        self._source.meta = meta

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """The source's batches."""
        start = last = time.monotonic()
        on_terminal = sys.stderr.isatty()
        wait = _REDRAW if on_terminal else _EVERY
        events, drawn = 0, False
        try:
            for batch in self._source.batches(selection):
                yield batch
                events += len(batch)
                now = time.monotonic()
                if now - start > _QUIET and now - last > wait:
                    last = now
                    self._say(events, now - start, on_terminal)
                    drawn = on_terminal
        finally:
            if drawn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    def _say(self, events: int, seconds: float, on_terminal: bool) -> None:
        source = getattr(self._source, "_source", None)
        position, size = getattr(source, "position", 0), getattr(source, "size", None)
        share = f"{position / size:4.0%} " if size and position else ""
        line = f"{self._name}: {share}{events:,} events, {events / seconds / 1e6:.1f} M/s"
        if on_terminal:
            bar = "#" * int(30 * position / size) if size and position else ""
            sys.stderr.write(f"\r\x1b[K[{bar:<30}] {line}" if bar else f"\r\x1b[K{line}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
