"""Many traces: sums against those of each, what is not read, and going on."""

import json
import os
import shutil
from contextlib import chdir
from pathlib import Path

import fsspec
import numpy as np
import polars as pl
import pytest

from fleet.small_traces import write_many
from worldswitch.errors import MissingError, UsageError
from worldswitch.fleet.analyze import analyze, summary
from worldswitch.fleet.engine import Here
from worldswitch.fleet.find import find
from worldswitch.fleet.folder import Folder
from worldswitch.fleet.traces import TraceWork
from worldswitch.trace.account import account
from worldswitch.trace.exits import UNCOUNTED, ExitPairing
from worldswitch.trace.readers import open_source
from worldswitch.trace.whatif import whatif

COUNT = 80
NAMES = r"(?P<class>[^/]+)/(?P<host>[^/]+)\.perf\.data"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    write_many(folder, COUNT)
    return folder


def silent(_):
    pass


def run(traces, output, work=None, pool=None, retry=False):
    folder = Folder(str(output))
    # Where pieces end depends on the names in them.
    with chdir(traces), folder.held():
        return analyze(find(["."]), work or TraceWork(names=NAMES), folder, pool or Here(), silent, retry)


def files(output):
    return {str(path.relative_to(output)): path.read_bytes() for path in Path(output).rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(traces, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    return run(traces, output), files(output)


def test_sums_are_those_of_the_traces_one_by_one(traces, whole):
    alone = [account(open_source(one.path)) for one in find([str(traces)])]
    found = summary(whole[0])
    assert found["traces"] == found["hosts"] == COUNT
    assert found["exits"] == sum(one.count for one in alone)
    assert found["total_ns"] == sum(one.total_ns for one in alone)
    assert sum(row["count"] for row in found["reasons"]) == found["exits"]
    assert sum(row["total_ns"] for row in found["reasons"]) == found["total_ns"]
    assert sum(row["open"] for row in found["reasons"]) == sum(row.open for one in alone for row in one.exits)
    writes = sum(row.count for one in alone for row in one.cr_writes)
    assert sum(row["count"] for row in found["cr_writes"]) == writes


def test_percentiles_are_within_a_percent_of_those_of_all_durations(traces, whole):
    durations = []
    for one in find([str(traces / "vmx-5.10-ept")]):
        pairs = ExitPairing()
        for batch in open_source(one.path).batches():
            rows = pairs.feed(batch)
            mine = (rows.reason == 28) & ((rows.flags & UNCOUNTED) == 0)  # CR_ACCESS: SDM volume 3, appendix C
            durations += rows.duration[mine].tolist()
    (row,) = [
        row for row in summary(whole[0])["reasons"] if row["class"] == "vmx-5.10-ept" and row["reason"] == "CR_ACCESS"
    ]
    assert row["count"] == len(durations)
    assert (row["min_ns"], row["max_ns"]) == (min(durations), max(durations))
    for name, at in (("p50_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99)):
        assert row[name] == pytest.approx(np.quantile(durations, at, method="lower"), rel=0.01)


def test_hosts_are_grouped_by_kernel_vendor_and_class(whole):
    groups = {(row["line"], row["vendor"], row["class"]): row["hosts"] for row in summary(whole[0])["groups"]}
    assert groups == {
        ("5.10", "amd", "svm-5.10-npt"): 16,
        ("5.10", "intel", "vmx-5.10-ept"): 16,
        ("6.1", "amd", "svm-6.1-npt"): 16,
        ("6.1", "intel", "vmx-6.1-ept"): 16,
        ("7.2", "amd", "svm-7.2-npt"): 16,
    }


def test_savings_add_up_those_of_the_traces(traces, tmp_path):
    found = run(traces, tmp_path / "out", TraceWork(to="6.12", names=NAMES))
    assert found.savings
    by_line = {(one.line, one.vendor): one for one in found.savings}
    hours, removed = 0.0, 0
    for one in find([str(traces / "vmx-5.10-ept")]):
        alone = whatif(open_source(one.path), "6.12")
        hours += alone.saving_ns.mid / (alone.meta.last_ns - alone.meta.first_ns) * 24
        removed += sum(exits.count for exits in alone.removed)
    assert removed > 0
    assert by_line["5.10", "intel"].removed == removed
    assert by_line["5.10", "intel"].mid == pytest.approx(hours, rel=1e-6)
    assert by_line["5.10", "intel"].low < hours < by_line["5.10", "intel"].high
    assert by_line["7.2", "amd"].mid == 0


def test_the_same_again_does_nothing_and_changes_nothing(traces, whole, tmp_path):
    run(traces, tmp_path / "out")
    assert run(traces, tmp_path / "out").done == 0
    assert files(tmp_path / "out") == whole[1]


class Ended(Exception):
    pass


class EndsAfter:
    """A pool whose process is ended when some pieces are done."""

    def __init__(self, pieces):
        self.pieces = pieces

    def results(self, work, pieces):
        for number, one in enumerate(Here().results(work, pieces)):
            if number == self.pieces:
                raise Ended
            yield one


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_an_ended_run_goes_on_to_the_same_bytes(traces, whole, tmp_path, pieces):
    with pytest.raises(Ended):
        run(traces, tmp_path / "out", pool=EndsAfter(pieces))
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == pieces
    run(traces, tmp_path / "out")
    assert files(tmp_path / "out") == whole[1]


def test_one_more_trace_is_all_that_is_read(traces, tmp_path):
    copy = tmp_path / "traces"
    shutil.copytree(traces, copy)
    first = run(copy, tmp_path / "out")
    shutil.copy2(next(copy.glob("vmx-6.1-ept/*")), copy / "vmx-6.1-ept" / "zzz.perf.data")
    second = run(copy, tmp_path / "out")
    assert second.done in (1, 2) < (first.done,)
    assert summary(second)["traces"] == COUNT + 1
    manifest = json.loads(files(tmp_path / "out")["manifest.json"])
    assert {f"pieces/{one.name}" for one in (tmp_path / "out" / "pieces").iterdir()} == {
        one["file"] for one in manifest["pieces"]
    }


def test_what_cannot_be_read_is_named_and_the_others_are_there(traces, tmp_path):
    copy = tmp_path / "traces"
    shutil.copytree(traces, copy)
    (copy / "empty.data").write_bytes(b"")
    (copy / "corrupt.data").write_bytes(b"PERFILE2" + bytes(range(200)))
    with (copy / "huge.data").open("wb") as out:
        out.truncate(4 << 30)
    (copy / "gone.data").symlink_to(tmp_path / "nowhere")
    os.mkfifo(copy / "fifo.data")
    (copy / "no.txt").write_text("nothing of KVM is in here\n" * 50)
    found = summary(run(copy, tmp_path / "out"))
    assert found["traces"] == COUNT
    why = {Path(row["path"]).name: row["error"] for row in found["failed"]}
    assert set(why) == {"empty.data", "corrupt.data", "huge.data", "gone.data", "fifo.data", "no.txt"}
    assert why["empty.data"] == "is empty"
    assert why["corrupt.data"].startswith("is a perf.data file")
    assert "4.0 GiB" in why["huge.data"]
    assert "--largest" in why["huge.data"]
    assert why["gone.data"] == "No such file or directory"
    assert why["fifo.data"] == "is no file"
    assert all("Traceback" not in text and text for text in why.values())


def test_retry_reads_what_was_not_read(traces, tmp_path):
    copy = tmp_path / "traces"
    shutil.copytree(traces, copy)
    (copy / "link.data").symlink_to(tmp_path / "later.data")
    assert len(summary(run(copy, tmp_path / "out"))["failed"]) == 1
    assert run(copy, tmp_path / "out").done == 0
    again = run(copy, tmp_path / "out", retry=True)
    assert again.done == 1
    assert len(summary(again)["failed"]) == 1


def test_a_run_of_another_question_is_refused(traces, tmp_path):
    run(traces, tmp_path / "out")
    with pytest.raises(UsageError, match=r"asked for otherwise \(to differ\)"):
        run(traces, tmp_path / "out", TraceWork(to="6.12", names=NAMES))


def test_a_folder_of_something_else_is_refused(traces, tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(UsageError, match="is not of wsw fleet"):
        run(traces, tmp_path)


def test_traces_of_another_file_system_are_read(traces):
    system = fsspec.filesystem("memory")
    for path in sorted((traces / "vmx-6.1-ept").iterdir()):
        system.pipe(f"/bucket/{path.name}", path.read_bytes())
    folder = Folder("memory://results/out")
    with folder.held():
        found = analyze(find(["memory://bucket"]), TraceWork(), folder, Here(), silent)
    alone = [account(open_source(path)) for path in sorted((traces / "vmx-6.1-ept").iterdir())]
    assert summary(found)["exits"] == sum(one.count for one in alone)
    data = fsspec.filesystem("memory").cat_file("/results/out/hosts.parquet")
    assert len(pl.read_parquet(data)) == 16


def test_a_folder_that_cannot_be_written_is_named(traces):
    with pytest.raises(MissingError, match="/proc/nowhere"):
        run(traces, "/proc/nowhere")
