"""Make a recording N times longer: N runs of it one after another, each by threads and processes of its own.

The files are made once, in ``build/bench/``, with this project's writers; ``check`` holds them against the
tools that define the formats. Run as a program it makes and checks both.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from worldswitch.record.trace import Batch, EventSource, Selection, Trace
from worldswitch.trace.readers.perfdata import PerfData
from worldswitch.trace.readers.source import Input
from worldswitch.trace.readers.tracedat import TraceDat
from worldswitch.trace.writers.perfdata import write_perfdata
from worldswitch.trace.writers.tracedat import TraceDatOptions, write_tracedat

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "svm-6.12-npt-300k"
CACHE = ROOT / "build" / "bench"
PAUSE_NS = 10_000_000
"""Between two runs."""


class Repeated:
    """A trace, *times* times, each run with later times and other threads; an :class:`EventSource`."""

    def __init__(self, trace: Trace, times: int) -> None:
        self._batches = list(trace.batches())
        self._times = times
        self._period = int(self._batches[-1].time[-1] - self._batches[0].time[0]) + PAUSE_NS
        highest = max(int(max(b.tid.max(), b.pid.max())) for b in self._batches)
        self._stride = 10 ** len(str(max(highest, *trace.meta.comms, 1)))
        self.formats = trace.formats
        self.meta = replace(trace.meta)
        self.meta.events = {name: count * times for name, count in trace.meta.events.items()}
        self.meta.lost *= times
        self.meta.last_ns = int(self._batches[-1].time[-1]) + self._period * (times - 1)
        self.meta.comms = {
            self._moved_id(tid, run): comm for run in range(times) for tid, comm in trace.meta.comms.items()
        }

    def _moved_id(self, tid: int, run: int) -> int:
        return tid + run * self._stride if tid > 0 else tid

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """All events of all runs (*selection* is for readers that decode)."""
        for run in range(self._times):
            for batch in self._batches:
                more = np.int32(run * self._stride)
                tid = np.where(batch.tid > 0, batch.tid + more, batch.tid)
                pid = np.where(batch.pid > 0, batch.pid + more, batch.pid)
                yield replace(batch, time=batch.time + run * self._period, tid=tid, pid=pid)


def tenfold(name: str = "perf.data", times: int = 10) -> Path:
    """The file *name* (``perf.data`` or ``trace.dat``) of the recording made *times* times longer."""
    target = CACHE / f"svm-6.12-npt-300k-x{times}.{name}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        source = _MAKERS[name][0]
        longer = Repeated(Trace.read(source()), times)
        part = target.with_suffix(".part")
        with part.open("wb") as stream:
            _MAKERS[name][1](longer, stream)
        part.rename(target)
    return target


def once(name: str = "perf.data") -> Path:
    """The recording itself, decompressed."""
    if name == "trace.dat":
        return DATA / "wp.trace.dat"
    target = CACHE / "svm-6.12-npt-300k.perf.data"
    if not target.exists():
        import zstandard

        CACHE.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        with (DATA / "kvmstat.perf.data.zst").open("rb") as packed, part.open("wb") as plain:
            zstandard.ZstdDecompressor().copy_stream(packed, plain)
        part.rename(target)
    return target


def stat_counts(path: Path) -> dict[str, int]:
    """Exit name -> count, as ``perf kvm stat report`` says."""
    done = subprocess.run(
        ["perf", "kvm", "--host", "-i", str(path), "stat", "report"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = re.findall(r"^\s*(\S+)\s+(\d+)\s+\d+\.\d+%", done.stdout + done.stderr, re.MULTILINE)
    return {name: int(count) for name, count in rows}


def report_counts(path: Path) -> dict[str, int]:
    """Event name -> count, as ``trace-cmd report`` prints them."""
    counts: Counter[str] = Counter()
    with subprocess.Popen(["trace-cmd", "report", "-i", str(path)], stdout=subprocess.PIPE, text=True) as report:
        assert report.stdout is not None
        for line in report.stdout:
            if found := re.match(r".*?\[\d+\]\s+\d+\.\d+: (\w+):", line):
                counts[found[1]] += 1
    return dict(counts)


def _perf_source() -> EventSource:
    return PerfData(Input.open(DATA / "kvmstat.perf.data.zst"))


def _write_perf(source: EventSource, stream: BinaryIO) -> None:
    write_perfdata(source, stream)


def _trace_dat_source() -> EventSource:
    return TraceDat(Input.open(DATA / "wp.trace.dat"))


def _write_trace_dat(source: EventSource, stream: BinaryIO) -> None:
    write_tracedat(source, stream, TraceDatOptions(compression="zstd"))


_MAKERS = {"perf.data": (_perf_source, _write_perf), "trace.dat": (_trace_dat_source, _write_trace_dat)}


def check(times: int = 10) -> None:
    """Raises AssertionError unless perf and trace-cmd count *times* as much in the longer files."""
    short, long = stat_counts(once()), stat_counts(tenfold(times=times))
    assert short
    assert long == {name: count * times for name, count in short.items()}, (short, long)
    short_events, long_events = report_counts(once("trace.dat")), report_counts(tenfold("trace.dat", times))
    assert short_events
    assert long_events == {name: count * times for name, count in short_events.items()}


if __name__ == "__main__":
    check(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
