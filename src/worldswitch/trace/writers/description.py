"""The tracing data that perf.data and trace.dat share: page header, event formats, thread names.

Layout: trace-cmd.dat.v6(5), "INITIAL FORMAT" to "PROCESS INFORMATION"; what perf writes
(tools/perf/util/trace-event-info.c) is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from worldswitch.record.formats import EventFormat
from worldswitch.trace.readers.tracingdata import MAGIC
from worldswitch.trace.writers.encode import encoded

PAGE_BYTES = 4096

HEADER_PAGE = (
    b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
    b"\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
    b"\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
    b"\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n"
)

HEADER_EVENT = (
    b"# compressed entry header\n"
    b"\ttype_len    :    5 bits\n"
    b"\ttime_delta  :   27 bits\n"
    b"\tarray       :   32 bits\n"
    b"\n"
    b"\tpadding     : type == 29\n"
    b"\ttime_extend : type == 30\n"
    b"\ttime_stamp : type == 31\n"
    b"\tdata max type_len  == 28\n"
)


def initial(version: str) -> bytes:
    """Magic, version, byte order (little), size of a long, page size."""
    return MAGIC + version.encode() + b"\0\0\x08" + struct.pack("<I", PAGE_BYTES)


def page_headers() -> bytes:
    """How ring-buffer pages and their records begin."""
    return (
        b"header_page\0" + struct.pack("<Q", len(HEADER_PAGE)) + HEADER_PAGE
        + b"header_event\0" + struct.pack("<Q", len(HEADER_EVENT)) + HEADER_EVENT
    )  # fmt: skip


def event_formats(formats: Iterable[EventFormat]) -> bytes:
    """Count of systems; of each its name, count of events, and size and text of each event's format."""
    systems: dict[str, list[EventFormat]] = {}
    for event in formats:
        systems.setdefault(event.system or "unknown", []).append(event)
    parts = [struct.pack("<I", len(systems))]
    for system, events in systems.items():
        parts.append(encoded(system) + b"\0" + struct.pack("<I", len(events)))
        for event in events:
            text = event.text.encode("utf-8", "backslashreplace")
            parts.append(struct.pack("<Q", len(text)) + text)
    return b"".join(parts)


def command_lines(comms: Mapping[int, str]) -> bytes:
    """``tid comm`` lines, as tracefs ``saved_cmdlines`` has them."""
    lines = (f"{tid} {one_line(comm)}\n".encode("utf-8", "backslashreplace") for tid, comm in sorted(comms.items()))
    return b"".join(lines)


def one_line(comm: str) -> str:
    """*comm* without what would end its line."""
    return "".join(" " if c in "\0\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029" else c for c in comm)


def tracing_data(formats: Iterable[EventFormat], comms: Mapping[int, str]) -> bytes:
    """The whole of it, as perf.data embeds it (version 0.6: with thread names)."""
    names = command_lines(comms)
    return b"".join(
        (
            initial("0.6"),
            page_headers(),
            struct.pack("<I", 0),  # formats of the ftrace system
            event_formats(formats),
            struct.pack("<I", 0),  # kallsyms
            struct.pack("<I", 0),  # printk formats
            struct.pack("<Q", len(names)) + names,
        )
    )
