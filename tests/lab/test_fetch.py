"""Kernels, userland and tools fetched from a folder of small packages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import deb_build
from worldswitch.errors import MissingError, UsageError
from worldswitch.lab import artifacts, cache, fetch
from worldswitch.lab.folder import Folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def debs(tmp_path):
    folder = tmp_path / "debs"
    folder.mkdir()
    return folder


def test_the_newest_of_a_line_is_fetched(debs):
    deb_build.kernel(debs, "6.1.90-1", "6.1.0-20-cloud-amd64")
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    deb_build.kernel(debs, "6.12.1-1", "6.12.1+deb13-cloud-amd64")
    found = fetch.kernel("6.1", Folder(debs))
    assert (found.spec, found.version, found.release) == ("6.1", "6.1.176", "6.1.0-50-cloud-amd64")
    assert artifacts.release_of(found.vmlinuz) == found.release
    assert (found.modules / "kernel/arch/x86/kvm/kvm.ko").read_bytes() == b"ko"
    assert found.package == "linux-image-6.1.0-50-cloud-amd64 6.1.176-1"
    assert not list(cache.root().rglob("copyright"))


@pytest.mark.parametrize("spec", ["6.1.90", "6.1.0-20", "6.1.0-20-cloud-amd64", "v6.1.90"])
def test_one_version_can_be_asked_for(debs, spec):
    deb_build.kernel(debs, "6.1.90-1", "6.1.0-20-cloud-amd64")
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    assert fetch.kernel(spec, Folder(debs)).version == "6.1.90"
    assert artifacts.kernel(spec).version == "6.1.90"


def test_a_kernel_of_several_packages(debs):
    """From 7.x on the image's package is empty and needs two others."""
    release = "7.3-cloud-amd64"
    deb_build.kernel(debs, "7.3~rc7-1~exp1", release, split=True)
    deb_build.deb(debs, f"linux-image-{release}", "7.3~rc7-1~exp1")
    found = fetch.kernel("7.3", Folder(debs))
    assert (found.version, found.release) == ("7.3-rc7", release)
    assert found.vmlinuz.name == "vmlinuz"
    assert (found.modules / "kernel/arch/x86/kvm/kvm.ko.xz").exists()


def test_line_5_1_is_not_5_10(debs):
    deb_build.kernel(debs, "5.10.223-1", "5.10.0-32-cloud-amd64")
    with pytest.raises(MissingError, match=r"has no kernel 5\.1; it has 5\.10\.223"):
        fetch.kernel("5.1", Folder(debs))


def test_a_version_that_is_no_longer_there_is_a_clear_error(debs):
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    with pytest.raises(MissingError, match=r"the folder .* has no kernel 6\.1\.29; it has 6\.1\.176$"):
        fetch.kernel("6.1.29", Folder(debs))


def test_what_is_there_needs_no_source(debs):
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    fetch.kernel("6.1", Folder(debs))
    shutil.rmtree(debs)
    said = []
    assert fetch.kernel("6.1", Folder(debs), said.append).version == "6.1.176"
    assert said == ["6.1: 6.1.176 is there (6.1.0-50-cloud-amd64)"]


def test_a_newer_one_is_looked_for_when_asked(debs):
    deb_build.kernel(debs, "6.1.90-1", "6.1.0-20-cloud-amd64")
    fetch.kernel("6.1", Folder(debs))
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    assert fetch.kernel("6.1", Folder(debs)).version == "6.1.90"
    assert fetch.kernel("6.1", Folder(debs), newest=True).version == "6.1.176"


def test_a_damaged_kernel_is_named_and_fetched_again(debs):
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64")
    found = fetch.kernel("6.1", Folder(debs))
    found.vmlinuz.write_bytes(b"")
    with pytest.raises(
        MissingError, match=r"vmlinuz\S+ has 0 bytes, not \d+; `wsw lab fetch 6.1.176` fetches it again"
    ):
        artifacts.kernel("6.1")
    assert fetch.kernel("6.1", Folder(debs)).vmlinuz.stat().st_size > 0


