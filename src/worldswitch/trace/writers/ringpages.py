"""Events into ftrace ring-buffer pages, per CPU, spooled to an unnamed temporary file.

A page is a u64 time stamp, a u64 ``commit`` (bytes used, and two flags) and the records. A record is one
u32 (five bits ``type_len``, 27 bits of time since the record before) and its payload; payloads over 112
bytes have their length in a u32 between. Source: include/linux/ring_buffer.h, kernel/trace/ring_buffer.c.
"""

from __future__ import annotations

import struct
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from worldswitch.errors import UsageError
from worldswitch.record.formats import EventFormat
from worldswitch.record.order import concatenate
from worldswitch.record.trace import Batch
from worldswitch.trace.writers.encode import Layout, layout, place, records, tails, up

if TYPE_CHECKING:
    from numpy.typing import NDArray

Compress = Callable[[bytes], bytes]

PAGE = 4096
_CHUNK_PAGES = 32
_HEADER = 16
_ROOM = PAGE - _HEADER
_TIME_EXTEND, _TIME_STAMP = 30, 31
_DELTA_BITS = 27
_STAMP_BITS = 59
_MISSED, _MISSED_STORED = 1 << 31, 1 << 30
_SMALL = 112
_GATHER = 1 << 17
_MOST_CPUS = 1 << 16
_SHORT_HEAD = [("#head", "<u4", 0)]
_LONG_HEAD = [("#head", "<u4", 0), ("#length", "<u4", 4)]


def page_layout(event: EventFormat) -> Layout | None:
    """The layout of *event* in a ring buffer; None if no record can hold it."""
    short = layout(event, _SHORT_HEAD, 4, 4)
    if short is None or (up(short.size, 4) <= _SMALL and not short.dynamic):
        return short
    return layout(event, _LONG_HEAD, 8, 4)


