"""Reports: how long one of six million events takes to make, its size, and how fast a browser shows and zooms it.

Nothing here passes or fails. Without playwright and chromium the browser's part is skipped by name.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import make_tenfold

from worldswitch.report.tables import table
from worldswitch.units import format_ns, format_size

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "bench"
WSW = str(Path(sys.executable).with_name("wsw"))
ROUNDS = 5
ZOOM = """async () => {
  const area = document.querySelector('.lanes'), taken = [];
  for (let i = 0; i < 20; i++) {
    const begin = performance.now();
    area.dispatchEvent(new KeyboardEvent('keydown', { key: i % 4 < 2 ? '+' : '-', bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    taken.push(performance.now() - begin);
  }
  return taken;
}"""
"""Zooms in and out; gives milliseconds from a key to the next frame, each time."""


def make(source: Path, target: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the whole process that writes the page."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([WSW, "report", str(source), "-o", str(target)], check=True, capture_output=True)
    wall, after = time.perf_counter() - begin, os.times()
    return wall, sum(after[2:4]) - sum(before[2:4])


def browse(page: Path, chromium: str) -> tuple[list[float], list[float]]:
    """First contentful paint of each opening, and the time of each zoom; milliseconds."""
    from playwright.sync_api import sync_playwright

    paints, zooms = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(ROUNDS):
            one = browser.new_page(viewport={"width": 1280, "height": 800})
            one.goto(page.as_uri())
            one.wait_for_timeout(300)
            paints += one.evaluate("performance.getEntriesByName('first-contentful-paint').map((p) => p.startTime)")
            zooms += one.evaluate(ZOOM)
            one.close()
        browser.close()
    return paints, zooms


def main(times: int = 10) -> None:
    """Measure and print."""
    CACHE.mkdir(parents=True, exist_ok=True)
    source = make_tenfold.tenfold("perf.data", times)
    page = CACHE / "report.html"
    make(source, page)
    walls, cpus = zip(*(make(source, page) for _ in range(3)), strict=True)
    rows = [
        ("wsw report, whole process", format_ns(statistics.median(walls) * 1e9)),
        ("its CPU time", format_ns(statistics.median(cpus) * 1e9)),
        ("the page", format_size(page.stat().st_size)),
    ]
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None or find_spec("playwright") is None:
        print("skipped: how fast a browser shows a report, which needs chromium and playwright")
    else:
        paints, zooms = browse(page, chromium)
        rows.append(("first paint in Chromium", format_ns(statistics.median(paints) * 1e6)))
        rows.append(("a zoom, to the next frame", format_ns(statistics.median(zooms) * 1e6)))
    print(table(("what", "time or size"), rows, f"A report of {606202 * times:,} events", left=("what",)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
