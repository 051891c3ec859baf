"""Builds perf.data files record by record, as include/uapi/linux/perf_event.h and perf.data-file-format.txt lay out.

The events are of one tracepoint, ``made``, whose one field is a number.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from traces import text_of
from worldswitch.record.formats import parse_format
from worldswitch.trace.writers.description import tracing_data

IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD, STREAM_ID, RAW = (1 << bit for bit in range(11))
BRANCH_STACK, WEIGHT, DATA_SRC, IDENTIFIER = 1 << 11, 1 << 14, 1 << 15, 1 << 16
TOTAL_ENABLED, TOTAL_RUNNING, READ_ID, GROUP, READ_LOST = (1 << bit for bit in range(5))
TRACEPOINT, SOFTWARE = 2, 1
COMM, LOST, SAMPLE, LOST_SAMPLES = 3, 2, 9, 13
HEADER_ATTR, TRACING_DATA, FINISHED_ROUND, EVENT_UPDATE, FEATURE, COMPRESSED, COMPRESSED2 = 64, 66, 68, 78, 80, 81, 83
MADE = 77
FORMATS = tracing_data([parse_format(text_of("made", MADE, [("value", "u8", 8)]), "kvm")], {})
FEATURES = {1: FORMATS, 4: struct.pack("<I", 16) + b"6.1.0-test".ljust(16, b"\0")}


@dataclass(frozen=True)
class Attribute:
    """One perf_event_attr and the ids of its samples."""

    sample_type: int
    read_format: int = 0
    ids: tuple[int, ...] = ()
    type: int = TRACEPOINT
    config: int = MADE
    size: int = 136

    def packed(self) -> bytes:
        """The structure, of the size this perf knew."""
        start = struct.pack(
            *("<IIQQQQQ", self.type, self.size, self.config, 1, self.sample_type, self.read_format, 1 << 18)
        )
        return start + bytes(self.size - len(start))


@dataclass(frozen=True)
class Sample:
    """One event; ``sample`` lays it out as an attribute says."""

    time: int
    value: int
    cpu: int = 0
    tid: int = 7
    pid: int = 6
    id: int = 0


def record(kind: int, body: bytes, more: bytes = b"") -> bytes:
    """A record; *more* follows it without being counted in its size, as tracing data does."""
    return struct.pack("<IHH", kind, 0, len(body) + 8) + body + more


def sample(attribute: Attribute, event: Sample) -> bytes:
    """A sample in the order of ``enum perf_event_sample_format``'s comment."""
    has = attribute.sample_type
    words = [
        (IDENTIFIER, struct.pack("<Q", event.id)),
        (IP, struct.pack("<Q", 0xFFFFFFFF81000000)),
        (TID, struct.pack("<ii", event.pid, event.tid)),
        (TIME, struct.pack("<Q", event.time)),
        (ADDR, struct.pack("<Q", 0xADD4)),
        (ID, struct.pack("<Q", event.id)),
        (STREAM_ID, struct.pack("<Q", 0x57)),
        (CPU, struct.pack("<II", event.cpu, 0)),
        (PERIOD, struct.pack("<Q", 1)),
        (READ, _read(attribute.read_format)),
        (CALLCHAIN, struct.pack("<4Q", 3, 0xFFFFFFFFFFFFFF80, 1, 2)),
        (RAW, _raw(event)),
        (BRANCH_STACK, struct.pack("<Q3Q", 1, 1, 2, 3)),
        (WEIGHT, struct.pack("<Q", 9)),
        (DATA_SRC, struct.pack("<Q", 8)),
    ]
    return record(SAMPLE, b"".join(data for bit, data in words if has & bit))


def _raw(event: Sample) -> bytes:
    payload = struct.pack("<HBBiQ", MADE, 0, 0, event.tid, event.value)
    return struct.pack("<I", len(payload) + 4) + payload + bytes(4)


def _read(read_format: int) -> bytes:
    times = [5] * bool(read_format & TOTAL_ENABLED) + [6] * bool(read_format & TOTAL_RUNNING)
    tail = [7] * bool(read_format & READ_ID) + [8] * bool(read_format & READ_LOST)
    words = [2, *times, 100, *tail, 200, *tail] if read_format & GROUP else [100, *times, *tail]
    return struct.pack(f"<{len(words)}Q", *words)


def file(attributes: list[Attribute], data: bytes, features: dict[int, bytes] | None = None) -> bytes:
    """File mode."""
    features = FEATURES if features is None else features
    size = attributes[0].size + 16
    ids_at = 104
    ids = b"".join(struct.pack(f"<{len(a.ids)}Q", *a.ids) for a in attributes)
    table, at = b"", ids_at
    for attribute in attributes:
        table += attribute.packed() + struct.pack("<QQ", at, 8 * len(attribute.ids))
        at += 8 * len(attribute.ids)
    attrs_at = ids_at + len(ids)
    data_at = attrs_at + len(table)
    sections_at = data_at + len(data) + 16 * len(features)
    sections, contents = b"", b""
    for number in sorted(features):
        sections += struct.pack("<QQ", sections_at + len(contents), len(features[number]))
        contents += features[number]
    bits = sum(1 << number for number in features)
    head = struct.pack(
        *("<8s8Q4Q", b"PERFILE2", 104, size, attrs_at, len(table), data_at, len(data), 0, 0, bits, 0, 0, 0)
    )
    return head + ids + table + data + sections + contents


def pipe(attributes: list[Attribute], data: bytes) -> bytes:
    """Pipe mode."""
    head = struct.pack("<8sQ", b"PERFILE2", 16)
    for attribute in attributes:
        head += record(HEADER_ATTR, attribute.packed() + struct.pack(f"<{len(attribute.ids)}Q", *attribute.ids))
    for number, content in FEATURES.items():
        if number != 1:
            head += record(FEATURE, struct.pack("<Q", number) + content)
    blob = FORMATS + bytes(-len(FORMATS) % 8)
    return head + record(TRACING_DATA, struct.pack("<I", len(blob)), blob) + data
