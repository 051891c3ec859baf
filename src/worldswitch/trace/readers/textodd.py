"""Lines of a text that are no ordinary events: headers, loss marks, and events in some other shape.

The scanner knows the forms kernels and tools print. People cut, shorten and reorder them; what it cannot
match is tried here, key by key, and not at all fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worldswitch.record.trace import Meta
from worldswitch.trace.readers import textcodes as codes
from worldswitch.trace.readers.lines import nanoseconds
from worldswitch.trace.readers.textforms import FORMS
from worldswitch.trace.readers.texttemplates import Template

_LOST = re.compile(r"CPU[: ]\s*\d+ \[\s*(?:LOST )?(\d+)?\s*EVENTS?(?: DROPPED)?\s*\]")
_PERF_LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)?:?\s.{0,80}?lost[:\s]+(\d+)|and lost (\d+) chunks")
_WRITTEN = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)(?:\s+#P:(\d+))?")
_PERF_HEADER = re.compile(r"# (hostname|os release|cpudesc|nrcpus online|cmdline)\s*: (.+)")
_CPUS = re.compile(r"(?:version = \d+\s*)?cpus=(\d{1,6})\s*\Z")
_EMPTY = re.compile(r"CPU \d+ is empty\s*\Z")

_STACK = re.compile(r"\s+[0-9a-f]{6,16} \S|\t {4,15}[0-9a-f]{1,12} \S| => \S|\s*<(?:user )?stack trace>")
"""A caller, as perf script and tracefs print them below an event."""

_BARE = re.compile(r"(?P<head>.*?)(?<![\w.-])(?:(?:kvm|kvmmmu):)?(?P<event>\w+):(?:\s+(?P<body>.*))?\Z")
_BARE_HEAD = re.compile(
    r"\s*(?:CPU\s*(?P<only>\d{1,6}):?"
    r"|(?P<comm>\S.*?)-(?P<tid>\d{1,9})\s*(?:\[(?P<cpu>\d{1,6})\])?\s*(?:[.\w#]{1,10}\s+)?:?"
    r"||(?P<name>\S.*?)\s+)\s*(?:(?P<seconds>\d{1,9})\.(?P<fraction>\d{1,9}):)?\s*\Z"
)
_PERF_TRACE = re.compile(
    r"\s*(?P<ms>\d{1,12})\.(?P<fraction>\d{3})\s+(?:\(\s*\):?\s*)?(?P<comm>\S.*?)?/(?P<tid>\d{1,9})\s+"
    r"(?:kvm|kvmmmu):(?P<event>\w+)\((?P<body>.*)\)\s*\Z"
)
_PAIR = re.compile(r"(\w+)\s*(?:=|: )\s*(ARRAY\[[^\]]*\]|[^\s,)]+)")
_NUMBER = re.compile(r"-?(?:0[xX])?[0-9a-fA-F]{1,20}\Z")


def take_header(line: str, meta: Meta) -> bool:
    """Whether *line* is a header, a loss mark or part of a stack; what it says goes to *meta*."""
    if line.startswith("#"):
        _comment(line, meta)
        return True
    if "LOST" in line or "DROPPED" in line or "lost" in line:
        found = _LOST.search(line) or _PERF_LOST.search(line)
        if found:
            number = next((group for group in found.groups() if group), None)
            meta.lost += min(int(number), 1 << 62) if number and len(number) < 19 else 1
            if number is None and "a mark says that events were lost, not how many" not in meta.notes:
                meta.notes.append("a mark says that events were lost, not how many")
            return True
    if found := _CPUS.match(line):
        meta.cpus = int(found[1])
        meta.tool = meta.tool or "trace-cmd report"
        return True
    return _EMPTY.match(line) is not None or _STACK.match(line) is not None


def _comment(line: str, meta: Meta) -> None:
    if found := _WRITTEN.search(line):
        if max(map(len, (found[1], found[2]))) < 19:
            meta.lost += max(0, int(found[2]) - int(found[1]))
        if found[3] and len(found[3]) < 7:
            meta.cpus = int(found[3])
    elif line.startswith("# tracer:"):
        meta.tool = meta.tool or "tracefs"
    elif found := _PERF_HEADER.match(line):
        what, value = found[1], found[2].strip()
        if what == "hostname":
            meta.host = value
        elif what == "os release":
            meta.kernel = value
        elif what == "cpudesc":
            meta.cpu_model = value
        elif what == "cmdline":
            meta.command = value
        elif value.isdecimal() and len(value) < 7:
            meta.cpus = int(value)


@dataclass(frozen=True, slots=True)
class OddEvent:
    """An event found in a line that is not of the usual form; None and -1 where the line is silent."""

    event: str
    body: str
    time: int | None = None
    cpu: int = -1
    tid: int = -1
    comm: str = ""


def odd_event(line: str) -> OddEvent | None:
    """The KVM event of a line without a proper head: ``CPU 3: kvm_entry: vcpu 0``; also perf trace's."""
    if len(line) > 4096:
        return None
    time: int | None = None
    if found := _PERF_TRACE.match(line):
        time = int(found["ms"]) * 10**6 + int(found["fraction"]) * 10**3
        return OddEvent(found["event"], found["body"], time, tid=int(found["tid"]), comm=found["comm"] or "")
    found = _BARE.match(line)
    while found and found["event"] not in FORMS:
        found = _BARE.match(line, found.end("event"))
    head = found and _BARE_HEAD.match(line[: found.start("event")].removesuffix("kvm:").removesuffix("kvmmmu:"))
    if not found or not head or (head["name"] and not head["seconds"]):
        return None
    if head["seconds"]:
        time = nanoseconds(head["seconds"], head["fraction"])
    cpu = head["cpu"] or head["only"]
    return OddEvent(
        found["event"],
        found["body"] or "",
        time,
        -1 if cpu is None else int(cpu),
        min(int(head["tid"] or -1), 0x7FFFFFFF),
        (head["comm"] or head["name"] or "").strip(),
    )


