"""The trace.dat reader: files built byte by byte, recordings of real kernels, and damaged ones."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracedat_build as build
from tracedat_build import Spec, version_6, version_7
from worldswitch.errors import TraceFormatError, UsageError, WorldswitchError
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import tracedat
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat import TraceDat, sniff

DATA = Path(__file__).parents[2] / "data"
RECORDINGS = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/*.trace.dat"))
HEADS = sorted(path.parent.name for path in DATA.glob("*/wp.trace-cmd-report.head.txt"))
HEADS = [name for name in HEADS if (DATA / name / "wp.trace.dat").exists()]

WRITERS = {"version 6": version_6, "version 7": version_7}
KINDS = {
    "version 6": version_6,
    "version 7, none": lambda spec: version_7(_with_codec(spec, "none")),
    "version 7, zlib": lambda spec: version_7(_with_codec(spec, "zlib")),
    "version 7, zstd": lambda spec: version_7(_with_codec(spec, "zstd")),
}


def _with_codec(spec: Spec, codec: str) -> Spec:
    spec.codec = codec
    return spec


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def write(request):
    """Writes a spec in one of the kinds of file there are."""
    return request.param


def opened(data: bytes) -> TraceDat:
    return TraceDat(Input.from_bytes(data, "it.dat"))


def read(data: bytes, selection=None) -> Trace:
    return Trace.read(opened(data), selection)


def events(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Event, time, cpu and tid of everything, in order."""
    return [
        (batch.events[order], int(time), int(cpu), int(tid))
        for batch in trace.batches()
        for order, time, cpu, tid in zip(batch.order, batch.time, batch.cpu, batch.tid, strict=True)
    ]


def test_sniff_knows_the_magic():
    assert sniff(version_6(Spec())) and sniff(version_7(Spec()))
    assert not sniff(b"\x17\x08\x44tracinx") and not sniff(b"")


def test_cpus_are_merged_by_time(write):
    pages = {
        0: [build.page(1000, *[build.record(build.alpha(tid=10), 100)] * 3)],
        1: [build.page(1050, *[build.record(build.gamma(tid=11), 100)] * 3)],
    }
    assert events(read(write(Spec(buffers={"": pages})))) == [
        ("alpha", 1100, 0, 10),
        ("gamma", 1150, 1, 11),
        ("alpha", 1200, 0, 10),
        ("gamma", 1250, 1, 11),
        ("alpha", 1300, 0, 10),
        ("gamma", 1350, 1, 11),
    ]


def test_fields_are_decoded_by_the_formats_in_the_file(write):
    records = [build.alpha(small=5, large=1 << 63), build.beta(text=b"some text"), build.gamma(value=-300)]
    trace = read(write(Spec(buffers={"": {0: [build.page(0, *map(build.record, records))]}})))
    assert trace.table("alpha")["small"].tolist() == [5]
    assert trace.table("alpha")["large"].tolist() == [1 << 63]
    assert trace.table("beta")["text"].tolist() == ["some text"]
    assert trace.table("gamma")["value"].tolist() == [-300]


def test_many_pages_in_many_chunks(write):
    pages = [build.page(k * 10**6, *[build.record(build.alpha(small=k), 10)] * 140) for k in range(25)]
    trace = read(write(Spec(buffers={"": {3: pages}})))
    assert trace.table("alpha")["small"].tolist() == [k for k in range(25) for _ in range(140)]
    assert set(trace.table("alpha")["cpu"].tolist()) == {3}


def test_small_regions_give_the_same_events(write, monkeypatch):
    pages = {
        cpu: [build.page(k * 10**6 + cpu, *[build.record(build.alpha(small=k), 10)] * 99) for k in range(50)]
        for cpu in range(5)
    }
    data = write(Spec(buffers={"": pages}))
    whole = events(read(data))
    monkeypatch.setattr(tracedat, "_REGION", 1)
    monkeypatch.setattr(tracedat, "_WORTH_A_THREAD", 0)
    assert events(read(data)) == whole
    assert len(whole) == 5 * 50 * 99


