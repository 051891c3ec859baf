"""Event formats: what a tracepoint's ``format`` file says of its record.

Every perf.data and trace.dat file carries these texts, so an event is decoded by what the kernel that wrote it
said, never by a table of ours. Source of the grammar: Documentation/trace/events.rst, section "Event formats".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from worldswitch.errors import TraceFormatError

COMMON_BYTES = 8
"""Size of the common header: common_type u16, common_flags u8, common_preempt_count u8, common_pid s32."""


class Kind(Enum):
    """How a field's bytes become a column."""

    INT = "int"
    BOOL = "bool"
    BYTES = "bytes"
    """Fixed array of one-byte integers: column of shape (n, count), uint8."""
    TEXT = "text"
    """Fixed char array, NUL-terminated: column of str."""
    DYNAMIC = "dynamic"
    """``__data_loc``: u32 of length << 16 | offset from the record's start."""
    RELATIVE = "relative"
    """``__rel_loc``: the same, the offset counted from the end of this u32."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: bytes ``[offset, offset + size)`` of the record, common header included."""

    name: str
    offset: int
    size: int
    signed: bool
    kind: Kind
    declaration: str = ""

    @property
    def dtype(self) -> str:
        """The numpy dtype of the column; ``object`` for texts."""
        if self.kind is Kind.INT:
            return f"{'i' if self.signed else 'u'}{self.size}"
        return {Kind.BOOL: "bool", Kind.BYTES: "u1"}.get(self.kind, "object")


@dataclass(frozen=True, slots=True)
class EventFormat:
    """One event: its id in the file that carried it, its fields without the common header, and the text itself."""

    system: str
    name: str
    id: int
    fields: tuple[Field, ...]
    text: str

    @property
    def size(self) -> int:
        """Bytes a record must at least have: the end of its last fixed field."""
        return max((f.offset + f.size for f in self.fields), default=COMMON_BYTES)

    def field(self, name: str) -> Field | None:
        """The field called *name*, if there is one."""
        return next((f for f in self.fields if f.name == name), None)


_FIELD = re.compile(
    r"\s{0,20}field:(?P<declaration>[^;\n]{0,1000});\s*offset:(?P<offset>\d{1,9});\s*size:(?P<size>\d{1,9});"
    r"(?:\s*signed:(?P<signed>-?\d{1,9});)?"
)
_NAME = re.compile(r"(?P<type>.*?)(?P<name>[A-Za-z_]\w*)\s*(?P<array>\[[^\]]*\])?\s*\Z", re.DOTALL)
_CHAR = re.compile(r"\bchar\b")
_LARGEST_FIELD = 1 << 16
_SHORT = 1 << 14


def parse_format(text: str, system: str = "") -> EventFormat:
    """Parse one ``format`` file.

    Args:
        text: The file's text.
        system: The event's system, such as ``kvm``; the text itself does not say it.

    Raises:
        TraceFormatError: No name, no ID, or a field of impossible size.
    """
    # Of many files of one kernel, each text comes again and again.
    return _parsed_before(text, system) if len(text) <= _SHORT else _parsed(text, system)


def _parsed(text: str, system: str) -> EventFormat:
    name = re.search(r"^name:\s*(\S+)", text, re.MULTILINE)
    number = re.search(r"^ID:\s*(\d{1,9})\b", text, re.MULTILINE)
    if not name or not number:
        raise TraceFormatError("an event format has no name: or no ID: line")
    fields = []
    for line in text.split("\n"):
        found = _FIELD.match(line)
        if found is None:
            continue
        field = _field(found)
        if not field.name.startswith("common_"):
            fields.append(field)
    return EventFormat(system, name[1], int(number[1]), tuple(fields), text)


_parsed_before = lru_cache(maxsize=4096)(_parsed)


def _field(found: re.Match[str]) -> Field:
    declaration = found["declaration"].strip()
    split = _NAME.match(declaration)
    offset, size = int(found["offset"]), int(found["size"])
    if not split or size > _LARGEST_FIELD or offset > _LARGEST_FIELD:
        raise TraceFormatError(f"an event format declares the impossible field {declaration[:60]!r}")
    signed = found["signed"] is not None and int(found["signed"]) != 0
    return Field(split["name"], offset, size, signed, _kind(split["type"], split["array"], size), declaration)


def _kind(type_name: str, array: str | None, size: int) -> Kind:
    if type_name.startswith("__data_loc"):
        return Kind.DYNAMIC
    if type_name.startswith("__rel_loc"):
        return Kind.RELATIVE
    if array is not None:
        return Kind.TEXT if _CHAR.search(type_name) and "unsigned" not in type_name else Kind.BYTES
    if size not in (1, 2, 4, 8):
        return Kind.BYTES
    return Kind.BOOL if type_name.strip() in ("bool", "_Bool") else Kind.INT


def by_name(formats: Iterable[EventFormat]) -> dict[str, EventFormat]:
    """Formats under the names tables get: the event's own, or ``system:name`` where two systems share one."""
    named: dict[str, EventFormat] = {}
    for event in formats:
        taken = named.get(event.name)
        key = event.name if taken is None or taken.system == event.system else f"{event.system}:{event.name}"
        named[key] = event
    return named
