from __future__ import annotations

import gc
import gzip
import io
import lzma
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.errors import MissingError, TraceFormatError
from worldswitch.trace.readers import source
from worldswitch.trace.readers.source import HEAD, Input

PACKERS = {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}


def piped(data: bytes) -> Input:
    return Input._maybe_compressed(Input(io.BytesIO(data), "pipe", seekable=False))


WAYS = {"file": Input.from_bytes, "pipe": piped}
ways = pytest.mark.parametrize("way", WAYS)
packers = pytest.mark.parametrize("packer", PACKERS)
BIG = b"".join(i.to_bytes(4, "little") for i in range(60_000))


@ways
@packers
@settings(max_examples=20, deadline=None)
@given(data=st.binary(min_size=1, max_size=200), sizes=st.lists(st.integers(1, 70), max_size=10))
def test_reads_give_the_bytes_in_order(way: str, packer: str, data: bytes, sizes: list[int]) -> None:
    if data[:2] == b"\x1f\x8b" or data[:4] in (b"\x28\xb5\x2f\xfd", b"\xfd7zX"):
        return
    given_input = WAYS[way](PACKERS[packer](data))
    assert given_input.head == data
    got = b"".join(given_input.read(size) for size in sizes)
    assert got == data[: sum(sizes)]
    rest = memoryview(bytearray(300))
    count = given_input.readinto(rest)
    assert got + bytes(rest[:count]) == data
    assert given_input.position == len(data)
    assert given_input.read(1) == b""


@ways
@packers
def test_pread_and_seek_work_however_the_bytes_come(way: str, packer: str) -> None:
    given_input = WAYS[way](PACKERS[packer](BIG))
    assert given_input.head == BIG[:HEAD]
    assert given_input.pread(len(BIG) - 8, 1 << 60) == BIG[-8:]
    assert given_input.pread(100_000, 16) == BIG[100_000:100_016]
    assert given_input.pread(1 << 62, 4) == b""
    assert given_input.pread(-1, 4) == b""
    assert given_input.size == len(BIG)
    given_input.seek(70_000)
    assert given_input.read(8) == BIG[70_000:70_008]
    assert given_input.damage is None


@pytest.mark.parametrize("packer", ["gz", "xz", "zst"])
def test_what_stands_before_a_cut_is_read(packer: str) -> None:
    whole = PACKERS[packer](BIG)
    given_input = Input.from_bytes(whole[: len(whole) * 3 // 4])
    got = given_input.read(len(BIG))
    assert BIG.startswith(got)
    assert len(got) > len(BIG) // 2
    assert "damaged" in given_input.damage


def test_a_large_pipe_is_spooled_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_IN_MEMORY", 1000)
    given_input = piped(BIG)
    assert given_input.pread(0, len(BIG)) == BIG
    given_input.close()


def test_a_file_is_closed_when_nobody_holds_it(tmp_path: Path) -> None:
    """The tests turn the ResourceWarning of a file left open into an error."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    given_input = Input.open(path)
    stream = given_input._stream
    del given_input
    gc.collect()
    assert stream.closed


def test_an_input_is_a_context_manager(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"hello"))
    with Input.open(path) as given_input:
        assert given_input.head == b"hello"
    assert given_input._stream._raw._stream.closed


def test_empty_and_missing_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(TraceFormatError, match="is empty"):
        Input.open(tmp_path / "empty")
    with pytest.raises(MissingError, match="No such file"):
        Input.open(tmp_path / "nothing")
    with pytest.raises(MissingError, match="null byte"):
        Input.open("a\0b")
    with pytest.raises(TraceFormatError, match="directory"):
        Input.open(tmp_path)


def test_reading_errors_name_the_file() -> None:
    class Broken(io.BytesIO):
        def read(self, n: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(MissingError, match="disk: Input/output error"):
        Input(Broken(), "disk", seekable=False)