def test_a_rebuilt_package_of_the_same_release_replaces_the_old_one(debs):
    deb_build.kernel(debs, "6.1.176-1", "6.1.0-50-cloud-amd64", modules=b"old")
    fetch.kernel("6.1", Folder(debs))
    deb_build.kernel(debs, "6.1.176-2", "6.1.0-50-cloud-amd64", modules=b"new")
    found = fetch.kernel("6.1", Folder(debs), newest=True)
    assert (found.modules / "kernel/arch/x86/kvm/kvm.ko").read_bytes() == b"new"


def test_a_folder_without_packages_is_a_clear_error(debs):
    with pytest.raises(MissingError, match=r"the folder .* has no .deb packages for amd64"):
        fetch.kernel("6.1", Folder(debs))


def userland(debs):
    deb_build.deb(debs, "busybox-static", "1:1.37", {"usr/bin/busybox": b"bb"})
    deb_build.deb(debs, "python3.9-minimal", "3.9", {"usr/bin/python3.9": b"old"})
    deb_build.deb(debs, "python3.13-minimal", "3.13", {"usr/bin/python3.13": b"py"}, Depends="libc6 (>= 2)")
    deb_build.deb(
        debs, "libpython3.13-stdlib", "3.13", {"usr/lib/python3.13/os.py": b""}, Depends="nowhere | libc-of-6"
    )
    deb_build.deb(debs, "libc6", "2.41", {"lib/x86_64-linux-gnu/libc.so.6": b"c"}, Provides="libc-of-6 (= 1)")


def test_userland_is_busybox_and_the_newest_python_with_all_they_need(debs):
    userland(debs)
    root = fetch.userland(Folder(debs))
    assert root == artifacts.userland()
    assert (root / "usr/bin/python3.13").read_bytes() == b"py"
    assert (root / "lib/x86_64-linux-gnu/libc.so.6").read_bytes() == b"c"
    assert (root / "usr/lib/x86_64-linux-gnu/libc.so.6").exists()  # both layouts of packages in one
    assert not (root / "usr/bin/python3.9").exists()


def test_a_package_the_folder_lacks_is_named_with_who_needs_it(debs):
    userland(debs)
    next(debs.glob("libc6_*")).unlink()
    with pytest.raises(
        MissingError,
        match=r"has no package (libc6, which python3\.13-minimal|nowhere, which libpython3\.13-stdlib) needs",
    ):
        fetch.userland(Folder(debs))
    with pytest.raises(MissingError, match=r"get it with `wsw lab fetch 6.12`"):
        artifacts.userland()


@pytest.mark.needs("ldd")
def test_a_tool_comes_with_just_the_libraries_it_needs(debs):
    """The tool is ls, an ELF program with real libraries."""
    program = Path(shutil.which("ls")).resolve()
    libraries = linked(program)
    files = {f"usr/lib/x86_64-linux-gnu/{name}": path.read_bytes() for name, path in libraries.items()}
    files["usr/lib64/ld-linux-x86-64.so.2"] = Path("/lib64/ld-linux-x86-64.so.2").read_bytes()
    deb_build.deb(debs, "libs", "1", files | {"usr/lib/x86_64-linux-gnu/unneeded.so": b"x" * 100})
    deb_build.deb(
        debs, "strace", "6.13", {"usr/bin/strace": program.read_bytes(), "usr/bin/other": b""}, Depends="libs"
    )
    root = fetch.tool("strace", Folder(debs))
    assert root == artifacts.tool("strace")
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    assert found == {"manifest.json", "usr/bin/strace", *(name for name in files)}


def linked(program: Path) -> dict[str, Path]:
    """What ldd says *program* needs, directly and not."""
    import re
    import subprocess

    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return {name: Path(path) for name, path in re.findall(r"(\S+) => (/\S+)", said)}


def test_there_is_no_such_tool():
    with pytest.raises(UsageError, match="there are perf, trace-cmd, strace"):
        artifacts.tool("gdb")
