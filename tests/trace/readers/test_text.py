"""Trace texts: who, where and when of each dialect, headers, losses, selection, order, damage."""

# ruff: noqa: E501 - lines of tools are as long as they are

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from texts import SCANNERS, read
from worldswitch.errors import TraceFormatError
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import text, textscan
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat import TraceDat

DATA = Path(__file__).parents[2] / "data"
RECORDED = ("svm-5.10-npt-tdpmmu", "svm-5.10-shadow", "svm-6.1-npt", "svm-7.2-npt")
BODY = "kvm_entry: vcpu 2, rip 0x1000"

# line, (comm, tid, pid, cpu, time)
HEADS = {
    "tracefs 5.10": (
        f"          kvmlab-110     [000] d...    36.237888: {BODY}",
        ("kvmlab", 110, -1, 0, 36237888000),
    ),
    "tracefs 6.1": (
        f"          kvmlab-110     [012] d..1.    36.237888: {BODY}",
        ("kvmlab", 110, -1, 12, 36237888000),
    ),
    "no flags": (f"    kvm-5664  [000] 11906.220178: {BODY}", ("kvm", 5664, -1, 0, 11906220178000)),
    "comm with dots": (f"   a.b..c-110  [000] d..1. 36.237888: {BODY}", ("a.b..c", 110, -1, 0, 36237888000)),
    "comm unknown": (f"   <...>-110  [000] d..1. 36.237888: {BODY}", (None, 110, -1, 0, 36237888000)),
    "six flags": (
        f" CPU 0/KVM-7289 [023] dNh3.1 2925.640961: {BODY}",
        ("CPU 0/KVM", 7289, -1, 23, 2925640961000),
    ),
    "tgid": (f"  qemu-12 (  34) [001] d..1 1.000001: {BODY}", ("qemu", 12, 34, 1, 1000001000)),
    "tgid unknown": (f"  qemu-12 (-------) [001] d..1 1.000001: {BODY}", ("qemu", 12, -1, 1, 1000001000)),
    "comm with a bracket": (f" a]b [3] c-9  [001] .... 1.5: {BODY}", ("a]b [3] c", 9, -1, 1, 1500000000)),
    "comm with colons": (
        f" kworker/u8:0-xy-9 [001] .... 1.5: {BODY}",
        ("kworker/u8:0-xy", 9, -1, 1, 1500000000),
    ),
    "comm like a time": (f" t 1.5: x-9 [001] .... 2.5: {BODY}", ("t 1.5: x", 9, -1, 1, 2500000000)),
    "trace-cmd ns": (f"     kt-93    [000]    20.498508540: {BODY}", ("kt", 93, -1, 0, 20498508540)),
    "trace-cmd latency": (f"      kt-93      2d..3.    20.498509: {BODY}", ("kt", 93, -1, 2, 20498509000)),
    "trace-cmd differences": (f" kt-93 [000] 20.498509: (+22)    {BODY}", ("kt", 93, -1, 0, 20498509000)),
    "tracefs latency": (f"CPU 0/KV-93      2d..3. 20498509us!: {BODY}", ("CPU 0/KV", 93, -1, 2, 20498509000)),
    "tracefs latency, shortly": (f"  <idle>-0         0d..2. 20498509us : {BODY}", ("<idle>", 0, -1, 0, 20498509000)),
    "raw counts": (f" kt-93 [000] 204985090: {BODY}", ("kt", 93, -1, 0, 204985090)),
    "perf": (f"    CPU 0/KVM   103 [000]    47.186557:   kvm:{BODY}", ("CPU 0/KVM", 103, -1, 0, 47186557000)),
    "perf pid/tid": (
        f"    kt   101/103   [000]    47.186557:   kvm:{BODY}",
        ("kt", 103, 101, 0, 47186557000),
    ),
    "perf of an ended thread": (f"     :-1    -1/-1    [001]    47.186557: kvm:{BODY}", (None, -1, -1, 1, 47186557000)),
    "perf of an ended thread of a process": (
        f" :-1 20611/-1    [001] 6981.5: kvm:{BODY}",
        (None, -1, 20611, 1, 6981500000000),
    ),
    "perf of an ended thread, no process": (f"  :-1    -1 [001] 47.186557: kvm:{BODY}", (None, -1, -1, 1, 47186557000)),
    "comm that ends in a slash": (
        f" kworker/-1     [000] d..1. 36.237888: {BODY}",
        ("kworker/", 1, -1, 0, 36237888000),
    ),
    "perf without comm": (f"  101/103   [000]    47.186557:   kvm:{BODY}", (None, 103, 101, 0, 47186557000)),
    "perf without cpu": (f"    kt   103    47.186557:   kvm:{BODY}", ("kt", 103, -1, -1, 47186557000)),
    "perf period": (f" kt  103 [000]  47.186557:     1    kvm:{BODY}", ("kt", 103, -1, 0, 47186557000)),
    "perf time only": (f"   47.186557:     kvm:{BODY}", (None, -1, -1, -1, 47186557000)),
    "perf event only": (f"     kvm:{BODY}", (None, -1, -1, -1, 0)),
    "perf comm and time": (f"preempt_test  20677.199579: kvm:{BODY}", (None, -1, -1, -1, 20677199579000)),
    "perf-prof": (
        f" <...> 206966 d... [017] 15504452.412981: kvm:{BODY}",
        (None, 206966, -1, 17, 15504452412981000),
    ),
    "cpu only": (f"  CPU 7: {BODY}", (None, -1, -1, 7, 0)),
}


