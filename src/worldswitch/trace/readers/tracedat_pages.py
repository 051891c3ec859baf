"""The pages of each CPU, block by block: read, decompressed and indexed ahead in other threads.

All blocks live in one buffer, the arena, in regions that are filled again when their events have been given
out. So memory is bounded, and a record is named by one word index whatever CPU it came from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from worldswitch.trace.readers import ringbuffer
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat_codec import CODECS, Chunk, Codec
from worldswitch.trace.readers.tracedat_layout import Buffer, CpuData
from worldswitch.trace.readers.tracedat_options import TimeBase

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PEEK = 1 << 18
_PAD_WORDS = 8
"""A gather loop may look a word or two beyond a record."""


@dataclass(slots=True)
class Block:
    """What the walk found in consecutive pages of one CPU; index columns are sorted by time."""

    slot: NDArray[np.uint16]
    time: NDArray[np.int64]
    tid: NDArray[np.int32]
    start: NDArray[np.int64]
    counts: NDArray[np.int64]
    stats: NDArray[np.int64]
    damaged: list[Chunk]

    def __len__(self) -> int:
        return len(self.slot)


def cpu_name(cpu: int) -> str:
    """How messages name a CPU."""
    return f"CPU {cpu}" if cpu >= 0 else "a CPU"


class CpuPages:
    """Reads one CPU's pages from the file, as chunks still compressed."""

    def __init__(self, source: Input, buffer: Buffer, data: CpuData, codec: Codec) -> None:
        self.cpu = data.cpu
        self.page_size = buffer.page_size
        self.codec = codec if buffer.compressed else CODECS["none"]
        self.damage: list[str] = []
        self._source = source
        self._at = data.offset
        # The size trace-cmd notes of compressed data leaves out the chunks' own headers.
        self._end = source.spooled() if buffer.compressed else data.offset + data.size
        self._compressed = buffer.compressed
        self._left = 0
        if self._compressed:
            self._left = int.from_bytes(source.pread(self._at, 4), "little")
            self._at += 4

    def largest_chunk(self) -> int:
        """Bytes a region must have for this CPU: its first chunk, the others being no larger; or a page."""
        if not self._compressed or self._at + 8 > self._end:
            return self.page_size
        claimed = int.from_bytes(self._source.pread(self._at + 4, 4), "little")
        # trace-cmd compresses 10 pages at a time (lib/trace-cmd/trace-output.c, PAGES_IN_CHUNK).
        return max(10 * self.page_size, claimed if claimed <= 256 * self.page_size else 0)

    def take(self, limit: int) -> list[Chunk]:
        """The next chunks that unpack to *limit* bytes at most; none at the end."""
        if not self._compressed:
            n = min(limit // self.page_size * self.page_size, self._end - self._at)
            data = self._source.pread(self._at, n)
            chunk = Chunk(data, len(data), self._at)
            self._at += len(data)
            return [chunk] if data else []
        chunks: list[Chunk] = []
        room = limit
        window = memoryview(self._source.pread(self._at, min(_PEEK, limit + 4096, self._end - self._at)))
        seen = 0
        while self._left:
            header = bytes(window[seen : seen + 8])
            packed, size = int.from_bytes(header[:4], "little"), int.from_bytes(header[4:], "little")
            if len(header) == 8 and size > limit:
                self._stop(f"a chunk at byte {self._at} claims to unpack to {size} bytes")
                break
            if len(header) == 8 and size > room:
                break
            data = bytes(window[seen + 8 : seen + 8 + packed])
            if len(header) < 8 or len(data) < packed:
                if chunks:
                    break  # the next call begins with this chunk
                window = memoryview(self._source.pread(self._at, min(8 + packed, self._end - self._at)))
                if len(window) < 8 + packed or len(header) < 8:
                    if self._cut(header, window):
                        chunks.append(Chunk(bytes(window[8:]), size, self._at))
                    break
                data = bytes(window[8:])
                seen = -8 - packed
            chunks.append(Chunk(data, size, self._at))
            room -= size
            self._left -= 1
            self._at += 8 + packed
            if seen < 0:
                break
            seen += 8 + packed
        return chunks

    def _cut(self, header: bytes, window: memoryview) -> bool:
        """The file or the CPU's data ends within a chunk; whether anything of it is there."""
        self._stop(f"its data ends within a chunk at byte {self._at}, {self._left} of its chunks are lost or cut")
        return len(header) == 8 and len(window) > 8

    def _stop(self, why: str) -> None:
        self._left = 0
        self.damage.append(f"{cpu_name(self.cpu)}: {why}")


@dataclass(frozen=True, slots=True)
class Index:
    """What the walk is to find: see :func:`ringbuffer.walk`."""

    slots: NDArray[np.uint16]
    least: NDArray[np.int32]
    n_selected: int
    n_slots: int


class Arena:
    """The buffer all regions lie in, and the work done on a region."""

    def __init__(self, region_bytes: int, regions: int, index: Index, time_base: TimeBase) -> None:
        self.region_bytes = region_bytes
        self._region_words = region_bytes // 4
        self._array = np.zeros(self._region_words * regions + _PAD_WORDS, np.uint32)
        self.words = memoryview(self._array)  # type: ignore[arg-type]  # numpy's stubs lack __buffer__ on 3.11
        self._bytes = self.words.cast("B")
        self._index = index
        self._time_base = time_base
        self._scratch = threading.local()

    def load(self, pages: CpuPages, chunks: Sequence[Chunk], region: int, data_offset: int) -> Block:
        """Decompress *chunks* into a region and index its records."""
        first = region * self._region_words
        target = self._bytes[first * 4 : first * 4 + self.region_bytes]
        filled, damaged = pages.codec.unpack_all(chunks, target, pages.page_size)
        index = self._index
        counts = np.zeros(index.n_slots + 1, np.int64)
        stats = np.zeros(ringbuffer.STATS, np.int64)
        stats[ringbuffer.FIRST], stats[ringbuffer.LAST] = ringbuffer.TIME_MASK, -1
        columns = self._columns()
        n = ringbuffer.walk(
            self.words,
            filled // 4,
            first,
            pages.page_size // 4,
            data_offset // 4,
            index.slots,
            index.least,
            index.n_selected,
            counts,
            stats,
            *columns,
        )
        slot, time, tid, start = (column[:n].copy() for column in columns)
        time = self._time_base.convert(time, pages.cpu)
        if stats[ringbuffer.LAST] >= 0:
            span = slice(ringbuffer.FIRST, ringbuffer.LAST + 1)
            stats[span] = self._time_base.convert(stats[span], pages.cpu)
        if n and (time[1:] < time[:-1]).any():
            positions = np.argsort(time, kind="stable")
            slot, time, tid, start = (column[positions] for column in (slot, time, tid, start))
        return Block(slot, time, tid, start, counts, stats, damaged)

    def _columns(self) -> tuple[NDArray[Any], ...]:
        """This thread's index columns, room for a region full of the shortest records (12 bytes)."""
        if not hasattr(self._scratch, "columns"):
            n = self._region_words // 3 + 1
            self._scratch.columns = tuple(np.empty(n, kind) for kind in (np.uint16, np.int64, np.int32, np.int64))
        columns: tuple[NDArray[Any], ...] = self._scratch.columns
        return columns


class Future(Protocol):
    """Work under way."""

    def result(self) -> Block:
        """Its outcome, waited for."""
        ...


Rows: TypeAlias = "tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]"
"""Slot, time, cpu, tid and start of events in time order."""


@dataclass(slots=True)
class _Loaded:
    region: int
    block: Block
    at: int = 0
    """How many of the block's events have been given out."""


class Stream:
    """One CPU's blocks in the order of the file, *keep* of them loaded, others prepared ahead.

    Args:
        regions: Those of the arena this stream may use, at least *keep*.
        load: Starts to load the next chunks into a region; None at their end.
        seen: Called once with each block.
    """

    def __init__(
        self,
        pages: CpuPages,
        regions: Sequence[int],
        keep: int,
        load: Callable[[CpuPages, int], Future | None],
        seen: Callable[[Block, CpuPages], None],
    ) -> None:
        self.pages = pages
        self._free = list(regions)
        self._keep = keep
        self._load = load
        self._seen = seen
        self._more = True
        self._pending: deque[tuple[int, Future]] = deque()
        self._loaded: list[_Loaded] = []
        self._prepare()

    def _prepare(self) -> None:
        while self._more and self._free:
            region = self._free.pop()
            job = self._load(self.pages, region)
            if job is None:
                self._more = False
                self._free.append(region)
            else:
                self._pending.append((region, job))

    def fill(self) -> bool:
        """Have blocks loaded; false when all events have been given out."""
        self._free += [one.region for one in self._loaded if one.at == len(one.block)]
        self._loaded = [one for one in self._loaded if one.at < len(one.block)]
        self._prepare()
        while len(self._loaded) < self._keep and self._pending:
            region, job = self._pending.popleft()
            block = job.result()
            self._seen(block, self.pages)
            if len(block):
                self._loaded.append(_Loaded(region, block))
            else:
                self._free.append(region)
            self._prepare()
        return bool(self._loaded)

    def until(self) -> int | None:
        """The time up to which all events are loaded, None at the end of the file."""
        return int(self._loaded[-1].block.time[-1]) if self._pending or self._more else None

    def take(self, until: int | None) -> list[Rows]:
        """The loaded events up to a time; their payloads stay where they are until :meth:`fill`."""
        rows: list[Rows] = []
        for one in self._loaded:
            block, begin = one.block, one.at
            one.at = len(block) if until is None else int(np.searchsorted(block.time, until, side="right"))
            if begin < one.at:
                part = slice(begin, one.at)
                cpu = np.full(one.at - begin, self.pages.cpu, np.int32)
                rows.append((block.slot[part], block.time[part], cpu, block.tid[part], block.start[part]))
            one.at = max(begin, one.at)
        return rows
