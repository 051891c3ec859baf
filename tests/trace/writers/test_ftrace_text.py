from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given, settings

from traces import DATA, flat, perf_recording, trace_dat_recording, traces
from worldswitch.record.formats import parse_format
from worldswitch.record.trace import Batch, Meta, Trace
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.text import TextTrace
from worldswitch.trace.writers.ftrace_text import write_ftrace_text
from worldswitch.trace.writers.printfmt import printer


def text_of_trace(trace: Trace) -> str:
    stream = io.StringIO()
    assert write_ftrace_text(trace, stream).events == len(trace)
    return stream.getvalue()


def read(text: bytes) -> Trace:
    return Trace.read(TextTrace(Input.from_bytes(text)))


EXACT = {"kvm_exit", "kvm_entry", "kvm_cr", "kvm_page_fault", "kvm_msr"}


@pytest.mark.parametrize(
    "name",
    [
        "svm-6.1-npt/kvmstat.perf.data.zst",
        "svm-7.2-npt/wp.perf.data.zst",
        "vmx-5.10-ept/wp.perf.data",
        "vmx-5.10-ept/smep.trace.dat",
    ],
)
def test_our_reader_reads_a_recording_back(name: str) -> None:
    trace = trace_dat_recording(name) if name.endswith(".dat") else perf_recording(name)
    back = read(text_of_trace(trace).encode())
    assert back.meta.skipped_lines == 0
    assert len(back) == len(trace)
    for mine, theirs in zip(flat(trace), flat(back), strict=True):
        assert theirs[1:5] == mine[1:5]
        if mine[0] in EXACT:
            assert theirs[0] == mine[0]
            assert theirs[5].items() <= mine[5].items() or theirs[5] == mine[5]


@pytest.mark.parametrize("name", ["vmx-5.10-ept", "vmx-7.2-ept"])
def test_what_tracefs_printed_is_printed_again(name: str) -> None:
    original = (DATA / name / "trace.txt").read_bytes()
    again = text_of_trace(read(original))

    def bodies(text: str) -> list[str]:
        found = re.findall(r"^.*?(\w+)-(\d+) .*? +(\d+\.\d{6})(?:000)?: (kvm_(?:exit|entry|cr|fpu): .*)$", text, re.M)
        return [" ".join(groups) for groups in found]

    assert bodies(again) == bodies(original.decode())
    assert len(bodies(again)) > 20


# Bits of the role field, from union kvm_mmu_page_role of 5.10 and 6.1 (arch/x86/include/asm/kvm_host.h).
ROLE = {
    "level": (0, 15),
    "quadrant": (5, 3),
    "direct": (7, 1),
    "access": (8, 7),
    "invalid": (11, 1),
    "efer_nx": (12, 1),
}


@pytest.mark.parametrize(
    "name", ["vmx-5.10-ept/wp.trace.dat", "vmx-6.1-ept/wp.trace.dat", "vmx-5.10-shadow/wp.trace.dat"]
)
@pytest.mark.parametrize("event", ["kvm_mmu_get_page", "kvm_mmu_prepare_zap_page"])
def test_pages_of_the_mmu_are_read_back_with_their_role(name: str, event: str) -> None:
    trace = trace_dat_recording(name)
    mine = trace.table(event)
    theirs = read(text_of_trace(trace).encode()).table(event)
    for column in ("time", "gfn", "root_count", "unsync"):
        assert theirs[column].tolist() == mine[column].tolist()
    for member, (bit, mask) in ROLE.items():
        assert theirs[member].astype(int).tolist() == (mine["role"] >> bit & mask).astype(int).tolist()
    assert len(mine["time"]) > 1


def test_the_role_of_linux_7_2_has_a_wider_access() -> None:
    form = trace_dat_recording("vmx-6.1-ept/wp.trace.dat").formats["kvm_mmu_prepare_zap_page"]
    letters = ["".join(c if n >> i & 1 else "-" for i, c in enumerate("rwux")) for n in range(16)]
    names = ", ".join(f'"{name}"' for name in letters)
    text = re.sub(r"(access_str\[\] = \{)[^}]*", rf"\1 {names} ", form.text)
    columns = {"gfn": np.array([5], "u8"), "role": np.array([1 << 12 | 0b1101 << 8 | 3], "u4")}
    (line,) = printer(parse_format(text, "kvmmmu"))(columns, 1)
    assert line == "sp gen 0 gfn 5 l3 8-byte q0 r-ux invalid !nxe ad root 0 sync"


def test_hostile_names_and_texts_stay_on_their_line() -> None:
    zeros = np.zeros(1, np.int32)
    texts = np.array(["x\ny\x1b[2J"], object)
    batch = Batch(
        ("bad\nname",),
        np.zeros(1, np.uint16),
        np.ones(1, int),
        zeros,
        zeros + 7,
        zeros - 1,
        ({"text": texts},),
    )
    text = text_of_trace(Trace([batch], Meta(comms={7: "a\nb\x07"})))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "        a\\nb\\x07-7       [000]     0.000000001: bad\\nname: x\\ny\\x1b[2J"
    ]


def test_a_thread_without_cpu_or_process_has_no_column_for_it() -> None:
    minus = np.full(1, -1, np.int32)
    batch = Batch(("e",), np.zeros(1, np.uint16), np.array([1_500_000_000]), minus, minus + 8, minus, ({},))
    assert text_of_trace(Trace([batch])).splitlines()[-1] == "           <...>-7           1.500000000: e: "


@settings(max_examples=50, deadline=None)
@given(traces())
def test_any_trace_makes_a_line_per_event(trace: Trace) -> None:
    lines = [line for line in text_of_trace(trace).split("\n")[:-1] if not line.startswith("#")]
    assert len(lines) == len(trace)