class RingPages:
    """The pages of one buffer (instance).

    Attributes:
        entries: CPU -> events written.
    """

    def __init__(self, absolute: bool = False, compress: Compress | None = None) -> None:
        self.entries: dict[int, int] = {}
        self._absolute = absolute
        self._compress = compress
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        self._pieces: dict[int, list[tuple[int, int]]] = {}  # CPU -> (where in the spool, bytes)
        self._held: list[Batch] = []
        self._missed = 0

    def add(self, batch: Batch, layouts: dict[str, Layout]) -> None:
        """Take events; each must have a layout."""
        if not len(batch):
            return
        if int(batch.cpu.max()) >= _MOST_CPUS:
            raise UsageError(
                f"CPU number {int(batch.cpu.max())} is none that a trace.dat can hold (0 to {_MOST_CPUS - 1})"
            )
        self._held.append(batch)
        if sum(map(len, self._held)) >= _GATHER:
            self.flush(layouts)

    def missed(self, events: int, layouts: dict[str, Layout]) -> None:
        """Mark that *events* were lost before whatever is added next."""
        self.flush(layouts)
        self._missed += events

    def flush(self, layouts: dict[str, Layout]) -> None:
        """Write out what is held back."""
        if self._held:
            batch, self._held = concatenate(self._held), []
            self._write(batch, layouts)

    def size(self, cpu: int) -> int:
        """Bytes that :meth:`data` gives for one CPU."""
        pieces = self._pieces.get(cpu, ())
        return sum(size for _, size in pieces) + (4 if self._compress and pieces else 0)

    def data(self, cpu: int) -> Iterator[bytes]:
        """One CPU's pages; compressed, a count of chunks, and each chunk behind its two sizes."""
        pieces = self._pieces.get(cpu, ())
        if self._compress and pieces:
            yield struct.pack("<I", len(pieces))
        for at, size in pieces:
            self._spool.seek(at)
            yield self._spool.read(size)

    def close(self) -> None:
        """Drop the spool."""
        self._spool.close()

    def _write(self, batch: Batch, layouts: dict[str, Layout]) -> None:
        cpus = np.maximum(batch.cpu, 0)
        if (cpus[1:] < cpus[:-1]).any():
            batch = batch.take(np.argsort(cpus, kind="stable"))
            cpus = np.maximum(batch.cpu, 0)
        parts, sizes = _encode(batch, layouts)
        delta = np.diff(batch.time, prepend=batch.time[:1])
        extended = (delta >> _DELTA_BITS) != 0
        if self._absolute:
            extended[:] = True
        # A page's own stamp says what no delta can: a CPU's first time, time going back, 2^59 ns.
        breaks = (delta < 0) | (delta >> _STAMP_BITS != 0)
        breaks[1:] |= cpus[1:] != cpus[:-1]
        room = _ROOM - (8 if self._missed else 0)
        firsts = _page_starts(sizes + 8 * extended, np.flatnonzero(breaks).tolist(), room)
        extended[firsts] = False
        delta[firsts] = 0
        starts, used = _positions(sizes + 8 * extended, firsts)
        starts += 8 * extended
        out = np.zeros(len(firsts) * PAGE // 4, np.uint32)
        short = np.where(extended, 0, delta).astype(np.uint32) << 5
        for rows, where, made, behind in parts:
            made["#head"] |= short[rows]
            place(out, starts[rows], where, made, behind)
        self._stamps(out, starts[extended], batch.time[extended], delta[extended])
        self._headers(out, batch.time[firsts], used)
        owners = cpus[firsts]
        for cpu, entries in zip(*np.unique(cpus, return_counts=True), strict=True):
            self.entries[int(cpu)] = self.entries.get(int(cpu), 0) + int(entries)
            begin, end = np.searchsorted(owners, [cpu, cpu + 1]).tolist()
            for page in range(begin, end, _CHUNK_PAGES):
                last = min(page + _CHUNK_PAGES, end)
                self._keep(int(cpu), out[page * PAGE // 4 : last * PAGE // 4].tobytes())

    def _keep(self, cpu: int, pages: bytes) -> None:
        if self._compress:
            packed = self._compress(pages)
            pages = struct.pack("<II", len(packed), len(pages)) + packed
        at = self._spool.seek(0, 2)
        self._spool.write(pages)
        self._pieces.setdefault(cpu, []).append((at, len(pages)))

    def _stamps(
        self,
        out: NDArray[np.uint32],
        starts: NDArray[np.intp],
        time: NDArray[np.int64],
        delta: NDArray[np.int64],
    ) -> None:
        """The time records before those that need one."""
        kind, value = (_TIME_STAMP, time & ((1 << _STAMP_BITS) - 1)) if self._absolute else (_TIME_EXTEND, delta)
        low = (value & ((1 << _DELTA_BITS) - 1)) << 5 | kind
        out[starts // 4 - 2] = low.astype(np.uint32)
        out[starts // 4 - 1] = (value >> _DELTA_BITS).astype(np.uint32)

    def _headers(self, out: NDArray[np.uint32], time: NDArray[np.int64], used: NDArray[np.intp]) -> None:
        pages = out.view(np.uint64).reshape(-1, PAGE // 8)
        pages[:, 0] = time.view(np.uint64)
        pages[:, 1] = used.astype(np.uint64)
        if self._missed:
            pages[0, 1] |= np.uint64(_MISSED | _MISSED_STORED)
            at = (_HEADER + int(used[0])) // 4
            out[at], out[at + 1] = self._missed & 0xFFFFFFFF, self._missed >> 32 & 0xFFFFFFFF
            self._missed = 0


_Part: TypeAlias = "tuple[NDArray[np.intp], Layout, NDArray[Any], list[bytes] | None]"


def _encode(batch: Batch, layouts: dict[str, Layout]) -> tuple[list[_Part], NDArray[np.intp]]:
    """The records of each event, their heads without time, and the size of every record in order."""
    sizes = np.zeros(len(batch), np.intp)
    parts: list[_Part] = []
    for index, name in enumerate(batch.events):
        rows = np.flatnonzero(batch.order == index)
        if not len(rows):
            continue
        where = layouts[name]
        made = records(where, batch.tables[index], batch.tid[rows])
        behind = tails(where, batch.tables[index], made) if where.dynamic else None
        sizes[rows] = where.dtype.itemsize
        if where.head == 4:
            made["#head"] = where.dtype.itemsize // 4 - 1
        else:
            if behind:
                sizes[rows] = [up(where.head + where.size + len(blob), 4) for blob in behind]
            made["#length"] = sizes[rows] - 4
        parts.append((rows, where, made, behind))
    return parts, sizes


def _page_starts(sizes: NDArray[np.intp], breaks: list[int], room: int) -> NDArray[np.intp]:
    """The first record of each page.

    Args:
        sizes: Of each record, its time record included.
        breaks: Records that must start a page.
        room: Bytes the first page may hold.
    """
    ends: list[int] = np.cumsum(sizes).tolist()
    stops = [*breaks, len(ends)]
    firsts = []
    first, base, stop = 0, 0, 0
    while first < len(ends):
        firsts.append(first)
        while stops[stop] <= first:
            stop += 1
        first = max(min(bisect_right(ends, base + room, first), stops[stop]), first + 1)
        base, room = ends[first - 1], _ROOM
    return np.array(firsts, np.intp)


def _positions(sizes: NDArray[np.intp], firsts: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The byte each record begins at, and the bytes used of each page."""
    ends = np.cumsum(sizes)
    begins = ends - sizes
    used = np.diff(np.append(begins[firsts], ends[-1]))
    page = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(sizes))))
    return page * PAGE + _HEADER + begins - begins[firsts][page], used