@pytest.mark.parametrize("scanner", SCANNERS)
@pytest.mark.parametrize("form", HEADS)
def test_each_form_of_a_line_says_who_where_and_when(form, scanner):
    line, (comm, tid, pid, cpu, time) = HEADS[form]
    trace, source = read(line + "\n", scanner=scanner)
    table = trace.table("kvm_entry")
    assert [table[name][0] for name in ("tid", "pid", "cpu", "time", "vcpu_id", "rip")] == [
        tid,
        pid,
        cpu,
        time,
        2,
        0x1000,
    ]
    assert source.meta.comms.get(tid) == comm
    assert source.meta.skipped_lines == 0


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_line_ends(ending):
    trace, _ = read(f"a-1 [000] .... 1.5: kvm_fpu: load{ending}")
    assert trace.table("kvm_fpu")["load"].tolist() == [1]


def test_dialects_may_be_mixed_in_one_file():
    lines = [line for line, _ in HEADS.values()]
    trace, source = read("\n".join(lines))
    assert source.meta.events == {"kvm_entry": len(lines)}
    assert (np.diff(trace.table("kvm_entry")["time"]) >= 0).all()


def test_tgid_makes_the_identity_of_a_vm_known():
    assert read("q-12 (34) [001] d..1 1.1: kvm_fpu: load")[1].meta.vm_identity == "tgid"
    assert read("q-12 (--) [001] d..1 1.1: kvm_fpu: load")[1].meta.vm_identity == "thread"


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("CPU:2 [LOST 12 EVENTS]", 12),
        ("CPU:0 [123 EVENTS DROPPED]", 123),
        ("CPU 3 [LOST 7 EVENTS]", 7),
        ("CPU:1 [EVENTS DROPPED]", 1),
        ("# entries-in-buffer/entries-written: 40/42   #P:8", 2),
        ("  kt 103 [000] 47.186557: PERF_RECORD_LOST lost 5", 5),
        ("Processed 9 events and lost 3 chunks!", 3),
    ],
)
def test_lost_events_are_counted_and_their_marks_are_not_skipped_lines(line, lost):
    _, source = read(f"{line}\na-1 [000] .... 1.5: kvm_fpu: load\n")
    assert (source.meta.lost, source.meta.skipped_lines) == (lost, 0)


def test_headers():
    _, source = read(
        "# tracer: nop\n# entries-in-buffer/entries-written: 4/4   #P:8\n#\na-1 [000] 1.5: kvm_fpu: load\n"
    )
    assert (source.meta.cpus, source.meta.tool, source.meta.kernel, source.meta.skipped_lines) == (
        8,
        "tracefs",
        None,
        0,
    )
    _, source = read("cpus=4\nCPU 0 is empty\na-1 [000] 1.5: kvm_fpu: load\n")
    assert (source.meta.cpus, source.meta.tool, source.meta.skipped_lines) == (4, "trace-cmd report", 0)


