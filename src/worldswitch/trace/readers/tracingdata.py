"""The tracing data that perf.data and trace.dat share: page header, event formats, names of threads.

perf.data (files of perf as of trace-cmd 0.5 and 0.6) and trace.dat version 6 have all of it in one piece; trace.dat
version 7 has each part in a section of its own. Layout: trace-cmd's
Documentation/trace-cmd/trace-cmd.dat.v6.5.txt, "INITIAL FORMAT" to "PROCESS INFORMATION", and
perf.data-file-format.txt in the kernel. No size in it is trusted: what reaches beyond the end is :class:`Ended`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from worldswitch.errors import TraceFormatError
from worldswitch.record.formats import EventFormat, parse_format

MAGIC = b"\x17\x08\x44tracing"
_LARGEST_TEXT = 1 << 20
_LARGEST_PART = 1 << 26
_LARGEST_PAGE = 1 << 24
_PID_DIGITS = 10

Texts = list[tuple[str, str]]
"""System and text of event formats."""


class Ended(Exception):
    """What was to be read reaches beyond the end, or cannot be what it should."""


class Cursor:
    """Reads front to back through *pread* (offset, size -> bytes); :class:`Ended` at the end."""

    def __init__(self, pread: Callable[[int, int], bytes], at: int = 0) -> None:
        self._pread = pread
        self.at = at

    @classmethod
    def over(cls, data: bytes) -> Cursor:
        """A cursor over bytes in memory."""
        return cls(lambda offset, n: data[offset : offset + n])

    def take(self, n: int, limit: int = _LARGEST_PART) -> bytes:
        """The next *n* bytes; more than *limit* can only be a lie."""
        if n > limit or len(data := self._pread(self.at, n) if n else b"") < n:
            raise Ended
        self.at += n
        return data

    def number(self, size: int) -> int:
        """The next unsigned little-endian number."""
        return int.from_bytes(self.take(size), "little")

    def string(self, limit: int = 4096) -> str:
        """The next NUL-terminated string."""
        data = self._pread(self.at, limit)
        end = data.find(b"\0")
        if end < 0:
            raise Ended
        self.at += end + 1
        return text(data[:end])

    def text(self) -> str:
        """The next text of the tracing data: its size in eight bytes, and the bytes."""
        return text(self.take(self.number(8), _LARGEST_TEXT))


@dataclass(slots=True)
class TracingData:
    """What the tracing data of a perf.data says."""

    formats: list[EventFormat] = field(default_factory=list)
    comms: dict[int, str] = field(default_factory=dict)
    complete: bool = True


def parse_tracing_data(blob: bytes) -> TracingData:
    """Parse tracing data in one piece.

    What is cut short gives what stands before the cut, with ``complete`` false.

    Raises:
        TraceFormatError: It is no tracing data, or that of a big-endian machine.
    """
    if not blob.startswith(MAGIC):
        raise TraceFormatError("the event formats (tracing data) do not start with their magic number")
    cursor = Cursor.over(blob)
    cursor.at = len(MAGIC)
    result = TracingData()
    texts: Texts = []
    try:
        version = cursor.string()
        if cursor.number(1):
            raise TraceFormatError("the trace was recorded on a big-endian machine; KVM x86 traces are little-endian")
        cursor.take(5)  # the sizes of a long and of a page
        read_page_header(cursor)
        read_system("ftrace", cursor, texts)
        read_systems(cursor, texts)
        skip_symbols(cursor)
        if version >= "0.6":
            result.comms = parse_cmdlines(text(cursor.take(cursor.number(8))))
    except Ended:
        result.complete = False
    result.formats, broken = parse_formats(texts)
    result.complete &= not broken
    return result


def read_page_header(cursor: Cursor) -> tuple[int, int] | None:
    """How a ring-buffer page begins: bytes before its first record, and its size; None if that makes no sense."""
    if cursor.take(12) != b"header_page\0":
        raise Ended
    page = cursor.text()
    if cursor.take(13) != b"header_event\0":
        raise Ended
    cursor.text()
    data = re.search(r"field: char data;\s*offset:(\d{1,9});\s*size:(\d{1,9});", page)
    if not data or int(data[1]) not in (12, 16):
        return None
    return int(data[1]), usable_page_size(int(data[1]) + int(data[2]), 0)


def usable_page_size(claimed: int, otherwise: int) -> int:
    """A page size that pages can have, or the other one."""
    return claimed if 64 <= claimed <= _LARGEST_PAGE and claimed % 64 == 0 else otherwise


def read_systems(cursor: Cursor, texts: Texts) -> None:
    """Add the event formats of all systems but ftrace's own."""
    for _ in range(cursor.number(4)):
        read_system(cursor.string(), cursor, texts)


def read_system(name: str, cursor: Cursor, texts: Texts) -> None:
    """Add the event formats of one system."""
    for _ in range(cursor.number(4)):
        texts.append((name, cursor.text()))


def skip_symbols(cursor: Cursor) -> None:
    """Pass by the kernel's symbols and the formats of trace_printk."""
    for _ in ("kallsyms", "printk formats"):
        size = cursor.number(4)
        cursor.at += size


def parse_formats(texts: Iterable[tuple[str, str]]) -> tuple[list[EventFormat], int]:
    """The event formats, and how many of them make no sense."""
    formats = []
    broken = 0
    for system, format_text in texts:
        try:
            parsed = parse_format(format_text, system)
        except (TraceFormatError, ValueError):
            broken += 1
            continue
        # Fields that overlap again and again would make a small file into huge tables.
        if parsed.id < 1 << 16 and sum(f.size for f in parsed.fields) <= 4 * parsed.size:
            formats.append(parsed)
        else:
            broken += 1
    return formats, broken


def parse_cmdlines(lines: str) -> dict[int, str]:
    """Thread -> name from ``saved_cmdlines``: lines of a number and a name, which may hold spaces."""
    comms = {}
    for line in lines.split("\n"):
        tid, _, comm = line.strip("\0").partition(" ")
        if comm and tid.isascii() and tid.isdigit() and len(tid) <= _PID_DIGITS:
            comms[int(tid)] = comm
    return comms


def text(data: bytes) -> str:
    """*data* as text, without the NULs at its end."""
    return data.rstrip(b"\0").decode("utf-8", "backslashreplace")
