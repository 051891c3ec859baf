"""What a report is made of: told by content; what is none, or damaged, is refused in one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from report_inputs import DATA, DOCS, doctor, result
from worldswitch.errors import MissingError, TraceFormatError, WorldswitchError
from worldswitch.report.inputs import ConformanceInput, HostInput, ResultInput, TraceInput, read

WP = DATA / "svm-5.10-npt-tdpmmu" / "wp.trace.dat"


@pytest.mark.parametrize("name", ["svm-5.10-npt-tdpmmu/wp.trace.dat", "svm-5.10-npt-tdpmmu/wp.perf.data.zst",
                                  "vmx-5.10-ept/trace.txt", "create-vm/strace-6.18.txt"])  # fmt: skip
def test_a_trace_of_any_format_is_a_trace(name: str) -> None:
    (one,) = read(str(DATA / name))
    assert isinstance(one, TraceInput)
    assert sum(len(batch) for batch in one.opened().batches()) > 0


def test_a_trace_can_be_read_as_often_as_wanted() -> None:
    (one,) = read(str(WP))
    assert isinstance(one, TraceInput)
    counts = [sum(len(batch) for batch in one.opened().batches()) for _ in range(2)]
    assert counts[0] == counts[1] > 0


def test_a_saved_result_is_a_result(tmp_path: Path) -> None:
    (one,) = read(str(result(tmp_path / "a.json")))
    assert isinstance(one, ResultInput)
    assert len(one.result.cells) == 3


def test_a_compressed_document_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(doctor(tmp_path / "a.json").read_bytes()))
    (one,) = read(str(packed))
    assert isinstance(one, HostInput)


def test_a_snapshot_is_judged() -> None:
    (one,) = read(str(DATA / "hosts" / "intel-6.1.tar.xz"))
    assert isinstance(one, HostInput)
    assert any(finding["id"] == "vulnerable" for finding in one.document["findings"])


def test_a_document_of_several_hosts_gives_each(tmp_path: Path) -> None:
    one = json.loads(doctor(tmp_path / "one.json").read_text())
    (tmp_path / "hosts.json").write_text(json.dumps({"hosts": [one, one], "failed": {}}))
    assert len(read(str(tmp_path / "hosts.json"))) == 2


def test_the_shipped_conformance_table_is_one() -> None:
    (one,) = read(str(DOCS / "conformance.json"))
    assert isinstance(one, ConformanceInput)
    assert len(one.rows) == len(json.loads((DOCS / "conformance.json").read_text())["rows"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02\x03 nothing", "no reader knows"),
        (b"{", "cut off"),
        (b'{"a": ', "cut off"),
        (b"{}", "neither of wsw run --save"),
        (b'{"detectors": []}', "of a trace give the trace itself"),
        (b'{"findings": 3}', "findings is no list"),
        (b'{"findings": [{}]}', r"findings\[0\].id is missing"),
        (b'{"hosts": [1]}', "neither of"),
        (b'{"format": "worldswitch-result", "version": 1}', "results is missing"),
        (b'{"format": "worldswitch-result", "version": 99}', "newer than"),
        (b'{"format": "worldswitch-conformance"}', "it has no rows"),
        (b'{"format": "worldswitch-conformance", "rows": [{}]}', r"rows\[0\] names no kernel"),
        (b'{"format": "worldswitch-conformance", "rows": [{"kernel": "1", "cpu": "1", "mmu": "1"}]}', "rows"),
        (b"{" * 100_000, "cut off|nests too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nests too deeply"),
    ],
)
def test_what_is_none_is_refused_in_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=says) as refused:
        read(str(path))
    assert "\n" not in str(refused.value)
    assert "input" in str(refused.value)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="No such file"):
        read(str(tmp_path / "nothing"))


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorldswitchError, match="directory"):
        read(str(tmp_path))


@pytest.mark.parametrize("field", ["id", "severity", "title", "evidence", "gain", "fix", "undo"])
def test_a_damaged_finding_is_named(tmp_path: Path, field: str) -> None:
    path = doctor(tmp_path / "a.json")
    document = json.loads(path.read_text())
    document["findings"][0][field] = 7
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match=rf"findings\[0\]\.{field}"):
        read(str(path))
