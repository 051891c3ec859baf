"""Reads trace.dat, the file of ``trace-cmd record``: versions 6 and 7, compressed or not.

The parts: :mod:`tracedat_layout` finds what lies where, :mod:`tracedat_options` says what the options mean,
:mod:`tracedat_pages` brings each CPU's pages, :mod:`ringbuffer` walks them. Here the CPUs, and the buffer
instances of a file that has several, become one sequence of batches in time order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from worldswitch.errors import TraceFormatError, UsageError, printable
from worldswitch.record.formats import EventFormat, Field, by_name
from worldswitch.record.trace import UNKNOWN_PID, Batch, Columns, Meta, Selection
from worldswitch.trace.readers import gather, ringbuffer
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat_layout import read_layout
from worldswitch.trace.readers.tracedat_options import lost_by_cpustat, read_options
from worldswitch.trace.readers.tracedat_pages import (
    Arena,
    Block,
    CpuPages,
    Future,
    Index,
    Rows,
    Stream,
    cpu_name,
)
from worldswitch.trace.readers.tracingdata import MAGIC, parse_cmdlines, parse_formats

_REGION = 3 << 20
"""Bytes of pages indexed at a time where memory allows: some 60 thousand events of the usual 50 bytes."""
_ARENA = 32 << 20
_BATCH = 1 << 16
_LARGEST_ARENA = 1 << 30
_WORTH_A_THREAD = 1 << 18
_MOST_WORKERS = 4


def sniff(head: bytes) -> bool:
    """Whether a file that begins with *head* is a trace.dat."""
    return head.startswith(MAGIC)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The events to decode, slot by slot, and which fields of each."""

    names: tuple[str, ...]
    fields: tuple[tuple[Field, ...], ...]
    all_names: tuple[str, ...]
    """Event of each slot, those only counted included."""
    formats: tuple[EventFormat, ...]


