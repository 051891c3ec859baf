"""From record payloads to columns: the inner loops every binary reader shares.

A payload is a tracepoint record as the kernel wrote it, starting at a 4-byte boundary of a buffer that is seen as
little-endian u32 words. *starts* holds the word where each record's payload begins; the caller has made sure that
``start + size`` words lie inside the buffer.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

from worldswitch.record.formats import EventFormat, Field, Kind
from worldswitch.record.trace import Columns

Words = Any
"""A buffer of u32: ``memoryview(...).cast("I")`` or an array."""


def columns(
    words: Words, starts: NDArray[np.int64], event: EventFormat, wanted: tuple[Field, ...] | None = None
) -> Columns:
    """The fields of all records of one event.

    Args:
        words: The buffer.
        starts: First word of each record's payload, shape (n,).
        event: The event's format.
        wanted: The fields to decode; all of the format's if None.
    """
    return {f.name: column(words, starts, f) for f in (event.fields if wanted is None else wanted)}


def column(words: Words, starts: NDArray[np.int64], field: Field) -> NDArray[Any]:
    """One field of all records: shape (n,), or (n, count) for byte arrays."""
    n = len(starts)
    if field.kind in (Kind.INT, Kind.BOOL):
        if field.size == 8:
            eight = np.empty(n, np.uint64)
            gather_8(words, starts, field.offset, eight)
            return eight.view(field.dtype)
        four = np.empty(n, np.uint32)
        gather_4(words, starts, field.offset, field.size, four)
        if field.kind is Kind.BOOL:
            return np.not_equal(four, 0)
        return four.view(np.int32) if field.dtype == "i4" else np.asarray(four, field.dtype)
    if field.kind in (Kind.BYTES, Kind.TEXT):
        rows = np.empty((n, field.size), np.uint8)
        gather_bytes(words, starts, field.offset, field.size, rows)
        return rows if field.kind is Kind.BYTES else _texts(rows)
    return _dynamic(words, starts, field)


def _texts(rows: NDArray[np.uint8]) -> NDArray[Any]:
    texts = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        texts[i] = row.tobytes().split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    return texts


def _dynamic(words: Words, starts: NDArray[np.int64], field: Field) -> NDArray[Any]:
    """Strings (NUL-terminated) that a __data_loc or __rel_loc points at; other arrays as hex."""
    where = np.empty(len(starts), np.uint32)
    gather_4(words, starts, field.offset, 4, where)
    buffer = memoryview(words).cast("B")
    is_text = "char" in field.declaration
    base = field.offset + field.size if field.kind is Kind.RELATIVE else 0
    values = np.empty(len(starts), object)
    for i, (loc, start, end) in enumerate(
        zip(where.tolist(), starts.tolist(), _ends(starts, len(buffer)), strict=True)
    ):
        begin = start * 4 + base + (loc & 0xFFFF)
        data = bytes(buffer[begin : min(begin + (loc >> 16), end)])
        values[i] = data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace") if is_text else data.hex()
    return values


def _ends(starts: NDArray[np.int64], size: int) -> list[int]:
    """The byte at which each record must have ended: the next one's start. A lying length copies no more than that."""
    ascending = np.append(np.unique(starts), size // 4)
    ends: list[int] = (ascending[np.searchsorted(ascending, starts, side="right")] * 4).tolist()
    return ends


def gather_8(words, starts, offset, out):  # type: ignore[no-untyped-def]
    """out[i] = the u64 at byte *offset* of payload i. *offset* may have any alignment."""
    first = offset >> 2
    shift = (offset & 3) * 8
    n = len(starts)
    with cython.nogil:
        for i in range(n):
            k = starts[i] + first
            low = words[k]
            high = words[k + 1]
            value = low | (high << 32)
            if shift:
                # Only the bits that are wanted: uncompiled, integers grow beyond 64.
                top = words[k + 2] & ((1 << shift) - 1)
                value = (value >> shift) | (top << (64 - shift))
            out[i] = value


def gather_4(words, starts, offset, size, out):  # type: ignore[no-untyped-def]
    """out[i] = the *size* (1, 2 or 4) bytes at byte *offset* of payload i, zero-extended to u32."""
    first = offset >> 2
    shift = (offset & 3) * 8
    straddles = shift + size * 8 > 32
    mask = 0xFFFFFFFF if size == 4 else (1 << (size * 8)) - 1
    n = len(starts)
    with cython.nogil:
        for i in range(n):
            k = starts[i] + first
            value = words[k]
            if straddles:
                high = words[k + 1]
                value |= high << 32
            out[i] = (value >> shift) & mask


def gather_bytes(words, starts, offset, count, out):  # type: ignore[no-untyped-def]
    """out[i, j] = byte *offset* + j of payload i."""
    n = len(starts) if count else 0
    with cython.nogil:
        for i in range(n):
            at = starts[i] * 4 + offset
            k = at >> 2
            word = words[k] >> ((at & 3) * 8)
            left = 4 - (at & 3)
            for j in range(count):
                if left == 0:
                    k += 1
                    word = words[k]
                    left = 4
                out[i, j] = word & 0xFF
                word = word >> 8
                left -= 1


def split(order, n_events, starts, begins, out):  # type: ignore[no-untyped-def]
    """Group *starts* by event: those of event e land in ``out[begins[e]:begins[e + 1]]``, in order.

    *begins* has shape (n_events + 1,), is overwritten, int64.
    """
    n = len(order)
    with cython.nogil:
        for e in range(n_events + 1):
            begins[e] = 0
        for i in range(n):
            begins[order[i] + 1] += 1
        for e in range(n_events):
            begins[e + 1] += begins[e]
        # Fill using begins as cursors; afterwards begins[e] is the end of e, so shift back by one.
        for i in range(n):
            e = order[i]
            out[begins[e]] = starts[i]
            begins[e] += 1
        e = n_events
        while e > 0:
            begins[e] = begins[e - 1]
            e -= 1
        begins[0] = 0
