"""What a termination signal does to commands that keep what is finished."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_politely() -> Iterator[None]:
    """A SIGTERM is a Ctrl-C, so that what is finished is shown and kept."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