def test_buffer_instances_are_merged_and_noted(write):
    spec = Spec(
        buffers={
            "": {0: [build.page(10, build.record(build.alpha()))]},
            "guest": {
                0: [build.page(5, build.record(build.gamma()))],
                1: [build.page(15, build.record(build.beta()))],
            },
        }
    )
    trace = read(write(spec))
    assert events(trace) == [("gamma", 5, 0, 7), ("alpha", 10, 0, 7), ("beta", 15, 1, 7)]
    assert any("guest" in note for note in trace.meta.notes)


def test_counts_and_span_cover_what_is_not_selected(write):
    trace = read(write(Spec()), {"gamma": None})
    assert events(trace) == [("gamma", 1500, 1, 7)]
    assert trace.meta.events == {"alpha": 1, "gamma": 1}
    assert (trace.meta.first_ns, trace.meta.last_ns) == (1000, 1500)


def test_only_the_fields_asked_for_are_decoded(write):
    trace = read(write(Spec()), {"alpha": ["small", "no such field"]})
    assert set(trace.table("alpha")) - {"seq", "time", "cpu", "tid", "pid"} == {"small"}


def test_threads_have_names_and_no_process(write):
    trace = read(write(Spec()))
    assert trace.meta.comms == {7: "qemu kvm", 8: "CPU 0/KVM"}
    assert trace.meta.vm_identity == "thread"
    assert trace.table("alpha")["pid"].tolist() == [-1]


def test_options_say_who_recorded_what(write):
    options = [
        (5, b"Linux box 5.10.0-32-cloud-amd64 x86_64\0"),
        (4, b"local [mono] boot x86-tsc\n\0"),
        (8, struct.pack("<I", 2)),
        (9, b"3.1.6 not-a-git-repo\0"),
    ]
    meta = opened(write(Spec(options=options))).meta
    assert (meta.host, meta.kernel) == ("box", "5.10.0-32-cloud-amd64 x86_64")
    assert (meta.clock, meta.cpus, meta.tool) == ("mono", 2, "trace-cmd 3.1.6 not-a-git-repo")


def test_unknown_options_are_skipped(write):
    assert len(read(write(Spec(options=[(777, b"what"), (6, b"hook\0"), (24, b"")])))) == 2


def test_unknown_sections_are_skipped():
    assert len(read(version_7(Spec(extra_section=True)))) == 2


def test_statistics_say_what_was_lost(write):
    stat = b"CPU: 0\nentries: 4\noverrun: 30\ncommit overrun: 2\nbytes: 9\ndropped events: 4\nread events: 1\n\0"
    assert read(write(Spec(options=[(2, stat), (2, stat)]))).meta.lost == 72


def test_pages_say_what_was_lost(write):
    pages = [
        build.page(0, build.record(build.gamma()), lost=40),
        build.page(9, build.record(build.gamma()), lost="unknown"),
    ]
    meta = read(write(Spec(buffers={"": {0: pages}}))).meta
    assert meta.lost == 41
    assert any("1 gaps" in note for note in meta.notes)


def test_overruns_in_pages_and_statistics_are_not_counted_twice(write):
    pages = [build.page(0, build.record(build.gamma()), lost=40)]
    spec = Spec(buffers={"": {0: pages}}, options=[(2, b"CPU: 0\noverrun: 45\n\0")])
    assert read(write(spec)).meta.lost == 45


def test_offset_and_date_are_added(write):
    # trace-input.c handle_options: OFFSET in ns, DATE in µs, both as strtoll(..., 0) reads them.
    trace = read(write(Spec(options=[(7, b"-100\0"), (1, b"0x10\0")])))
    assert trace.table("alpha")["time"].tolist() == [1000 - 100 + 16_000]