def test_the_header_of_perf_script_names_the_kernel():
    _, source = read("# hostname : box\n# os release : 5.10.0-32-amd64\n a 1 [000] 1.5: kvm:kvm_fpu: load\n")
    assert (source.meta.host, source.meta.kernel, source.meta.tool) == (
        "box",
        "5.10.0-32-amd64",
        "perf script",
    )


def test_lines_that_are_no_events_are_counted():
    _, source = read("Hello\n\n a-1 [000] 1.5: kvm_fpu: load\n note 3: that: this\n some_func <-caller\n")
    assert (source.meta.skipped_lines, source.meta.events) == (3, {"kvm_fpu": 1})


def test_stacks_below_events_are_not_skipped_lines():
    data = (
        "qemu 9 [000] 1.5: kvm:kvm_fpu: load\n\tffffffff81234567 kvm_vcpu_ioctl+0x1 ([kvm])\n\t    7f0012345678 ioctl (libc.so.6)\n\t           ee137 main (qemu)\n\n"
        "qemu-9 [000] .... 1.6: <stack trace>\n => kvm_vcpu_ioctl\n"
    )
    _, source = read(data)
    assert (source.meta.events, source.meta.skipped_lines) == ({"kvm_fpu": 1}, 1)
    assert text.sniff(data.encode())


def test_the_usual_forms_are_not_left_to_the_slow_path(monkeypatch):
    monkeypatch.setattr(text.TextTrace, "_odd", lambda *_: pytest.fail("an odd line"))
    usual = [
        line
        for form, (line, _) in HEADS.items()
        if form not in ("perf time only", "perf event only", "perf comm and time", "cpu only")
    ]
    assert read("\n".join(usual))[1].meta.events == {"kvm_entry": len(usual)}


def test_raw_counts_are_said_to_be_no_nanoseconds():
    assert any("counts" in note for note in read("a-1 [000] 15: kvm_fpu: load\n")[1].meta.notes)


def test_an_unknown_event_becomes_a_table_of_texts():
    trace, _ = read("a-1 [000] .... 1.5: sched_switch: prev_comm=a ==> next_comm=b  \n")
    assert trace.table("sched_switch")["text"].tolist() == ["prev_comm=a ==> next_comm=b"]


def test_a_body_nobody_understands_becomes_a_text_under_its_own_name():
    trace, source = read("a-1 [000] .... 1.5: kvm_cr: something else\na-1 [000] .... 1.6: kvm_cr: cr_write 0 = 0x1\n")
    assert trace.table("kvm_cr:unparsed")["text"].tolist() == ["something else"]
    assert (len(trace.table("kvm_cr")["val"]), source.meta.malformed) == (1, 1)


def test_hostile_names_are_data():
    trace, source = read(b"\x1b[31mred\x07-1 [000] .... 1.5: odd: <b>\xff\x1b[0m\n")
    assert source.meta.comms == {1: "\x1b[31mred\x07"}
    assert trace.table("odd")["text"].tolist() == ["<b>\\xff\x1b[0m"]


# Exit reasons


def exits(*bodies: str):
    lines = [f"a-1 [000] .... 1.{k}: kvm_exit: {body}" for k, body in enumerate(bodies)]
    trace, source = read("\n".join(lines))
    table = trace.table("kvm_exit")
    return [*zip(table["isa"].tolist(), table["exit_reason"].tolist(), strict=True)], source


def test_reasons_by_name_flag_and_number():
    found, _ = exits(
        "reason EPT_VIOLATION rip 0x1 info 181 0",
        "reason INVALID_STATE FAILED_VMENTRY rip 0x1 info 0 0",
        "vcpu 0 reason 0x4d rip 0x1 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
        "reason UNKNOWN (77) rip 0x1 info 0 0",
    )
    assert found == [(1, 48), (1, 0x80000021), (1, 0x4D), (1, 77)]


