"""Cases that no recording in tests/data holds, recorded on the spot where this machine lets a tool do so, else built.

What the tool that recorded says of its own file is what is expected. The events are the scheduler's, which every
kernel has: no reader knows them, so that they also show that an event nobody has heard of becomes a table.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import perf_build as build
from worldswitch.record.trace import Trace
from worldswitch.trace import open_trace
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input

THROWAWAY_VM = Path(__file__).parents[2] / "throwaway_vm.py"
INSTANCES = Path("/sys/kernel/tracing/instances")
SWITCHES = ("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 0.01; done")
LINE = re.compile(
    r"^(?P<comm>.+?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+\[(?P<cpu>\d+)\]\s+(?P<s>\d+)\.(?P<ns>\d{9}):\s+(?P<event>\S+):"
)

Rows = list[tuple[str, int, int, int]]


def rows(trace: Trace) -> Rows:
    """Event, time, cpu and tid of each event, in the order in which the reader gives them."""
    found: Rows = []
    for batch in trace.batches():
        names = [batch.events[index].rpartition(":")[2] for index in batch.order.tolist()]
        found += zip(names, batch.time.tolist(), batch.cpu.tolist(), batch.tid.tolist(), strict=True)
    return found


# perf.data


@dataclass(frozen=True)
class Case:
    """Options of ``perf record``, and what ``perf evlist -v`` says of the file then."""

    options: tuple[str, ...]
    says: str


SCHED = "sched:sched_switch,sched:sched_waking"
PERF = {
    "named by ID": Case(("-e", SCHED), "IP|TID|TIME|ID|CPU|PERIOD|RAW,"),
    "no id at all": Case(("-e", "sched:sched_switch"), "IP|TID|TIME|CPU|PERIOD|RAW,"),
    "named by IDENTIFIER": Case(("-a", "-e", SCHED), "RAW|IDENTIFIER"),
    "counts of a group": Case(("-a", "-e", "{sched:sched_switch,sched:sched_waking}:S"), "TIME|READ|CPU"),
    "call chains": Case(("-a", "-g", "-e", SCHED), "TIME|CALLCHAIN|CPU"),
    "addresses": Case(("-a", "-d", "-T", "-e", SCHED), "TIME|ADDR|CPU"),
    "another clock": Case(("-a", "-k", "mono", "-e", SCHED), "clockid: 1"),
    "samples of another kind": Case(("-a", "-e", f"{SCHED},cpu-clock"), "cpu-clock: type: 1"),
    "records of context switches": Case(("-a", "--switch-events", "-e", SCHED), "context_switch: 1"),
    "compressed": Case(("-a", "-z", "-e", SCHED), "RAW|IDENTIFIER"),
}


def perf(*arguments: str | Path) -> str:
    done = subprocess.run(["perf", *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")


@pytest.fixture(scope="session")
def sched_events(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where perf may not record the scheduler's events of all processes."""
    path = tmp_path_factory.mktemp("perf") / "try.data"
    command = ["perf", "record", "-q", "-a", "-e", "sched:sched_switch", "-o", str(path), "--", "true"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs perf-sched-events: perf may not record them here")


@pytest.mark.needs("perf")
@pytest.mark.usefixtures("sched_events")
@pytest.mark.parametrize("mode", ["file", "pipe"])
@pytest.mark.parametrize("case", PERF)
def test_perf_data_as_perf_writes_it_here(case: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    options = PERF[case].options
    if "-z" in options and "zstd: [ on" not in perf("version", "--build-options"):
        pytest.skip("needs perf-zstd: perf is built without it")
    output = "-" if mode == "pipe" else str(path)
    with (tmp_path / ("perf.data" if mode == "pipe" else "said")).open("wb") as stream:
        command = ["perf", "record", "-q", *options, "-o", output, "--", *SWITCHES]
        subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, check=True)

    trace = open_trace(path)
    script = perf("script", "-i", path, "-F", "comm,pid,tid,cpu,time,event", "--ns", "-G")
    lines = [found for line in script.splitlines() if (found := LINE.match(line.strip()))]
    expected = [(f["event"].split(":")[-1], int(f["s"] + f["ns"]), int(f["cpu"]), int(f["tid"])) for f in lines]

    if case == "counts of a group":
        # Of each sample of the leader perf script makes one more for each other event that was counted meanwhile.
        expected = [row for row in expected if row[0] == "sched_switch"]

    assert mode == "pipe" or PERF[case].says in perf("evlist", "-v", "-i", path)
    assert trace.meta.format == ("perf.data (pipe)" if mode == "pipe" else "perf.data")
    assert trace.meta.complete and trace.meta.malformed == 0
    assert len(expected) > 8
    got = rows(trace)
    assert sorted(got) == sorted(expected)
    assert got == sorted(got, key=lambda row: row[1])
    # What is switched from is the thread whose event it is (kernel/sched/core.c).
    switches = trace.table("sched_switch")
    alive = switches["tid"] != -1
    assert switches["prev_pid"][alive].tolist() == switches["tid"][alive].tolist()
    assert {f["comm"].strip() for f in lines if int(f["tid"]) > 0} <= set(trace.meta.comms.values()) | {":-1"}
    assert trace.meta.clock == ("mono" if case == "another clock" else "local")


# perf.data, what the perf here does not write

MADE_WAYS = {"file": build.file, "pipe": build.pipe}
PARTS = (
    *(build.IP, build.TID, build.TIME, build.ADDR, build.READ, build.CALLCHAIN, build.ID, build.CPU, build.PERIOD),
    *(build.STREAM_ID, build.BRANCH_STACK, build.WEIGHT, build.DATA_SRC, build.IDENTIFIER),
)


def made(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Time, cpu, tid, pid and value of each event."""
    trace = Trace.read(PerfData(Input.from_bytes(data)))
    assert trace.meta.complete, trace.meta.damage
    assert trace.meta.malformed == 0
    table = trace.table("made")
    return list(zip(*(table[name].tolist() for name in ("time", "cpu", "tid", "pid", "value")), strict=True))


@pytest.mark.parametrize("way", MADE_WAYS)
@settings(max_examples=150, deadline=None)
@given(parts=st.sets(st.sampled_from(PARTS)), read_format=st.integers(0, 31))
def test_samples_of_any_parts(way: str, parts: set[int], read_format: int) -> None:
    attribute = build.Attribute(sum(parts) | build.RAW, read_format, (11, 12))
    samples = [build.Sample(10 * n, 1000 + n, cpu=n, id=11 + n % 2) for n in range(1, 4)]
    data = b"".join(build.sample(attribute, one) for one in samples)
    assert made(MADE_WAYS[way]([attribute], data)) == [
        (
            one.time if build.TIME in parts else 0,
            one.cpu if build.CPU in parts else -1,
            one.tid if build.TID in parts else -1,
            one.pid if build.TID in parts else -1,
            one.value,
        )
        for one in samples
    ]


@pytest.mark.parametrize("way", MADE_WAYS)
@pytest.mark.parametrize("number", [build.IDENTIFIER, build.ID])
def test_samples_laid_out_differently_are_told_apart_by_their_ids(way: str, number: int) -> None:
    common = number | build.TID | build.TIME
    short = build.Attribute(common | build.CPU | build.RAW, 0, (21,))
    long = build.Attribute(common | build.CPU | build.READ | build.CALLCHAIN | build.RAW, build.GROUP, (31, 32))
    other = build.Attribute(common, 0, (41,), type=build.SOFTWARE, config=0)
    data = b"".join(
        build.sample(attribute, build.Sample(n, n, id=ids))
        for n, (attribute, ids) in enumerate([(long, 32), (short, 21), (other, 41), (long, 31), (short, 21)], 1)
    )
    found = made(MADE_WAYS[way]([short, long, other], data))
    assert [(time, value) for time, *_, value in found] == [(1, 1), (2, 2), (4, 4), (5, 5)]


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136, 144])
@pytest.mark.parametrize("way", MADE_WAYS)
def test_attributes_of_every_perf(way: str, size: int) -> None:
    """PERF_ATTR_SIZE_VER0 to VER8, and one to come: 5.10 has 120 bytes, 6.1 has 128, 6.12 has 136."""
    attribute = build.Attribute(build.TID | build.TIME | build.RAW, size=size, ids=(1,))
    assert [row[4] for row in made(MADE_WAYS[way]([attribute], build.sample(attribute, build.Sample(1, 5))))] == [5]


@pytest.mark.parametrize("way", MADE_WAYS)
@pytest.mark.parametrize("kind", [build.COMPRESSED, build.COMPRESSED2])
@pytest.mark.parametrize("step", [1, 7, 64])
def test_compressed_records(kind: int, way: str, step: int) -> None:
    """Records that begin in one compressed piece and end in the next; COMPRESSED2 has them padded to 8 bytes."""
    attribute = build.Attribute(build.TID | build.TIME | build.RAW, ids=(1,))
    plain = b"".join(build.sample(attribute, build.Sample(n, n * n)) for n in range(1, 60))
    packed = zstandard.ZstdCompressor().compress(plain)
    data = b""
    for begin in range(0, len(packed), step):
        piece = packed[begin : begin + step]
        if kind == build.COMPRESSED2:
            piece = struct.pack("<Q", len(piece)) + piece + bytes(-len(piece) % 8)
        data += build.record(kind, piece)
    data += build.record(build.FINISHED_ROUND, b"")
    assert [row[4] for row in made(MADE_WAYS[way]([attribute], data))] == [n * n for n in range(1, 60)]


def test_cpus_whose_events_come_out_of_order_are_merged_at_the_ends_of_rounds() -> None:
    attribute = build.Attribute(build.TID | build.TIME | build.CPU | build.RAW, ids=(1,))

    def one_round(*times: int) -> bytes:
        samples = [build.sample(attribute, build.Sample(time, time, cpu=time % 4)) for time in times]
        return b"".join(samples) + build.record(build.FINISHED_ROUND, b"")

    data = one_round(30, 40, 10, 20) + one_round(70, 35, 50) + one_round(60, 80)
    trace = Trace.read(PerfData(Input.from_bytes(build.file([attribute], data))))
    assert trace.table("made")["time"].tolist() == [10, 20, 30, 35, 40, 50, 60, 70, 80]
    assert trace.meta.out_of_order == 0


# trace.dat and the text of tracefs, of one ring buffer


@dataclass(frozen=True)
class Recorded:
    """One stopped instance of tracefs, and the trace.dat that trace-cmd made of it."""

    instance: Path
    dat: Path
    trace: Trace


def tracefs_rows(text: bytes, path: Path) -> Rows:
    path.write_bytes(text)
    return rows(open_trace(path))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    instance = INSTANCES / f"wsw-test-{time.monotonic_ns()}"
    try:
        instance.mkdir()
    except OSError as error:
        pytest.skip(f"needs tracefs-instances: {error.strerror}")
    try:
        (instance / "options/record-tgid").write_text("1")
        for event in ("sched_switch", "sched_waking"):
            (instance / "events/sched" / event / "enable").write_text("1")
        subprocess.run(SWITCHES, check=True)
        (instance / "tracing_on").write_text("0")
        for event in ("sched_switch", "sched_waking"):
            (instance / "events/sched" / event / "enable").write_text("0")
        texts = dict(_texts(instance))
        dat = tmp_path_factory.mktemp("trace") / "trace.dat"
        command = ["trace-cmd", "extract", "-B", instance.name, "-o", str(dat)]
        subprocess.run(command, capture_output=True, check=True)
        folder = dat.parent
        for name, text in texts.items():
            (folder / f"{name}.txt").write_bytes(text)
        yield Recorded(instance, dat, open_trace(dat))
    finally:
        with suppress(OSError):
            instance.rmdir()


OPTIONS: dict[str, dict[str, str]] = {
    "flags": {},
    "process": {"record-tgid": "1"},
    "latency": {"latency-format": "1"},
}
"""How the ring buffer is printed -> the options of tracefs that do so, from those that are on at first."""


def _texts(instance: Path) -> Iterator[tuple[str, bytes]]:
    start = {"record-tgid": "0", "latency-format": "0"}
    for name, options in OPTIONS.items():
        for option, value in (start | options).items():
            (instance / "options" / option).write_text(value)
        yield name, (instance / "trace").read_bytes()


@pytest.mark.needs("trace-cmd")
def test_trace_dat_of_an_instance_with_several_cpus(recorded: Recorded) -> None:
    report = subprocess.run(["trace-cmd", "report", "-t", recorded.dat], capture_output=True, check=True).stdout
    pattern = rb"^(?:[\w-]+:)?\s*\S.*?-(\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{9}): (\w+):"
    lines = re.findall(pattern, report, re.MULTILINE)
    assert rows(recorded.trace) == [
        (event.decode(), int(s + ns), int(cpu), int(tid)) for tid, cpu, s, ns, event in lines
    ]
    assert len(lines) > 8
    assert recorded.trace.meta.complete
    assert any(recorded.instance.name in note for note in recorded.trace.meta.notes)


@pytest.mark.needs("trace-cmd")
@pytest.mark.parametrize("option", ["-t", "-l", "-R", "-N"])
def test_text_of_trace_cmd_report_says_what_its_file_says(option: str, recorded: Recorded, tmp_path: Path) -> None:
    report = subprocess.run(["trace-cmd", "report", option, recorded.dat], capture_output=True, check=True).stdout
    _agree(tracefs_rows(report, tmp_path / "report.txt"), recorded)


@pytest.mark.needs("trace-cmd")
@pytest.mark.parametrize("how", OPTIONS)
def test_text_of_tracefs_says_what_trace_dat_says(how: str, recorded: Recorded) -> None:
    trace = open_trace(recorded.dat.with_name(f"{how}.txt"))
    _agree(rows(trace), recorded)
    assert trace.meta.vm_identity == ("tgid" if "process" in how else "thread")


@pytest.mark.needs("trace-cmd")
@pytest.mark.parametrize("arguments", [("6",), ("7", "--compression", "none"), ("7", "--compression", "zstd")])
def test_what_trace_cmd_converts_reads_the_same(arguments: tuple[str, ...], recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "converted.dat"
    command = ["trace-cmd", "convert", "-i", recorded.dat, "-o", path, "--file-version", *arguments]
    subprocess.run(command, capture_output=True, check=True)
    trace = open_trace(path)
    assert trace.meta.format == f"trace.dat version {arguments[0]}"
    assert rows(trace) == rows(recorded.trace)


def _agree(ours: Rows, recorded: Recorded) -> None:
    """Texts have the events of the file, to the microsecond they print."""
    theirs = rows(recorded.trace)
    assert len(ours) == len(theirs)
    assert sorted((event, cpu, tid) for event, _, cpu, tid in ours) == sorted(
        (event, cpu, tid) for event, _, cpu, tid in theirs
    )
    apart = np.abs(np.array([row[1] for row in ours]) - np.array([row[1] for row in theirs]))
    assert int(apart.max()) <= 1000


# strace


@pytest.mark.needs("strace", "kvm")
@pytest.mark.parametrize(
    "options",
    [
        ("-T",),
        ("-tt", "-T", "-f"),
        ("-ttt", "-T"),
        ("-r", "-T"),
        ("-f", "-y", "-T"),
        ("-t",),
        ("-n", "-T"),
        ("-i", "-T"),
    ],
    ids=" ".join,
)
def test_strace_of_a_vm(options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "strace.txt"
    command = ["strace", "-o", str(path), "-e", "trace=ioctl", *options, sys.executable, str(THROWAWAY_VM), "5"]
    done = subprocess.run(command, capture_output=True, check=False)
    if b"ptrace" in done.stderr:
        pytest.skip("needs ptrace: strace may not trace here")
    calls = open_trace(path).table("ioctl")
    assert calls["request"].tolist().count("KVM_RUN") == 5
    assert calls["request"].tolist().count("KVM_CREATE_VM") == 1
    durations = calls["duration_ns"][calls["request"] == "KVM_RUN"]
    assert (durations > 0).all() if "-T" in options else (durations == -1).all()
