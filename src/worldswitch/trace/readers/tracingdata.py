"""The ``tracing_data`` blob: event formats as trace-cmd version 5/6 and perf store them.

Layout (Documentation/trace-cmd/trace-cmd.dat.v6.5.txt in trace-cmd, and perf.data-file-format.txt in the kernel):
magic, version string, endianness and word size, page size, then header_page, header_event, the ftrace events, the
events of each system, kallsyms, printk formats and, from version 0.6, the saved command lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from worldswitch.errors import TraceFormatError
from worldswitch.record.formats import EventFormat, parse_format

_PID_DIGITS = 10
MAGIC = b"\x17\x08\x44tracing"


@dataclass(slots=True)
class TracingData:
    """What the blob says."""

    version: str
    page_size: int
    formats: list[EventFormat] = field(default_factory=list)
    comms: dict[int, str] = field(default_factory=dict)
    complete: bool = True


class _Cursor:
    """Reads a blob front to back; running off its end is the one error."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        if n < 0 or self.at + n > len(self.data):
            raise EOFError
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise EOFError
        raw = self.take(end - self.at)
        self.at += 1
        return raw.decode("utf-8", "backslashreplace")


def parse_tracing_data(blob: bytes) -> TracingData:
    """Parse a blob.

    A blob that is cut short gives what stands before the cut, with ``complete`` false.

    Raises:
        TraceFormatError: It is no such blob, or one of a big-endian machine.
    """
    if not blob.startswith(MAGIC):
        raise TraceFormatError("the event formats (tracing data) do not start with their magic number")
    cursor = _Cursor(blob)
    cursor.at = len(MAGIC)
    result = TracingData("", 0)
    try:
        result.version = cursor.text()
        if cursor.number(1) != 0:
            raise TraceFormatError("the trace was recorded on a big-endian machine; KVM x86 traces are little-endian")
        cursor.number(1)
        result.page_size = cursor.number(4)
        _skip_headers(cursor)
        for _ in range(cursor.number(4)):
            _add(result, "ftrace", cursor.take(cursor.number(8)))
        for _ in range(cursor.number(4)):
            system = cursor.text()
            for _ in range(cursor.number(4)):
                _add(result, system, cursor.take(cursor.number(8)))
        cursor.take(cursor.number(4))  # kallsyms
        cursor.take(cursor.number(4))  # printk formats
        if result.version >= "0.6":
            result.comms = _comms(cursor.take(cursor.number(8)))
    except EOFError:
        result.complete = False
    return result


def _skip_headers(cursor: _Cursor) -> None:
    for name in ("header_page", "header_event"):
        if cursor.text() != name:
            raise TraceFormatError(f"the event formats (tracing data) have no {name}")
        cursor.take(cursor.number(8))


def _add(result: TracingData, system: str, text: bytes) -> None:
    try:
        result.formats.append(parse_format(text.decode("utf-8", "backslashreplace"), system))
    except TraceFormatError:
        result.complete = False


def _comms(text: bytes) -> dict[int, str]:
    comms = {}
    for line in text.decode("utf-8", "backslashreplace").split("\n"):
        pid, _, comm = line.partition(" ")
        if pid.isdecimal() and len(pid) <= _PID_DIGITS:
            comms[int(pid)] = comm
    return comms
