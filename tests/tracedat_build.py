"""Builds trace.dat files byte by byte, as the two file-format documents of trace-cmd lay them out."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

import zstandard

ALPHA, BETA, GAMMA = 300, 301, 302
COMMON = """\
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

"""


def format_text(name: str, number: int, fields: str) -> str:
    return f'name: {name}\nID: {number}\nformat:\n{COMMON}{fields}\nprint fmt: "x"\n'


SMALL = "\tfield:u32 small;\toffset:8;\tsize:4;\tsigned:0;\n"
LARGE = "\tfield:u64 large;\toffset:16;\tsize:8;\tsigned:0;\n"
TEXT = "\tfield:__data_loc char[] text;\toffset:8;\tsize:4;\tsigned:0;\n"
VALUE = "\tfield:s16 value;\toffset:8;\tsize:2;\tsigned:1;\n"
FORMATS = [
    ("kvm", format_text("alpha", ALPHA, SMALL + LARGE)),
    ("kvm", format_text("beta", BETA, TEXT)),
    ("other", format_text("gamma", GAMMA, VALUE)),
]


def payload(kind: int, tid: int, rest: bytes = b"") -> bytes:
    return struct.pack("<HBBi", kind, 0, 0, tid) + rest


def alpha(tid: int = 7, small: int = 1, large: int = 2) -> bytes:
    return payload(ALPHA, tid, struct.pack("<IIQ", small, 0, large))


def beta(tid: int = 7, text: bytes = b"hello") -> bytes:
    return payload(BETA, tid, struct.pack("<I", (len(text) + 1) << 16 | 12) + text + b"\0")


def gamma(tid: int = 7, value: int = -3) -> bytes:
    return payload(GAMMA, tid, struct.pack("<h", value))


def record(data: bytes, delta: int = 0, length_word: bool = False) -> bytes:
    data += b"\0" * (-len(data) % 4)
    words = len(data) // 4
    if length_word or words > 28:
        return struct.pack("<II", delta << 5, len(data) + 4) + data
    return struct.pack("<I", delta << 5 | words) + data


def extend(ns: int) -> bytes:
    return struct.pack("<II", (ns & 0x7FFFFFF) << 5 | 30, ns >> 27)


def absolute(ns: int) -> bytes:
    return struct.pack("<II", (ns & 0x7FFFFFF) << 5 | 31, ns >> 27 & 0xFFFFFFFF)


def discarded(data_bytes: int, delta: int = 1) -> bytes:
    return struct.pack("<II", delta << 5 | 29, data_bytes) + b"\xff" * (data_bytes - 4)


NULL = struct.pack("<I", 29)


def page(time: int, *records: bytes, lost: int | str = 0, size: int = 4096, long: int = 8, commit: int = -1) -> bytes:
    data = b"".join(records)
    claimed = len(data) if commit < 0 else commit
    if lost:
        claimed |= 1 << 31
        if isinstance(lost, int):
            claimed |= 1 << 30
            data += lost.to_bytes(long, "little")
    whole = struct.pack("<Q", time) + claimed.to_bytes(long, "little") + data
    assert len(whole) <= size
    return whole + b"\0" * (size - len(whole))


@dataclass
class Spec:
    """What a file holds; the defaults make a small one of two CPUs."""

    buffers: dict[str, dict[int, list[bytes]]] = field(
        default_factory=lambda: {"": {0: [page(1000, record(alpha()))], 1: [page(1500, record(gamma()))]}}
    )
    formats: list[tuple[str, str]] = field(default_factory=lambda: list(FORMATS))
    options: list[tuple[int, bytes]] = field(default_factory=list)
    cmdlines: bytes = b"7 qemu kvm\n8 CPU 0/KVM\n"
    page_size: int = 4096
    long: int = 8
    clock: bytes = b"local"
    codec: str = "none"
    chunk_pages: int = 2
    big_endian: bool = False
    extra_section: bool = False
    tag: bytes = b"flyrecord\0"


def start(spec: Spec, version: bytes) -> bytes:
    return b"\x17\x08\x44tracing" + version + b"\0" + bytes([spec.big_endian, 8]) + struct.pack("<I", spec.page_size)


def header_info(spec: Spec) -> bytes:
    at = 8 + spec.long
    text = (
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
        f"\tfield: local_t commit;\toffset:8;\tsize:{spec.long};\tsigned:1;\n"
        f"\tfield: char data;\toffset:{at};\tsize:{spec.page_size - at};\tsigned:1;\n"
    ).encode()
    event = b"# compressed entry header\n\ttype_len    :    5 bits\n"
    return (
        b"header_page\0"
        + struct.pack("<Q", len(text))
        + text
        + b"header_event\0"
        + struct.pack("<Q", len(event))
        + event
    )


def blobs(texts: list[str]) -> bytes:
    parts = [struct.pack("<Q", len(text.encode())) + text.encode() for text in texts]
    return struct.pack("<I", len(texts)) + b"".join(parts)


def event_formats(spec: Spec) -> bytes:
    systems: dict[str, list[str]] = {}
    for system, text in spec.formats:
        systems.setdefault(system, []).append(text)
    body = b"".join(name.encode() + b"\0" + blobs(texts) for name, texts in systems.items())
    return struct.pack("<I", len(systems)) + body


def option(number: int, data: bytes) -> bytes:
    return struct.pack("<HI", number, len(data)) + data


def version_6(spec: Spec) -> bytes:
    """trace-cmd.dat.v6(5)."""
    out = bytearray(start(spec, b"6") + header_info(spec) + blobs([]) + event_formats(spec))
    out += struct.pack("<I", 5) + b"ksyms" + struct.pack("<I", 0)
    out += struct.pack("<Q", len(spec.cmdlines)) + spec.cmdlines
    cpus = max((max(buffer, default=-1) for buffer in spec.buffers.values()), default=-1) + 1
    out += struct.pack("<I", cpus) + b"options  \0"
    holes = {}
    for number, data in spec.options:
        out += option(number, data)
    for name in spec.buffers:
        if name:
            out += option(3, bytes(8) + name.encode() + b"\0")
            holes[name] = len(out) - 9 - len(name)
    out += struct.pack("<H", 0)
    for name, buffer in spec.buffers.items():
        if name:
            struct.pack_into("<Q", out, holes[name], len(out))
        out += spec.tag
        table = len(out)
        out += bytes(16 * cpus)
        for cpu in range(cpus):
            data = b"".join(buffer.get(cpu, []))
            out += b"\0" * (-len(out) % spec.page_size)
            struct.pack_into("<QQ", out, table + 16 * cpu, len(out), len(data))
            out += data
    return bytes(out)


def pack(codec: str, data: bytes) -> bytes:
    if codec == "zstd":
        return zstandard.ZstdCompressor().compress(data)
    return zlib.compress(data) if codec == "zlib" else data


def section(spec: Spec, number: int, data: bytes, compress: bool = True) -> bytes:
    compress = compress and spec.codec != "none"
    if compress:
        packed = pack(spec.codec, data)
        data = struct.pack("<II", len(packed), len(data)) + packed
    return struct.pack("<HHIQ", number, int(compress), 0, len(data)) + data


def chunks(spec: Spec, pages: list[bytes]) -> bytes:
    groups = [pages[i : i + spec.chunk_pages] for i in range(0, len(pages), spec.chunk_pages)]
    out = struct.pack("<I", len(groups))
    for group in groups:
        data = b"".join(group)
        packed = pack(spec.codec, data)
        out += struct.pack("<II", len(packed), len(data)) + packed
    return out


def version_7(spec: Spec) -> bytes:
    """trace-cmd.dat.v7(5): metadata sections, options, the pages, and options that say where they are."""
    out = bytearray(start(spec, b"7") + spec.codec.encode() + b"\0" + b"1.0\0")
    first = len(out)
    out += bytes(8)
    places = {}
    metadata = {16: header_info(spec), 17: blobs([]), 18: event_formats(spec)}
    metadata[21] = struct.pack("<Q", len(spec.cmdlines)) + spec.cmdlines
    if spec.extra_section:
        metadata[99] = b"nobody knows"
    for number, data in metadata.items():
        places[number] = len(out)
        out += section(spec, number, data)
    struct.pack_into("<Q", out, first, len(out))
    options = [*spec.options, *((number, struct.pack("<Q", at)) for number, at in places.items())]
    body = b"".join(option(number, data) for number, data in options) + option(0, bytes(8))
    out += section(spec, 0, body, compress=False)
    done = len(out) - 8
    described = []
    for name, buffer in spec.buffers.items():
        at = len(out)
        out += struct.pack("<HHIQ", 3, int(spec.codec != "none"), 0, 0)
        cpus = []
        for cpu, pages in buffer.items():
            out += b"\0" * (-len(out) % spec.page_size)
            data = b"".join(pages) if spec.codec == "none" else chunks(spec, pages)
            cpus.append(struct.pack("<IQQ", cpu, len(out), len(data)))
            out += data
        struct.pack_into("<Q", out, at + 8, len(out) - at - 16)
        head = struct.pack("<Q", at) + name.encode() + b"\0" + spec.clock + b"\0"
        described.append(option(3, head + struct.pack("<II", spec.page_size, len(cpus)) + b"".join(cpus)))
    struct.pack_into("<Q", out, done, len(out))
    out += section(spec, 0, b"".join(described) + option(0, bytes(8)), compress=False)
    out += section(spec, 15, b"headers\0options\0")
    return bytes(out)
