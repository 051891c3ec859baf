from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from traces import flat, perf_recording, text_of, trace_dat_recording, traces
from worldswitch.errors import UsageError
from worldswitch.record.formats import parse_format
from worldswitch.record.trace import Batch, Meta, Trace
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat import TraceDat
from worldswitch.trace.writers.tracedat import TraceDatOptions, write_tracedat

WAYS = {
    "6": TraceDatOptions(6),
    "7": TraceDatOptions(7),
    "7-zlib": TraceDatOptions(7, "zlib"),
    "7-zstd": TraceDatOptions(7, "zstd"),
    "6-absolute": TraceDatOptions(6, absolute=True),
    "7-absolute": TraceDatOptions(7, "zstd", absolute=True),
    "6-instances": TraceDatOptions(6, instances={"kvm_exit": "exits", "kvm_entry": "entries"}),
    "7-instances": TraceDatOptions(7, "zstd", instances={"kvm_exit": "exits", "kvm_entry": "entries"}),
}
RECORDINGS = [
    "svm-5.10-shadow/wp.trace.dat",
    "svm-7.2-npt/wp.trace.dat",
    "vmx-5.10-ept/smep.trace.dat",
    "vmx-6.1-ept/wp.trace.dat",
]
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def written(trace: Trace, options: TraceDatOptions | None = None) -> bytes:
    stream = io.BytesIO()
    result = write_tracedat(trace, stream, options)
    assert result.events == len(trace)
    return stream.getvalue()


def read(data: bytes) -> Trace:
    return Trace.read(TraceDat(Input.from_bytes(data)))


def report(data: bytes, file: Path, *options: str) -> list[str]:
    file.write_bytes(data)
    done = subprocess.run(["trace-cmd", "report", *options, "-i", file], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace").splitlines()


def by_cpu(trace: Trace) -> list[list[object]]:
    """Of equal times on different CPUs or buffers no order is kept, so compare per CPU and event."""
    events = flat(trace)
    keys = sorted({(event[2], event[0]) for event in events})
    return [[event for event in events if (event[2], event[0]) == key] for key in keys]


@ways
@settings(max_examples=50, deadline=None)
@given(trace=traces(processes=False))
def test_our_reader_reads_any_trace_back(way: TraceDatOptions, trace: Trace) -> None:
    back = read(written(trace, way))
    assert by_cpu(back) == by_cpu(trace)
    assert back.meta.complete
    assert back.meta.comms == trace.meta.comms


@settings(max_examples=25, deadline=None)
@given(trace=traces(processes=False, most_gap=1 << 61))
def test_gaps_that_no_delta_can_say_come_back(trace: Trace) -> None:
    ordered = [batch for batch in trace.batches() if (np.diff(batch.time) >= 0).all() and batch.time[-1] < 2**62]
    once = Trace(ordered[:1], trace.meta, trace.formats)
    assert by_cpu(read(written(once))) == by_cpu(once)


@pytest.mark.needs("trace-cmd")
@pytest.mark.parametrize("way", ["6", "7", "7-zstd", "6-absolute", "7-absolute"])
@pytest.mark.parametrize("name", RECORDINGS)
def test_trace_cmd_reports_what_it_reports_of_the_recording(name: str, way: str, tmp_path: Path) -> None:
    recording = Path(__file__).parents[2] / "data" / name
    lines = report(written(trace_dat_recording(name), WAYS[way]), tmp_path / "trace.dat")
    assert lines == report(recording.read_bytes(), tmp_path / "original.dat")
    assert len(lines) > 50


@pytest.mark.needs("trace-cmd")
@pytest.mark.parametrize("way", ["6-instances", "7-instances"])
def test_trace_cmd_finds_buffer_instances(way: str, tmp_path: Path) -> None:
    trace = trace_dat_recording("vmx-5.10-ept/wp.trace.dat")
    lines = report(written(trace, WAYS[way]), tmp_path / "trace.dat")
    exits = [line for line in lines if line.lstrip().startswith("exits:")]
    assert all(" kvm_exit: " in line for line in exits)
    assert len(exits) == len(trace.table("kvm_exit")["time"])


@pytest.mark.needs("trace-cmd", "perf")
def test_trace_cmd_sees_the_times_and_events_of_a_perf_data(plain_recording, tmp_path: Path) -> None:
    name = "svm-6.1-npt/wp.perf.data.zst"
    lines = report(written(perf_recording(name)), tmp_path / "trace.dat", "-t")[1:]
    ours = [re.search(r"\[(\d+)\]\s+(\d+\.\d+): (\w+):", line).groups() for line in lines]  # type: ignore[union-attr]
    script = subprocess.run(
        ["perf", "script", "--ns", "-F", "cpu,time,event", "-i", plain_recording(name)],
        capture_output=True,
        check=True,
    )
    theirs = re.findall(r"\[(\d+)\]\s+(\d+\.\d+):\s+kvm:(\w+):", script.stdout.decode())
    assert ours == theirs
    assert len(ours) > 6000


@pytest.mark.needs("trace-cmd")
def test_trace_cmd_reads_several_cpus_and_lost_events(tmp_path: Path) -> None:
    form = parse_format(text_of("kvm_cr", 77, [("rw", "u4", 4)]), "kvm")
    n = np.arange(4000)
    tid = np.full(len(n), 5, np.int32)
    order, cpu = np.zeros(len(n), np.uint16), (n % 3).astype(np.int32)
    batch = Batch(("kvm_cr",), order, n * 1000 + 10**9, cpu, tid, tid - 6, ({"rw": n.astype("u4")},))

    class Losing(Trace):
        def batches(self, selection=None):  # type: ignore[no-untyped-def]
            first, second = batch.cut(3000)
            yield first
            self.meta.lost = 12
            yield second

    data = written(Losing([batch], Meta(), {"kvm_cr": form}))
    lines = report(data, tmp_path / "trace.dat", "-t")
    assert lines[0] == "cpus=3"
    assert [line for line in lines if "EVENTS DROPPED" in line] == ["CPU:0 [12 EVENTS DROPPED]"]
    assert [int(found[1]) for line in lines if (found := re.search(r"\[(\d+)\] +\d", line))] == cpu.tolist()
    assert read(data).meta.lost == 12


def test_a_perf_data_s_processes_are_said_to_be_lost() -> None:
    result = write_tracedat(perf_recording("svm-6.1-npt/wp.perf.data.zst"), io.BytesIO())
    assert any("threads, not processes" in note for note in result.notes)


def test_a_cpu_number_that_cannot_be_is_refused() -> None:
    big = np.array([1 << 30], np.int32)
    trace = Trace([Batch(("x",), np.zeros(1, np.uint16), np.ones(1, int), big, big, big, ({},))])
    trace.formats["x"] = parse_format(text_of("x", 5, []), "kvm")
    with pytest.raises(UsageError, match="CPU number 1073741824"):
        write_tracedat(trace, io.BytesIO())


@pytest.mark.parametrize(("version", "compression"), [(5, "none"), (7, "lz4"), (6, "zstd")])
def test_what_the_format_cannot_is_refused(version: int, compression: str) -> None:
    with pytest.raises(UsageError, match=r"trace\.dat"):
        TraceDatOptions(version, compression)