def test_svm_reasons_of_kernel_and_of_libtraceevent():
    found, _ = exits(
        "reason npf rip 0x1 info 0 0",
        "reason PF excp rip 0x1 info 0 0",
        "reason EXIT_NPF rip 0x1 info 0 0",
        "reason EXIT_EXCP_GP rip 0x1 info 0 0",
        "reason EXIT_INTR rip 0x1 info 0 0",
        "reason EXIT_CR0_SEL_WRITE rip 0x1 info 0 0",
        "vcpu 0 reason cr0_sel_write rip 0x1 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
    )
    # AMD APM volume 2, appendix C
    assert found == [(2, 0x400), (2, 0x4E), (2, 0x400), (2, 0x4D), (2, 0x60), (2, 0x65), (2, 0x65)]


def test_an_unknown_reason_gets_a_stable_number_and_keeps_its_name():
    found, source = exits("reason SYSCALL_PVM rip 0x1 info 0 0", "reason SYSCALL_PVM rip 0x2 info 0 0")
    assert found[0] == found[1] and found[0][1] >= 0x40000000
    assert source.reason_names == {found[0]: "SYSCALL_PVM"}
    assert exits("reason SYSCALL_PVM rip 0x1 info 0 0")[0][0] == found[0]
    assert any("SYSCALL_PVM" in note for note in source.meta.notes)


def test_a_reason_that_is_no_utf8():
    _, source = read(b"a-1 [000] 1.5: kvm_exit: reason B\xffD rip 0x1 info 0 0\n")
    assert list(source.reason_names.values()) == ["B\\xffD"]


def test_names_too_long_to_be_names_cost_their_line_only():
    long = "x" * 200
    trace, source = read(
        f"a-1 [000] 1.1: {long}: y\na-1 [000] 1.2: kvm_exit: reason {long} rip 0x1 info 0 0\n"
        "a-1 [000] 1.3: kvm_exit: reason HLT rip 0x1 info 0 0\na-1 [000] 1.4: other: z\n"
    )
    assert source.meta.events == {"kvm_exit": 1, "other": 1}
    assert (source.meta.skipped_lines, source.meta.malformed, len(trace)) == (1, 1, 2)


def test_exits_that_do_not_name_their_vcpu_get_the_one_their_thread_entered():
    text_ = "\n".join(
        (
            "a-1 [000] 1.0: kvm_exit: reason HLT rip 0x1 info 0 0",
            "b-2 [001] 1.1: kvm_entry: vcpu 5",
            "a-1 [000] 1.2: kvm_entry: vcpu 3",
            "b-2 [001] 1.3: kvm_exit: reason HLT rip 0x1 info 0 0",
            "a-1 [000] 1.4: kvm_exit: reason HLT rip 0x1 info 0 0",
            "c-9 [000] 1.5: kvm_exit: reason HLT rip 0x1 info 0 0",
        )
    )
    trace, source = read(text_)
    assert trace.table("kvm_exit")["vcpu_id"].tolist() == [3, 5, 3, 0]
    assert any("vCPU" in note for note in source.meta.notes)


# Selection, order, blocks


LINES = "".join(
    f"a-{k % 3 + 1} [000] {k}.5: kvm_exit: vcpu 0 reason HLT rip {k:#x} info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0\n"
    f"a-{k % 3 + 1} [000] {k}.6: kvm_entry: vcpu 0, rip {k:#x}\n"
    f"a-{k % 3 + 1} [000] {k}.7: other: {k}\n"
    for k in range(50)
)


def test_events_not_selected_are_counted_but_not_decoded():
    trace, source = read(LINES, {"kvm_exit": ("guest_rip",)})
    assert source.meta.events == {"kvm_exit": 50, "kvm_entry": 50, "other": 50}
    assert trace.events == ("kvm_exit",)
    assert set(trace.table("kvm_exit")) == {"seq", "time", "cpu", "tid", "pid", "guest_rip"}
    assert (source.meta.first_ns, source.meta.last_ns) == (500000000, 49700000000)


def test_blocks_and_batches_do_not_show(monkeypatch):
    whole, _ = read(LINES)
    monkeypatch.setattr(text, "BLOCK", 256)
    monkeypatch.setattr(text, "_ROWS", 7)
    parts, source = read(LINES)
    assert source.meta.events == {"kvm_exit": 50, "kvm_entry": 50, "other": 50}
    for event in whole.events:
        a, b = whole.table(event), parts.table(event)
        assert a.keys() == b.keys()
        assert all((a[name] == b[name]).all() for name in a)


