"""Packages of a signed mirror, through apt, and what is said when something is wrong with it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import deb_build
from worldswitch.errors import MissingError
from worldswitch.lab import apt, artifacts, cache, fetch

pytestmark = pytest.mark.needs("apt-get", "dpkg-deb", "gpg")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def archive(tmp_path):
    """A mirror whose suite bookworm has one kernel, and the key it is signed by."""
    debs = tmp_path / "debs"
    debs.mkdir()
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    keyring = deb_build.repository(tmp_path / "mirror", sorted(debs.iterdir()), "bookworm", tmp_path / "gpg")
    return tmp_path / "mirror", keyring


def named(archive) -> apt.Mirror:
    return apt.mirror(f"file:{archive[0]}", archive[1])


def test_a_kernel_of_a_signed_mirror_is_fetched(archive):
    found = fetch.kernel("6.1", named(archive))
    assert found.version == "6.1.176"
    assert artifacts.release_of(found.vmlinuz) == "6.1.0-50-cloud-amd64"
    about = cache.find("kernels", found.release).about
    assert about["suite"] == "bookworm"
    assert next(iter(about["sha256"].values())) == digest(archive[0])
    assert not list((cache.root() / "downloads").iterdir())


def digest(mirror: Path) -> str:
    import hashlib

    return hashlib.sha256(next((mirror / "pool").iterdir()).read_bytes()).hexdigest()


def test_a_package_that_is_not_what_the_index_says_is_refused(archive):
    package = next((archive[0] / "pool").iterdir())
    package.write_bytes(package.read_bytes()[:-1] + b"x")
    with pytest.raises(MissingError, match=r"cannot download packages"):
        fetch.kernel("6.1", named(archive))
    assert cache.entries("kernels") == []


def test_an_index_that_was_changed_after_signing_is_refused(archive):
    release = archive[0] / "dists/bookworm/InRelease"
    release.write_text(release.read_text().replace("Components: main", "Components: many"))
    with pytest.raises(MissingError, match=r"signature cannot be verified"):
        named(archive).suite("bookworm")


def test_a_mirror_signed_by_another_key_is_refused(archive, tmp_path):
    other = deb_build.sign(tmp_path / "mirror/dists/bookworm", tmp_path / "other")
    assert other != archive[1]
    with pytest.raises(MissingError, match=r"signature cannot be verified: .*--keyring"):
        named(archive).suite("bookworm")


def test_a_suite_the_mirror_does_not_have_is_a_clear_error(archive):
    with pytest.raises(MissingError, match=r"suite trixie .*the mirror no longer has it: name another with --mirror"):
        named(archive).suite("trixie")
    with pytest.raises(MissingError, match=r"has no kernel 6\.12; it has 6\.1\.176; and one suite could not be read"):
        fetch.kernel("6.12", named(archive))


def test_a_mirror_that_does_not_answer_is_a_clear_error(tmp_path, archive, monkeypatch):
    for proxy in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with pytest.raises(MissingError, match=r"cannot read suite bookworm of http://127\.0\.0\.1:9/debian: .*--mirror"):
        apt.mirror("http://127.0.0.1:9/debian", archive[1]).suite("bookworm")


@pytest.mark.parametrize("version", ["", "1-1"])
def test_a_package_the_mirror_does_not_have_is_a_clear_error(archive, version):
    suite = named(archive).suite("bookworm")
    for name in ("linux-headers-x", "linux-image-6.1.0-50-cloud-amd64")[: 2 if version else 1]:
        with pytest.raises(MissingError, match=rf"{name}.*the mirror no longer has it"):
            suite.exact({name: version})
    with pytest.raises(MissingError, match=r"Unable to locate package nothing; the mirror no longer has it"):
        suite.closure(["nothing"])


def test_a_full_disk_ends_the_search(archive, monkeypatch):
    asked = []

    def no_space(*_):
        asked.append(1)
        raise cache.full()

    monkeypatch.setattr(apt, "_run", no_space)
    with pytest.raises(MissingError, match=r"the disk of .* is full"):
        fetch.kernel("6.1", named(archive))
    assert asked == [1]


def test_what_apt_says_of_a_full_disk_is_understood():
    told = "E: You don't have enough free space in /var/cache/apt/archives/.\n"
    assert "is full" in str(apt._failure("x", "Err:1 No space left on device\n" + told))
    assert "is full" in str(apt._failure("x", "E: Write error - write (28: No space left on device)\n"))


def test_a_download_goes_on_where_it_stopped(archive):
    """What is there and whole is not downloaded again; a part of a file is not taken for the file."""
    mirror = named(archive)
    suite = mirror.suite("bookworm")
    packages = suite.exact({"linux-image-6.1.0-50-cloud-amd64": ""})
    (path,) = mirror.get(packages, fetch.quiet)
    whole = path.read_bytes()
    said = []
    mirror.get(packages, said.append)
    assert said == []
    path.unlink()
    path.write_bytes(whole[:100])
    mirror.get(packages, said.append)
    assert path.read_bytes() == whole
    assert said == [f"downloading 1 packages, 0 MB, from {mirror.url}"]


def test_the_machines_own_state_is_not_used(archive):
    before = {path: path.stat().st_mtime_ns for path in Path("/var/lib/apt").glob("**/*") if path.is_file()}
    fetch.kernel("6.1", named(archive))
    assert {path: path.stat().st_mtime_ns for path in Path("/var/lib/apt").glob("**/*") if path.is_file()} == before


SOURCES = """\
Packages|http://example.org/ppa|bookworm|contrib|Other
Packages|http://download.example.org/linux/debian|bookworm|stable|Docker
Sources|http://deb.example.org/debian/|bookworm|main|Debian
Packages|cdrom:[Debian 12]/|bookworm|main|Debian
Packages|http://deb.example.org/debian/|bookworm|main|Debian
Packages|http://deb.example.org/debian/|bookworm-updates|main|Debian
Packages|http://deb.example.org/debian-security/|bookworm-security|main|Debian
"""


def fake_apt_get(tmp_path, monkeypatch, output):
    program = tmp_path / "bin/apt-get"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_the_mirror_is_the_machines_own(tmp_path, monkeypatch):
    fake_apt_get(tmp_path, monkeypatch, SOURCES)
    found = apt.own_mirror()
    assert (found.url, found.security) == ("http://deb.example.org/debian", "http://deb.example.org/debian-security")


@pytest.mark.parametrize("output", ["", "Packages|http://archive.example.org/ubuntu|noble|main|Ubuntu\n"])
def test_a_machine_without_debian_sources_is_told_the_remedy(tmp_path, monkeypatch, output):
    fake_apt_get(tmp_path, monkeypatch, output)
    with pytest.raises(MissingError, match=r"name no Debian mirror; name a mirror with --mirror URL, or a folder"):
        apt.own_mirror()


def test_a_machine_without_apt_is_told_the_remedy(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingError, match=r"no apt-get.*--mirror DIR"):
        apt.own_mirror()
    with pytest.raises(MissingError, match=r"install apt .*--mirror DIR"):
        apt.mirror("http://deb.example.org/debian")


def test_a_keyring_that_is_not_there(tmp_path):
    with pytest.raises(MissingError, match=r"no keyring"):
        apt.mirror("http://deb.example.org/debian", tmp_path / "no.gpg")
