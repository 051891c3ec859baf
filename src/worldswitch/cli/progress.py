"""Progress of long reads: a bar on a terminal, a plain line every few seconds elsewhere; nothing in the first
second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from worldswitch.errors import printable

if TYPE_CHECKING:
    from worldswitch.record.trace import Batch, EventSource, Meta, Selection

_QUIET = 1.0
_EVERY = 5.0
_REDRAW = 0.1


def watched(source: EventSource, name: str) -> EventSource:
    """*source*, saying on stderr how far its reading has come."""
    return _Watched(source, printable(name))


class Line:
    """One line on stderr that is written anew on a terminal, and from time to time elsewhere; silent at first."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self._drawn = False

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._start

    def say(self, text: Callable[[], str]) -> None:
        """Show what *text* gives, if it is time to."""
        now = time.monotonic()
        if now - self._start <= _QUIET or now - self._last <= (_REDRAW if self.on_terminal else _EVERY):
            return
        self._last = now
        self._drawn = self.on_terminal
        sys.stderr.write(f"\r\x1b[K{text()}" if self.on_terminal else f"{text()}\n")
        sys.stderr.flush()

    def tell(self, sentence: str) -> None:
        """Say what is to stay, on a line of its own."""
        self.clear()
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave the terminal as it was."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


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
        line = Line()
        events = 0
        try:
            for batch in self._source.batches(selection):
                yield batch
                events += len(batch)
                line.say(partial(self._text, events, line))
        finally:
            line.clear()

    def _text(self, events: int, line: Line) -> str:
        source = getattr(self._source, "_source", None)
        position, size = getattr(source, "position", 0), getattr(source, "size", None)
        share = f"{position / size:4.0%} " if size and position else ""
        text = f"{self._name}: {share}{events:,} events, {events / line.seconds / 1e6:.1f} M/s"
        if not line.on_terminal or not (size and position):
            return text
        return f"[{'#' * int(30 * position / size):<30}] {text}"
