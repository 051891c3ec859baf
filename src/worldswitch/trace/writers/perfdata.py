"""Write perf.data, as a file or as the stream that ``perf script -i -`` reads.

Layout: Linux tools/perf/Documentation/perf.data-file-format.txt; records and sample layout:
include/uapi/linux/perf_event.h.
The attributes stand behind the data, because which events occur is known only when all have been written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from worldswitch.errors import UsageError
from worldswitch.record.formats import EventFormat
from worldswitch.record.trace import UNKNOWN_PID, Batch, EventSource
from worldswitch.trace.readers import perffile
from worldswitch.trace.writers import perfheader
from worldswitch.trace.writers.catalog import Catalog, Written
from worldswitch.trace.writers.description import tracing_data
from worldswitch.trace.writers.encode import Layout, encoded, layout, place, records, tails
from worldswitch.trace.writers.perfheader import SampleLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMM, _LOST, _SAMPLE = 3, 2, 9
_ATTR, _TRACING_DATA, _FINISHED_ROUND, _FEATURE, _COMPRESSED = 64, 66, 68, 80, 81
_KERNEL = 1  # PERF_RECORD_MISC_KERNEL
_LARGEST_RECORD = 0xFFF8
_MOST_UNUSED = 1000  # formats; with more, only those of events that occur are written
_LONGEST_COMM = 1024
_CHUNK = 1 << 19  # uncompressed bytes per flush; perf allocates this much


@dataclass(frozen=True, slots=True)
class PerfOptions:
    """How to write.

    Attributes:
        pipe: Write the stream form, which needs no seeking.
        identifier: Name the event of a sample by ``IDENTIFIER`` (first word) and not by ``ID``.
        level: zstd level of COMPRESSED records; None writes plain records.
    """

    pipe: bool = False
    identifier: bool = False
    level: int | None = None


def write_perfdata(source: EventSource, stream: IO[bytes], options: PerfOptions | None = None) -> Written:
    """Write all events of *source*, batch by batch.

    Raises:
        UsageError: File mode on a stream that cannot seek.
    """
    return _Writer(source, stream, options or PerfOptions()).run()


@dataclass(slots=True)
class _Event:
    format: EventFormat
    layout: Layout
    id: int


@dataclass(slots=True)
class _Writer:
    source: EventSource
    stream: IO[bytes]
    options: PerfOptions
    written: Written = field(default_factory=Written)
    events: dict[str, _Event | None] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    named: dict[int, str] = field(default_factory=dict)
    lost: int = 0
    cpus: int = 0
    isa: int = 0
    first: int | None = None
    last: int = 0
    compressor: Any = None
    sample: SampleLayout = field(init=False)
    catalog: Catalog = field(init=False)

    def run(self) -> Written:
        self.sample = SampleLayout(self.options.identifier)
        self.catalog = Catalog(self.source)
        if self.options.level is not None:
            import zstandard

            self.compressor = zstandard.ZstdCompressor(level=self.options.level).compressobj()
        if self.options.pipe:
            self.stream.write(struct.pack("<8sQ", perffile.MAGIC, 16))
            self._stream_features()
        else:
            if not self.stream.seekable():
                raise UsageError("perf.data as a file needs an output that can seek; write its pipe form instead")
            self.stream.write(bytes(perfheader.HEADER_BYTES))
        start = perfheader.HEADER_BYTES
        for batch in self.source.batches():
            self._batch(batch)
        self._end()
        if not self.options.pipe:
            end = self.stream.tell()
            self._finish_file(start, end - start)
        return self.written

    def _batch(self, batch: Batch) -> None:
        if not len(batch):
            return
        self._facts(batch)
        self._events(batch)
        self._names()
        data, count = self._samples(batch)
        self._lost()
        if self.compressor:
            self._compressed(data)
        else:
            self.stream.write(data)
        self.stream.write(struct.pack("<IHH", _FINISHED_ROUND, 0, 8))
        self.written.events += count
        self.first = int(batch.time[0]) if self.first is None else self.first
        self.last = max(self.last, int(batch.time[-1]))

    def _facts(self, batch: Batch) -> None:
        self.cpus = max(self.cpus, int(batch.cpu.max()) + 1)
        pairs = np.unique(batch.tid.astype(np.int64) << 32 | (batch.pid.astype(np.int64) & 0xFFFFFFFF))
        for tid, pid in zip((pairs >> 32).tolist(), pairs.astype(np.int32).tolist(), strict=True):
            self.pids[tid] = pid
        if not self.isa and "kvm_exit" in batch.events:
            isa = batch.tables[batch.events.index("kvm_exit")].get("isa")
            self.isa = int(isa[0]) if isa is not None and len(isa) else 0

    def _events(self, batch: Batch) -> None:
        """Take in the events the source knows of (so that perf lists them too) and those the batch brings."""
        present = np.bincount(batch.order, minlength=len(batch.events))
        forms = self._known()
        for index, name in enumerate(batch.events):
            if name not in self.events and present[index]:
                form = self.catalog.format(name, batch.tables[index])
                if form is None:
                    self.events[name] = None
                else:
                    forms[name] = form
        self._take(forms)

    def _known(self) -> dict[str, EventFormat]:
        known = self.source.formats
        if len(known) > _MOST_UNUSED:
            return {}
        return {name: form for name, form in known.items() if form.text and name not in self.events}

    def _take(self, forms: dict[str, EventFormat]) -> None:
        new = []
        for name, form in forms.items():
            if name not in self.events:
                where = layout(form, self.sample.head, self.sample.head_bytes, 8)
                self.events[name] = event = None if where is None else _Event(form, where, len(self.events) + 1)
                new += [event] if event else []
        if self.options.pipe and new:
            self._announce(new)

    def _samples(self, batch: Batch) -> tuple[memoryview, int]:
        """All samples of a batch, and how many."""
        sizes = np.zeros(len(batch), np.intp)
        parts: list[tuple[NDArray[np.intp], Layout, NDArray[Any], list[bytes] | None]] = []
        for index, name in enumerate(batch.events):
            rows = np.flatnonzero(batch.order == index)
            event = self.events.get(name) if len(rows) else None
            if event is not None:
                made, behind = self._records(event, batch, index, rows)
                sizes[rows] = made["#size"]
                parts.append((rows, event.layout, made, behind))
            elif len(rows):
                self.written.skipped[name] += len(rows)
        ends = np.cumsum(sizes)
        out = np.zeros(int(ends[-1]) // 8, np.uint64)
        for rows, where, made, behind in parts:
            place(out, (ends - sizes)[rows], where, made, behind)
        data = memoryview(out.view(np.uint8))  # type: ignore[arg-type]  # numpy's stubs lack __buffer__ on 3.11
        return data, sum(len(rows) for rows, *_ in parts)

    def _records(
        self, event: _Event, batch: Batch, index: int, rows: NDArray[np.intp]
    ) -> tuple[NDArray[Any], list[bytes] | None]:
        where = event.layout
        made = records(where, batch.tables[index], batch.tid[rows])
        behind = tails(where, batch.tables[index], made) if where.dynamic else None
        raw = where.dtype.itemsize - where.head
        made["#type"], made["#misc"], made["#period"] = _SAMPLE, _KERNEL, 1
        made["#size"], made["#raw"] = where.dtype.itemsize, raw
        if behind:
            used = where.head + where.size + np.array([len(blob) for blob in behind])
            made["#size"] = -(-used // 8) * 8
            made["#raw"] = made["#size"].astype(np.int64) - where.head
        made["#id"] = event.id
        made["#time"] = batch.time[rows]
        made["#cpu"] = batch.cpu[rows]
        made["#tid"] = batch.tid[rows]
        made["#pid"] = batch.pid[rows]
        return made, behind

    def _compressed(self, data: memoryview) -> None:
        for begin in range(0, len(data), _CHUNK):
            import zstandard

            packed = self.compressor.compress(data[begin : begin + _CHUNK])
            packed += self.compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
            for at in range(0, len(packed), _LARGEST_RECORD - 8):
                piece = packed[at : at + _LARGEST_RECORD - 8]
                self.stream.write(struct.pack("<IHH", _COMPRESSED, 0, len(piece) + 8) + piece)

    def _names(self) -> None:
        """COMM records of threads that got a name, or another one, since the last call."""
        for tid, comm in self.source.meta.comms.items():
            if self.named.get(tid) != comm and tid in self.pids:
                self._name(tid, comm, self.pids[tid])

    def _name(self, tid: int, comm: str, pid: int) -> None:
        self.named[tid] = comm
        text = encoded(comm)[:_LONGEST_COMM] + b"\0"
        body = struct.pack("<ii", pid, tid) + text + bytes(-len(text) % 8)
        # Time 0: perf applies such a record when it reads it, before the samples it still holds back.
        body += self.sample.trailer(pid, tid, 0, 0)
        self.stream.write(struct.pack("<IHH", _COMM, 0, len(body) + 8) + body)

    def _lost(self) -> None:
        more = self.source.meta.lost - self.lost
        if more > 0 and self.events:
            self.lost = self.source.meta.lost
            body = struct.pack("<QQ", 1, more) + self.sample.trailer(UNKNOWN_PID, 0, self.last, 1)
            self.stream.write(struct.pack("<IHH", _LOST, 0, len(body) + 8) + body)

    def _end(self) -> None:
        if not self.events:
            self._take(self._known())
            # A data section of no bytes means that perf was killed.
            self.stream.write(struct.pack("<IHH", _FINISHED_ROUND, 0, 8))
        self._lost()
        for tid, comm in self.source.meta.comms.items():
            if tid not in self.named:
                self._name(tid, comm, self.pids.get(tid, UNKNOWN_PID))

    def _used(self) -> list[_Event]:
        return [event for event in self.events.values() if event is not None]

    def _announce(self, new: list[_Event]) -> None:
        """Stream form: attributes and formats come before the first sample that needs them."""
        for event in new:
            body = self.sample.attribute(event.format.id) + struct.pack("<Q", event.id)
            self.stream.write(struct.pack("<IHH", _ATTR, 0, len(body) + 8) + body)
        data = tracing_data((e.format for e in self._used()), self.source.meta.comms)
        data += bytes(-len(data) % 8)
        self.stream.write(struct.pack("<IHHI", _TRACING_DATA, 0, 12, len(data)) + data)

    def _features(self) -> Iterator[tuple[int, bytes]]:
        if self.compressor:
            yield perfheader.COMPRESSED, struct.pack("<5I", 1, 1, self.options.level or 0, 1, _CHUNK)
        yield from perfheader.host_features(self.source.meta, self.cpus, self.isa)

    def _stream_features(self) -> None:
        for number, data in self._features():
            if len(data) <= _LARGEST_RECORD - 16:
                self.stream.write(struct.pack("<IHHQ", _FEATURE, 0, len(data) + 16, number) + data)

    def _finish_file(self, start: int, size: int) -> None:
        used = self._used()
        meta = self.source.meta
        features = dict(self._features())
        features[perffile.TRACING_DATA] = tracing_data((e.format for e in used), meta.comms)
        described = [(f"{e.format.system}:{e.format.name}", self.sample.attribute(e.format.id), e.id) for e in used]
        features[perffile.EVENT_DESC] = perfheader.event_descriptions(described)
        if self.first is not None:
            features[perfheader.SAMPLE_TIME] = struct.pack("<qq", self.first, self.last)
        self.stream.write(perfheader.feature_section(features, start + size))
        ids = self.stream.tell()
        self.stream.write(b"".join(struct.pack("<Q", e.id) for e in used))
        attributes = self.stream.tell()
        for place_of_id, (_, attribute, _) in enumerate(described):
            self.stream.write(attribute + struct.pack("<QQ", ids + 8 * place_of_id, 8))
        self.stream.seek(0)
        self.stream.write(perfheader.file_header(attributes, len(used), start, size, features))
        self.stream.seek(0, 2)
