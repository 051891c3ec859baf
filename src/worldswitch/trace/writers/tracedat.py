"""Write trace.dat, version 6 or 7.

Layout: trace-cmd.dat.v6(5) and trace-cmd.dat.v7(5). Events are spooled page by page first, since formats and
sizes stand before the data; the file itself is written front to back, so a pipe will do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from worldswitch.errors import UsageError
from worldswitch.record.formats import EventFormat
from worldswitch.record.trace import UNKNOWN_PID, Batch, EventSource, Meta
from worldswitch.trace.writers import description
from worldswitch.trace.writers.catalog import Catalog, Written
from worldswitch.trace.writers.encode import Layout, encoded, up
from worldswitch.trace.writers.ringpages import PAGE, Compress, RingPages, page_layout

COMPRESSIONS = ("none", "zlib", "zstd")
_HEADERS, _FTRACE, _FORMATS, _KALLSYMS, _PRINTK, _CMDLINES = range(16, 22)
_OPTIONS, _FLYRECORD, _STRINGS = 0, 3, 15
_DONE, _CPUSTAT, _BUFFER, _TRACECLOCK, _UNAME, _CPUCOUNT, _VERSION = 0, 2, 3, 4, 5, 8, 9


@dataclass(frozen=True, slots=True)
class TraceDatOptions:
    """How to write.

    Attributes:
        version: 6 or 7.
        compression: One of :data:`COMPRESSIONS`; version 6 knows only ``none``.
        absolute: Give every event an absolute time stamp (as the kernel does when it must).
        instances: Event name -> name of the buffer instance it goes to; events not named go to the top one.
    """

    version: int = 7
    compression: str = "none"
    absolute: bool = False
    instances: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version not in (6, 7):
            raise UsageError(f"trace.dat has no version {self.version}; 6 and 7 can be written")
        if self.compression not in COMPRESSIONS:
            raise UsageError(f"no compression {self.compression!r} for trace.dat; there are {', '.join(COMPRESSIONS)}")
        if self.version == 6 and self.compression != "none":
            raise UsageError("trace.dat version 6 has no compression; write version 7, or compression none")


def write_tracedat(source: EventSource, stream: IO[bytes], options: TraceDatOptions | None = None) -> Written:
    """Write all events of *source* to *stream*, which need not seek.

    Raises:
        UsageError: A CPU number no trace.dat can hold.
    """
    chosen = options or TraceDatOptions()
    spool = _Spool(source, chosen)
    try:
        spool.fill()
        if chosen.version == 6:
            _version_6(spool, stream)
        else:
            _version_7(spool, stream)
    finally:
        spool.close()
    return spool.written


class _Spool:
    """All events of a source as pages, and what was learned on the way."""

    def __init__(self, source: EventSource, options: TraceDatOptions) -> None:
        self.source = source
        self.options = options
        self.written = Written()
        compress = compressor(options.compression)
        self.buffers = {name: RingPages(options.absolute, compress) for name in ("", *options.instances.values())}
        self.formats: dict[str, EventFormat] = {}
        self._seen: set[str] = set()
        self._layouts: dict[str, Layout] = {}
        self._catalog = Catalog(source)
        self._lost = 0
        self._knew_processes = False

    @property
    def meta(self) -> Meta:
        return self.source.meta

    @property
    def cpus(self) -> int:
        """How many CPUs the file describes."""
        seen = max((cpu for b in self.buffers.values() for cpu in b.entries), default=-1) + 1
        return max(seen, min(self.meta.cpus or 0, 1 << 16), 1)

    def fill(self) -> None:
        for batch in self.source.batches():
            self._learn(batch)
            if self.meta.lost > self._lost:
                self.buffers[""].missed(self.meta.lost - self._lost, self._layouts)
                self._lost = self.meta.lost
            for name, buffer in self.buffers.items():
                part = self._part(batch, name)
                self.written.events += len(part)
                buffer.add(part, self._layouts)
        for buffer in self.buffers.values():
            buffer.flush(self._layouts)
        if self.meta.lost > self._lost:
            left = self.meta.lost - self._lost
            self.written.notes.append(f"{left} events lost after the last one have no mark in a trace.dat")
        if self._knew_processes:
            self.written.notes.append(
                "trace.dat names threads, not processes: which thread is of which VM is not in it"
            )

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()

    def _learn(self, batch: Batch) -> None:
        self._knew_processes |= bool((batch.pid != UNKNOWN_PID).any())
        present = np.bincount(batch.order, minlength=len(batch.events))
        for index, name in enumerate(batch.events):
            if present[index] and name not in self._seen:
                self._seen.add(name)
                form = self._catalog.format(name, batch.tables[index])
                where = page_layout(form) if form else None
                if form and where:
                    self.formats[name], self._layouts[name] = form, where
            if present[index] and name not in self._layouts:
                self.written.skipped[name] += int(present[index])

    def _part(self, batch: Batch, instance: str) -> Batch:
        """The events of *batch* that go to *instance* and that a record can hold."""
        mine = [self._belongs(name, instance) for name in batch.events]
        if all(mine):
            return batch
        return batch.take(np.flatnonzero(np.array(mine, bool)[batch.order]))

    def _belongs(self, name: str, instance: str) -> bool:
        if name not in self._seen:
            return True  # none has come yet, so there is nothing to keep apart
        return name in self._layouts and self.options.instances.get(name, "") == instance

    def all_formats(self) -> list[EventFormat]:
        """The formats the source has, and those made for events that had none."""
        texts = {name: form for name, form in self.source.formats.items() if form.text}
        return list((texts | self.formats).values())


def _version_6(spool: _Spool, stream: IO[bytes]) -> None:
    names = description.command_lines(spool.meta.comms)
    head = b"".join(
        (
            description.initial("6"),
            description.page_headers(),
            struct.pack("<I", 0),
            description.event_formats(spool.all_formats()),
            struct.pack("<II", 0, 0),
            struct.pack("<Q", len(names)) + names,
            struct.pack("<I", spool.cpus) + b"options  \0",
        )
    )
    options = list(_host_options(spool))
    instances = {name: buffer for name, buffer in spool.buffers.items() if name}
    fixed = sum(6 + len(data) for _, data in options) + sum(6 + 8 + len(encoded(name)) + 1 for name in instances) + 2
    table_bytes = 10 + 16 * spool.cpus
    tables_at = len(head) + fixed
    data_at = up(tables_at + table_bytes * len(spool.buffers), PAGE)
    tables = b""
    for number, (name, buffer) in enumerate(spool.buffers.items()):
        if name:
            where = tables_at + table_bytes * number
            options.append((_BUFFER, struct.pack("<Q", where) + encoded(name) + b"\0"))
        tables += b"flyrecord\0"
        for cpu in range(spool.cpus):
            size = buffer.size(cpu)
            tables += struct.pack("<QQ", data_at, size)
            data_at += size
    stream.write(head + b"".join(struct.pack("<HI", number, len(data)) + data for number, data in options))
    stream.write(struct.pack("<H", 0) + tables)
    stream.write(bytes(-(tables_at + len(tables)) % PAGE))
    for buffer in spool.buffers.values():
        for cpu in range(spool.cpus):
            for piece in buffer.data(cpu):
                stream.write(piece)


def _version_7(spool: _Spool, stream: IO[bytes]) -> None:
    names = description.command_lines(spool.meta.comms)
    start = description.initial("7") + _named(spool.options.compression)
    strings = bytearray()
    sections = bytearray()
    options: list[tuple[int, bytes]] = []
    compress = compressor(spool.options.compression)
    for number, label, data in (
        (_HEADERS, b"headers", description.page_headers()),
        (_FTRACE, b"ftrace events", struct.pack("<I", 0)),
        (_FORMATS, b"events format", description.event_formats(spool.all_formats())),
        (_KALLSYMS, b"kallsyms", struct.pack("<I", 0)),
        (_PRINTK, b"printk", struct.pack("<I", 0)),
        (_CMDLINES, b"command lines", struct.pack("<Q", len(names)) + names),
    ):
        options.append((number, struct.pack("<Q", len(start) + 8 + len(sections))))
        sections += _section(number, len(strings), data, compress)
        strings += label + b"\0"
    options += _host_options(spool)
    options_at = len(start) + 8 + len(sections)
    # The options' size does not depend on the offsets in them, so two passes settle where the data stands.
    size = sum(6 + len(data) for _, data in [*options, *_buffer_options(spool, 0)]) + 14
    data_at = options_at + 16 + size
    options += _buffer_options(spool, data_at)
    options.append((_DONE, struct.pack("<Q", 0)))
    listed = b"".join(struct.pack("<HI", number, len(data)) + data for number, data in options)
    stream.write(start + struct.pack("<Q", options_at) + sections + _section(_OPTIONS, len(strings), listed, None))
    strings += b"options\0"
    _flyrecords(spool, stream, data_at, len(strings))
    strings += b"buffer flyrecord\0"
    stream.write(_section(_STRINGS, len(strings), bytes(strings + b"strings\0"), None))


def _buffer_options(spool: _Spool, at: int) -> list[tuple[int, bytes]]:
    """A BUFFER option for each instance; their sections follow one another from *at* on."""
    options = []
    for name, buffer in spool.buffers.items():
        cpus = sorted(buffer.entries) or [0]
        data = struct.pack("<Q", at) + encoded(name) + b"\0" + encoded(spool.meta.clock or "local") + b"\0"
        data += struct.pack("<II", PAGE, len(cpus))
        at += 16
        for cpu in cpus:
            at = up(at, PAGE)
            data += struct.pack("<IQQ", cpu, at, buffer.size(cpu))
            at += buffer.size(cpu)
        options.append((_BUFFER, data))
    return options


def _flyrecords(spool: _Spool, stream: IO[bytes], at: int, label: int) -> None:
    """The sections that :func:`_buffer_options` describes."""
    flags = int(spool.options.compression != "none")
    for buffer in spool.buffers.values():
        begin = end = at + 16
        for cpu in sorted(buffer.entries) or [0]:
            end = up(end, PAGE) + buffer.size(cpu)
        stream.write(struct.pack("<HHIQ", _FLYRECORD, flags, label, end - begin))
        at = begin
        for cpu in sorted(buffer.entries) or [0]:
            stream.write(bytes(-at % PAGE))
            at = up(at, PAGE) + buffer.size(cpu)
            for piece in buffer.data(cpu):
                stream.write(piece)


def _section(number: int, label: int, data: bytes, compress: Compress | None) -> bytes:
    if compress:
        packed = compress(data)
        data = struct.pack("<II", len(packed), len(data)) + packed
    return struct.pack("<HHIQ", number, int(compress is not None), label, len(data)) + data


def _host_options(spool: _Spool) -> Iterator[tuple[int, bytes]]:
    from worldswitch import __version__

    meta = spool.meta
    yield _TRACECLOCK, encoded(f"[{meta.clock or 'local'}]") + b"\0"
    if meta.kernel is not None or meta.host is not None:
        release = (meta.kernel or "(none)").removesuffix(" x86_64")
        yield _UNAME, encoded(f"Linux {meta.host or '(none)'} {release} x86_64") + b"\0"
    yield _VERSION, encoded(f"worldswitch {__version__}") + b"\0"
    if spool.options.version == 7:
        yield _CPUCOUNT, struct.pack("<I", spool.cpus)
    for cpu in range(spool.cpus):
        entries = sum(buffer.entries.get(cpu, 0) for buffer in spool.buffers.values())
        if entries:
            text = f"CPU: {cpu}\nentries: {entries}\noverrun: 0\ncommit overrun: 0\ndropped events: 0\n"
            yield _CPUSTAT, text.encode() + b"\0"


def compressor(name: str) -> Compress | None:
    """The function that compresses one chunk; None for ``none``."""
    if name == "zlib":
        import zlib

        return lambda data: zlib.compress(data, 6)
    if name == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=3).compress
    return None


def _named(compression: str) -> bytes:
    """The compression's name and the version of its library."""
    version = ""
    if compression == "zlib":
        import zlib

        version = zlib.ZLIB_VERSION
    if compression == "zstd":
        import zstandard

        version = ".".join(map(str, zstandard.ZSTD_VERSION))
    return compression.encode() + b"\0" + version.encode() + b"\0"
