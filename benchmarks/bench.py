"""Whole commands against the tools people use today, in turns on the same files: `make bench`.

Every figure is of a whole process, start-up included: wall time and peak memory, the median of several runs; ratios are
taken run by run, so that they hold when the machine's speed drifts. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import harness
import make_tenfold
import many_traces
import model
import page
import top

from worldswitch.report.tables import table
from worldswitch.units import format_ns, format_size

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "bench"
FILES = ("perf.data", "trace.dat")
HUGE = 64
"""How many times longer than the recording the file of over 4 GiB is."""
WSW = str(Path(sys.executable).with_name("wsw"))


@dataclass(frozen=True)
class Run:
    """One finished process."""

    seconds: float
    peak_bytes: int


def run(command: list[str], stdin: Path | None = None) -> Run:
    """Run *command*, its output thrown away.

    Raises:
        RuntimeError: It failed.
    """
    with (stdin or Path(os.devnull)).open("rb") as source:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return Run(seconds, usage.ru_maxrss * 1024)


@dataclass(frozen=True)
class Comparison:
    """One command of ours, and the peer it is measured against."""

    name: str
    ours: list[str]
    peer: list[str] | None = None
    peer_name: str = ""
    events: int | None = None


def measure(comparison: Comparison, rounds: int) -> dict[str, object]:
    """Both commands in turn, *rounds* times after one warm-up."""
    ours, peers = [], []
    for number in range(rounds + 1):
        mine = run(comparison.ours)
        other = run(comparison.peer) if comparison.peer else None
        if number:
            ours.append(mine)
            if other:
                peers.append(other)
    seconds = statistics.median(r.seconds for r in ours)
    row: dict[str, object] = {
        "what": comparison.name,
        "seconds": seconds,
        "peak_bytes": max(r.peak_bytes for r in ours),
        "events_per_second": comparison.events / seconds if comparison.events else None,
    }
    if peers:
        row["peer"] = comparison.peer_name
        row["peer_seconds"] = statistics.median(r.seconds for r in peers)
        row["ratio"] = statistics.median(p.seconds / o.seconds for o, p in zip(ours, peers, strict=True))
    return row


def comparisons(have: dict[str, bool], quick: bool) -> list[Comparison]:
    """What is measured, as far as the peers are installed."""
    rows = [Comparison("wsw --help", [WSW, "--help"])]
    for times in (1,) if quick else (1, 10):
        size = "300k exits" if times == 1 else "3 M exits"
        perf, dat = (make_tenfold.tenfold(name, times) if times > 1 else make_tenfold.once(name) for name in FILES)
        analyze = [WSW, "analyze", "--json"]
        if have["perf"]:
            peers = {
                "perf kvm stat report": ["perf", "kvm", "--host", "-i", str(perf), "stat", "report"],
                "perf script": ["perf", "script", "-i", str(perf)],
            }
            for name, peer in peers.items():
                rows.append(Comparison(f"perf.data, {size}", [*analyze, str(perf)], peer, name, 606202 * times))
        if have["trace-cmd"]:
            report = ["trace-cmd", "report", str(dat)]
            rows.append(
                Comparison(f"trace.dat, {size}", [*analyze, str(dat)], report, "trace-cmd report", 904806 * times)
            )
            rows.append(Comparison(f"text, {size}", [*analyze, str(_text(dat, times))], events=904806 * times))
        rows.append(Comparison(f"what-if, {size}", [WSW, "whatif", str(perf), "--to", "7.2"]))
    if not quick:
        huge = make_tenfold.tenfold("perf.data", HUGE)
        stat = ["perf", "kvm", "--host", "-i", str(huge), "stat", "report"] if have["perf"] else None
        analyze = [WSW, "analyze", "--json", str(huge)]
        rows.append(Comparison("perf.data, 4 GiB", analyze, stat, "perf kvm stat report", 606202 * HUGE))
    return rows


def _text(dat: Path, times: int) -> Path:
    target = CACHE / f"{times}.trace-cmd.txt"
    if not target.exists():
        with target.open("wb") as out:
            subprocess.run(["trace-cmd", "report", str(dat)], stdout=out, stderr=subprocess.DEVNULL, check=True)
    return target


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the small files only")
    options = parser.parse_args()
    have = {name: shutil.which(name) is not None for name in ("perf", "trace-cmd")}
    for name, there in have.items():
        if not there:
            print(f"skipped: comparisons with {name}, which is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    if not options.quick and shutil.disk_usage(CACHE).free < 6 << 30:
        print("skipped: the large files, for which less than 6 GiB are free here")
        options.quick = True
    results = []
    for comparison in comparisons(have, options.quick):
        results.append(measure(comparison, options.rounds))
        print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    (CACHE / "results.json").write_text(json.dumps(results, indent=1))
    rows = []
    for row in results:
        rate = row["events_per_second"]
        rows.append(
            (
                row["what"],
                format_ns(float(str(row["seconds"])) * 1e9),
                f"{float(str(rate)) / 1e6:.1f} M/s" if rate else None,
                format_size(float(str(row["peak_bytes"]))),
                row.get("peer"),
                format_ns(float(str(row["peer_seconds"])) * 1e9) if "peer" in row else None,
                f"{row['ratio']:.1f} x" if "ratio" in row else None,
            )
        )
    columns = ("what", "time", "events", "memory", "against", "its time", "faster")
    print(table(columns, rows, "Whole processes, medians", left=("what", "against")))
    page.main(1 if options.quick else 10)
    harness.main()
    model.main()
    top.main()
    print(many_traces.show(many_traces.report(400 if options.quick else 10_000, 1 if options.quick else 7)))


if __name__ == "__main__":
    main()
