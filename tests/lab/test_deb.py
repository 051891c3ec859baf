"""Debian packages read as dpkg reads them, and hostile or damaged ones refused."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deb_build
from worldswitch.errors import MissingError
from worldswitch.lab import deb

FILES = {"usr/bin/tool": b"\x7fELF", "usr/share/doc/tool/copyright": b"text", "lib/libx.so": "libx.so.1"}


def listing(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.needs("dpkg-deb")
def test_reads_what_dpkg_reads(tmp_path):
    package = deb_build.deb(tmp_path, "tool", "1:2.0-1", FILES, Depends="libc6 (>= 2.36), a | b")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir()
    subprocess.run(["dpkg-deb", "-x", str(package), str(theirs)], check=True)
    deb.unpack(package, ours)
    assert listing(ours) == listing(theirs) == FILES
    for name, value in deb.control(package).items():
        said = subprocess.run(["dpkg-deb", "-f", str(package), name], capture_output=True, text=True, check=True).stdout
        assert value == said.strip()


@pytest.mark.needs("dpkg-deb")
@pytest.mark.parametrize("compressor", ["xz", "gzip", "zstd", "none"])
def test_reads_what_dpkg_writes(tmp_path, compressor):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: a\n long text\n"
    )
    (tree / "usr").mkdir()
    (tree / "usr/one").write_bytes(b"one" * 1000)
    (tree / "usr/two").hardlink_to(tree / "usr/one")
    package = tmp_path / "tool.deb"
    subprocess.run(
        ["dpkg-deb", f"-Z{compressor}", "-b", str(tree), str(package)], check=True, stdout=subprocess.DEVNULL
    )
    into = tmp_path / "into"
    into.mkdir()
    deb.unpack(package, into)
    assert listing(into) == {"usr/one": b"one" * 1000, "usr/two": b"one" * 1000}
    assert deb.control(package)["Description"] == "a long text"


def test_leaves_out_what_is_not_wanted(tmp_path):
    package = deb_build.deb(tmp_path, "tool", "1", FILES)
    deb.unpack(package, tmp_path, lambda name: not name.startswith("usr/share/doc/"))
    assert not (tmp_path / "usr/share").exists()
    assert (tmp_path / "usr/bin/tool").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "files",
    [
        {"../escaped": b"x"},
        {"usr/../../escaped": b"x"},
        {"out": "/tmp", "out/escaped": b"x"},
        {"out": "..", "out/escaped": b"x"},
    ],
)
def test_a_package_that_would_write_elsewhere_is_refused(tmp_path, files):
    package = deb_build.deb(tmp_path, "evil", "1", files)
    into = tmp_path / "a/b"
    into.mkdir(parents=True)
    with pytest.raises(MissingError, match="would write outside of its folder"):
        deb.unpack(package, into)
    assert not list(tmp_path.rglob("escaped")) and not Path("/tmp/escaped").exists()


@pytest.mark.parametrize("data", [b"", b"!<arch>\n", b"no package at all", b"!<arch>\n" + b"x" * 60])
def test_what_is_no_package_is_said_so(tmp_path, data):
    path = tmp_path / "x.deb"
    path.write_bytes(data)
    with pytest.raises(MissingError, match="is not a Debian package"):
        deb.control(path)


WHOLE = deb_build.archive(deb_build.tar({"./control": b"Package: a\n"}), deb_build.tar({"./usr/file": b"x" * 5000}))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_a_damaged_package_is_refused_or_read_and_nothing_else(at, value, cut):
    data = WHOLE[:at] if cut else WHOLE[:at] + bytes([value]) + WHOLE[at + 1 :]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = folder / "x.deb"
        package.write_bytes(data)
        try:
            deb.control(package)
            deb.unpack(package, folder)
        except MissingError:
            pass


def test_relations_and_provides():
    fields = {
        "Pre-Depends": "libc6 (>= 2.34)",
        "Depends": "a | b [amd64], c:any (= 1), d <!nocheck>",
        "Provides": "e (= 1), f",
    }
    assert deb.relations(fields) == [["libc6"], ["a", "b"], ["c"], ["d"]]
    assert deb.provides(fields) == ["e", "f"]
    assert deb.relations({}) == [] == deb.provides({})
