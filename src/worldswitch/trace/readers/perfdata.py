"""perf.data, file and pipe mode, plain or with zstd-compressed records.

Written by perf 5.10 to 7.x; ``trace/readers/perffile.py`` has the structure around the records, ``perfwalk.py`` the
compiled walk over them. Events of several CPUs are merged by time at the ends of perf's rounds, so memory is bounded by
what two rounds hold.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from worldswitch.errors import TraceFormatError, printable
from worldswitch.record.formats import EventFormat, Field, by_name
from worldswitch.record.order import TimeOrder
from worldswitch.record.trace import Batch, Columns, Meta, Selection
from worldswitch.trace.readers import gather, perffile, perfwalk
from worldswitch.trace.readers.perffile import Attr
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracingdata import parse_tracing_data

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = 1 << 16
_BUFFER = 1 << 22
_SLACK = 64
_INFLATE_STEP = 1024
# Compressed bytes fed at once: 1 KiB of zstd unpacks to 32 MiB at the very most.

# The kernel's records that matter here, and the tool's own (tools/lib/perf/include/perf/event.h).
_LOST, _COMM, _LOST_SAMPLES = 2, 3, 13
_HEADER_ATTR, _TRACING_DATA, _AUXTRACE, _EVENT_UPDATE, _FEATURE, _COMPRESSED, _COMPRESSED2 = (
    64,
    66,
    71,
    78,
    80,
    81,
    83,
)
_UPDATE_NAME = 2
_LARGEST_TOOL_RECORD = 256 << 20
_MOST_REBUILDS, _MOST_ATTRS = 256, 1 << 14


def sniff(head: bytes) -> bool:
    """Whether *head* starts a perf.data file."""
    return head.startswith((perffile.MAGIC, perffile.MAGIC_BIG_ENDIAN))


class PerfData:
    """One perf.data; an :class:`~worldswitch.record.trace.EventSource` that can be read once."""

    def __init__(self, source: Input) -> None:
        self.meta = Meta(source=source.name, format="perf.data", clock="local", vm_identity="tgid")
        self.formats: dict[str, EventFormat] = {}
        self._source = source
        self._attrs: list[Attr] = []
        self._names: dict[int, str] = {}
        if source.head.startswith(perffile.MAGIC_BIG_ENDIAN):
            raise TraceFormatError(
                f"{source.name} was recorded on a big-endian machine; KVM x86 recordings are little-endian"
            )
        if len(source.head) < perffile.PIPE_HEADER:
            raise TraceFormatError(f"{source.name} is a perf.data file cut short in its header")
        if struct.unpack_from("<Q", source.head, 8)[0] == perffile.PIPE_HEADER:
            self.meta.format = "perf.data (pipe)"
            source.read(perffile.PIPE_HEADER)
            self._left: int | None = None
        else:
            self._open_file(source)

    def _open_file(self, source: Input) -> None:
        perf = perffile.parse_header(source, self.meta)
        self._attrs = perf.attrs
        cut: list[int] = []
        for bit, (offset, size) in perf.features.items():
            data = perffile.read_feature(source, bit, offset, size, self.meta)
            if data is not None:
                self._take_feature(bit, data)
                cut += [bit] * (len(data) < size)
        if cut:
            self.meta.damaged(f"feature sections {', '.join(map(str, cut))} of the file are cut off")
        if not self.formats and any(attr.is_tracepoint for attr in self._attrs):
            reason = "; ".join(self.meta.damage) or "it has no tracing data section"
            raise TraceFormatError(
                f"{source.name} holds no event formats, without which its events mean nothing: {reason}"
            )
        source.seek(perf.data_offset)
        self._left = perf.data_size

    def _take_feature(self, bit: int, data: bytes) -> None:
        if bit == perffile.TRACING_DATA:
            self._take_formats(data)
        elif bit == perffile.EVENT_DESC:
            self._names |= perffile.event_names(data)
        else:
            perffile.note_feature(self.meta, bit, data)

    def _take_formats(self, blob: bytes) -> None:
        tracing = parse_tracing_data(blob)
        # What a name means stays: batches already given out have its first columns.
        self.formats = by_name(tracing.formats) | self.formats
        self.meta.comms |= tracing.comms
        if not tracing.complete:
            self.meta.damaged("the event formats are cut off or damaged; events they described are lost")

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """All events in time order; see :class:`~worldswitch.record.trace.EventSource`."""
        order = TimeOrder()
        walker = _Walker(self, selection)
        for batch in walker.batches():
            order.add(batch)
            yield from self._noted(order.up_to(walker.latest if self.meta.cpus == 1 else walker.watermark))
        yield from self._noted(order.rest())
        self.meta.out_of_order += order.out_of_order
        walker.finish()

    def _noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if self.meta.first_ns is None:
                self.meta.first_ns = int(batch.time[0])
            self.meta.last_ns = int(batch.time[-1])
            yield batch


class _Records:
    """A window on a stream of records: ``data[at:filled]`` is what has been read and not yet consumed."""

    def __init__(self, size: int = _BUFFER) -> None:
        self._resize(size)
        self.at = 0
        self.filled = 0

    def _resize(self, size: int) -> None:
        self.data = bytearray((size + 3 & ~3) + _SLACK)
        self.words = memoryview(self.data).cast("I")

    @property
    def held(self) -> int:
        return self.filled - self.at

    @property
    def room(self) -> int:
        return len(self.data) - _SLACK - self.filled

    def to_front(self) -> None:
        """Move what is held to the start, which also aligns it."""
        if self.at:
            self.data[: self.held] = self.data[self.at : self.filled]
            self.filled, self.at = self.held, 0

    def append(self, piece: bytes) -> None:
        """Add bytes at the end, growing if need be."""
        self.to_front()
        if len(piece) > self.room:
            held = bytes(self.data[: self.filled])
            self._resize(2 * (self.filled + len(piece)))
            self.data[: len(held)] = held
        self.data[self.filled : self.filled + len(piece)] = piece
        self.filled += len(piece)


class _Walker:
    """Runs the compiled walk over the data and handles what is not a sample."""

    def __init__(self, perf: PerfData, selection: Selection | None) -> None:
        self.perf = perf
        self.meta = perf.meta
        self.selection = selection
        self._inflate: Any = None
        self._inflated = _Records(0)
        self._lost = {_LOST: 0, _LOST_SAMPLES: 0}
        self._state = np.zeros(perfwalk.STATE, np.int64)
        self._state[5:] = -1
        self._others = np.empty(4096, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._code_names: dict[int, str] = {}
        self._stale = True
        self._rebuilt = 0

    @property
    def latest(self) -> int:
        return int(self._state[5])

    @property
    def watermark(self) -> int:
        return int(self._state[7])

    def _prepare(self) -> None:
        """Build the tables of the walk; again whenever pipe mode brings new attributes or formats."""
        self._rebuilt += 1
        if self._rebuilt > _MOST_REBUILDS or len(self.perf._attrs) > _MOST_ATTRS:
            raise TraceFormatError(f"{self.meta.source} is damaged: it describes its events over and over")
        attrs, formats = self.perf._attrs, self.perf.formats
        self._layouts = np.array([_layout(attr) for attr in attrs] or [_layout(None)], np.int32)
        codes = perfwalk.FIRST_ATTR_CODE + len(self._layouts)
        self._counts = np.concatenate([self._counts, np.zeros(codes - len(self._counts), np.int64)])
        self._slots = np.full(codes, perfwalk.UNKNOWN, np.uint16)
        self._sizes = np.full(codes, 8, np.int32)
        self._events: list[str] = []
        self._chosen: dict[str, tuple[int, tuple[Field, ...]]] = {}
        self._decode: list[tuple[Field, ...]] = []
        for name, event in formats.items():
            if event.id < perfwalk.FIRST_ATTR_CODE:
                self._sizes[event.id] = event.size
                self._select(event.id, name, event.fields)
        for index, attr in enumerate(attrs):
            if not attr.is_tracepoint:
                self._select(perfwalk.FIRST_ATTR_CODE + index, self._attr_name(attr), ())
        alike = {(attr.is_tracepoint, attr.sample_type, attr.read_format) for attr in attrs}
        one_layout = len(attrs) <= 1 or (len(alike) == 1 and attrs[0].is_tracepoint)
        pairs = [] if one_layout else sorted((i, a) for a, attr in enumerate(attrs) for i in attr.ids)
        self._ids = np.array([pair[0] for pair in pairs], np.uint64)
        self._id_attrs = np.array([pair[1] for pair in pairs], np.int32)
        places = set(self._layouts[:, 3].tolist())
        if pairs and (len(places) > 1 or -1 in places):
            raise TraceFormatError(
                f"{self.meta.source}: its events carry no ids, or at different places, so samples cannot be told apart"
            )
        self._names = tuple(self._events)
        nothing = np.empty(0, np.int64)
        blank = memoryview(bytes(8)).cast("I")
        self._no_rows = [{f.name: gather.column(blank, nothing, f) for f in fields} for fields in self._decode]
        self._stale = False

    def _attr_name(self, attr: Attr) -> str:
        if attr.type == perffile.TRACEPOINT:
            for event in self.perf.formats.values():
                if event.id == attr.config:
                    return event.name
        named = [self.perf._names[i] for i in attr.ids if i in self.perf._names]
        return named[0] if named else f"type {attr.type} config {attr.config:#x}"

    def _select(self, code: int, name: str, fields: tuple[Field, ...]) -> None:
        taken = self._chosen.setdefault(name, (code, fields))
        if taken[1] != fields:
            # An event sampled without its record, beside the same with it.
            name = f"{name} #{code}"
        self._code_names[code] = name
        if self.selection is not None and name not in self.selection:
            self._slots[code] = perfwalk.COUNT_ONLY
            return
        if name in self._events:
            self._slots[code] = self._events.index(name)
            return
        wanted = self.selection[name] if self.selection is not None else None
        self._slots[code] = len(self._events)
        self._events.append(name)
        self._decode.append(fields if wanted is None else tuple(f for f in fields if f.name in wanted))

    def batches(self) -> Iterator[Batch]:
        """Batches in file order."""
        records = _Records()
        while True:
            records.to_front()
            if not self._read_on(records):
                break
            while True:
                why = yield from self._walk(records)
                if why in (perfwalk.TOOL_RECORD, perfwalk.UNALIGNED):
                    size = self._record_size(records)
                    if not self._have(records, size):
                        break
                    yield from self._tool_record(records, size)
                    records.at += size
                    if records.at & 3:
                        records.to_front()
                elif why == perfwalk.NONSENSE:
                    self._nonsense(records)
                    return
                else:
                    break
        yield from self._walk_inflated()
        if records.held:
            self.meta.damaged(f"the data ends {records.held} bytes into a record; what followed is lost")

    def _read_on(self, records: _Records) -> bool:
        """Fill the window; False when nothing came."""
        left = self.perf._left
        room = records.room if left is None else min(records.room, left)
        if room <= 0:
            return False
        with memoryview(records.data) as view:
            n = self.perf._source.readinto(view[records.filled : records.filled + room])
        records.filled += n
        if left is not None:
            self.perf._left = left - n if n == room else 0
        return n > 0

    def _have(self, records: _Records, size: int) -> bool:
        """Whether *size* bytes are held, after reading more if need be; a lying size allocates nothing."""
        missing = size - records.held
        if missing <= 0:
            return True
        if size > _LARGEST_TOOL_RECORD:
            return False
        left = self.perf._left
        if left is not None and missing > left:
            return False
        piece = self.perf._source.read(missing)
        if left is not None:
            self.perf._left = left - len(piece)
        records.append(piece)
        return len(piece) == missing

    def _walk(self, records: _Records) -> Generator[Batch, None, int]:
        """Walk until the window is used up or a tool record comes; the reason to stop is the generator's value."""
        state = self._state
        if self._stale:
            if self._next_is_tool_record(records):
                return perfwalk.TOOL_RECORD
            self._prepare()
        while True:
            rows = _index_rows()
            state[0], state[1], state[3] = records.at >> 2, 0, 0
            where = records.words, records.filled >> 2
            tables = self._layouts, self._ids, self._id_attrs, self._slots, self._sizes, self._counts
            perfwalk.walk(*[*where, *tables, *rows, self._others, state])
            records.at = int(state[0]) * 4
            for position in self._others[: state[3]]:
                self._kernel_record(records.data, int(position) * 4)
            if state[1]:
                yield self._batch(records.words, rows, int(state[1]))
            if state[2] != perfwalk.FULL:
                return int(state[2])

    @staticmethod
    def _next_is_tool_record(records: _Records) -> bool:
        """Whether one more record comes that may change the tables of the walk."""
        if records.held < 8:
            return False
        kind, _, size = struct.unpack_from("<IHH", records.data, records.at)
        return bool(kind >= perfwalk.FIRST_TOOL_RECORD and kind != perfwalk.FINISHED_ROUND and size >= 8)

    def _batch(self, words: memoryview, rows: _Rows, n: int) -> Batch:
        order, time, tid, pid, cpu, starts = (column[:n] for column in rows)
        begins = np.empty(len(self._events) + 1, np.int64)
        grouped = np.empty(n, np.int64)
        gather.split(order, len(self._events), starts, begins, grouped)
        tables: list[Columns] = list(self._no_rows)
        for index in np.flatnonzero(np.diff(begins)):
            mine = grouped[begins[index] : begins[index + 1]]
            tables[index] = {f.name: gather.column(words, mine, f) for f in self._decode[index]}
        cpu, tid, pid = (column.view(np.int32) for column in (cpu, tid, pid))
        return Batch(self._names, order, time, cpu, tid, pid, tuple(tables))

    def _kernel_record(self, data: bytearray, at: int) -> None:
        kind, _, size = struct.unpack_from("<IHH", data, at)
        if kind in (_LOST, _LOST_SAMPLES) and size >= (24 if kind == _LOST else 16):
            self._lost[kind] += struct.unpack_from("<Q", data, at + (16 if kind == _LOST else 8))[0]
            # perf from 6.1 on repeats at the end, as LOST_SAMPLES, what the kernel told in LOST records on the way
            # (tools/perf/builtin-record.c, record__read_lost_samples).
            self.meta.lost = max(self._lost.values())
        elif kind == _COMM and size > 16:
            tid = struct.unpack_from("<i", data, at + 12)[0]
            comm = bytes(data[at + 16 : at + size]).split(b"\0", 1)[0]
            self.meta.comms[tid] = comm.decode("utf-8", "backslashreplace")

    @staticmethod
    def _record_size(records: _Records) -> int:
        """Bytes of the record at the front, data that follows its header included."""
        kind, _, size = struct.unpack_from("<IHH", records.data, records.at)
        if kind == _TRACING_DATA and size >= 12:
            return int(size + struct.unpack_from("<I", records.data, records.at + 8)[0])
        if kind == _AUXTRACE and size >= 16 and records.held >= 16:
            return int(size + struct.unpack_from("<Q", records.data, records.at + 8)[0])
        return int(size)

    def _tool_record(self, records: _Records, whole: int) -> Iterator[Batch]:
        data, at = records.data, records.at
        kind, _, size = struct.unpack_from("<IHH", data, at)
        if kind in (_COMPRESSED, _COMPRESSED2):
            begin = at + (16 if kind == _COMPRESSED2 else 8)
            end = at + size
            if kind == _COMPRESSED2:
                end = min(end, begin + struct.unpack_from("<Q", data, at + 8)[0]) if size >= 16 else begin
            yield from self._inflate_record(bytes(data[begin:end]))
            return
        body = bytes(data[at + 8 : at + whole])
        if kind == _HEADER_ATTR and len(body) >= 48:
            (attr_size,) = struct.unpack_from("<I", body, 4)
            ids = body[attr_size : attr_size + (len(body) - attr_size) // 8 * 8] if attr_size >= 48 else b""
            numbers = struct.unpack(f"<{len(ids) // 8}Q", ids)
            self.perf._attrs.append(perffile.parse_attr(body[:attr_size], numbers))
        elif kind == _TRACING_DATA:
            self.perf._take_formats(body[size - 8 :])
        elif kind == _FEATURE and len(body) >= 8:
            self.perf._take_feature(struct.unpack_from("<Q", body)[0], body[8:])
        elif kind == _EVENT_UPDATE and len(body) > 16:
            update, number = struct.unpack_from("<QQ", body)
            if update == _UPDATE_NAME:
                self.perf._names[number] = body[16:].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
        else:
            return
        self._stale = True

    def _inflate_record(self, piece: bytes) -> Iterator[Batch]:
        import zstandard

        if self._inflate is None:
            self._inflate = zstandard.ZstdDecompressor().decompressobj()
        for start in range(0, len(piece), _INFLATE_STEP):
            try:
                self._inflated.append(self._inflate.decompress(piece[start : start + _INFLATE_STEP]))
            except (zstandard.ZstdError, EOFError) as error:
                self.meta.damaged(f"a compressed record is damaged ({printable(str(error))}); its events are lost")
                self._inflate = None
                self._inflated = _Records(0)
                return
            if self._inflated.held >= _BUFFER:
                yield from self._walk_inflated()

    def _walk_inflated(self) -> Iterator[Batch]:
        """Walk what has been decompressed; the start of a record stays for the rest of it to come."""
        records = self._inflated
        records.to_front()
        why = yield from self._walk(records)
        while why in (perfwalk.TOOL_RECORD, perfwalk.UNALIGNED) and self._record_size(records) <= records.held:
            records.at += self._record_size(records)
            records.to_front()
            why = yield from self._walk(records)
        too_large = records.held >= 8 and self._record_size(records) > _LARGEST_TOOL_RECORD
        if why == perfwalk.NONSENSE or too_large:
            self._nonsense(records)
            records.at = records.filled
        records.to_front()

    def _nonsense(self, records: _Records) -> None:
        kind, _, size = struct.unpack_from("<IHH", records.data, records.at)
        offset = self.perf._source.position - records.held
        self.meta.damaged(
            f"a record of type {kind} and impossible size {size} near byte {offset}; everything behind it is lost"
        )

    def finish(self) -> None:
        """Complete the meta data once all records have been walked."""
        unknown: list[int] = []
        for code in np.flatnonzero(self._counts).tolist():
            name = self._code_names.get(code)
            if name is None:
                unknown.append(code)
            else:
                self.meta.events[name] = self.meta.events.get(name, 0) + int(self._counts[code])
        if unknown:
            numbers = ", ".join(map(str, unknown[:8])) + ", ..." * (len(unknown) > 8)
            self.meta.notes.append(
                f"{self._counts[unknown].sum()} samples of tracepoints the file does not describe (ids {numbers})"
            )
        self.meta.malformed += int(self._state[4])
        if self._inflated.held:
            self.meta.damaged(f"the last compressed record ends {self._inflated.held} bytes into a record")
        if self.perf._source.damage:
            self.meta.damaged(self.perf._source.damage)


_Rows: TypeAlias = "tuple[NDArray[Any], ...]"


def _index_rows() -> _Rows:
    """Room for one batch's order, time, tid, pid, cpu and payload starts."""
    kinds = (np.uint16, np.int64, np.uint32, np.uint32, np.uint32, np.int64)
    return tuple(np.empty(BATCH, kind) for kind in kinds)


def _layout(attr: Attr | None) -> list[int]:
    """Row of the walk's layout table for one attribute."""
    if attr is None:
        return [-1, -1, -1, -1, 2, 0, 0, 0, 0]
    at = dict.fromkeys(perffile.FIXED_PARTS, -1)
    word = 2
    for bit in perffile.FIXED_PARTS:
        if attr.sample_type & bit:
            at[bit] = word
            word += 2
    number = at[perffile.IDENTIFIER] if at[perffile.IDENTIFIER] >= 0 else at[perffile.ID]
    has = [int(bool(attr.sample_type & bit)) for bit in (perffile.READ, perffile.CALLCHAIN)]
    parts = [at[perffile.TID], at[perffile.TIME], at[perffile.CPU], number, word]
    return [*parts, has[0], attr.read_format & 0x1F, has[1], int(attr.is_tracepoint)]