def test_tsc_becomes_nanoseconds(write):
    # trace-input.c mul_u64_u32_shr: (cycles * mult) >> shift, beyond 32 bits too.
    cycles = 40 << 32 | 12345
    pages = [build.page(cycles, build.record(build.gamma()))]
    option = (14, struct.pack("<IIQ", 0x1AAAAAAB, 30, 0))
    trace = read(write(Spec(buffers={"": {0: pages}}, options=[option], clock=b"x86-tsc")))
    low, high = 12345 * 0x1AAAAAAB >> 30, 40 * 0x1AAAAAAB << 2
    assert trace.table("gamma")["time"].tolist() == [low + high]
    assert trace.meta.first_ns == low + high


def test_cycles_without_a_factor_are_noted():
    assert any("x86-tsc" in note for note in opened(version_7(Spec(clock=b"x86-tsc"))).meta.notes)


def time_shift(flags: int, samples: dict[int, int], scaling: int, fraction: int) -> tuple[int, bytes]:
    n = len(samples)
    data = struct.pack("<QIII", 9, flags, 1, n)
    data += struct.pack(f"<{n}q", *samples) + struct.pack(f"<{n}q", *samples.values())
    return 12, data + struct.pack(f"<{2 * n}Q", *[scaling] * n, *[fraction] * n)


@pytest.mark.parametrize(("flags", "expected"), [(0, [1050, 1950 + 10]), (1, [1050 + 5, 1950 + 10 + 75])])
def test_guest_times_are_shifted_to_the_host(write, flags, expected):
    # trace-input.c timestamp_host_sync: the correction before, or with bit 0 of the flags one in proportion
    # between those around.
    samples = {1000: 0, 1100: 10, 1900: 10, 2000: 160}
    pages = [build.page(time, build.record(build.gamma())) for time in (1050, 1950)]
    spec = Spec(buffers={"": {0: pages}}, options=[time_shift(flags, samples, 1 << 10, 10)])
    assert read(write(spec)).table("gamma")["time"].tolist() == expected


def test_guests_are_noted(write):
    option = (13, b"vm1\0" + struct.pack("<QIIIII", 5, 2, 0, 4711, 1, 4712))
    assert any("vm1" in note and "4711, 4712" in note for note in opened(write(Spec(options=[option]))).meta.notes)


def test_sub_buffers_larger_than_a_page(write):
    pages = [build.page(k * 10**6, *[build.record(build.alpha(), 10)] * 500, size=16384) for k in range(4)]
    assert len(read(write(Spec(buffers={"": {0: pages}}, page_size=16384)))) == 2000


def test_kernel_of_32_bits(write):
    pages = [build.page(5, build.record(build.gamma()), long=4, lost=3)]
    trace = read(write(Spec(buffers={"": {0: pages}}, long=4)))
    assert events(trace) == [("gamma", 5, 0, 7)] and trace.meta.lost == 3


def test_time_that_runs_backwards_within_a_cpu_is_put_in_order(write):
    pages = [build.page(time, build.record(build.gamma())) for time in (500, 300, 400)]
    assert [time for _, time, _, _ in events(read(write(Spec(buffers={"": {0: pages}}))))] == [300, 400, 500]


def test_time_that_runs_backwards_between_batches_is_counted(monkeypatch):
    pages = [build.page(time, build.record(build.gamma())) for time in (500, 300, 400)]
    monkeypatch.setattr(tracedat, "_REGION", 4096)
    assert read(version_6(Spec(buffers={"": {0: pages}}))).meta.out_of_order == 2


def test_unknown_types_count_as_malformed(write):
    pages = [build.page(0, build.record(build.payload(9999, 1)), build.record(build.gamma()))]
    meta = read(write(Spec(buffers={"": {0: pages}}))).meta
    assert (meta.malformed, meta.events) == (1, {"gamma": 1})


def test_events_of_two_systems_with_one_name_both_get_tables(write):
    text = build.format_text("alpha", 400, "\tfield:u8 other;\toffset:8;\tsize:1;\tsigned:0;\n")
    pages = [build.page(0, build.record(build.alpha()), build.record(build.payload(400, 1, b"\x05")))]
    trace = read(write(Spec(buffers={"": {0: pages}}, formats=[*build.FORMATS, ("xen", text)])))
    assert trace.table("xen:alpha")["other"].tolist() == [5]


