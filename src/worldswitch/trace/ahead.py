"""Decode on one core while the other accounts."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")

_DEPTH = 4
_PATIENCE = 100
"""Hundredths of a second to wait for a thread that may hang in a read; it dies with the process."""


def ahead(items: Iterator[T]) -> Iterator[T]:
    """*items*, produced by a thread a few items ahead of the consumer; errors are raised where they belong.

    The decoding loops release the GIL, so this halves the time on two cores. The thread ends when the consumer stops.
    """
    queue: Queue[tuple[T | None, BaseException | None]] = Queue(_DEPTH)
    stop = Event()

    def produce() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if stop.is_set():
                    return
                queue.put((item, None))
        except BaseException as raised:  # handed to the consumer, KeyboardInterrupt too
            error = raised
        queue.put((None, error))

    thread = Thread(target=produce, name="decode", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        for _ in range(_PATIENCE):
            if not thread.is_alive():
                break
            while not queue.empty():
                queue.get_nowait()
            thread.join(0.01)
