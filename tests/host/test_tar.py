"""Tar archives are read in memory, within bounds, and written so that the same gives the same."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.host import tar


def read(data: bytes, limit: int = 1 << 20) -> list[tar.Member]:
    return list(tar.members(io.BytesIO(data), limit))


def made(*members: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


NAMES = st.text("abc/.é", min_size=1, max_size=150).filter(lambda name: name.strip("/") and "//" not in name)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_the_standard_library_wrote_is_read(kind: int) -> None:
    data = made(
        (info("proc/cmdline"), b"quiet\n"), (info("etc", tarfile.DIRTYPE), b""),
        (info("a", tarfile.SYMTYPE, "../b"), b""), (info("dev/kvm", tarfile.CHRTYPE), b""), (info("end"), b"x" * 600),
        kind=kind,
    )  # fmt: skip
    found = read(data)
    assert [(one.path, one.kind, one.data, one.target) for one in found] == [
        ("proc/cmdline", "file", b"quiet\n", ""), ("etc/", "folder", b"", ""), ("a", "link", b"", "../b"),
        ("dev/kvm", "other", b"", "character device"), ("end", "file", b"x" * 600, ""),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(name=NAMES)
def test_long_names_are_read(kind: int, name: str) -> None:
    written = made((info(name), b"1"), kind=kind)
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        expected = archive.getnames()
    assert [one.path.rstrip("/") for one in read(written)] == [one.rstrip("/") for one in expected]


@given(st.dictionaries(st.from_regex(r"[a-z]{1,60}(/[a-z]{1,60}){0,2}", fullmatch=True), st.binary(max_size=2000)))
def test_what_is_written_is_read_by_the_standard_library(files: dict[str, bytes]) -> None:
    data = tar.pack(files)
    assert data == tar.pack(dict(reversed(files.items())))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        opened = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
        assert {(one.mtime, one.uid, one.uname, one.mode) for one in archive} <= {(0, 0, "", 0o644)}
    assert opened == files


@pytest.mark.parametrize("squeeze", [gzip.compress, lzma.compress])
def test_compressed_archives_are_read_also_in_several_streams(squeeze: object) -> None:
    data = tar.pack({"a": b"1" * 100_000})
    assert callable(squeeze)
    for written in (squeeze(data), squeeze(data[:777]) + squeeze(data[777:]) + b"\0" * 512):
        assert [one.data for one in read(written)] == [b"1" * 100_000]


@given(st.integers(0, 3583))
def test_a_truncated_archive_gives_what_came_before(at: int) -> None:
    data = tar.pack({"a": b"1" * 700, "b": b"2" * 700})[:at]
    found = []
    with pytest.raises(tar.Damaged):
        for one in tar.members(io.BytesIO(data), 1 << 20):
            found.append(one)
    # A file of which only the header is left is there, with nothing in it.
    assert [one.path for one in found] == ["a", "b"][: (at >= 512) + (at >= 512 + 1024 + 512)]


def test_a_bomb_is_not_unpacked() -> None:
    member = made((info("a"), b"\0" * (64 << 20)))
    with pytest.raises(tar.Damaged, match="more than 32 MiB when unpacked"):
        read(gzip.compress(member))
    with pytest.raises(tar.Damaged, match="more than 32 MiB when unpacked"):
        read(lzma.compress(member, preset=0))


def test_a_stream_that_unpacks_to_nothing_ends() -> None:
    squeeze = zlib.compressobj(0, zlib.DEFLATED, 31)
    head = squeeze.compress(b"") + squeeze.flush(zlib.Z_FULL_FLUSH)
    with pytest.raises(tar.Damaged, match="more than 32 MiB"):
        read(head + b"\0\0\0\xff\xff" * (7 << 20))


def test_an_xz_that_wants_gigabytes_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 512 << 20}]
    data = lzma.compress(tar.pack({"a": b"1"}), filters=filters)
    with pytest.raises(tar.Damaged, match="too much memory"):
        read(data)


def test_headers_of_headers_without_end_end() -> None:
    block = made((info("x" * 200), b""))[:1024]
    assert block[156:157] == b"L"
    with pytest.raises(tar.Damaged, match="members"):
        read(block * 21_000)


def test_a_negative_size_is_damage() -> None:
    header = bytearray(tar.pack({"a": b"1"})[:512])
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    with pytest.raises(tar.Damaged, match="size"):
        read(bytes(header) * 3)


@given(st.binary(max_size=3000))
def test_any_bytes_end(data: bytes) -> None:
    with pytest.raises(tar.Damaged):
        read(data)


@given(st.integers(0, 2047), st.binary(min_size=1, max_size=8))
def test_any_change_ends(at: int, change: bytes) -> None:
    data = bytearray(tar.pack({"a": b"1" * 100, "b": b"2"}))
    data[at : at + len(change)] = change
    try:
        read(bytes(data))
    except tar.Damaged as error:
        assert str(error)