def test_a_broken_format_costs_only_its_events(write):
    spec = Spec(formats=[*build.FORMATS, ("kvm", "name: broken\nno id\n")])
    trace = read(write(spec))
    assert len(trace) == 2 and not trace.meta.complete


def test_a_format_whose_fields_overlap_again_and_again_is_broken(write):
    fields = "".join(f"\tfield:char f{k}[60];\toffset:8;\tsize:60;\tsigned:0;\n" for k in range(50))
    trace = read(write(Spec(formats=[*build.FORMATS, ("kvm", build.format_text("bomb", 400, fields))])))
    assert len(trace) == 2 and "1 event formats" in trace.meta.damage[0]


def test_no_events_at_all(write):
    trace = read(write(Spec(buffers={"": {0: [build.page(0)]}})))
    assert len(trace) == 0 and trace.meta.complete and trace.meta.first_ns is None


def test_no_cpu_has_data(write):
    trace = read(write(Spec(buffers={"": {}})))
    assert len(trace) == 0 and trace.meta.complete


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.compress])
def test_the_whole_file_may_be_compressed(write, compress):
    data = write(Spec())
    assert events(read(compress(data))) == events(read(data))


def test_a_compressed_file_that_was_cut():
    pages = [build.page(k * 10**6, build.record(build.beta(text=os.urandom(500)), 10)) for k in range(40)]
    data = gzip.compress(version_6(Spec(buffers={"": {0: pages}})))
    trace = read(data[: len(data) * 2 // 3])
    assert 0 < len(trace) < 40 and not trace.meta.complete


def test_it_reads_once():
    source = opened(version_6(Spec()))
    list(source.batches())
    with pytest.raises(UsageError, match="open it again"):
        next(source.batches())


# Files that are not read


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_big_endian_files_are_refused(write):
    with pytest.raises(TraceFormatError, match="big-endian"):
        opened(write(Spec(big_endian=True)))


def test_other_versions_are_refused():
    with pytest.raises(TraceFormatError, match="versions 6 and 7"):
        opened(version_6(Spec()).replace(b"tracing6\0", b"tracing5\0", 1))


def test_unknown_compression_is_refused():
    with pytest.raises(TraceFormatError, match=r"'lz99'.*none, zlib, zstd"):
        opened(version_7(Spec()).replace(b"none\0", b"lz99\0", 1))


def test_latency_text_is_refused():
    with pytest.raises(TraceFormatError, match="latency tracer"):
        opened(version_6(Spec(tag=b"latency  \0")))


# Damage

PAGES = {
    cpu: [build.page(k * 10**6 + cpu * 100, *[build.record(build.alpha(tid=k), 10)] * 20) for k in range(4)]
    for cpu in range(2)
}
WHOLE = {name: kind(Spec(buffers={"": PAGES})) for name, kind in KINDS.items()}
SOUND = {name: events(read(data)) for name, data in WHOLE.items()}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(deadline=None)
def test_a_file_cut_anywhere_gives_what_stands_before_the_cut(name, data):
    cut = data.draw(st.integers(0, len(WHOLE[name]) - 1))
    try:
        trace = read(WHOLE[name][:cut])
    except WorldswitchError as error:
        assert len(str(error)) < 300
        return
    got = events(trace)
    if len(got) < len(SOUND[name]):
        assert not trace.meta.complete and trace.meta.damage
    known = {(event, time, tid) for event, time, _, tid in SOUND[name]}
    assert {(event, time, tid) for event, time, _, tid in got} <= known


@pytest.mark.parametrize(
    ("name", "mark", "nth"),
    [
        ("version 6", struct.pack("<I", 10 << 5 | 6), -1),
        ("version 7, none", struct.pack("<I", 10 << 5 | 6), -1),
        ("version 7, zlib", b"\x78\x9c", -2),  # the last one is the section of strings
        ("version 7, zstd", b"\x28\xb5\x2f\xfd", -2),
    ],
)
def test_a_file_cut_in_its_last_pages_keeps_those_before(name, mark, nth):
    whole = WHOLE[name]
    cut = [found.start() for found in re.finditer(re.escape(mark), whole)][nth]
    trace = read(whole[:cut])
    assert 80 < len(trace) < 160 and not trace.meta.complete


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_flipped_bits_raise_nothing_else(name, data):
    damaged = bytearray(WHOLE[name])
    metadata_only = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, 3000 if metadata_only else len(damaged) - 1))] ^= 1 << data.draw(
            st.integers(0, 7)
        )
    try:
        trace = read(bytes(damaged))
    except WorldswitchError:
        return
    assert all((np.diff(batch.time) >= 0).all() for batch in trace.batches())