def loose_values(template: Template, body: str) -> dict[str, int] | None:
    """The values of *body* by the words before them, or by field names; None if that yields nothing of use.

    An exit reason comes as its name's index would: the caller has to look words up, so it is left out here
    and :func:`loose_reason` finds it.
    """
    body = body.strip()
    if body.startswith("[FAILED TO PARSE]") or re.match(r"\w+(?:=|: )", body):
        named = _by_field(template, body)
        if named:
            return named
    values: dict[str, int] = {}
    for key, name in template.keys.items():
        kind = template.kinds[name]
        if kind not in ("", "x", "-"):
            continue
        found = re.search(rf"(?<![\w-]){re.escape(key)}[\s:=]+(\S+)", body)
        number = _number(found[1].rstrip(",;)"), kind) if found else None
        if number is not None and name not in values:
            values[name] = number
    return values or None


def loose_reason(body: str) -> tuple[str, bool] | None:
    """The exit reason's word in *body*, and whether VM entry had failed."""
    found = re.search(r"(?<![\w-])reason:?\s+(?:UNKNOWN\s*\()?([A-Z]{2} excp|[^\s,;()]+)", body)
    return (found[1], "FAILED_VMENTRY" in body) if found else None


def _by_field(template: Template, body: str) -> dict[str, int]:
    """``field=value`` pairs of ``trace-cmd report -R``, of what trace-cmd could not parse, and of perf
    trace."""
    as_decimal = body.startswith("[FAILED") or ": " in body
    pairs = dict(_PAIR.findall(body))
    values: dict[str, int] = {}
    for name, text in pairs.items():
        if name not in template.slots:
            continue
        if text.startswith("ARRAY["):
            values |= _array(name, text)
            continue
        kind = template.kinds.get(name, "")
        number = _number(text, "" if as_decimal or kind != "x" else "x")
        if number is None:
            continue
        if kind == "reason":
            isa = _number(pairs.get("isa", "0"), "") or 0
            number = (isa & codes.MASK32) << 32 | (number & codes.MASK32)
        values[name] = number
    return values | _from_whole(template, pairs)


def _from_whole(template: Template, pairs: dict[str, str]) -> dict[str, int]:
    """What a template would have found printed piece by piece: the role of a page, the permissions of an entry.

    Bits: union kvm_mmu_page_role, arch/x86/include/asm/kvm_host.h.
    """
    values: dict[str, int] = {}
    role = _number(pairs.get("role", ""), "")
    if role is not None and "quadrant" in template.slots:
        values = {"level": role & 15, "quadrant": role >> 5 & 3, "direct": role >> 7 & 1, "access": role >> 8 & 7}
        values |= {"invalid": role >> 11 & 1, "nxe_off": ~role >> 12 & 1}
    if "rwxu" in template.slots and {"r", "x", "u"} <= pairs.keys():
        letters = (pairs["r"] == "1") * 8 + (pairs["x"] == "1") + (pairs["u"] == "1") * 4
        values["rwxu"] = letters | (3 if pairs["u"].startswith("-") else 4) << 8
    return values


def _array(name: str, text: str) -> dict[str, int]:
    data = bytes(int(byte, 16) for byte in re.findall(r"\b[0-9a-fA-F]{2}\b", text)[:15])
    low, high = data[:8], data[8:]
    return {
        name: int.from_bytes(low, "little"),
        name + ".high": int.from_bytes(high, "little"),
        name + ".count": len(data),
    }


def _number(text: str, kind: str) -> int | None:
    """A number as an unsigned 64-bit value, or None."""
    if not _NUMBER.match(text):
        return None
    digits = text.lstrip("-")
    try:
        value = int(digits, 16 if kind == "x" or digits[:2] in ("0x", "0X") else 10)
    except ValueError:
        return None
    if text.startswith("-") != (kind == "-"):
        value = -value
    return value & codes.MASK64 if -(1 << 63) <= value <= codes.MASK64 else None
