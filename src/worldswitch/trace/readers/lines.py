"""Lines of an input, and batches of rows read one by one: for the readers that need not be fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from worldswitch.record.trace import UNKNOWN_PID, Batch, Columns

PIECE = 1 << 18
LONGEST_LINE = 1 << 20
"""A longer line comes in parts."""


class Source(Protocol):
    """What a reader of lines needs of its input; :class:`worldswitch.trace.readers.source.Input` has it."""

    name: str
    head: bytes

    @property
    def damage(self) -> str | None:
        """What was wrong with the bytes, if anything."""
        ...

    def read(self, n: int) -> bytes:
        """The next *n* bytes, fewer only at the end."""
        ...


def pieces(source: Source) -> Iterator[bytes]:
    """All bytes of *source*, in pieces."""
    while piece := source.read(PIECE):
        yield piece


def split(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The lines in *parts*, without their ends (LF or CR LF)."""
    rest = b""
    for part in parts:
        lines = (rest + part).split(b"\n")
        rest = lines.pop()
        while len(rest) > LONGEST_LINE:
            lines.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")


def text_lines(source: Source) -> Iterator[str]:
    """The lines of *source* as text; bytes that are no UTF-8 as backslash escapes."""
    for line in split(pieces(source)):
        yield line.decode("utf-8", "backslashreplace")


def nanoseconds(seconds: str, decimals: str | None) -> int:
    """Of a number of seconds in two parts; of the decimals nine at most."""
    return int(seconds) * 10**9 + int((decimals or "0").ljust(9, "0"))


def table_batch(
    event: str,
    columns: Mapping[str, str],
    rows: Sequence[Sequence[Any]],
    times: Sequence[int],
    tids: Sequence[int],
) -> Batch:
    """One batch of one event.

    Args:
        event: Its name.
        columns: Column name to numpy dtype, in the order of the values of a row.
        rows: The values; integers must fit.
        times: Nanoseconds, one per row.
        tids: Threads, one per row.
    """
    n = len(rows)
    table: Columns = {}
    for index, (name, dtype) in enumerate(columns.items()):
        column = np.empty(n, dtype)
        for row, values in enumerate(rows):
            column[row] = values[index]
        table[name] = column
    return Batch(
        (event,),
        np.zeros(n, np.uint16),
        np.array(times, np.int64),
        np.full(n, -1, np.int32),
        np.array(tids, np.int32),
        np.full(n, UNKNOWN_PID, np.int32),
        (table,),
    )