@given(
    st.binary(max_size=600),
    st.sampled_from(["6\0\0\x08\0\x10\0\0", "7\0\0\x08\0\x10\0\0none\0\0", "7\0", ""]),
)
@settings(deadline=None)
def test_random_bytes_raise_nothing_else(data, start):
    try:
        read(tracedat.MAGIC + start.encode() + data)
    except WorldswitchError:
        return


@pytest.mark.parametrize("field", ["offset", "size", "both"])
def test_lying_places_of_pages_allocate_nothing(field):
    data = version_7(Spec())
    at = data.rindex(struct.pack("<III", 4096, 2, 0)) + 12
    lies = {"offset": (0, 8), "size": (8, 16), "both": (0, 16)}[field]
    lying = bytearray(data)
    lying[at + lies[0] : at + lies[1]] = b"\xff" * (lies[1] - lies[0])
    trace = read(bytes(lying))
    assert not trace.meta.complete
    assert ("gamma", 1500, 1, 7) in events(trace)


def test_a_chunk_that_claims_gigabytes_is_damage():
    data = bytearray(version_7(Spec(codec="zstd")))
    chunk = data.rindex(b"\x28\xb5\x2f\xfd", 0, data.rindex(struct.pack("<III", 4096, 2, 0)))
    data[chunk - 4 : chunk] = b"\xff\xff\xff\xf0"
    trace = read(bytes(data))
    assert [event for event, *_ in events(trace)] == ["alpha"]
    assert "claims to unpack" in trace.meta.damage[0]


def test_a_damaged_chunk_costs_only_its_own_events():
    pages = {0: [build.page(k * 1000, build.record(build.alpha(tid=k))) for k in range(6)]}
    data = bytearray(version_7(Spec(buffers={"": pages}, codec="zstd")))
    starts = [found.start() for found in re.finditer(re.escape(b"\x28\xb5\x2f\xfd"), data)]
    middle = starts[-3]  # the last one is the section of strings
    data[middle : middle + 4] = b"\0\0\0\0"
    trace = read(bytes(data))
    assert [tid for *_, tid in events(trace)] == [0, 1, 4, 5]
    assert len(trace.meta.damage) == 1 and not trace.meta.complete


def test_options_that_point_at_themselves_end():
    data = bytearray(version_7(Spec()))
    first = struct.unpack_from("<Q", data, data.index(b"1.0\0") + 4)[0]
    done = data.index(struct.pack("<HI", 0, 8), first + 16)
    data[done + 6 : done + 14] = struct.pack("<Q", first)
    trace = read(bytes(data))
    assert len(trace) == 2 and not trace.meta.complete


def test_a_million_cpus_are_refused_or_read():
    data = bytearray(version_7(Spec()))
    at = data.rindex(struct.pack("<III", 4096, 2, 0))
    data[at + 4 : at + 8] = b"\xff\xff\xff\x7f"
    with pytest.raises(TraceFormatError, match="no recorded pages"):
        read(bytes(data))


# Recordings of real kernels