def test_a_line_longer_than_a_block_is_skipped(monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 256)
    trace, source = read("x" * 1000 + "\n" + LINES + "y" * 600)
    assert len(trace) == 150
    assert source.meta.skipped_lines == 2


def test_events_come_in_order_of_time():
    trace, _ = read("a-1 [000] 3.5: kvm_fpu: load\na-1 [000] 1.5: kvm_fpu: unload\na-1 [000] 2.5: kvm_fpu: load\n")
    assert trace.table("kvm_fpu")["time"].tolist() == [1500000000, 2500000000, 3500000000]


def test_columns_are_the_same_in_all_batches(monkeypatch):
    monkeypatch.setattr(text, "_ROWS", 2)
    lines = ["a-1 [000] 1.5: kvm_entry: vcpu 0"] * 3 + ["a-1 [000] 1.6: kvm_entry: vcpu 0, rip 0x1[immediate exit]"] * 3
    trace, _ = read("\n".join(lines))
    assert {tuple(batch.tables[0]) for batch in trace.batches()} == {("vcpu_id", "rip")}


def test_thousands_of_event_names_are_not_a_memory_hog():
    trace, source = read("".join(f"a-1 [000] 1.5: e{k}: x\n" for k in range(6000)))
    assert len(trace) == 4000
    assert source.meta.skipped_lines == 2000


# Against the binary recordings of the same runs


def recorded(path, reader):
    """``(trace, reader)`` of a recording."""
    with Input.open(path) as file:
        source = reader(file)
        return Trace.read(source), source


def _agree(text_table, binary_table, skip):
    n = len(text_table["time"])
    for name in set(text_table) - {"time", "pid", *skip}:
        assert (text_table[name] == binary_table[name][:n]).all(), name
    return np.abs(text_table["time"] - binary_table["time"][:n]).max()


@pytest.mark.parametrize("folder", RECORDED)
@pytest.mark.parametrize("tool", ["perf", "trace-cmd"])
def test_texts_of_a_recording_agree_with_the_recording(folder, tool):
    if tool == "perf":
        binary = recorded(DATA / folder / "wp.perf.data.zst", PerfData)[0]
        file = DATA / folder / "wp.perf-script.head.txt"
    else:
        binary = recorded(DATA / folder / "wp.trace.dat", TraceDat)[0]
        file = DATA / folder / "wp.trace-cmd-report.head.txt"
    trace, _ = recorded(file, text.TextTrace)
    assert "kvm_exit" in trace.events
    for event in trace.events:
        # The bytes after the instruction are in the record but not in the text.
        worst = _agree(trace.table(event), binary.table(event), {"insn"})
        assert worst < 1000  # the text has microseconds


@pytest.mark.parametrize("form", ["plugin", "raw", "latency"])
def test_every_form_of_trace_cmd_report_agrees_with_the_recording(form):
    folder = DATA / "vmx-5.10-ept"
    binary = recorded(folder / "wp.trace.dat", TraceDat)[0]
    trace, source = recorded(folder / f"wp.trace-cmd-report.{form}.txt", text.TextTrace)
    assert (source.meta.malformed, source.meta.skipped_lines) == (0, 0)
    pieces = {"level", "quadrant", "direct", "access", "invalid", "efer_nx", "cr0_wp", "spurious", "fixed"}
    for event in trace.events:
        named = pieces - set(binary.table(event))
        assert _agree(trace.table(event), binary.table(event), named) <= (500 if form == "plugin" else 0)


