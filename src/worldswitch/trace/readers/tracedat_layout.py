"""The structure of a trace.dat file: where its formats, options and each CPU's pages lie.

Source: trace-cmd's Documentation/trace-cmd/trace-cmd.dat.v6.5.txt and trace-cmd.dat.v7.5.txt and, where these
are silent or behind (a section's size has 8 bytes, BUFFER names a page size), lib/trace-cmd/trace-input.c.
Nothing here trusts a size or an offset: what points outside the file is damage, and every loop ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from worldswitch.errors import TraceFormatError, printable
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat_codec import CODECS, Codec
from worldswitch.trace.readers.tracingdata import (
    MAGIC,
    Cursor,
    Ended,
    Texts,
    read_page_header,
    read_system,
    read_systems,
    skip_symbols,
    text,
    usable_page_size,
)

_LARGEST_SECTION = 1 << 26
_MOST_CPUS = 1 << 16
_COMPRESSED = 1


class Option(IntEnum):
    """Ids of options and, from HEADER_INFO on and for BUFFER, of sections."""

    DONE = 0
    DATE = 1
    CPUSTAT = 2
    BUFFER = 3
    TRACECLOCK = 4
    UNAME = 5
    OFFSET = 7
    CPUCOUNT = 8
    VERSION = 9
    TIME_SHIFT = 12
    GUEST = 13
    TSC2NSEC = 14
    HEADER_INFO = 16
    FTRACE_EVENTS = 17
    EVENT_FORMATS = 18
    CMDLINES = 21
    BUFFER_TEXT = 22


@dataclass(frozen=True, slots=True)
class CpuData:
    """Pages of one CPU: *size* bytes of the file from *offset* (compressed: chunk headers not counted)."""

    cpu: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer instance; the top one has the name ``""``."""

    name: str
    clock: str | None
    page_size: int
    compressed: bool
    cpus: tuple[CpuData, ...]


@dataclass(slots=True)
class Layout:
    """What the metadata says. ``damage`` holds a sentence for each part that could not be read."""

    version: int = 0
    codec: Codec = CODECS["none"]
    page_size: int = 4096
    data_offset: int = 16
    """Bytes before a page's first record: 16 where the kernel's long has 8 bytes, 12 where it has 4."""
    formats: Texts = field(default_factory=list)
    options: list[tuple[int, bytes]] = field(default_factory=list)
    cmdlines: str = ""
    buffers: list[Buffer] = field(default_factory=list)
    is_text: bool = False
    """The file holds a latency tracer's text instead of pages."""
    damage: list[str] = field(default_factory=list)


def read_layout(source: Input) -> Layout:
    """Read everything but the pages.

    Raises:
        TraceFormatError: No trace.dat, of a version, byte order or compression that is not read, or damaged
            before anything about its events is known.
    """
    cursor = Cursor(source.pread)
    layout = Layout()
    try:
        if cursor.take(len(MAGIC)) != MAGIC:
            raise TraceFormatError(f"{source.name} is no trace.dat: it does not begin as trace-cmd's files do")
        version = cursor.string(16)
        if version not in ("6", "7"):
            raise TraceFormatError(
                f"{source.name} is a trace.dat of version {printable(version)!r}; versions 6 and 7 are read. "
                "`trace-cmd convert` may translate it."
            )
        layout.version = int(version)
        if cursor.number(1):
            raise TraceFormatError(
                f"{source.name} was written by a big-endian machine; only little-endian trace.dat files are read"
            )
        cursor.take(1)  # the size of user space's long; header_page tells the kernel's
        layout.page_size = usable_page_size(cursor.number(4), layout.page_size)
        if layout.version == 6:
            _read_v6(source, cursor, layout)
        else:
            _read_v7(source, cursor, layout)
    except Ended:
        raise TraceFormatError(
            f"{source.name} is damaged before its first event (at byte {cursor.at} of {source.spooled()}); "
            "nothing can be read from it"
        ) from None
    return layout


def _read_v6(source: Input, cursor: Cursor, layout: Layout) -> None:
    _header_info(cursor, layout)
    _ftrace_events(cursor, layout)
    _event_formats(cursor, layout)
    skip_symbols(cursor)
    _cmdlines(cursor, layout)
    cpus = cursor.number(4)
    if cursor.take(10).startswith(b"options"):
        while (option := cursor.number(2)) != Option.DONE:
            layout.options.append((option, cursor.take(cursor.number(4))))
    else:
        cursor.at -= 10
    for option, data in layout.options:
        if option == Option.CPUCOUNT and len(data) >= 4:
            cpus = int.from_bytes(data[:4], "little")
    _v6_buffer(source, cursor, layout, "", cpus)
    for option, data in layout.options:
        if option != Option.BUFFER:
            continue
        name = "?"
        try:
            instance = Cursor.over(data)
            at = instance.number(8)
            name = instance.string()
            _v6_buffer(source, Cursor(source.pread, at), layout, name, cpus)
        except Ended:
            layout.damage.append(f"buffer instance {printable(name)!r} lies outside the file; its events are lost")