@pytest.mark.parametrize("folder", HEADS)
def test_recordings_agree_with_the_text_of_trace_cmd(folder):
    text = (DATA / folder / "wp.trace-cmd-report.head.txt").read_text()
    lines = re.findall(r"^\s*(\S.*?)-(\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{6}): ([\w]+): (.*)$", text, re.MULTILINE)
    trace = read((DATA / folder / "wp.trace.dat").read_bytes())
    ours = events(trace)[: len(lines)]
    assert len(lines) > 390
    # trace-cmd rounds to microseconds.
    assert [(event, (time + 500) // 1000, cpu, tid) for event, time, cpu, tid in ours] == [
        (event, int(seconds + micro), int(cpu), int(tid)) for _, tid, cpu, seconds, micro, event, _ in lines
    ]
    rips = [
        int(found[1], 16)
        for *_, event, rest in lines
        if event == "kvm_exit" and (found := re.search(r"rip (0x\w+)", rest))
    ]
    assert trace.table("kvm_exit")["guest_rip"][: len(rips)].tolist() == rips
    assert {trace.meta.comms[int(tid)] for _, tid, *_ in lines} == {comm for comm, *_ in lines}


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_whole_and_name_their_kernel(name):
    source = opened((DATA / name).read_bytes())
    n = sum(len(batch) for batch in source.batches())
    meta = source.meta
    release = (DATA / name).with_name("uname").read_text().split()[2]
    assert meta.kernel == f"{release} x86_64"
    assert meta.complete and meta.lost == meta.malformed == meta.out_of_order == 0
    assert n == sum(meta.events.values()) > 0
    assert (meta.clock, meta.cpus, meta.tool) == ("local", 1, "trace-cmd 3.1.6 not-a-git-repo")


def test_the_recorded_toggles_are_there():
    # tests/data/README.md: N single writes of CR0.WP, 300 in this recording.
    trace = read((DATA / "vmx-5.10-ept/wp.trace.dat").read_bytes(), {"kvm_cr": None, "kvm_exit": ["exit_reason"]})
    writes = trace.table("kvm_cr")
    assert np.count_nonzero((writes["cr"] == 0) & (writes["rw"] == 1)) == 300
    # Exit reason 28 is CR_ACCESS: SDM volume 3, appendix C.
    assert np.count_nonzero(trace.table("kvm_exit")["exit_reason"] == 28) == 300


needs_trace_cmd = pytest.mark.skipif(shutil.which("trace-cmd") is None, reason="trace-cmd is not installed")


def reported(path: Path) -> list[tuple[str, int, int, int]]:
    """What ``trace-cmd report -t`` says of a file."""
    out = subprocess.run(["trace-cmd", "report", "-t", str(path)], capture_output=True, check=True).stdout
    lines = re.findall(rb"^(?:\w+:)?\s*\S.*?-(\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{9}): (\w+):", out, re.MULTILINE)
    return [(event.decode(), int(s + ns), int(cpu), int(tid)) for tid, cpu, s, ns, event in lines]


@needs_trace_cmd
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "zlib" not in kind])
def test_trace_cmd_agrees_on_built_files(kind, tmp_path):
    records = [build.record(build.alpha(tid=3), 9), build.extend(1 << 30), build.record(build.gamma(), 5)]
    records += [
        build.discarded(16, 4),
        build.record(build.beta(text=b"x" * 300), 1),
        build.record(build.gamma(), 2),
    ]
    pages = {cpu: [build.page((k << 32) + cpu * 3, *records) for k in range(1, 9)] for cpu in range(4)}
    spec = Spec(buffers={"": pages, "more": {0: pages[1]}}, options=[(7, b"55\0")])
    path = tmp_path / "built.dat"
    path.write_bytes(KINDS[kind](spec))
    assert sorted(events(read(path.read_bytes()))) == sorted(reported(path))


@needs_trace_cmd
@pytest.mark.parametrize("arguments", [("6",), ("7", "--compression", "none")])
def test_files_converted_by_trace_cmd_read_the_same(arguments, tmp_path):
    source = DATA / "svm-7.2-npt/wp.trace.dat"
    path = tmp_path / "converted.dat"
    subprocess.run(
        ["trace-cmd", "convert", "-i", str(source), "-o", str(path), "--file-version", *arguments],
        capture_output=True,
        check=True,
    )
    assert events(read(path.read_bytes())) == events(read(source.read_bytes())) == reported(source)
