"""Hypothesis strategies for traces, and what it means that two are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from worldswitch.record.formats import EventFormat, parse_format
from worldswitch.record.trace import COMMON, Batch, Columns, Meta, Trace
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat import TraceDat

DATA = Path(__file__).parent / "data"

INT_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
C_TYPES = dict(zip(INT_TYPES, ("u8", "s8", "u16", "s16", "unsigned int", "int", "u64", "s64"), strict=True))
FIELD_NAMES = ("vcpu_id", "rip", "exit_reason", "time", "pid", "seq", "insn", "name", "flags", "len")


def text_of(name: str, number: int, fields: list[tuple[str, str, int]]) -> str:
    """A format text of *fields* (name, kind, size); kinds: INT_TYPES, bool, bytes, text, dynamic,
    relative.
    """
    lines = [
        "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;",
        "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;",
        "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;",
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;",
        "",
    ]
    offset = 8
    for field, kind, size in fields:
        align = size if kind in INT_TYPES else 4 if kind in ("dynamic", "relative") else 1
        offset = -(-offset // align) * align
        declared = {
            "bool": f"bool {field}",
            "bytes": f"__u8 {field}[{size}]",
            "text": f"char {field}[{size}]",
            "dynamic": f"__data_loc char[] {field}",
            "relative": f"__rel_loc char[] {field}",
        }.get(kind) or f"{C_TYPES[kind]} {field}"
        signed = int(kind.startswith("i"))
        lines.append(f"\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:{signed};")
        offset += size
    body = "\n".join(lines)
    return f'name: {name}\nID: {number}\nformat:\n{body}\n\nprint fmt: "%d", REC->common_type\n'


@st.composite
def formats(draw: st.DrawFn) -> dict[str, EventFormat]:
    """A few event formats with fields of every kind."""
    names = draw(st.lists(st.sampled_from(["kvm_exit", "kvm_entry", "kvm_cr", "other"]), min_size=1, unique=True))
    made = {}
    for number, name in enumerate(names, 100):
        fields = []
        for field in draw(st.lists(st.sampled_from(FIELD_NAMES), max_size=5, unique=True)):
            kind = draw(st.sampled_from((*INT_TYPES, "bool", "bytes", "text", "dynamic", "relative")))
            size = int(kind[1]) if kind in INT_TYPES else 1 if kind == "bool" else 4
            if kind in ("bytes", "text"):
                size = draw(st.integers(2, 20))
            fields.append((field, kind, size))
        made[name] = parse_format(text_of(name, number, fields), "kvm")
    return made


def column(draw: st.DrawFn, field: Any, n: int) -> np.ndarray:
    """Values a record can hold for *field*."""
    kind = field.kind.value
    if kind == "int":
        return draw(npst.arrays(field.dtype, n))
    if kind == "bool":
        return draw(npst.arrays(bool, n))
    if kind == "bytes":
        return draw(npst.arrays(np.uint8, (n, field.size)))
    most = field.size if kind == "text" else 30
    # A fixed array is cut at a byte, so only there must each character have one.
    ascii_only = st.characters(codec="ascii", exclude_characters="\0")
    any_text = st.characters(codec="utf-8", exclude_characters="\0")
    text = st.text(ascii_only if kind == "text" else any_text, max_size=most)
    values = np.empty(n, object)
    values[:] = draw(st.lists(text, min_size=n, max_size=n))
    return values


@st.composite
def traces(draw: st.DrawFn, processes: bool = True, most_gap: int = 1 << 40) -> Trace:
    """Traces as a binary reader would give them."""
    made = draw(formats())
    names = tuple(made)
    clock = draw(st.integers(1, 1 << 45))
    batches = []
    for n in draw(st.lists(st.integers(1, 12), max_size=3)):
        order = np.array(draw(st.lists(st.integers(0, len(names) - 1), min_size=n, max_size=n)), np.uint16)
        gaps = draw(st.lists(st.integers(0, most_gap), min_size=n, max_size=n))
        time = clock + np.cumsum(np.array(gaps, np.int64))
        clock = int(time[-1])
        cpu = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int32)
        tid = np.array(draw(st.lists(st.integers(0, 1 << 22), min_size=n, max_size=n)), np.int32)
        pid = tid // 2 if processes else np.full(n, -1, np.int32)
        tables: list[Columns] = []
        for index, event in enumerate(made.values()):
            rows = int((order == index).sum())
            tables.append({field.name: column(draw, field, rows) for field in event.fields})
        batches.append(Batch(names, order, time, cpu, tid, pid.astype(np.int32), tuple(tables)))
    comm = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=15)
    comms = draw(st.dictionaries(st.integers(1, 1 << 22), comm, max_size=3))
    meta = Meta(kernel="6.12.1-test", comms=comms)
    return Trace(batches, meta, made)


def perf_recording(name: str) -> Trace:
    """A perf.data of tests/data, whole."""
    data = (DATA / name).read_bytes()
    if name.endswith(".zst"):
        data = zstandard.decompress(data)
    return Trace.read(PerfData(Input.from_bytes(data)))


def trace_dat_recording(name: str) -> Trace:
    """A trace.dat of tests/data, whole."""
    return Trace.read(TraceDat(Input.from_bytes((DATA / name).read_bytes())))


def flat(trace: Trace) -> list[tuple[Any, ...]]:
    """Every event as (name, time, cpu, tid, pid, field values ...), in order."""
    events = []
    for batch in trace.batches():
        seen = [0] * len(batch.events)
        for at, index in enumerate(batch.order.tolist()):
            row = seen[index]
            seen[index] += 1
            fields = {
                name: (value.tolist() if isinstance(value := values[row], np.ndarray | np.generic) else value)
                for name, values in batch.tables[index].items()
            }
            common = (int(getattr(batch, name)[at]) for name in COMMON)
            events.append((batch.events[index], *common, fields))
    return events


def dtypes(trace: Trace) -> dict[str, dict[str, Any]]:
    """Event -> field -> (dtype, shape of one value)."""
    found: dict[str, dict[str, Any]] = {}
    for batch in trace.batches():
        for name, table in zip(batch.events, batch.tables, strict=True):
            if any(len(values) for values in table.values()):
                found[name] = {field: (values.dtype, values.shape[1:]) for field, values in table.items()}
    return found
