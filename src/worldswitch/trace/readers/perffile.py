"""The structure of a perf.data file around its records: header, attributes, features.

Source: tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h of the kernel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from worldswitch.errors import TraceFormatError, printable
from worldswitch.record.trace import Meta
from worldswitch.trace.readers.source import Input

MAGIC = b"PERFILE2"
MAGIC_BIG_ENDIAN = b"2ELIFREP"
PIPE_HEADER = 16
_HEADER = struct.Struct("<8sQQQQQQQQ4Q")
_FEATURES = 256
TRACEPOINT = 2
_LARGEST_ATTR = 4096
_MOST_IDS = 1 << 20
"""Ids of all attributes together; perf needs one per event and CPU."""
_LARGEST_FEATURE = 64 << 20
_LONGEST_TEXT = 4096
_MOST_TEXTS = 4096

TRACING_DATA, HOSTNAME, OSRELEASE, VERSION, ARCH, NRCPUS, CPUDESC, CPUID = 1, 3, 4, 5, 6, 7, 8, 9
CMDLINE, EVENT_DESC, CLOCKID = 11, 12, 23
_KNOWN_FEATURES = frozenset(
    (TRACING_DATA, HOSTNAME, OSRELEASE, VERSION, NRCPUS, CPUDESC, CPUID, CMDLINE, EVENT_DESC, CLOCKID)
)
_CLOCKS = {0: "realtime", 1: "mono", 4: "mono_raw", 7: "boot", 11: "tai"}

# perf_event_sample_format.
IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD, STREAM_ID, RAW = (1 << i for i in range(11))
IDENTIFIER = 1 << 16
FIXED_PARTS = (IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD)
"""The parts of eight bytes each, in the order in which a sample holds them."""


@dataclass(frozen=True, slots=True)
class Attr:
    """One perf_event_attr and the ids its samples carry."""

    type: int
    config: int
    sample_type: int
    read_format: int
    ids: tuple[int, ...]

    @property
    def is_tracepoint(self) -> bool:
        """PERF_TYPE_TRACEPOINT with its record in the sample."""
        return self.type == TRACEPOINT and bool(self.sample_type & RAW)


def parse_attr(data: bytes, ids: tuple[int, ...]) -> Attr:
    """A perf_event_attr of any size from PERF_ATTR_SIZE_VER0 (64 bytes) on."""
    if len(data) < 48:
        raise TraceFormatError("a perf_event_attr is shorter than any perf ever wrote")
    kind, _size, config, _period, sample_type, read_format = struct.unpack_from("<IIQQQQ", data)
    return Attr(kind, config, sample_type, read_format, ids)


@dataclass(slots=True)
class PerfFile:
    """Header of a file-mode perf.data."""

    data_offset: int
    data_size: int
    attrs: list[Attr] = field(default_factory=list)
    features: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Feature bit -> (offset, size)."""


def parse_header(source: Input, meta: Meta) -> PerfFile:
    """The header, attributes and feature sections of a file-mode perf.data.

    Raises:
        TraceFormatError: The header is cut short or its attributes lie outside the file.
    """
    head = source.pread(0, _HEADER.size)
    if len(head) < _HEADER.size:
        raise TraceFormatError(f"{source.name} is a perf.data file cut short in its header")
    _, _, attr_size, attrs_at, attrs_size, data_at, data_size, _, _, *flags = _HEADER.unpack(head)
    size = source.spooled()
    perf = PerfFile(data_at, data_size)
    if data_at > size:
        raise TraceFormatError(f"{source.name} is a perf.data file whose events start behind its end (cut short?)")
    if data_size == 0:
        meta.damaged("perf did not finish the file (it was killed, or still runs): the header gives no data size")
        perf.data_size = size - data_at
    elif data_at + data_size > size:
        lost = data_at + data_size - size
        meta.damaged(f"the file ends {lost} bytes before its header says; what was there is lost")
        perf.data_size = size - data_at
    perf.attrs = _attrs(source, attr_size, attrs_at, attrs_size)
    if data_size:
        perf.features = _features(source, flags, data_at + data_size, meta)
    return perf