class TraceDat:
    """The events of one trace.dat.

    ``pid`` is unknown: the format has a thread's name but not its process. ``meta.lost`` is what the
    recorder's statistics or the pages say, whichever is more; a gap of unknown size counts as one event.

    Args:
        source: The file; a pipe or a compressed file is spooled first.

    Raises:
        TraceFormatError: It is no trace.dat, of a kind that is not read, or damaged before the first event.
    """

    def __init__(self, source: Input) -> None:
        self._source = source
        self._layout = read_layout(source)
        if self._layout.is_text and not self._layout.buffers:
            raise TraceFormatError(
                f"{source.name} holds the text of a latency tracer and no events; "
                "`trace-cmd report` prints it, and text can be read"
            )
        self.meta = Meta(source=source.name, format=f"trace.dat version {self._layout.version}")
        self._time_base = read_options(self._layout, self.meta)
        self.meta.comms = parse_cmdlines(self._layout.cmdlines)
        formats, broken = parse_formats(self._layout.formats)
        if broken:
            self.meta.damaged(f"{broken} event formats cannot be parsed; their events count as malformed")
        self.formats = by_name(formats)
        self._overrun, self._dropped = lost_by_cpustat(self._layout)
        self.meta.lost = self._overrun + self._dropped
        self._note_instances()
        for sentence in self._layout.damage:
            self.meta.damaged(sentence)
        if source.damage:
            self.meta.damaged(source.damage)
        if not self.formats or not self._layout.buffers:
            what = "event formats" if not self.formats else "recorded pages"
            raise TraceFormatError(f"{source.name} is damaged before its first event: it holds no {what}")
        self._used = False

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """All events in time order; see :class:`worldswitch.record.trace.EventSource`.

        Raises:
            UsageError: The events were read before; open the file again.
        """
        if self._used:
            raise UsageError(f"{self.meta.source} was read to its end; open it again to read it again")
        self._used = True
        return self._batches(self._wanted(selection))

    def _note_instances(self) -> None:
        names = [printable(buffer.name) for buffer in self._layout.buffers if buffer.name]
        if names:
            self.meta.notes.append(
                f"holds the buffer instances {', '.join(names[:16])}; their events are merged by time"
            )

    def _wanted(self, selection: Selection | None) -> _Wanted:
        chosen = [name for name in self.formats if selection is None or name in selection]
        fields: list[tuple[Field, ...]] = []
        for name in chosen:
            only = selection[name] if selection is not None else None
            fields.append(tuple(f for f in self.formats[name].fields if only is None or f.name in only))
        names = (*chosen, *(name for name in self.formats if name not in set(chosen)))
        return _Wanted(tuple(chosen), tuple(fields), names, tuple(self.formats[name] for name in names))

    def _batches(self, wanted: _Wanted) -> Iterator[Batch]:
        pages = [
            CpuPages(self._source, buffer, data, self._layout.codec)
            for buffer in self._layout.buffers
            for data in buffer.cpus
        ]
        totals = _Totals(len(wanted.all_names))
        size = sum(data.size for buffer in self._layout.buffers for data in buffer.cpus)
        arena, regions = self._arena(pages, wanted)
        with ExitStack() as stack:
            submit = _submitter(size, stack)

            def load(one: CpuPages, region: int) -> Future | None:
                chunks = one.take(arena.region_bytes)
                return submit(arena.load, one, chunks, region, self._layout.data_offset) if chunks else None

            # Two blocks of each of several CPUs, so that a round of merging gives out about one of each.
            keep = min(2, len(pages))
            streams = [
                Stream(one, range(i * regions, (i + 1) * regions), keep, load, totals.add)
                for i, one in enumerate(pages)
            ]
            for rows in _in_time_order(streams, totals):
                for begin in range(0, len(rows[0]), _BATCH):
                    part = slice(begin, begin + _BATCH)
                    yield _batch(arena, cast(Rows, tuple(column[part] for column in rows)), wanted)
        self._finish(pages, totals, wanted)

    def _arena(self, pages: Sequence[CpuPages], wanted: _Wanted) -> tuple[Arena, int]:
        """The arena, and how many regions each CPU has."""
        least = max((one.largest_chunk() for one in pages), default=4096)
        n = max(len(pages), 1)
        regions = 3 if 3 * n * least <= _ARENA else 2
        region = max(least, min(_REGION, _ARENA // (regions * n))) // 64 * 64
        if region * regions * n > _LARGEST_ARENA:
            raise TraceFormatError(
                f"{self.meta.source} claims {n} CPUs with chunks of {least} bytes, more than can be read at "
                "once; it is damaged, or `trace-cmd split` can make smaller files of it"
            )
        slots = np.full(1 << 16, len(wanted.all_names), np.uint16)
        for slot, event in enumerate(wanted.formats):
            slots[event.id] = slot
        words = np.array([(event.size + 3) // 4 for event in wanted.formats] or [0], np.int32)
        index = Index(slots, words, len(wanted.names), len(wanted.all_names))
        return Arena(region, regions * n, index, self._time_base), regions

    def _finish(self, pages: Sequence[CpuPages], totals: _Totals, wanted: _Wanted) -> None:
        """What is known of the trace once all of it has been read."""
        meta = self.meta
        for sentence in (sentence for one in pages for sentence in one.damage):
            meta.damaged(sentence)
        for sentence in totals.damage:
            meta.damaged(sentence)
        stats = totals.stats
        if stats[ringbuffer.BAD_PAGES]:
            meta.damaged(f"{stats[ringbuffer.BAD_PAGES]} pages contradict themselves; what follows in them is lost")
        if stats[ringbuffer.UNCOUNTED]:
            meta.notes.append(
                f"{stats[ringbuffer.UNCOUNTED]} gaps where the kernel lost events do not say how many; "
                "each counts as one lost event"
            )
        meta.lost = max(self._overrun, int(stats[ringbuffer.LOST] + stats[ringbuffer.UNCOUNTED])) + self._dropped
        meta.malformed += int(stats[ringbuffer.MALFORMED])
        meta.out_of_order += totals.out_of_order
        meta.events = {name: int(n) for name, n in zip(wanted.all_names, totals.counts, strict=False) if n}
        if totals.first <= totals.last:
            meta.first_ns, meta.last_ns = totals.first, totals.last


class _Totals:
    """Sums over all blocks."""

    def __init__(self, n_slots: int) -> None:
        self.counts = np.zeros(n_slots + 1, np.int64)
        self.stats = np.zeros(ringbuffer.STATS, np.int64)
        self.first, self.last = (1 << 63) - 1, -(1 << 63)
        self.out_of_order = 0
        self.damage: list[str] = []

    def add(self, block: Block, pages: CpuPages) -> None:
        self.counts += block.counts
        self.stats += block.stats
        if block.stats[ringbuffer.LAST] != -1:
            self.first = min(self.first, int(block.stats[ringbuffer.FIRST]))
            self.last = max(self.last, int(block.stats[ringbuffer.LAST]))
        for chunk in block.damaged:
            where = f"{cpu_name(pages.cpu)}: the compressed data at byte {chunk.offset}"
            self.damage.append(f"{where} is damaged; its events are lost")


def _in_time_order(streams: Sequence[Stream], totals: _Totals) -> Iterator[Rows]:
    """Merge the CPUs: round by round, everything up to the time to which all of them are loaded."""
    given = -(1 << 63)
    while streams := [stream for stream in streams if stream.fill()]:
        until = min((bound for stream in streams if (bound := stream.until()) is not None), default=None)
        parts = [rows for stream in streams for rows in stream.take(until)]
        rows = parts[0] if len(parts) == 1 else _merged(parts)
        totals.out_of_order += int(np.searchsorted(rows[1], given, side="left"))
        given = max(given, int(rows[1][-1]))
        yield rows


def _merged(parts: Sequence[Rows]) -> Rows:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    positions = np.argsort(columns[1], kind="stable")
    return cast(Rows, tuple(column[positions] for column in columns))


def _batch(arena: Arena, rows: Rows, wanted: _Wanted) -> Batch:
    slot, time, cpu, tid, start = rows
    begins = np.empty(len(wanted.names) + 1, np.int64)
    by_event = np.empty(len(start), np.int64)
    gather.split(slot, len(wanted.names), start, begins, by_event)
    present = np.flatnonzero(begins[1:] > begins[:-1])
    tables: list[Columns] = [
        gather.columns(arena.words, by_event[begins[i] : begins[i + 1]], wanted.formats[i], wanted.fields[i])
        for i in present
    ]
    if len(present) < len(wanted.names):
        place = np.zeros(len(wanted.names), np.uint16)
        place[present] = np.arange(len(present), dtype=np.uint16)
        slot = place[slot]
    pid = np.full(len(slot), UNKNOWN_PID, np.int32)
    return Batch(tuple(wanted.names[i] for i in present), slot, time, cpu, tid, pid, tuple(tables))


def _submitter(size: int, stack: ExitStack) -> Callable[..., Future]:
    """How work on blocks is started: in threads where that pays, else at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if size < _WORTH_A_THREAD or cores < 2:
        return _Done
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(cores - 1, _MOST_WORKERS), "trace.dat")
    stack.callback(pool.shutdown, wait=True, cancel_futures=True)
    return pool.submit


class _Done:
    """A future whose work is done when it is made."""

    def __init__(self, work: Any, *args: Any) -> None:
        self._outcome: Block = work(*args)

    def result(self) -> Block:
        return self._outcome
