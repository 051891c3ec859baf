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

import perfdata_build as build
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
    # A thread may be renamed while it is recorded; these are not.
    assert "sleep" in trace.meta.comms.values()
    assert trace.meta.clock == ("mono" if case == "another clock" else "local")


SCRIPT = {
    "as it is": ([], False),
    "nanoseconds": (["--ns"], True),
    "processes": (["-F", "comm,pid,tid,cpu,time,event,trace", "--ns"], True),
    "periods": (["-F", "comm,tid,cpu,time,period,event,trace", "--ns"], True),
    "call chains": (["-F", "comm,tid,cpu,time,event,trace,ip,sym", "--ns"], True),
}


@pytest.mark.needs("perf")
@pytest.mark.usefixtures("sched_events")
@pytest.mark.parametrize("how", SCRIPT)
def test_text_of_perf_script_says_what_its_file_says(how: str, tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    options, is_exact = SCRIPT[how]
    chains = ["-g"] if how == "call chains" else []
    command = ["perf", "record", "-q", "-a", *chains, "-e", SCHED, "-o", str(path), "--", *SWITCHES]
    subprocess.run(command, capture_output=True, check=True)
    (tmp_path / "script.txt").write_text(perf("script", "-i", path, *options))
    printed, recorded = open_trace(tmp_path / "script.txt"), open_trace(path)
    assert len(printed) > 8
    assert printed.meta.skipped_lines == 0
    assert printed.meta.vm_identity == ("tgid" if how == "processes" else "thread")
    unit = 1 if is_exact else 1000
    assert rows(printed) == [(event, ns // unit * unit, cpu, tid) for event, ns, cpu, tid in rows(recorded)]


# perf.data of other perfs


def file_of(attribute: bytes, ids: list[int], data: bytes) -> bytes:
    """A perf.data in file mode of one attribute, its event formats the only feature section."""
    numbers = struct.pack(f"<{len(ids)}Q", *ids)
    attrs_at = 104 + len(numbers)
    data_at = attrs_at + len(attribute) + 16
    formats = build.tracing_data(build.EXIT_TEXT)
    sizes = (attrs_at, len(attribute) + 16, data_at, len(data), 0, 0)
    head = struct.pack("<8s8Q4Q", b"PERFILE2", 104, len(attribute) + 16, *sizes, 1 << 1, 0, 0, 0)
    section = struct.pack("<QQ", data_at + len(data) + 16, len(formats))
    return head + numbers + attribute + struct.pack("<QQ", 104, len(numbers)) + data + section + formats


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136, 144])
@pytest.mark.parametrize("mode", ["file", "pipe"])
def test_attributes_of_every_perf(mode: str, size: int) -> None:
    """PERF_ATTR_SIZE_VER0 to VER8, and one to come: 5.10 has 120 bytes, 6.1 has 128, 6.12 has 136."""
    kind = build.IDENTIFIER | build.USUAL
    attribute = bytearray(build.attr(kind).ljust(size, b"\0"))
    struct.pack_into("<I", attribute, 4, size)
    data = build.sample(build.exit_raw(12), kind, time=5, cpu=3, tid=7, pid=6, number=11)
    if mode == "file":
        whole = file_of(bytes(attribute), [10, 11], data)
    else:
        announced = build.record(64, bytes(attribute) + struct.pack("<QQ", 10, 11))
        whole = build.pipe(announced, build.formats_record(build.EXIT_TEXT), data)
    trace = Trace.read(PerfData(Input.from_bytes(whole)))
    assert trace.meta.complete, trace.meta.damage
    table = trace.table("kvm_exit")
    assert [table[name].tolist() for name in ("time", "cpu", "tid", "pid", "exit_reason")] == [[5], [3], [7], [6], [12]]


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
