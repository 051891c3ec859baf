"""What must come out of the recordings: what perf says of them, and the same from every format of one run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from worldswitch.record.trace import Trace
from worldswitch.trace import open_source, open_trace
from worldswitch.trace.account import Account, account

DATA = Path(__file__).parents[1] / "data"
LARGE = "svm-6.12-npt-300k"
"""Too long for the uncompiled loops; tests/conftest.py leaves these out there, by name."""

WSW = (sys.executable, "-c", "from worldswitch.cli import main; main()")
STATS = sorted(path.parent.name for path in DATA.glob("*/kvmstat.txt"))
BINARY = sorted(
    str(path.relative_to(DATA)) for path in DATA.glob("*/*") if re.search(r"\.perf\.data|\.trace\.dat", path.name)
)
EVERYTHING = sorted(
    str(path.relative_to(DATA))
    for path in DATA.glob("*/*")
    if path.parent.name not in ("conform", "hosts", "top")
    and not re.search(r"kvm_exit\.format|ran\.txt|uname", path.name)
)
FORMATS_OF_ONE_RUN = {
    "perf-script.head.txt": [
        "svm-5.10-npt", "svm-5.10-npt-tdpmmu", "svm-5.10-shadow", "svm-6.1-npt", "svm-7.2-npt",
    ],
    "trace-cmd-report.head.txt": ["svm-5.10-npt-tdpmmu", "svm-5.10-shadow", "svm-6.1-npt", "svm-7.2-npt"],
}  # fmt: skip
ROW = re.compile(
    r"\s*(?P<name>\S.*?)\s+(?P<count>\d+)\s+(?P<share>[\d.]+)%\s+(?P<time>[\d.]+)%\s+"
    r"(?P<min>[\d.]+)us\s+(?P<max>[\d.]+)us\s+(?P<mean>[\d.]+)us"
)


def found(folder: str, stem: str) -> Path:
    """The file of that name, compressed or not."""
    return next(path for path in (DATA / folder / stem, DATA / folder / f"{stem}.zst") if path.exists())


@cache
def whole(folder: str, stem: str) -> Trace:
    return open_trace(found(folder, stem))


@cache
def accounted(folder: str, stem: str) -> Account:
    return account(open_source(found(folder, stem)))


def perf_rows(text: str) -> dict[str, tuple[str, ...]]:
    rows = {}
    for line in text.splitlines():
        if row := ROW.match(line):
            rows[row["name"]] = row.groups()[1:]
    return rows


def as_perf_prints(document: dict) -> dict[str, tuple[str, ...]]:
    counted = [row for row in document["exits"] if row["count"]]
    exits = sum(row["count"] for row in counted)
    time = sum(row["total_ns"] for row in counted)
    return {
        row["reason"]: (
            str(row["count"]),
            f"{row['count'] / exits * 100:.2f}",
            f"{row['total_ns'] / time * 100:.2f}",
            f"{row['min_ns'] / 1e3:.2f}",
            f"{row['max_ns'] / 1e3:.2f}",
            f"{row['mean_ns'] / 1e3:.2f}",
        )
        for row in counted
    }


@pytest.mark.parametrize("folder", STATS)
def test_analyze_json_is_what_perf_kvm_stat_says(folder: str) -> None:
    path = found(folder, "kvmstat.perf.data")
    done = subprocess.run(
        [*WSW, "analyze", "--json", "--by", "reason", str(path)],
        capture_output=True, check=True,
    )  # fmt: skip
    document = json.loads(done.stdout)
    said = (DATA / folder / "kvmstat.txt").read_text()
    assert as_perf_prints(document) == perf_rows(said)
    total = re.search(r"Total Samples:(\d+), Total events handled time:([\d.]+)us", said)
    assert sum(row["count"] for row in document["exits"]) == int(total[1])
    assert f"{sum(row['total_ns'] for row in document['exits']) / 1e3:.2f}" == total[2]
    assert document["meta"]["complete"] is True
    assert document["meta"]["lost"] == 0


@pytest.mark.parametrize("name", BINARY)
def test_every_table_of_a_recording_becomes_a_frame(name: str) -> None:
    trace = open_trace(DATA / name)
    assert trace.meta.complete
    assert not trace.meta.malformed
    for event, count in trace.meta.events.items():
        if count:
            frame = trace.frame(event)
            assert isinstance(frame, pl.DataFrame)
            assert len(frame) == count
            assert {"time", "cpu", "tid", "pid"} <= set(frame.columns)


@pytest.mark.parametrize("name", EVERYTHING)
def test_everything_opens_and_accounts(name: str) -> None:
    source = open_source(DATA / name)
    result = account(source)
    assert sum(source.meta.events.values()) > 0
    assert result.meta.complete


def rows(trace: Trace, most: int) -> list[tuple]:
    """Time (whole microseconds), event and CPU of the first events."""
    events = []
    for batch in trace.batches():
        for i in range(min(len(batch), most - len(events))):
            micro = (int(batch.time[i]) + 500) // 1000
            events.append((batch.events[batch.order[i]], micro, int(batch.cpu[i]), int(batch.tid[i])))
        if len(events) == most:
            break
    return events


@pytest.mark.parametrize(("text", "folder"), [(t, f) for t, folders in FORMATS_OF_ONE_RUN.items() for f in folders])
def test_the_text_of_a_run_says_what_its_recording_says(text: str, folder: str) -> None:
    printed = open_trace(DATA / folder / f"wp.{text}")
    recorded = whole(folder, "wp.perf.data" if text.startswith("perf") else "wp.trace.dat")
    n = len(printed)
    assert 350 <= n <= 400
    for theirs, ours in zip(rows(printed, n), rows(recorded, n), strict=True):
        assert theirs[0] == ours[0]
        # The tools print microseconds: perf cuts them off, trace-cmd rounds.
        assert abs(theirs[1] - ours[1]) <= 1
        assert theirs[2:] == ours[2:]
    for event in ("kvm_exit", "kvm_entry"):
        theirs, ours = printed.table(event), recorded.table(event)
        shared = [name for name in theirs if name in ours and name not in ("seq", "time", "pid")]
        # What vcpu_id names is in every text; rip and the infos from the kernel's own print format.
        assert {"vcpu_id", "cpu", "tid"} <= set(shared)
        count = len(theirs["time"])
        for name in shared:
            np.testing.assert_array_equal(ours[name][:count].astype(theirs[name].dtype), theirs[name], name)


def test_perf_data_and_trace_dat_of_the_same_guest_hold_the_same_exits() -> None:
    """Two runs of one deterministic program: what the program does is equal, interrupts are not."""
    for folder in sorted({Path(name).parent.name for name in BINARY} - {LARGE}):
        if not (DATA / folder / "wp.trace.dat").exists():
            continue
        counts = []
        for stem in ("wp.trace.dat", "wp.perf.data"):
            exits = accounted(folder, stem).exits
            by_reason = {row.reason: row.count for row in exits}
            counts.append({r: n for r, n in by_reason.items() if r not in ("interrupt", "EXTERNAL_INTERRUPT", "npf")})
        assert counts[0] == counts[1], folder


@pytest.mark.parametrize("stem", ["wp.trace.dat", "wp.perf.data"])
def test_intel_shows_300_writes_that_changed_wp(stem: str) -> None:
    result = accounted("vmx-5.10-ept", stem)
    (write,) = result.cr_writes
    assert (write.cr, write.changed, write.count, write.inferred) == (0, ("WP",), 300, 1)
    # All CR accesses of this guest are these writes.
    (exits,) = [row for row in result.exits if row.reason == "CR_ACCESS"]
    assert write.total_ns == exits.total_ns > 0


@pytest.mark.parametrize("folder", ["vmx-5.10-ept", "vmx-5.10-shadow", "vmx-6.1-ept"])
def test_intel_shows_writes_that_changed_smep(folder: str) -> None:
    result = accounted(folder, "smep.trace.dat")
    (write,) = result.cr_writes
    assert (write.cr, write.changed, write.count, write.inferred) == (4, ("SMEP",), 300, 1)


@pytest.mark.parametrize(
    "name", ["vmx-5.10-ept/wp.trace.dat", "vmx-6.1-ept/smep.trace.dat", "vmx-5.10-shadow/wp.trace.dat"]
)
def test_mmu_events_are_tables(name: str) -> None:
    trace = open_trace(DATA / name)
    mmu = [event for event in trace.events if event == "fast_page_fault" or "_mmu_" in event]
    assert mmu
    for event in mmu:
        assert len(trace.frame(event).columns) > len(("seq", "time", "cpu", "tid", "pid"))


@pytest.mark.parametrize("stem", ["wp.perf.data", "wp.trace.dat", "kvmstat.perf.data"])
def test_the_tdp_mmu_of_5_10_faults_four_times_after_each_write(stem: str) -> None:
    result = accounted("svm-5.10-npt-tdpmmu", stem)
    churn = [seen for seen in result.detections if seen.id == "root-churn"]
    assert [seen.count for seen in churn] == [800]
    assert "after 200 CR0 writes" in churn[0].detail
    assert "4 per write" in churn[0].detail


def test_the_legacy_mmu_of_5_10_faults_each_page_once_more() -> None:
    """It keeps a root for each value of WP, so the second one is filled once."""
    result = accounted("svm-5.10-npt", "wp.perf.data")
    assert [seen.count for seen in result.detections if seen.id == "root-churn"] == [4]


@pytest.mark.parametrize("folder", ["svm-6.1-npt", "svm-7.2-npt", "vmx-6.1-ept"])
def test_other_mmus_keep_their_pages(folder: str) -> None:
    seen = {detection.id for detection in accounted(folder, "wp.perf.data").detections}
    assert "root-churn" not in seen


@pytest.mark.parametrize("folder", ["svm-5.10-npt", "svm-6.1-npt", "svm-7.2-npt"])
def test_amd_does_not_tell_which_bits_changed(folder: str) -> None:
    result = accounted(folder, "wp.perf.data")
    (write,) = [write for write in result.cr_writes if write.cr == 0]
    assert (write.changed, write.count, write.why_unknown) == (None, 2000, "no value in the trace")


def test_amd_shadow_writes_go_through_two_intercepts() -> None:
    """cr0_sel_write where WP changes towards 1, write_cr0 otherwise: both are writes of CR0."""
    result = accounted("svm-5.10-shadow", "kvmstat.perf.data")
    assert sum(write.count for write in result.cr_writes if write.cr == 0) == 2000


# trace.txt: two pairs each of CR0.WP and CR4.SMEP, one CPUID (tests/data/README.md).
# 6.1 and later own CR0.WP with EPT, so its toggles do not exit; with shadow paging they do.
TEXTS = {
    "vmx-5.10-ept": {("CR0", "WP"): 4, ("CR4", "SMEP"): 4},
    "vmx-5.10-shadow": {("CR0", "WP"): 4, ("CR4", "SMEP"): 4},
    "vmx-6.1-ept": {("CR4", "SMEP"): 4},
    "vmx-6.1-shadow": {("CR0", "WP"): 4, ("CR4", "SMEP"): 4},
    "vmx-7.2-ept": {("CR4", "SMEP"): 4},
    "vmx-7.2-shadow": {("CR0", "WP"): 4, ("CR4", "SMEP"): 4},
}


@pytest.mark.parametrize("folder", TEXTS)
def test_tracefs_text_tells_the_bits(folder: str) -> None:
    result = account(open_source(DATA / folder / "trace.txt"))
    writes = {(f"CR{w.cr}", " ".join(w.changed or ("?",))): w.count for w in result.cr_writes}
    assert writes == TEXTS[folder]


def test_each_file_names_its_kernel_and_vendor() -> None:
    for folder in STATS:
        meta = accounted(folder, "kvmstat.perf.data").meta
        uname = (DATA / folder / "uname").read_text().split()
        assert meta.kernel and uname[2] in meta.kernel
        assert meta.vendor == {"s": "amd", "v": "intel"}[folder[0]], folder
        assert meta.vm_identity == "tgid"


# tests/data/README.md: four runs of 75 writes and four of none, four page faults in each; 5.10, whose root depends on
# CR0.WP, has four more in each run that writes.
WRITES = {"svm": "cr0_sel_write", "vmx": "CR_ACCESS"}
FAULTS = {"svm": "npf", "vmx": "EPT_VIOLATION"}
HALTS = {"svm": "hlt", "vmx": "HLT"}


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12", "7.2"])
@pytest.mark.parametrize("vendor", ["svm", "vmx"])
def test_recordings_of_the_lab_have_the_exits_of_their_runs(vendor: str, kernel: str) -> None:
    result = accounted(f"{vendor}-{kernel}-lab", "wp.perf.data")
    rows = {row.reason: row.count + row.open for row in result.exits if row.reason != "interrupt"}
    intercepted = vendor == "svm" or kernel == "5.10"
    expected = {HALTS[vendor]: 8, FAULTS[vendor]: 48 if kernel == "5.10" else 32}
    assert rows == ({**expected, WRITES[vendor]: 300} if intercepted else expected)
    assert sum(write.count for write in result.cr_writes) == (300 if intercepted else 0)
    assert (result.meta.kernel or "").startswith(f"{kernel}.")


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12", "7.2"])
@pytest.mark.parametrize("vendor", ["svm", "vmx"])
def test_recordings_of_the_lab_have_the_events_of_the_mmu(vendor: str, kernel: str) -> None:
    trace = whole(f"{vendor}-{kernel}-lab", "wp.perf.data")
    assert {"kvm_mmu_get_page", "kvm_mmu_set_spte", "fast_page_fault", "kvm_tdp_mmu_spte_changed"} & set(trace.events)
    assert trace.meta.complete
