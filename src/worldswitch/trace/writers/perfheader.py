"""The parts of perf.data that are not events: header, attributes, sample layout, feature sections.

Layout: Linux tools/perf/Documentation/perf.data-file-format.txt, tools/perf/util/header.h and
include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from worldswitch.record.trace import Meta
from worldswitch.trace.readers.perffile import (
    ARCH,
    CMDLINE,
    CPU,
    CPUDESC,
    CPUID,
    HOSTNAME,
    ID,
    IDENTIFIER,
    IP,
    MAGIC,
    NRCPUS,
    OSRELEASE,
    PERIOD,
    RAW,
    TID,
    TIME,
    TRACEPOINT,
    VERSION,
)
from worldswitch.trace.writers.encode import encoded

HEADER_BYTES = 104
ATTRIBUTE_BYTES = 128

SAMPLE_TIME, COMPRESSED = 21, 27
"""Feature sections that only a writer needs; the others are the reader's."""

_READ_ID = 1 << 2
_SAMPLE_ID_ALL = 1 << 18
_VENDOR_OF_ISA = {1: "intel", 2: "amd"}
_CPUID = {"intel": "GenuineIntel", "amd": "AuthenticAMD"}


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Which words a sample has before its raw data, and in which order.

    By ``ID`` as ``perf record`` has it for tracepoints, or by ``IDENTIFIER`` as it has it when events of
    different kinds share a buffer.
    """

    identifier: bool

    @property
    def sample_type(self) -> int:
        """``perf_event_attr.sample_type``."""
        return IP | TID | TIME | CPU | PERIOD | RAW | (IDENTIFIER if self.identifier else ID)

    @property
    def head(self) -> list[tuple[str, str, int]]:
        """Name, type and offset of every word before the raw data ."""
        words = [("#type", "<u4"), ("#misc", "<u2"), ("#size", "<u2")]
        words += [("#id", "<u8")] if self.identifier else []
        words += [("#ip", "<u8"), ("#pid", "<i4"), ("#tid", "<i4"), ("#time", "<i8")]
        words += [] if self.identifier else [("#id", "<u8")]
        words += [("#cpu", "<i4"), ("#reserved", "<u4"), ("#period", "<u8"), ("#raw", "<u4")]
        head = []
        offset = 0
        for name, kind in words:
            head.append((name, kind, offset))
            offset += int(kind[-1])
        return head

    @property
    def head_bytes(self) -> int:
        """Where the raw data begins."""
        return sum(int(kind[-1]) for _, kind, _ in self.head)

    def trailer(self, pid: int, tid: int, time: int, number: int) -> bytes:
        """``struct sample_id`` at the end of records that are no samples."""
        start = struct.pack("<iiq", pid, tid, time)
        if self.identifier:
            return start + struct.pack("<QQ", 0, number)
        return start + struct.pack("<QQ", number, 0)

    def attribute(self, event: int) -> bytes:
        """``struct perf_event_attr`` of the tracepoint with id *event*."""
        start = struct.pack(
            "<IIQQQQQI", TRACEPOINT, ATTRIBUTE_BYTES, event, 1, self.sample_type, _READ_ID, _SAMPLE_ID_ALL, 1
        )
        return start + bytes(ATTRIBUTE_BYTES - len(start))


def file_header(attributes: int, count: int, data: int, size: int, features: Mapping[int, bytes]) -> bytes:
    """``struct perf_file_header``: where attributes and data are, which features follow the data."""
    entry = ATTRIBUTE_BYTES + 16
    bits = [0, 0, 0, 0]
    for number in features:
        bits[number // 64] |= 1 << number % 64
    return struct.pack(
        "<8sQQQQQQQQ4Q", MAGIC, HEADER_BYTES, entry, attributes, count * entry, data, size, 0, 0, *bits
    )  # fmt: skip


def feature_section(features: Mapping[int, bytes], offset: int) -> bytes:
    """Offset and size of each feature, by number, and their data; the section itself stands at *offset*."""
    at = offset + 16 * len(features)
    table, data = b"", b""
    for number in sorted(features):
        table += struct.pack("<QQ", at + len(data), len(features[number]))
        data += features[number]
    return table + data


def host_features(meta: Meta, cpus: int, isa: int) -> Iterator[tuple[int, bytes]]:
    """What is known of host and recorder; *isa* (of kvm_exit) tells the vendor where *meta* does not."""
    from worldswitch import __version__

    vendor = meta.vendor or _VENDOR_OF_ISA.get(isa)
    yield VERSION, string(f"worldswitch {__version__}")
    yield ARCH, string("x86_64")
    if cpus := meta.cpus or cpus:
        yield NRCPUS, struct.pack("<II", cpus & 0xFFFFFFFF, cpus & 0xFFFFFFFF)
    if vendor in _CPUID:
        yield CPUID, string(_CPUID[vendor])
    for number, text in ((HOSTNAME, meta.host), (OSRELEASE, meta.kernel), (CPUDESC, meta.cpu_model)):
        if text is not None:
            yield number, string(text)
    if meta.command is not None:
        words = meta.command.split(" ")
        yield CMDLINE, struct.pack("<I", len(words)) + b"".join(map(string, words))


def event_descriptions(events: Iterable[tuple[str, bytes, int]]) -> bytes:
    """EVENT_DESC of (name, attribute, id) triples."""
    listed = list(events)
    parts = [struct.pack("<II", len(listed), ATTRIBUTE_BYTES)]
    for name, attribute, number in listed:
        parts += [attribute, struct.pack("<I", 1), string(name), struct.pack("<Q", number)]
    return b"".join(parts)


def string(text: str) -> bytes:
    """A length and the text, NUL-terminated and padded to 64 bytes."""
    data = encoded(text) + b"\0"
    data += bytes(-len(data) % 64)
    return struct.pack("<I", len(data)) + data
