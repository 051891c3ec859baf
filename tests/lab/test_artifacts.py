"""Where kernels and programs are, and what is said when they are not."""

from __future__ import annotations

import pytest

import deb_build
from worldswitch.errors import MissingError
from worldswitch.lab import artifacts

RELEASE = "6.12.0-mine"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def vmlinuz(tmp_path):
    path = tmp_path / "bzImage"
    path.write_bytes(deb_build.bzimage(RELEASE))
    return path


@pytest.mark.parametrize("below", ["", "lib/modules/" + RELEASE, RELEASE])
def test_an_own_kernel_and_its_modules(tmp_path, vmlinuz, below):
    """``make modules_install INSTALL_MOD_PATH=DIR`` makes DIR/lib/modules/RELEASE; any of the folders will do."""
    given = tmp_path / "modules"
    folder = given / below if below else given / "lib/modules" / RELEASE
    (folder / "kernel").mkdir(parents=True)
    found = artifacts.own_kernel(vmlinuz, given)
    assert (found.release, found.version, found.modules, found.package) == (RELEASE, "6.12.0", folder, "")
    if below:
        assert artifacts.own_kernel(vmlinuz, folder).modules == folder


def test_modules_of_another_kernel_are_refused(tmp_path, vmlinuz):
    (tmp_path / "modules/lib/modules/6.1.0/kernel").mkdir(parents=True)
    with pytest.raises(MissingError, match=r"has no modules of kernel 6\.12\.0-mine"):
        artifacts.own_kernel(vmlinuz, tmp_path / "modules")
    with pytest.raises(MissingError, match=r"no folder .*nowhere"):
        artifacts.own_kernel(vmlinuz, tmp_path / "nowhere")


@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(2000), bytes(0x210)])
def test_what_is_no_bzimage_is_refused(tmp_path, data):
    (tmp_path / "vmlinux").write_bytes(data)
    with pytest.raises(MissingError, match="is not a bzImage; name arch/x86/boot/bzImage"):
        artifacts.release_of(tmp_path / "vmlinux")
    with pytest.raises(MissingError, match="cannot read the kernel"):
        artifacts.release_of(tmp_path / "none")


@pytest.mark.parametrize(
    ("spec", "release", "version", "is_named"),
    [
        ("5.10", "5.10.0-32-cloud-amd64", "5.10.223", True),
        ("5.1", "5.10.0-32-cloud-amd64", "5.10.223", False),
        ("5.10.223", "5.10.0-32-cloud-amd64", "5.10.223", True),
        ("5.10.22", "5.10.0-32-cloud-amd64", "5.10.223", False),
        ("5.10.0-32", "5.10.0-32-cloud-amd64", "5.10.223", True),
        ("5.10.0-3", "5.10.0-32-cloud-amd64", "5.10.223", False),
        ("6.12.117+deb13", "6.12.117+deb13-cloud-amd64", "6.12.117", True),
        ("7.3", "7.3-cloud-amd64", "7.3-rc7", True),
        ("7.3-rc7", "7.3-cloud-amd64", "7.3-rc7", True),
        ("6", "6.1.0-50-cloud-amd64", "6.1.176", False),
    ],
)
def test_what_a_kernel_is_named_by(spec, release, version, is_named):
    assert artifacts.names(spec, release, version) is is_named


def test_versions_sort_as_they_were_released():
    released = ["5.10.9", "5.10.223", "6.1.90", "6.12.1", "7.3-rc7", "7.3-rc10", "7.3.0", "7.3.1"]
    shuffled = released[::-1]
    assert sorted(shuffled, key=artifacts.version_key) == released


@pytest.mark.parametrize(
    ("ask", "command"),
    [
        (lambda: artifacts.kernel("6.1"), "wsw lab fetch 6.1"),
        (lambda: artifacts.build("x"), "wsw lab build KERNEL --revert … --name x"),
        (artifacts.userland, "wsw lab fetch 6.12"),
        (lambda: artifacts.tool("perf"), "wsw lab fetch --tool perf"),
        (artifacts.qemu, "wsw lab fetch --emulators"),
        (artifacts.bochs, "wsw lab fetch --fast-bochs"),
        (artifacts.iso_tools, "wsw lab fetch --emulators"),
    ],
)
def test_what_is_not_there_comes_with_the_command_that_gets_it(monkeypatch, ask, command):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingError) as raised:
        ask()
    assert f"`{command}`" in str(raised.value)


def test_a_program_on_path_says_its_version(tmp_path, monkeypatch):
    program = tmp_path / "qemu-system-x86_64"
    program.write_text("#!/bin/sh\necho 'QEMU emulator version 9.9.1 (Debian 1:9.9)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = artifacts.qemu()
    assert (found.command, found.version, found.data) == ((str(program),), "9.9.1", ())
