"""The guest's first file system: its programs, the field kit, and the modules of one kernel for one vendor.

Two parts, one cpio archive after the other: the programs, which are the same for every kernel and kept in the cache
under a hash of all they are made of, and the modules. Nothing is compressed: inside an emulator unpacking costs more
than reading.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, printable
from worldswitch.lab import cache, cpio, diskio, elf, modules, stdlib
from worldswitch.lab.artifacts import BuildFiles, KernelFiles

VENDOR = {"amd": "kvm_amd", "intel": "kvm_intel"}
KIT = "lab/wsw.pyz"
"""Where the field kit lies in the guest."""

_AGAIN = "`wsw lab fetch` gets the guest's programs again"
_LOADER = "ld-linux-x86-64.so.2"
_LAYOUT = 1
"""Raise when the archives' layout changes, so that none made before is used."""


@dataclass(frozen=True)
class Guest:
    """What the guest is made of.

    Attributes:
        userland: Root folder that has busybox, Python 3 and their libraries.
        tools: Root folders of further programs, by name.
        kit: The field kit, None for a guest without.
    """

    userland: Path
    tools: Mapping[str, Path]
    kit: bytes | None = None


@dataclass(frozen=True)
class KernelModules:
    """The modules one kernel loads for one vendor's KVM, in order."""

    loaded: tuple[modules.Module, ...]
    key: str

    @classmethod
    def of(cls, kernel: KernelFiles, cpu: str, build: BuildFiles | None = None) -> KernelModules:
        """Those of *kernel*, or of *build* where it has them.

        Raises:
            MissingError: One is not there, or was built for another kernel.
        """
        if build and build.release != kernel.release:
            raise MissingError(
                f"build {printable(build.name)} is for kernel {printable(build.release)}, not "
                f"{printable(kernel.release)}; name the kernel it was built for"
            )
        found = modules.closure(kernel.modules, [VENDOR[cpu]], replaced=build.modules if build else {})
        for module in found:
            if module.release != kernel.release:
                raise MissingError(
                    f"module {printable(module.name)} was built for kernel {printable(module.release)}, not "
                    f"{printable(kernel.release)}, and would not load; name the modules of that kernel"
                )
        digest = hashlib.sha256()
        for module in found:
            digest.update(hashlib.sha256(module.data).digest())
        return cls(tuple(found), digest.hexdigest()[:16])

    def archive(self) -> cpio.Archive:
        """The modules' files, ``/lab/modules/NAME.ko``."""
        archive = cpio.Archive()
        for module in self.loaded:
            archive.file(module_path(module.name), module.data)
        return archive


def module_path(name: str) -> str:
    """Where a module lies in the guest."""
    return f"/lab/modules/{name}.ko"


def guest_archive(guest: Guest) -> Path:
    """The cpio archive of the guest's programs, made unless the cache has it.

    Raises:
        MissingError: The userland lacks something, or the cache cannot be written.
    """
    key = guest_key(guest)

    def fill(folder: Path) -> Mapping[str, Any]:
        (folder / "guest.cpio").write_bytes(_guest(guest).pack())
        return {"userland": str(guest.userland), "tools": sorted(guest.tools)}

    return cached("guests", key, fill) / "guest.cpio"


def guest_key(guest: Guest) -> str:
    """A hash of all that goes into :func:`guest_archive`."""
    digest = hashlib.sha256(f"{_LAYOUT}".encode())
    for root in (guest.userland, *(guest.tools[name] for name in sorted(guest.tools))):
        manifest = root / cache.MANIFEST
        digest.update(manifest.read_bytes() if manifest.exists() else str(root.resolve()).encode())
    for data in (
        guest.kit or b"",
        _own("init"),
        _own("compile.py"),
        diskio.program(),
        Path(stdlib.__file__).read_bytes(),
    ):
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()[:16]


def cached(kind: str, key: str, fill: Callable[[Path], Mapping[str, Any]]) -> Path:
    """The folder of a cache entry, filled first if it is not there or a file of it has not its size."""
    entry = cache.find(kind, key)
    if entry is None or entry.damage():
        entry = cache.store(kind, key, fill)
    return entry.path


def _own(name: str) -> bytes:
    return (resources.files("worldswitch.lab.l1") / name).read_bytes()


