"""Many traces: one worker against two, the engine against a plain loop, and a worker's memory over the run.

    .venv/bin/python benchmarks/many_traces.py --traces 10000 --pairs 7

Small traces are pieces of the recordings that the tests use, by our own writer. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # before benchmarks, which hold no package of that name

from fleet.small_traces import EVENTS, write_many  # noqa: E402
from worldswitch.fleet.cluster import Wanted, cluster  # noqa: E402
from worldswitch.fleet.engine import Here, Plan, place_of, run  # noqa: E402
from worldswitch.fleet.folder import Folder  # noqa: E402
from worldswitch.fleet.pieces import Piece, digest  # noqa: E402
from worldswitch.report.tables import table  # noqa: E402
from worldswitch.units import format_size  # noqa: E402

WSW = str(Path(sys.executable).with_name("wsw"))
CACHE = ROOT / "build" / "bench" / "fleet"
PIECE_S = 0.2
OVERHEAD_PIECES = 60


def traces(count: int) -> Path:
    """A folder of *count* small traces; written once."""
    folder = CACHE / f"{count}"
    if not folder.exists():
        draft = folder.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        write_many(draft, count)
        draft.rename(folder)
    return folder


def timed(folder: Path, workers: int) -> float:
    """Seconds of the whole command."""
    with tempfile.TemporaryDirectory() as output:
        begin = time.perf_counter()
        command = [WSW, "fleet", "analyze", ".", "-o", output, "--workers", str(workers), "--json"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin


def scaling(count: int, pairs: int) -> dict[str, object]:
    """One worker and two in turns, the first of a pair swapped each time."""
    folder = traces(count)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(pairs):
        for workers in (1, 2) if number % 2 else (2, 1):
            seconds[workers].append(timed(folder, workers))
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {
        "traces": count, "events_each": EVENTS, "pairs": pairs, "one_s": statistics.median(seconds[1]),
        "two_s": statistics.median(seconds[2]), "ratio": statistics.median(ratios), "ratios": sorted(ratios),
    }  # fmt: skip


class Waits:
    """Work of one length, which is all wait, so that what is left is the engine's."""

    def rows(self, items: Sequence[int]) -> list[dict[str, object]]:
        """Nothing, after the time a piece takes."""
        time.sleep(PIECE_S)
        return []

    def lost(self, item: int, why: str) -> dict[str, object]:
        """Never."""
        raise AssertionError(item, why)

    def pack(self, rows: Iterable[dict[str, object]]) -> bytes:
        """As large as the file of a piece of 30 traces."""
        return bytes(30_000)


@contextmanager
def run_folder() -> Iterator[Folder]:
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place)
        with folder.held():
            yield folder


def overhead(rounds: int) -> dict[str, object]:
    """What the engine adds to pieces of 200 ms, in this process and by Dask with one worker."""
    pieces = [Piece(digest(number), (number,)) for number in range(OVERHEAD_PIECES)]
    plan = Plan("bench", {}, [(place_of(piece), piece) for piece in pieces])
    plain, here, dask = [], [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        for piece in pieces:
            Waits().rows(piece.items)
        plain.append(time.perf_counter() - begin)
        with run_folder() as folder:
            begin = time.perf_counter()
            run(plan, Waits(), folder, Here(), lambda _: None)
            here.append(time.perf_counter() - begin)
        with cluster(Wanted(workers=1)) as pool, run_folder() as folder:
            begin = time.perf_counter()
            run(plan, Waits(), folder, pool, lambda _: None)
            dask.append(time.perf_counter() - begin)
    base = statistics.median(plain)
    return {
        "pieces": OVERHEAD_PIECES, "piece_s": PIECE_S, "plain_s": base,
        "here": statistics.median(here) / base - 1, "dask": statistics.median(dask) / base - 1,
    }  # fmt: skip


def memory(count: int) -> dict[str, object]:
    """Peak memory of a process that reads all, against one that reads a tenth."""
    folder = traces(count)
    peaks = []
    for part in sorted(one.name for one in folder.iterdir())[:1], ["."]:
        with tempfile.TemporaryDirectory() as output:
            process = subprocess.Popen(
                [WSW, "fleet", "analyze", *part, "-o", output, "--workers", "0", "--json"],
                cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            peaks.append(_peak(process))
    return {"fifth_bytes": peaks[0], "all_bytes": peaks[1]}


def _peak(process: subprocess.Popen[bytes]) -> int:
    import os

    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"ended with status {process.returncode}")
    return usage.ru_maxrss * 1024


def report(count: int, pairs: int) -> dict[str, object]:
    """All of it."""
    return {"scaling": scaling(count, pairs), "overhead": overhead(3), "memory": memory(count)}


def show(found: dict[str, object]) -> str:
    """As a table."""
    scale, over, peak = found["scaling"], found["overhead"], found["memory"]
    assert isinstance(scale, dict)
    assert isinstance(over, dict)
    assert isinstance(peak, dict)
    each = scale["one_s"] / scale["traces"]
    rows = [
        (f"{scale['traces']:,} traces, one worker", f"{scale['one_s']:.1f} s", f"{each * 1e3:.1f} ms a trace"),
        ("the same, two workers", f"{scale['two_s']:.1f} s", f"{scale['ratio']:.2f} times as fast"),
        (f"engine, pieces of {PIECE_S * 1e3:.0f} ms, this process", f"{over['here']:+.1%}", "of a plain loop"),
        ("the same, Dask with one worker", f"{over['dask']:+.1%}", "of a plain loop"),
        ("peak memory, a fifth of the traces", format_size(peak["fifth_bytes"]), ""),
        ("peak memory, all of them", format_size(peak["all_bytes"]), ""),
    ]
    return table(("what", "figure", ""), rows, "Many traces", left=("what", ""))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = report(options.traces, options.pairs)
    print(json.dumps(found, indent=1) if options.json else show(found))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
