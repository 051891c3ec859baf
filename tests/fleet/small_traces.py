"""Small traces for tests of many: pieces of recordings, each of a host of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from worldswitch.record.trace import Trace
from worldswitch.trace.readers import open_source
from worldswitch.trace.writers.perfdata import write_perfdata

DATA = Path(__file__).parents[1] / "data"
RECORDED = ("svm-5.10-npt", "svm-6.1-npt", "svm-7.2-npt", "vmx-5.10-ept", "vmx-6.1-ept")
EVENTS = 120
"""Of one trace."""


@cache
def recorded(name: str) -> Trace:
    found = next(one for pattern in ("wp.perf.data*", "*.dat") for one in sorted((DATA / name).glob(pattern)))
    return Trace.read(open_source(found))


def write_many(folder: Path, count: int) -> list[Path]:
    """*count* traces in folders of their kernels, ``KERNEL/hostN.perf.data``."""
    paths = []
    for number in range(count):
        name = RECORDED[number % len(RECORDED)]
        trace = recorded(name)
        batch = next(trace.batches())
        begin = number * 37 % max(1, len(batch) - EVENTS)
        _, rest = batch.cut(begin)
        some, _ = rest.cut(min(EVENTS, len(rest)))
        path = folder / name / f"host{number}.perf.data"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            write_perfdata(Trace([some], replace(trace.meta, events={}), trace.formats), out)
        paths.append(path)
    return paths
