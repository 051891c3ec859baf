"""The longer recordings that the benchmarks make, on a small scale."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType

import pytest

from traces import DATA, flat, perf_recording, trace_dat_recording
from worldswitch.record.trace import Trace
from worldswitch.trace.writers.perfdata import write_perfdata
from worldswitch.trace.writers.tracedat import write_tracedat

TIMES = 3


@pytest.fixture(scope="module")
def make_tenfold() -> ModuleType:
    path = DATA.parents[1] / "benchmarks" / "make_tenfold.py"
    spec = importlib.util.spec_from_file_location("make_tenfold", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_tenfold"] = module
    spec.loader.exec_module(module)
    return module


def test_runs_follow_one_another_with_threads_of_their_own(make_tenfold: ModuleType) -> None:
    trace = perf_recording("vmx-5.10-ept/kvmstat.perf.data")
    events = flat(Trace.read(make_tenfold.Repeated(trace, TIMES)))
    assert len(events) == TIMES * len(trace)
    times = [event[1] for event in events]
    assert times == sorted(times)
    assert len({event[3] for event in events}) == TIMES * len({event[3] for event in flat(trace)})
    assert [event[5] for event in events] == [event[5] for event in flat(trace)] * TIMES


@pytest.mark.needs("perf")
def test_perf_counts_a_multiple(make_tenfold: ModuleType, plain_recording, tmp_path: Path) -> None:
    name = "svm-6.1-npt/kvmstat.perf.data.zst"
    longer = tmp_path / "longer.data"
    with longer.open("wb") as stream:
        write_perfdata(make_tenfold.Repeated(perf_recording(name), TIMES), stream)
    once = make_tenfold.stat_counts(plain_recording(name))
    assert make_tenfold.stat_counts(longer) == {reason: TIMES * count for reason, count in once.items()}
    assert sum(once.values()) > 2000


@pytest.mark.needs("trace-cmd")
def test_trace_cmd_counts_a_multiple(make_tenfold: ModuleType, tmp_path: Path) -> None:
    name = "vmx-5.10-ept/wp.trace.dat"
    stream = io.BytesIO()
    write_tracedat(make_tenfold.Repeated(trace_dat_recording(name), TIMES), stream)
    (tmp_path / "longer.dat").write_bytes(stream.getvalue())
    once = make_tenfold.report_counts(DATA / name)
    assert make_tenfold.report_counts(tmp_path / "longer.dat") == {e: TIMES * n for e, n in once.items()}
    assert once["kvm_exit"] == 309