def _v6_buffer(source: Input, cursor: Cursor, layout: Layout, name: str, cpus: int) -> None:
    """The table of one buffer's CPUs that follows its ``flyrecord`` tag."""
    tag = cursor.take(10)
    if tag.startswith(b"latency"):
        layout.is_text = True
        return
    if not tag.startswith(b"flyrecord") or cpus > _MOST_CPUS:
        raise Ended
    table = Cursor.over(cursor.take(cpus * 16))
    found = [CpuData(cpu, table.number(8), table.number(8)) for cpu in range(cpus)]
    clock = _v6_clock(cursor) if any(option == Option.TRACECLOCK for option, _ in layout.options) else None
    page_size = layout.page_size
    layout.buffers.append(Buffer(name, clock, page_size, False, _inside(found, source, layout, name)))


def _v6_clock(cursor: Cursor) -> str | None:
    try:
        return text(cursor.take(cursor.number(8), 4096))
    except Ended:
        return None


def _read_v7(source: Input, cursor: Cursor, layout: Layout) -> None:
    name = cursor.string(64)
    cursor.string(64)  # the version of the compression library
    if name not in CODECS:
        raise TraceFormatError(
            f"{source.name} is compressed with {printable(name)!r}; {', '.join(CODECS)} are read. "
            "`trace-cmd convert --compression none` translates it where trace-cmd has that library."
        )
    layout.codec = CODECS[name]
    first = cursor.number(8)
    sections = {int(option) for option in Option if option >= Option.HEADER_INFO}
    try:
        layout.options = list(_v7_options(source, first, layout))
    except Ended:
        layout.damage.append("the list of options is damaged")
    found = {id_: int.from_bytes(data[:8], "little") for id_, data in layout.options if id_ in sections}
    if not any(id_ in (Option.BUFFER, Option.BUFFER_TEXT) for id_, _ in layout.options):
        # The options that say where the pages are come last: a file that was cut has none. Its sections still
        # follow each other.
        _sections_in_file_order(source, cursor.at, layout, found)
    for section, parse in _SECTIONS.items():
        if section not in found:
            continue
        try:
            parse(Cursor.over(_section(source, found[section], section, layout.codec)), layout)
        except Ended:
            layout.damage.append(f"the section {section.name} is damaged")
    for id_, data in layout.options:
        if id_ == Option.BUFFER:
            _v7_buffer(source, data, layout)
        elif id_ == Option.BUFFER_TEXT:
            layout.is_text = True


def _v7_options(source: Input, first: int, layout: Layout) -> Iterator[tuple[int, bytes]]:
    """The options of all options sections; each names the place of the next."""
    seen: set[int] = set()
    at = first
    while at and at not in seen:
        seen.add(at)
        options = Cursor.over(_section(source, at, Option.DONE, layout.codec))
        at = 0
        while True:
            try:
                option = options.number(2)
                data = options.take(options.number(4))
            except Ended:
                layout.damage.append("a list of options ends without its end mark")
                break
            if option == Option.DONE:
                at = int.from_bytes(data[:8], "little")
                break
            yield option, data


def _section(source: Input, at: int, want: int, codec: Codec) -> bytes:
    """The decompressed data of the section at byte *at*; what there is of one the file's end cuts short."""
    id_, flags, size = _section_header(source, at)
    if id_ != want:
        raise Ended
    if not flags & _COMPRESSED:
        return source.pread(at + 16, min(size, _LARGEST_SECTION))
    cursor = Cursor(source.pread, at + 16)
    packed, unpacked = cursor.number(4), cursor.number(4)
    if unpacked > _LARGEST_SECTION:
        raise Ended
    target = bytearray(unpacked)
    filled = codec.unpack(source.pread(cursor.at, packed), memoryview(target))
    return bytes(target[:filled])


def _section_header(source: Input, at: int) -> tuple[int, int, int]:
    header = Cursor.over(source.pread(at, 16))
    id_, flags, _, size = header.number(2), header.number(2), header.number(4), header.number(8)
    return id_, flags, size