def _attrs(source: Input, attr_size: int, at: int, size: int) -> list[Attr]:
    if not 64 <= attr_size <= _LARGEST_ATTR:
        raise TraceFormatError(f"{source.name}: the perf.data header gives attributes of {attr_size} bytes")
    table = source.pread(at, size)
    if len(table) < size or not table:
        raise TraceFormatError(f"{source.name} is a perf.data file cut short in its attributes")
    attrs = []
    most_ids = min(_MOST_IDS, source.spooled() // 8)
    for start in range(0, len(table) - attr_size + 1, attr_size):
        entry = table[start : start + attr_size]
        ids_at, ids_size = struct.unpack_from("<QQ", entry, attr_size - 16)
        most_ids -= ids_size // 8
        if most_ids < 0:
            raise TraceFormatError(f"{source.name}: the perf.data header gives events more ids than the file can hold")
        ids = source.pread(ids_at, ids_size)
        ids = ids[: len(ids) // 8 * 8]
        attrs.append(parse_attr(entry[:-16], struct.unpack(f"<{len(ids) // 8}Q", ids)))
    return attrs


def _features(source: Input, flags: list[int], at: int, meta: Meta) -> dict[int, tuple[int, int]]:
    bits = [bit for bit in range(_FEATURES) if flags[bit // 64] >> (bit % 64) & 1]
    table = source.pread(at, 16 * len(bits))
    if len(table) < 16 * len(bits):
        meta.damaged("the file's feature sections (host, kernel, event formats) are cut off")
    features = {}
    for index, bit in enumerate(bits[: len(table) // 16]):
        offset, size = struct.unpack_from("<QQ", table, 16 * index)
        features[bit] = (offset, size)
    return features


def read_feature(source: Input, bit: int, offset: int, size: int, meta: Meta) -> bytes | None:
    """One feature section; None for one that nobody here reads."""
    if bit not in _KNOWN_FEATURES:
        return None
    if size > _LARGEST_FEATURE:
        meta.damaged(f"feature section {bit} of the file claims {size} bytes; it is skipped")
        return None
    return source.pread(offset, size)


def note_feature(meta: Meta, bit: int, data: bytes) -> None:
    """Put what one feature section says into *meta*; unknown ones are skipped."""
    if bit == OSRELEASE:
        meta.kernel = _string(data) or None
    elif bit == HOSTNAME:
        meta.host = _string(data) or None
    elif bit == VERSION:
        meta.tool = f"perf {_string(data)}".strip()
    elif bit == CPUDESC:
        meta.cpu_model = _string(data) or None
    elif bit == CPUID:
        identity = _string(data)
        meta.vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}.get(
            identity.split(",")[0]
        )
    elif bit == NRCPUS and len(data) >= 8:
        meta.cpus = struct.unpack_from("<II", data)[1]
    elif bit == CMDLINE:
        meta.command = " ".join(_strings(data)) or None
    elif bit == CLOCKID and len(data) >= 8:
        meta.clock = _CLOCKS.get(struct.unpack_from("<Q", data)[0], meta.clock)


def event_names(data: bytes) -> dict[int, str]:
    """Id -> event name, from the EVENT_DESC feature."""
    names: dict[int, str] = {}
    if len(data) < 8:
        return names
    count, attr_size = struct.unpack_from("<II", data)
    at = 8
    while count and at + attr_size + 8 <= len(data):
        count -= 1
        at += attr_size
        n_ids, length = struct.unpack_from("<II", data, at)
        at += 8
        name = _text(data[at : at + length])
        at += length
        if at + 8 * n_ids > len(data):
            break
        for number in struct.unpack_from(f"<{n_ids}Q", data, at):
            names[number] = name
        at += 8 * n_ids
    return names


def _text(data: bytes) -> str:
    return printable(data[:_LONGEST_TEXT].split(b"\0", 1)[0].decode("utf-8", "backslashreplace"))


def _string(data: bytes) -> str:
    if len(data) < 4:
        return ""
    (length,) = struct.unpack_from("<I", data)
    return _text(data[4 : 4 + length])


def _strings(data: bytes) -> list[str]:
    if len(data) < 4:
        return []
    (count,) = struct.unpack_from("<I", data)
    texts: list[str] = []
    at = 4
    while len(texts) < min(count, _MOST_TEXTS) and at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(_text(data[at + 4 : at + 4 + min(length, _LONGEST_TEXT)]))
        at += 4 + length
    return texts
