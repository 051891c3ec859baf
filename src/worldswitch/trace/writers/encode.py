"""From columns back to tracepoint records: what the binary writers share.

A record is the container's own head (of the size the writer asks for), the eight bytes every tracepoint
begins with, the fields where the event's format puts them, and behind those the texts that ``__data_loc``
fields point at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.record.formats import EventFormat, Field, Kind
from worldswitch.record.trace import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_PAYLOAD = 4000
"""Bytes of one record without head. The kernel's ring buffer takes no record larger than a page."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the records of one event are laid out behind a head of *head* bytes.

    Attributes:
        dtype: One record. The head's fields are named with a leading ``#``, so that no event field can clash.
        size: Bytes of the payload's fixed part, as the kernel's C structure has them.
    """

    event: EventFormat
    head: int
    dtype: np.dtype[Any]
    size: int

    @property
    def dynamic(self) -> tuple[Field, ...]:
        """The fields whose bytes lie behind the fixed part."""
        return tuple(f for f in self.event.fields if f.kind in (Kind.DYNAMIC, Kind.RELATIVE))


def layout(event: EventFormat, head: list[tuple[str, str, int]], head_bytes: int, multiple: int) -> Layout | None:
    """The layout of *event*, or None if its fixed part alone is larger than any record can be.

    Args:
        event: The event's format.
        head: Name, numpy type and offset of each field of the head.
        head_bytes: Size of the head.
        multiple: The whole record's size is rounded up to a multiple of this many bytes.
    """
    natural = max((f.size for f in event.fields if f.kind is Kind.INT), default=4)
    size = up(event.size, max(natural, 4))
    if size > LARGEST_PAYLOAD:
        return None
    names, types, offsets = map(list, zip(*head, strict=True)) if head else ([], [], [])
    names += ["#common_type", "#common_pid"]
    types += ["<u2", "<i4"]
    offsets += [head_bytes, head_bytes + 4]
    for field in event.fields:
        if field.size and field.name not in names:
            names.append(field.name)
            types.append(_type(field))
            offsets.append(head_bytes + field.offset)
    whole = up(head_bytes + size, multiple)
    dtype = np.dtype({"names": names, "formats": types, "offsets": offsets, "itemsize": whole})
    return Layout(event, head_bytes, dtype, size)


def records(where: Layout, columns: Columns, tid: NDArray[np.int32]) -> NDArray[Any]:
    """The fixed parts of all records of one event, shape (n,); the head is left zero.

    Fields the columns lack stay zero. Dynamic fields are left to :func:`tails`.
    """
    one = np.zeros(1, where.dtype)
    one["#common_type"] = where.event.id & 0xFFFF
    out = np.repeat(one, len(tid))
    out["#common_pid"] = tid
    for field in where.event.fields:
        if field.name in columns and field.name in (where.dtype.names or ()):
            fixed = _fixed(field, columns[field.name])
            if fixed is not None:
                out[field.name] = fixed
    return out


def tails(where: Layout, columns: Columns, out: NDArray[Any]) -> list[bytes]:
    """The bytes behind each record's fixed part; sets in *out* the fields that point at them.

    What does not fit :data:`LARGEST_PAYLOAD` is cut.
    """
    parts = [bytearray() for _ in range(len(out))]
    for field in where.dynamic:
        if field.name not in columns or field.size != 4:
            continue
        base = field.offset + field.size if field.kind is Kind.RELATIVE else 0
        pointers = np.zeros(len(out), np.uint32)
        for row, value in enumerate(columns[field.name]):
            part = parts[row]
            data = _blob(field, value)[: max(0, LARGEST_PAYLOAD - where.size - len(part))]
            pointers[row] = len(data) << 16 | (where.size + len(part) - base) & 0xFFFF
            part += data
        out[field.name] = pointers
    return [bytes(part) for part in parts]


def place(
    out: NDArray[Any], starts: NDArray[np.intp], where: Layout, rows: NDArray[Any], behind: list[bytes] | None
) -> None:
    """Copy each record to its place.

    Args:
        out: Where to; contiguous, of any type.
        starts: The byte each of the *rows* begins at.
        where: The rows' layout.
        rows: What :func:`records` made.
        behind: What :func:`tails` made, if the event has dynamic fields.
    """
    flat = out.view(np.uint8)
    whole = np.dtype((np.void, where.dtype.itemsize))
    if len(rows):
        # Every byte of the buffer as the beginning of a whole record: numpy then copies record by record.
        anywhere = np.ndarray((len(flat) - whole.itemsize + 1,), whole, flat.data, 0, (1,))
        anywhere[starts] = rows.view(whole)
    if behind:
        for at, blob in zip((starts + where.head + where.size).tolist(), behind, strict=True):
            flat[at : at + len(blob)] = np.frombuffer(blob, np.uint8)


def up(value: int, multiple: int) -> int:
    """*value* rounded up to a multiple."""
    return -(-value // multiple) * multiple


def _type(field: Field) -> str:
    if field.kind is Kind.INT:
        return f"<{field.dtype}"
    if field.kind in (Kind.DYNAMIC, Kind.RELATIVE):
        return "<u4" if field.size == 4 else f"V{field.size}"
    if field.kind is Kind.BOOL:
        return f"<u{field.size}"
    return f"S{field.size}" if field.kind is Kind.TEXT else f"({field.size},)u1"


def _fixed(field: Field, column: NDArray[Any]) -> NDArray[Any] | None:
    if field.kind is Kind.TEXT:
        return np.array([encoded(text) for text in column], f"S{field.size}")
    if field.kind is Kind.BYTES:
        given = column if column.ndim == 2 else column.reshape(len(column), -1)
        if given.shape[1] == field.size:
            return given
        fitted = np.zeros((len(given), field.size), np.uint8)
        width = min(field.size, given.shape[1])
        fitted[:, :width] = given[:, :width]
        return fitted
    if field.kind in (Kind.INT, Kind.BOOL):
        return column if column.ndim == 1 and column.dtype.kind in "iub" else None
    return None


def _blob(field: Field, value: object) -> bytes:
    text = str(value)
    if "char" in field.declaration:
        return encoded(text) + b"\0"
    try:
        return bytes.fromhex(text)
    except ValueError:
        return encoded(text)


def encoded(text: object) -> bytes:
    """*text* as UTF-8 without NUL; what UTF-8 cannot say is written as an escape."""
    return str(text).replace("\0", "").encode("utf-8", "backslashreplace")