def _guest(guest: Guest) -> cpio.Archive:
    archive = cpio.Archive()
    for folder in ("proc", "sys", "dev", "tmp", "root", "run", "lab/bin", "bin", "usr/bin"):
        archive.folder(folder)
    archive.device("dev/console", 5, 1)
    archive.device("dev/null", 1, 3)
    archive.file("init", _own("init"), 0o755)
    archive.file("lab/disk", diskio.program(), 0o755)
    archive.file("bin/busybox", _program(guest.userland, "busybox").read_bytes(), 0o755)
    _add_python(archive, guest)
    for root in guest.tools.values():
        _add_root(archive, root)
    return archive


def _add_python(archive: cpio.Archive, guest: Guest) -> None:
    python = _interpreter(guest.userland)
    library = guest.userland / "usr/lib" / python.name
    names = stdlib.select(library, stdlib.imported_by_archive(guest.kit) if guest.kit else ())
    with tempfile.TemporaryDirectory(prefix="wsw-lab-") as work:
        source, target = Path(work, "source"), Path(work, "target")
        for name in names:
            place = source / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library / name, place)
        _compile(guest.userland, python, source, target)
        for path in sorted(path for path in target.rglob("*") if path.is_file()):
            archive.file(f"usr/lib/{python.name}/{path.relative_to(target)}", path.read_bytes())
        if guest.kit:
            Path(work, "kit").write_bytes(guest.kit)
            _compile(guest.userland, python, Path(work, "kit"), Path(work, "kit.pyz"))
            archive.file(KIT, Path(work, "kit.pyz").read_bytes())
            archive.file("lab/bin/wsw", f'#!/bin/sh\nexec python3 -I -S /{KIT} "$@"\n'.encode(), 0o755)
    archive.file(f"usr/bin/{python.name}", python.read_bytes(), 0o755)
    for alias in ("python3", "python"):
        archive.link(f"usr/bin/{alias}", python.name)
    extensions = [f"usr/lib/{python.name}/{name}" for name in names if name.suffix == ".so"]
    for file in elf.closure(guest.userland, [f"usr/bin/{python.name}", *extensions]):
        _add_file(archive, guest.userland, file)


def _interpreter(root: Path) -> Path:
    found = sorted((root / "usr/bin").glob("python3.[0-9]*"))
    if not found:
        raise MissingError(f"{printable(str(root))} has no usr/bin/python3.N; {_AGAIN}")
    return found[-1]


def _program(root: Path, name: str) -> Path:
    for folder in ("bin", "usr/bin", "sbin", "usr/sbin"):
        if (root / folder / name).is_file():
            return root / folder / name
    raise MissingError(f"{printable(str(root))} has no {name}; {_AGAIN}")


def _library(root: Path, name: str) -> Path | None:
    return next((root / folder / name for folder in elf.FOLDERS if (root / folder / name).exists()), None)


def _compile(root: Path, python: Path, source: Path, target: Path) -> None:
    """Compile by the guest's own interpreter; where it cannot run, sources go in, which is slower and no less right."""
    loader = _library(root, _LOADER)
    folders = os.pathsep.join(str(root / folder) for folder in elf.FOLDERS)
    environment = {"PYTHONHOME": str(root / "usr"), "PATH": os.defpath}
    quiet = subprocess.DEVNULL
    with resources.as_file(resources.files("worldswitch.lab.l1") / "compile.py") as script:
        command = (str(loader), "--library-path", folders, str(python), "-sSP", str(script), str(source), str(target))
        try:
            subprocess.run(command, check=True, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, timeout=120)
        except (OSError, subprocess.SubprocessError):
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)


def _add_root(archive: cpio.Archive, root: Path) -> None:
    """All of an unpacked package's programs and libraries."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if inside.parts[:2] != ("usr", "share") and path.name != cache.MANIFEST:
            _add_file(archive, root, str(inside))


def _add_file(archive: cpio.Archive, root: Path, name: str) -> None:
    path = root / name
    if name in archive.entries:
        return
    if path.is_symlink():
        archive.link(name, str(path.readlink()))
    elif path.is_file():
        archive.file(name, path.read_bytes(), 0o755)