def test_the_pieces_of_a_page_role_are_those_of_the_recording():
    folder = DATA / "vmx-5.10-ept"
    binary = recorded(folder / "wp.trace.dat", TraceDat)[0].table("kvm_mmu_get_page")
    trace, _ = recorded(folder / "wp.trace-cmd-report.plugin.txt", text.TextTrace)
    pages = trace.table("kvm_mmu_get_page")
    role = binary["role"][: len(pages["time"])]
    # union kvm_mmu_page_role, arch/x86/include/asm/kvm_host.h of 5.10
    assert (pages["level"] == (role & 15)).all()
    assert (pages["access"] == (role >> 8 & 7)).all()
    assert (pages["direct"] == (role >> 7 & 1)).all()


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in DATA.glob("vmx-*/trace.txt")))
def test_tracefs_texts_read_whole(folder):
    trace, source = recorded(DATA / folder / "trace.txt", text.TextTrace)
    header = (DATA / folder / "trace.txt").read_text().split("entries-written: ")[1].split("/")[0]
    assert (len(trace), source.meta.skipped_lines, source.meta.malformed) == (int(header), 0, 0)


# Sniffing


@pytest.mark.parametrize("file", sorted(str(p.relative_to(DATA)) for p in DATA.glob("*/*.txt")))
def test_sniff_tells_trace_texts_from_other_texts(file):
    is_trace = "trace" in Path(file).name.replace("strace", "") or "perf-script" in file
    assert text.sniff((DATA / file).read_bytes()) == is_trace


def test_sniff_leaves_pasted_traces_to_the_reader_of_those():
    for file in (DATA / "pasted").glob("*.eml"):
        assert not text.sniff(file.read_bytes())


# Anything at all


@settings(max_examples=60)
@given(st.binary(max_size=400))
def test_any_bytes_raise_nothing_else(data):
    text.sniff(data)
    try:
        read(data)
    except TraceFormatError:
        assert not data or data[:2] in (b"\x1f\x8b", b"\x28\xb5", b"\xfd7")


SEEDS = [line.encode() for line, _ in HEADS.values()] + [
    b"a-1 [000] d..1. 1.5: kvm_exit: vcpu 0 reason npf rip 0x1000 info1 0x0000000200000006 info2 0x2000 intr_info 0x0",
    b" a 1 [000] 1.5: kvm:kvm_emulate_insn: 0:101a:0f 22 c0 (prot64) failed",
    b"a-1 [000] .... 1.5: kvm_mmu_get_page: sp gen 0 gfn 0 l4 8-byte q0 direct wux !nxe ad root 0 sync existing",
    b"a-1 [000] .... 1.5: fast_page_fault: vcpu 0 gva fe000 error_code W|U sptep 0x0 old 0 new 0 spurious 0 fixed 1",
    b"CPU:0 [LOST 12 EVENTS]",
    b"a-1 [000] .... 1.5: kvm_write_tsc_offset: vcpu=0 prev=0 next=18446744073709551615",
    b"kvm_exit: [FAILED TO PARSE] exit_reason=1 guest_rip=0xffff isa=1 info1=0",
    b"     0.000 qemu-system-x86/1234 kvm:kvm_entry(vcpu_id: 1, rip: 0xffff)",
]


@st.composite
def mutated_lines(draw):
    line = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(line)))
        what = draw(st.sampled_from(["drop", "put", "double"]))
        if what == "drop":
            del line[at : at + draw(st.integers(1, 12))]
        elif what == "put":
            line[at:at] = draw(
                st.sampled_from([b" ", b"-", b":", b"[", b"]", b"9" * 25, b"f", b"\n", b"\xff", b".", b"0x"])
            )
        else:
            line[at:at] = line[at : at + 8]
    return bytes(line)


@settings(max_examples=150, deadline=None)
@given(st.lists(mutated_lines(), min_size=1, max_size=6))
def test_compiled_and_uncompiled_scanner_give_the_same(lines):
    data = b"\n".join(lines)
    if not data or data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0")):
        return
    a, one_ = read(data)
    b, other = read(data, scanner="uncompiled")
    assert one_.meta == other.meta
    assert one_.reason_names == other.reason_names
    assert a.events == b.events
    for event in a.events:
        x, y = a.table(event), b.table(event)
        assert x.keys() == y.keys()
        assert all((x[name] == y[name]).all() and x[name].dtype == y[name].dtype for name in x)


def test_this_run_compares_two_scanners():
    if textscan.__file__.endswith(".py"):
        pytest.skip("the compiled scanner is not installed")
    assert SCANNERS["as installed"] is not SCANNERS["uncompiled"]
