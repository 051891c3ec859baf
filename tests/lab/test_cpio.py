"""The archive a kernel unpacks first, read by cpio and held against the format's own description."""

from __future__ import annotations

import subprocess

import pytest

from worldswitch.lab.cpio import Archive


def sample() -> Archive:
    archive = Archive()
    archive.file("usr/bin/tool", b"#!/bin/sh\n", 0o755)
    archive.link("bin", "usr/bin")
    archive.device("dev/console", 5, 1)
    archive.folder("empty")
    return archive


@pytest.mark.needs("cpio")
def test_cpio_unpacks_it(tmp_path):
    subprocess.run(
        ["cpio", "-idm", "--quiet", "--no-absolute-filenames"], input=sample().pack(), cwd=tmp_path, check=True
    )
    assert (tmp_path / "usr/bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert (tmp_path / "usr/bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "bin").readlink().name == "bin"
    assert (tmp_path / "empty").is_dir()


@pytest.mark.needs("cpio")
def test_a_second_archive_may_follow(tmp_path):
    more = Archive()
    more.file("lab/more", b"x" * 513)
    data = sample().pack() + more.pack()
    listed = subprocess.run(["cpio", "-it", "--quiet"], input=sample().pack(), capture_output=True, check=True).stdout
    assert b"usr/bin/tool" in listed
    # The kernel goes on after a trailer, at the next header; it skips zeros between them.
    assert data.index(b"070701", len(sample().pack())) == len(sample().pack())
    assert len(sample().pack()) % 512 == 0


def test_a_header_is_as_the_kernel_documents_it():
    archive = Archive()
    archive.file("f", b"abc", 0o640)
    data = archive.pack()
    # magic, ino, mode, uid, gid, nlink, mtime, filesize, maj, min, rmaj, rmin, namesize, check: 8 hex digits each
    fields = [data[6 + 8 * n : 14 + 8 * n] for n in range(13)]
    assert data[:6] == b"070701"
    assert int(fields[1], 16) == 0o100640
    assert int(fields[6], 16) == 3
    assert int(fields[11], 16) == len("f") + 1
    assert data[110:112] == b"f\0"
    assert data[112:115] == b"abc"


def test_folders_come_before_what_is_in_them():
    archive = Archive()
    archive.file("a/b/c", b"")
    assert list(archive.entries) == ["a", "a/b", "a/b/c"]


def test_the_same_content_gives_the_same_bytes():
    assert sample().pack() == sample().pack()
