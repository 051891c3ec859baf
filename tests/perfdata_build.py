"""Builds perf.data byte by byte, as include/uapi/linux/perf_event.h and perf.data-file-format.txt lay it out."""

from __future__ import annotations

import struct
from collections.abc import Iterable

IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD, STREAM_ID, RAW = (1 << i for i in range(11))
IDENTIFIER = 1 << 16
USUAL = TID | TIME | CPU | RAW
TRACEPOINT, SOFTWARE = 2, 1
EXIT, ENTRY = 700, 701
COMMON = """\
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;
"""
EXIT_TEXT = f"name: kvm_exit\nID: {EXIT}\nformat:\n{COMMON}" + "".join(
    f"\tfield:{kind} {name};\toffset:{at};\tsize:{size};\tsigned:0;\n"
    for kind, name, at, size in (("u32", "exit_reason", 8, 4), ("u32", "isa", 12, 4), ("u64", "guest_rip", 16, 8))
)
ENTRY_TEXT = f"name: kvm_entry\nID: {ENTRY}\nformat:\n{COMMON}\tfield:u32 vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n"


def record(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


ROUND = record(68)


def exit_raw(reason: int, rip: int = 0x1000) -> bytes:
    return struct.pack("<HBBiIIQ", EXIT, 0, 0, 1, reason, 1, rip)


def entry_raw(vcpu: int = 0) -> bytes:
    return struct.pack("<HBBiI", ENTRY, 0, 0, 1, vcpu)


def sample(
    raw: bytes = b"",
    kind: int = USUAL,
    time: int = 0,
    cpu: int = 0,
    tid: int = 1,
    pid: int = 1,
    number: int = 0,
    read: bytes = b"",
    chain: Iterable[int] = (),
) -> bytes:
    """One PERF_RECORD_SAMPLE; *kind* is the sample_type."""
    parts = {
        IDENTIFIER: struct.pack("<Q", number), IP: struct.pack("<Q", 0xFFFF), TID: struct.pack("<II", pid, tid),
        TIME: struct.pack("<Q", time), ADDR: struct.pack("<Q", 1), ID: struct.pack("<Q", number),
        STREAM_ID: struct.pack("<Q", number), CPU: struct.pack("<II", cpu, 0), PERIOD: struct.pack("<Q", 1),
    }  # fmt: skip
    body = b"".join(part for bit, part in parts.items() if kind & bit)
    if kind & READ:
        body += read
    if kind & CALLCHAIN:
        frames = list(chain)
        body += struct.pack(f"<Q{len(frames)}Q", len(frames), *frames)
    if kind & RAW:
        padded = raw + bytes((4 - len(raw)) % 8)
        body += struct.pack("<I", len(padded)) + padded
    return record(9, body)


def attr(kind: int = USUAL, config: int = 0, type_: int = TRACEPOINT, read_format: int = 0) -> bytes:
    flags = 1 << 18
    return struct.pack("<IIQQQQQ", type_, 64, config, 1, kind, read_format, flags) + bytes(16)


def attr_record(ids: Iterable[int] = (), **given: int) -> bytes:
    return record(64, attr(**given) + b"".join(struct.pack("<Q", number) for number in ids))


def tracing_data(*texts: str) -> bytes:
    def blob(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    out = b"\x17\x08\x44tracing0.6\0" + b"\0\x08" + struct.pack("<I", 4096)
    out += b"header_page\0" + blob(b"x") + b"header_event\0" + blob(b"x") + struct.pack("<I", 0)
    out += struct.pack("<I", 1) + b"kvm\0" + struct.pack("<I", len(texts)) + b"".join(blob(t.encode()) for t in texts)
    return out + struct.pack("<II", 0, 0) + struct.pack("<Q", 0)


def formats_record(*texts: str) -> bytes:
    data = tracing_data(*texts or (EXIT_TEXT, ENTRY_TEXT))
    data += bytes(-len(data) % 8)
    return struct.pack("<IHHI", 66, 0, 12, len(data)) + data


def pipe(*records: bytes) -> bytes:
    return b"PERFILE2" + struct.pack("<Q", 16) + b"".join(records)
