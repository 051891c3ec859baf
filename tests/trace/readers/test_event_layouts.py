"""Every kvm:* and kvmmmu:* event of the kernels that were recorded, decoded from bytes that are known.

A recording carries the formats of its kernel's events, those included that it holds no event of. Records are made
of arbitrary bytes, and what the readers make of them is held against a second, plain way to read the same format.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import uncompiled
from traces import DATA
from worldswitch.record.formats import EventFormat, Kind, by_name, parse_format
from worldswitch.record.trace import Batch, Columns, Meta, Trace
from worldswitch.trace.readers import gather, open_source
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat import TraceDat
from worldswitch.trace.writers.perfdata import write_perfdata
from worldswitch.trace.writers.tracedat import write_tracedat

LAYOUTS = """
kvm_entry               5.10            24  vcpu_id@8:4 rip@16:8
kvm_entry               6.1,6.12        32  vcpu_id@8:4 rip@16:8 immediate_exit@24:1
kvm_entry               7.2             40  vcpu_id@8:4 rip@16:8 immediate_exit@24:1 intr_info@28:4 error_code@32:4
kvm_exit                5.10,6.1,6.12   64  exit_reason@8:4 guest_rip@16:8 isa@24:4 info1@32:8 info2@40:8 \
intr_info@48:4 error_code@52:4 vcpu_id@56:4
kvm_exit                7.2             72  exit_reason@8:4 guest_rip@16:8 isa@24:4 info1@32:8 info2@40:8 \
intr_info@48:4 error_code@52:4 vcpu_id@56:4 requests@64:8
kvm_nested_vmexit       5.10,6.1,6.12   64  exit_reason@8:4 guest_rip@16:8 isa@24:4 info1@32:8 info2@40:8 \
intr_info@48:4 error_code@52:4 vcpu_id@56:4
kvm_nested_vmexit       7.2             72  exit_reason@8:4 guest_rip@16:8 isa@24:4 info1@32:8 info2@40:8 \
intr_info@48:4 error_code@52:4 vcpu_id@56:4 requests@64:8
kvm_cr                  all             24  rw@8:4 cr@12:4 val@16:8
kvm_page_fault          5.10            24  fault_address@8:8 error_code@16:4
kvm_page_fault          6.1,6.12,7.2    40  vcpu_id@8:4 guest_rip@16:8 fault_address@24:8 error_code@32:8
kvm_hypercall           all             48  nr@8:8 a0@16:8 a1@24:8 a2@32:8 a3@40:8
kvm_msr                 all             32  write@8:4 ecx@12:4 data@16:8 exception@24:1
kvm_pio                 all             28  rw@8:4 port@12:4 size@16:4 count@20:4 val@24:4
kvm_inj_exception       all             20  exception@8:1 has_error@9:1 error_code@12:4 reinjected@16:1
kvm_emulate_insn        all             40  rip@8:8 csbase@16:4 len@20:1 insn@21:15 flags@36:1 failed@37:1
kvm_nested_vmenter      6.1,6.12,7.2    64  rip@8:8 vmcb@16:8 nested_rip@24:8 int_ctl@32:4 event_inj@36:4 \
tdp_enabled@40:1 guest_pgd@48:8 isa@56:4
kvm_userspace_exit      all             16  reason@8:4 errno@12:4
kvm_mmu_get_page        all             40  mmu_valid_gen@8:1 gfn@16:8 role@24:4 root_count@28:4 \
unsync@32:1 created@33:1
kvm_mmu_sync_page       all             40  mmu_valid_gen@8:1 gfn@16:8 role@24:4 root_count@28:4 unsync@32:1
kvm_mmu_unsync_page     all             40  mmu_valid_gen@8:1 gfn@16:8 role@24:4 root_count@28:4 unsync@32:1
kvm_mmu_prepare_zap_page all            40  mmu_valid_gen@8:1 gfn@16:8 role@24:4 root_count@28:4 unsync@32:1
kvm_mmu_zap_all_fast    all             16  mmu_valid_gen@8:1 mmu_used_pages@12:4
kvm_mmu_spte_requested  5.10,6.1,6.12   32  gfn@8:8 pfn@16:8 level@24:1
kvm_mmu_spte_requested  7.2             32  gfn@8:8 pfn@16:8 level@24:1 access@25:1
kvm_mmu_set_spte        all             40  gfn@8:8 spte@16:8 sptep@24:8 level@32:1 r@33:1 x@34:1 u@35:1
kvm_tdp_mmu_spte_changed 6.1,6.12,7.2   40  gfn@8:8 old_spte@16:8 new_spte@24:8 level@32:1 as_id@33:1
kvm_mmu_split_huge_page 6.1,6.12,7.2    32  gfn@8:8 spte@16:8 level@24:4 errno@28:4
fast_page_fault         5.10,6.1        64  vcpu_id@8:4 cr2_or_gpa@16:8 error_code@24:4 sptep@32:8 old_spte@40:8 \
new_spte@48:8 ret@56:4
fast_page_fault         6.12,7.2        64  vcpu_id@8:4 cr2_or_gpa@16:8 error_code@24:8 sptep@32:8 old_spte@40:8 \
new_spte@48:8 ret@56:4
kvm_mmu_pagetable_walk  all             24  addr@8:8 pferr@16:4
"""
"""Event, kernels, size of a record and fields as name@offset:size.

