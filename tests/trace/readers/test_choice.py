"""The reader is chosen by content."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from worldswitch.errors import TraceFormatError
from worldswitch.record.trace import Trace
from worldswitch.trace import open_trace
from worldswitch.trace.readers import FORMATS, open_input, open_source
from worldswitch.trace.readers.source import Input

DATA = Path(__file__).parents[2] / "data"
CHOICES = {
    "vmx-6.1-ept/wp.perf.data": "PerfData",
    "svm-6.1-npt/wp.perf.data.zst": "PerfData",
    "vmx-6.1-ept/wp.trace.dat": "TraceDat",
    "vmx-6.1-ept/trace.txt": "TextTrace",
    "svm-6.1-npt/wp.perf-script.head.txt": "TextTrace",
    "svm-6.1-npt/wp.trace-cmd-report.head.txt": "TextTrace",
    "svm-6.1-npt/strace.txt": "Strace",
    "svm-6.1-npt/kvmstat.txt": "ToolTables",
    "pasted/vmx-broken-after-time.eml": "Pasted",
    "pasted/svm-flowed-no-break-spaces.eml": "Pasted",
    "pasted/vmx-nested-quoted-printable.eml": "Pasted",
}


@pytest.mark.parametrize("name", CHOICES)
def test_by_content(name: str) -> None:
    source = open_input(Input.from_bytes((DATA / name).read_bytes(), "no name tells"))
    assert type(source).__name__ == CHOICES[name]


def test_a_saved_trace_is_a_folder(tmp_path: Path) -> None:
    open_trace(DATA / "vmx-6.1-ept" / "kvmstat.perf.data").save(tmp_path / "saved")
    assert isinstance(open_source(tmp_path / "saved"), Trace)


def test_the_error_names_the_file_its_first_bytes_and_what_is_known() -> None:
    with pytest.raises(TraceFormatError) as raised:
        open_input(Input.from_bytes(b"\x7fELF\2\1\1\0", "a.out"))
    sentence = str(raised.value)
    assert sentence.startswith("a.out starts with 7f 45 4c 46")
    assert all(what in sentence for _, what in FORMATS.values())


@pytest.mark.parametrize(
    "data", [b"\x7fELF" + bytes(60), lzma.compress(b"no trace at all" * 9000)], ids=["as it is", "xz"]
)
def test_what_no_reader_takes_is_closed(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    before = list(Path("/proc/self/fd").iterdir())
    source = Input.open(tmp_path / "file")
    with pytest.raises(TraceFormatError):
        open_input(source)
    assert list(Path("/proc/self/fd").iterdir()) == before
