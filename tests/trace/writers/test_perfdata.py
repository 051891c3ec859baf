from __future__ import annotations

import io
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from traces import DATA, flat, perf_recording, text_of, traces
from worldswitch.errors import UsageError
from worldswitch.record.formats import parse_format
from worldswitch.record.trace import Batch, Meta, Trace
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.text import TextTrace
from worldswitch.trace.writers.perfdata import PerfOptions, write_perfdata
from worldswitch.trace.writers.tracedat import write_tracedat

WAYS = {
    "plain": PerfOptions(),
    "identifier": PerfOptions(identifier=True),
    "zstd": PerfOptions(level=3),
    "pipe": PerfOptions(pipe=True),
    "pipe-zstd": PerfOptions(pipe=True, identifier=True, level=1),
}
RECORDINGS = [
    "svm-5.10-npt/wp.perf.data.zst",
    "svm-6.1-npt/kvmstat.perf.data.zst",
    "svm-7.2-npt/wp.perf.data.zst",
    "vmx-5.10-ept/wp.perf.data",
    "vmx-6.1-ept/kvmstat.perf.data",
]
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
recordings = pytest.mark.parametrize("name", RECORDINGS)


def written(trace: Trace, options: PerfOptions | None = None) -> bytes:
    stream = io.BytesIO()
    result = write_perfdata(trace, stream, options)
    assert result.events == len(trace)
    assert not result.skipped
    return stream.getvalue()


def read(data: bytes) -> Trace:
    return Trace.read(PerfData(Input.from_bytes(data)))