Kernel sources 5.10.223, 6.1.190, 6.12.117, 7.2.13: the structures of arch/x86/kvm/trace.h and
arch/x86/kvm/mmu/mmutrace.h with the alignment of x86-64.
"""

KERNELS = ("5.10", "6.1", "6.12", "7.2")
RECORDINGS = sorted(
    str(path.relative_to(DATA)) for path in DATA.glob("*/*") if ".trace.dat" in path.name or ".perf.data" in path.name
)
MODULES: dict[str, ModuleType] = {"as installed": gather, "uncompiled": uncompiled.load(gather)}
ROWS = 5
CONTAINERS = {"perf.data": (write_perfdata, PerfData), "trace.dat": (write_tracedat, TraceDat)}

recordings = pytest.mark.parametrize("recording", RECORDINGS)


@dataclass(frozen=True)
class Layout:
    """One row of the table, for one kernel."""

    event: str
    kernel: str
    size: int
    fields: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        return f"{self.event}-{self.kernel}"


def parsed_layouts() -> list[Layout]:
    rows = []
    for line in LAYOUTS.strip().splitlines():
        event, kernels, size, *words = line.split()
        fields = [re.fullmatch(r"(\w+)@(\d+):(\d+)", word) for word in words]
        listed = tuple((found[1], int(found[2]), int(found[3])) for found in fields if found)
        assert len(listed) == len(words), line
        for kernel in KERNELS if kernels == "all" else kernels.split(","):
            rows.append(Layout(event, kernel, int(size), listed))
    return rows


def kernel_of(recording: str) -> str:
    """As its folder or its file says, such as ``svm-5.10-npt`` or ``amd-5.10.perf.data.zst``."""
    found = re.search(r"-(\d+\.\d+)", recording)
    assert found, recording
    return found[1]


@cache
def formats_of(recording: str) -> dict[str, EventFormat]:
    """The formats a recording carries of the two systems of KVM."""
    known = open_source(DATA / recording).formats.values()
    return by_name(event for event in known if event.system in ("kvm", "kvmmmu"))


def text_of(layout: Layout) -> str:
    """A format file of this layout."""
    lines = [f"name: {layout.event}", "ID: 900", "format:"]
    for name, offset, size in layout.fields:
        declared = f"unsigned char {name}[{size}]" if size not in (1, 2, 4, 8) else f"u{size * 8} {name}"
        lines.append(f"\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:0;")
    return "\n".join([*lines, "", 'print fmt: ""', ""])


def payloads(event: EventFormat) -> list[bytes]:
    """Records of arbitrary bytes; what points at a text points at one behind the rest."""
    random = np.random.default_rng(event.id)
    made = []
    for row in range(ROWS):
        data = bytearray(random.bytes(-(-event.size // 8) * 8))
        data[:4] = event.id.to_bytes(2, "little") + b"\0\0"
        data[4:8] = (100 + row).to_bytes(4, "little")
        for declaration, offset, _size, _signed in declared(event.text):
            if declaration.startswith("__data_loc"):
                text = f"text {row}".encode() + b"\0"
                data[offset : offset + 4] = (len(text) << 16 | len(data)).to_bytes(4, "little")
                data += text
        made.append(bytes(data) + bytes(-len(data) % 8))
    return made


def declared(text: str) -> list[tuple[str, int, int, bool]]:
    """Declaration, offset, size and sign of each field of a format file, read line by line."""
    found = []
    for line in text.splitlines():
        parts = dict(part.strip().split(":", 1) for part in line.split(";") if ":" in part)
        if line.startswith("\tfield:") and "common_" not in parts["field"]:
            signed = parts.get("signed", "0") == "1"
            found.append((parts["field"], int(parts["offset"]), int(parts["size"]), signed))
    return found


def plainly(text: str, data: bytes) -> dict[str, Any]:
    """The fields of one record as C would see them."""
    fields: dict[str, Any] = {}
    for declaration, offset, size, signed in declared(text):
        name = re.sub(r"\[.*\]$", "", declaration).split()[-1].lstrip("*")
        raw = data[offset : offset + size]
        value: Any = int.from_bytes(raw, "little", signed=signed)
        if declaration.startswith("__data_loc"):
            at, length = value & 0xFFFF, value >> 16
            value = data[at : at + length].split(b"\0")[0].decode()
        elif declaration.endswith("]"):
            value = list(raw)
            if declaration.startswith("char "):
                value = raw.split(b"\0")[0].decode("utf-8", "backslashreplace")
        elif declaration.startswith("bool "):
            value = value != 0
        fields[name] = value
    return fields


def decoded(module: ModuleType, event: EventFormat, records: list[bytes]) -> Columns:
    """The records' columns, decoded from one buffer in which they lie one behind the other."""
    starts = np.cumsum([0, *(len(record) // 4 for record in records[:-1])]).astype(np.int64)
    words = memoryview(b"".join(records) + bytes(64)).cast("I")
    columns: Columns = module.columns(words, starts, event)
    return columns


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    n = len(next(iter(columns.values()), []))
    return [
        {
            name: (value.tolist() if hasattr(value := column[row], "tolist") else value)
            for name, column in columns.items()
        }
        for row in range(n)
    ]


@recordings
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_every_event_decodes_to_what_its_format_says(recording: str, module: ModuleType) -> None:
    formats = formats_of(recording)
    assert formats
    for event in formats.values():
        records = payloads(event)
        expected = [plainly(event.text, data) for data in records]
        assert rows_of(decoded(module, event, records)) == expected, event.name


@recordings
@pytest.mark.parametrize("container", CONTAINERS)
def test_every_event_comes_back_from_a_whole_file(recording: str, container: str) -> None:
    formats = formats_of(recording)
    records = {name: payloads(event) for name, event in formats.items()}
    names = tuple(formats)
    n = ROWS * len(names)
    order = np.tile(np.arange(len(names), dtype=np.uint16), ROWS)
    tables = tuple(decoded(gather, event, records[name]) for name, event in formats.items())
    time = np.arange(n, dtype=np.int64) * 1000
    cpu, tid, pid = (np.full(n, value, np.int32) for value in (0, 7, 7))
    trace = Trace([Batch(names, order, time, cpu, tid, pid, tables)], Meta(), dict(formats))

    write, reader = CONTAINERS[container]
    stream = io.BytesIO()
    assert write(trace, stream).events == n
    back = Trace.read(reader(Input.from_bytes(stream.getvalue())))

    assert back.meta.malformed == 0
    for name, event in formats.items():
        columns = {field.name: back.table(name)[field.name] for field in event.fields}
        assert rows_of(columns) == [plainly(event.text, data) for data in records[name]], name


@recordings
def test_recorded_layouts_are_those_of_the_kernels_sources(recording: str) -> None:
    formats = formats_of(recording)
    checked = 0
    for layout in parsed_layouts():
        event = formats.get(layout.event)
        if layout.kernel != kernel_of(recording) or event is None:
            continue
        assert tuple((f.name, f.offset, f.size) for f in event.fields) == layout.fields, layout
        widest = max(f.size for f in event.fields if f.kind is Kind.INT)
        assert -(-event.size // widest) * widest == layout.size, layout
        checked += 1
    assert checked >= 3


def test_recordings_carry_every_layout_of_the_kernels_sources() -> None:
    seen = {(name, kernel_of(recording)) for recording in RECORDINGS for name in formats_of(recording)}
    assert [layout for layout in parsed_layouts() if (layout.event, layout.kernel) not in seen] == []


@pytest.mark.parametrize("layout", parsed_layouts(), ids=str)
def test_every_layout_of_the_sources_decodes(layout: Layout) -> None:
    event = parse_format(text_of(layout), "kvmmmu" if "mmu" in layout.event else "kvm")
    records = payloads(event)
    rows = rows_of(decoded(gather, event, records))
    for name, offset, size in layout.fields:
        raw = [data[offset : offset + size] for data in records]
        given = [row[name] if size in (1, 2, 4, 8) else bytes(row[name]) for row in rows]
        assert given == [int.from_bytes(data, "little") if size in (1, 2, 4, 8) else data for data in raw], name


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in DATA.glob("*/kvm_exit.format")))
def test_the_format_in_a_recording_is_the_one_tracefs_showed(folder: str) -> None:
    shown = parse_format((DATA / folder / "kvm_exit.format").read_text(), "kvm")
    for recording in RECORDINGS:
        if Path(recording).parts[0] == folder:
            assert formats_of(recording)["kvm_exit"].fields == shown.fields
