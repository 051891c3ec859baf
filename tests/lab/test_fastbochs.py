"""The build of a fast Bochs, with a source package whose configure and make take no time."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

import deb_build
from worldswitch.errors import MissingError
from worldswitch.lab import artifacts, cache, fastbochs
from worldswitch.lab.folder import Folder

pytestmark = pytest.mark.needs("make", "g++")
CONFIGURE = """#!/bin/sh
case "$*" in *--enable-vmx=2*--disable-debugger*|*--disable-debugger*--enable-vmx=2*) ;; *) exit 1;; esac
printf 'all:\\n\\t%s\\n' "$(cat recipe)" > Makefile
"""


@pytest.fixture
def debs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "debs"
    folder.mkdir()
    deb_build.deb(folder, "bochsbios", "3.0-1", {"usr/share/bochs/BIOS-bochs-latest": b"BIOS"})
    vga = {"usr/share/vgabios/vgabios.bin": "vgabios.stdvga.bin", "usr/share/vgabios/vgabios.stdvga.bin": b"VGA"}
    deb_build.deb(folder, "vgabios", "0.8", vga)
    return folder


def source(folder: Path, recipe: str, name: str = "bochs-3.0") -> None:
    with tarfile.open(folder / "bochs_3.0+dfsg.orig.tar.xz", "w:xz") as packed:
        for file, text in (("configure", CONFIGURE), ("recipe", recipe)):
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size, member.mode = len(text), 0o755
            packed.addfile(member, io.BytesIO(text.encode()))


def test_it_is_built_with_its_rom_images_and_used_before_an_installed_one(debs):
    source(debs, "echo built > bochs")
    built = fastbochs.build(Folder(debs))
    assert (built.fast, built.debugger, built.display, built.version) == (True, False, "nogui", "3.0+dfsg")
    assert built.executable.read_text() == "built\n" and built.executable.stat().st_mode & 0o111
    assert (built.bios.read_bytes(), built.vgabios.read_bytes()) == (b"BIOS", b"VGA")
    assert artifacts.bochs() == built
    assert not [path for path in built.root.iterdir() if path.name.startswith(".")]
    (debs / "bochs_3.0+dfsg.orig.tar.xz").unlink()
    assert fastbochs.build(Folder(debs)) == built


def test_a_build_that_fails_shows_the_compilers_last_lines_and_leaves_nothing(debs):
    source(debs, "@echo 'cpu.cc:7: error: no such register'; exit 1")
    with pytest.raises(
        MissingError, match=r"building Bochs failed; all of it is in .*log:\n  cpu\.cc:7: error: no such"
    ):
        fastbochs.build(Folder(debs))
    assert cache.entries("emulators") == []
    assert list((cache.root() / "emulators").iterdir()) == []


def test_a_source_package_without_bochs_is_a_clear_error(debs):
    with pytest.raises(MissingError, match="has no source package bochs"):
        fastbochs.build(Folder(debs))
    (debs / "bochs_3.0+dfsg.orig.tar.xz").write_bytes(b"damaged")
    with pytest.raises(MissingError, match="is damaged"):
        fastbochs.build(Folder(debs))


def test_a_missing_compiler_is_named_with_its_package(debs, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingError, match=r"install the packages g[+][+] make"):
        fastbochs.build(Folder(debs))