def perf(*arguments: str, stdin: Path | None = None) -> str:
    with open(stdin or os.devnull, "rb") as given:  # noqa: PTH123
        done = subprocess.run(["perf", *arguments], stdin=given, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")


def stat_report(file: Path) -> str:
    done = subprocess.run(["perf", "kvm", "--host", "-i", file, "stat", "report"], capture_output=True, check=True)
    return (done.stdout + done.stderr).decode()


@ways
@settings(max_examples=50, deadline=None)
@given(trace=traces())
def test_our_reader_reads_any_trace_back(way: PerfOptions, trace: Trace) -> None:
    back = read(written(trace, way))
    assert flat(back) == flat(trace)
    assert back.meta.complete
    assert back.meta.kernel == trace.meta.kernel
    assert trace.meta.comms.items() <= back.meta.comms.items()


@pytest.mark.needs("perf")
@ways
@recordings
def test_perf_script_prints_what_it_prints_of_the_recording(
    name: str, way: PerfOptions, plain_recording, tmp_path: Path
) -> None:
    ours = tmp_path / "perf.data"
    ours.write_bytes(written(perf_recording(name), way))
    lines = perf("script", "-i", "-", stdin=ours) if way.pipe else perf("script", "-i", str(ours))
    assert lines == perf("script", "-i", str(plain_recording(name)))
    assert lines


@pytest.mark.needs("perf")
@pytest.mark.parametrize("way", [WAYS["plain"], WAYS["zstd"]], ids=["plain", "zstd"])
@pytest.mark.parametrize("name", ["svm-6.1-npt", "vmx-5.10-ept"])
def test_perf_kvm_stat_says_what_it_says_of_the_recording(
    name: str, way: PerfOptions, plain_recording, tmp_path: Path
) -> None:
    suffix = ".zst" if name.startswith("svm") else ""
    ours = tmp_path / "perf.data"
    ours.write_bytes(written(perf_recording(f"{name}/kvmstat.perf.data{suffix}"), way))
    theirs = plain_recording(f"{name}/kvmstat.perf.data{suffix}")
    report = stat_report(ours)
    assert report == stat_report(theirs)
    assert "Total Samples" in report


@pytest.mark.needs("perf")
def test_perf_reads_the_header(tmp_path: Path) -> None:
    trace = perf_recording("svm-7.2-npt/wp.perf.data.zst")
    trace.meta.host, trace.meta.command = "a-host", "perf record -e kvm:*"
    ours = tmp_path / "perf.data"
    ours.write_bytes(written(trace, WAYS["zstd"]))
    header = perf("report", "--header-only", "-i", str(ours))
    for line in (
        "hostname : a-host",
        "os release : 7.2.13+deb14-cloud-amd64",
        "arch : x86_64",
        "cmdline : perf record -e kvm:*",
        "compressed : Zstd, level = 3",
        "event : name = kvm:kvm_exit",
    ):
        assert line in header
    assert re.search(r"cpuid : AuthenticAMD", header)


@pytest.mark.needs("perf")
def test_perf_counts_lost_events_and_reads_several_cpus(tmp_path: Path) -> None:
    trace = many_cpus()
    trace.meta.lost = 7
    ours = tmp_path / "perf.data"
    ours.write_bytes(written(trace))
    dump = perf("report", "-D", "-i", str(ours))
    assert "lost:7" in dump
    lines = perf("script", "--ns", "-F", "cpu,time,event", "-i", str(ours)).splitlines()
    assert [int(line[1:4]) for line in lines] == [0, 1, 2, 3] * 25
    assert read(ours.read_bytes()).meta.lost == 7


def many_cpus() -> Trace:
    form = parse_format(text_of("kvm_cr", 77, [("rw", "u4", 4)]), "kvm")
    n = np.arange(100)
    tid = np.full(100, 5, np.int32)
    cpu = (n % 4).astype(np.int32)
    batch = Batch(("kvm_cr",), np.zeros(100, np.uint16), n * 1000 + 10**9, cpu, tid, tid, ({"rw": n.astype("u4")},))
    return Trace([batch], Meta(), {"kvm_cr": form})


def test_threads_whose_process_is_unknown_stay_unknown() -> None:
    trace = many_cpus()
    for batch in trace.batches():
        batch.pid[:] = -1
    assert flat(read(written(trace))) == flat(trace)


def test_a_record_too_large_for_the_kernel_is_skipped_and_counted() -> None:
    form = parse_format(text_of("huge", 78, [("data", "bytes", 5000)]), "kvm")
    zeros = np.zeros(2, np.int32)
    table = {"data": np.zeros((2, 5000), np.uint8)}
    batch = Batch(("huge",), np.zeros(2, np.uint16), np.arange(2), zeros, zeros, zeros, (table,))
    result = write_perfdata(Trace([batch], Meta(), {"huge": form}), io.BytesIO())
    assert result.events == 0
    assert result.skipped == {"huge": 2}


def test_rows_of_a_table_are_no_events() -> None:
    zeros = np.zeros(2, np.int32)
    table = {"mean_ns": np.array([1.5, float("nan")])}
    trace = Trace([Batch(("perf_kvm_stat",), np.zeros(2, np.uint16), np.zeros(2, int), zeros, zeros, zeros, (table,))])
    assert write_perfdata(trace, io.BytesIO()).skipped == {"perf_kvm_stat": 2}
    assert write_tracedat(trace, io.BytesIO()).skipped == {"perf_kvm_stat": 2}


def test_a_long_text_is_cut_not_overflowing() -> None:
    form = parse_format(text_of("kvm_x", 79, [("name", "dynamic", 4)]), "kvm")
    zeros = np.zeros(1, np.int32)
    table = {"name": np.array(["x" * 100_000], object)}
    trace = Trace([Batch(("kvm_x",), np.zeros(1, np.uint16), np.ones(1, int), zeros, zeros, zeros, (table,))])
    trace.formats["kvm_x"] = form
    (event,) = flat(read(written(trace)))
    assert set(event[5]["name"]) == {"x"}


def test_a_file_needs_an_output_that_seeks() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(UsageError, match="pipe form"):
        write_perfdata(Trace(), Pipe())


@pytest.mark.needs("perf")
@pytest.mark.parametrize("name", ["vmx-5.10-ept", "vmx-7.2-ept", "vmx-6.1-shadow"])
def test_perf_prints_events_that_came_as_text(name: str, tmp_path: Path) -> None:
    original = (DATA / name / "trace.txt").read_bytes()
    ours = tmp_path / "perf.data"
    ours.write_bytes(written(Trace.read(TextTrace(Input.from_bytes(original)))))
    lines = perf("script", "-F", "comm,tid,cpu,time,event,trace", "-i", str(ours)).splitlines()
    theirs = [re.match(r"\s*(\S+)\s+(\d+) \[(\d+)\] +(\S+): +kvm\w*:(\w+): *(.*)", line).groups() for line in lines]  # type: ignore[union-attr]
    wanted = re.findall(r"^ *(\S+)-(\d+) +\[(\d+)\].*? +(\d+\.\d+): (\w+): *(.*)$", original.decode(), re.M)
    assert [tuple(map(str.strip, row)) for row in theirs] == [tuple(map(str.strip, row)) for row in wanted]
    assert len(wanted) > 20