def _sections_in_file_order(source: Input, at: int, layout: Layout, found: dict[int, int]) -> None:
    """Find sections by walking the file; a file cut within its pages has them at its end."""
    try:
        while True:
            id_, flags, size = _section_header(source, at)
            if id_ == Option.BUFFER:
                end = min(at + 16 + size if size else source.spooled(), source.spooled())
                find = _compressed_cpus if flags & _COMPRESSED else _plain_cpus
                cpus = tuple(find(source, at + 16, end, layout.page_size))
                name = f"#{len(layout.buffers)}" if layout.buffers else ""
                if cpus:
                    compressed = bool(flags & _COMPRESSED)
                    layout.buffers.append(Buffer(name, None, layout.page_size, compressed, cpus))
                    layout.damage.append(
                        "the table that says where each CPU's pages are is missing; "
                        "they were found by their look, and events have no CPU number"
                    )
            elif id_ >= Option.HEADER_INFO:
                found.setdefault(id_, at)
            if not size:
                return
            at += 16 + size
    except Ended:
        return


def _compressed_cpus(source: Input, at: int, end: int, page: int) -> Iterator[CpuData]:
    """The CPUs of a section of compressed pages: each begins a page with the count of its chunks."""
    while (begin := (at + page - 1) // page * page) + 12 <= end:
        count = int.from_bytes(source.pread(begin, 4), "little")
        at = begin + 4
        while count and at + 8 <= end:
            at += 8 + int.from_bytes(source.pread(at, 4), "little")
            count -= 1
        if at == begin + 4:
            return
        yield CpuData(-1, begin, min(at, end) - begin)


def _plain_cpus(source: Input, at: int, end: int, page: int) -> Iterator[CpuData]:
    """The CPUs of a section of plain pages: a new one begins where the pages' time goes back."""
    begin = at = (at + page - 1) // page * page
    before = 0
    while at < end:
        now = int.from_bytes(source.pread(at, 8), "little")
        if now < before:
            yield CpuData(-1, begin, at - begin)
            begin = at
        before = now
        at += page
    if begin < end:
        yield CpuData(-1, begin, end - begin)


def _v7_buffer(source: Input, data: bytes, layout: Layout) -> None:
    option = Cursor.over(data)
    name = "?"
    try:
        offset = option.number(8)
        name = option.string()
        clock = option.string()
        rest = len(data) - option.at
        page_size = option.number(4)
        # The document of version 7 knows no page size here; every trace-cmd released writes one.
        cpus = option.number(4) if (rest - 8) % 20 == 0 else page_size
        if cpus > _MOST_CPUS:
            raise Ended
        page_size = usable_page_size(page_size, layout.page_size) if (rest - 8) % 20 == 0 else layout.page_size
        found = [CpuData(option.number(4), option.number(8), option.number(8)) for _ in range(cpus)]
        id_, flags, _ = _section_header(source, offset)
        if id_ != Option.BUFFER:
            raise Ended
    except Ended:
        layout.damage.append(f"the description of buffer {printable(name)!r} is damaged; its events are lost")
        return
    cpu_data = _inside(found, source, layout, name)
    layout.buffers.append(Buffer(name, clock, page_size, bool(flags & _COMPRESSED), cpu_data))


def _inside(found: list[CpuData], source: Input, layout: Layout, name: str) -> tuple[CpuData, ...]:
    """The CPUs with data, cut to what the file holds."""
    end = source.spooled()
    where = f" of buffer {printable(name)!r}" if name else ""
    kept = []
    for data in found:
        if not data.size:
            continue
        if data.cpu >= _MOST_CPUS or data.offset >= end:
            layout.damage.append(f"all events of CPU {data.cpu}{where} lie beyond the end of the file")
            continue
        if data.size > end - data.offset:
            missing = data.size - (end - data.offset)
            layout.damage.append(f"the last {missing} bytes of CPU {data.cpu}{where} are missing")
            data = CpuData(data.cpu, data.offset, end - data.offset)  # noqa: PLW2901
        kept.append(data)
    return tuple(kept)


def _header_info(cursor: Cursor, layout: Layout) -> None:
    header = read_page_header(cursor)
    if header is not None:
        layout.data_offset = header[0]
        # A kernel with larger sub-buffers says so here and nowhere else in version 6.
        layout.page_size = max(layout.page_size, header[1])


def _ftrace_events(cursor: Cursor, layout: Layout) -> None:
    read_system("ftrace", cursor, layout.formats)


def _event_formats(cursor: Cursor, layout: Layout) -> None:
    read_systems(cursor, layout.formats)


def _cmdlines(cursor: Cursor, layout: Layout) -> None:
    layout.cmdlines = text(cursor.take(cursor.number(8)))


_SECTIONS = {
    Option.HEADER_INFO: _header_info,
    Option.FTRACE_EVENTS: _ftrace_events,
    Option.EVENT_FORMATS: _event_formats,
    Option.CMDLINES: _cmdlines,
}
