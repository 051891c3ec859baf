"""The guest's first file system: its programs, the field kit, and the modules of one kernel for one vendor.

Two parts, one cpio archive after the other: the programs, which are the same for every kernel and kept in the cache
under a hash of all they are made of, and the modules. Nothing is compressed: inside an emulator unpacking costs more
than reading.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, printable
from worldswitch.lab import cache, cpio, diskio, elf, modules
from worldswitch.lab.artifacts import BuildFiles, KernelFiles

VENDOR = {"amd": "kvm_amd", "intel": "kvm_intel"}
KIT = "lab/wsw.pyz"
"""Where the field kit lies in the guest."""

_OURS = ("init", "library.py", "waiting.py", "traced")
_MERGED = ("bin", "sbin", "lib", "lib64")
"""Folders that are links into usr, as in the distributions since 2023."""
_AGAIN = "`wsw lab fetch` gets the guest's programs again"
_LOADER = "ld-linux-x86-64.so.2"
_LAYOUT = 2
"""Raise when the archives' layout changes, so that none made before is used."""


@dataclass(frozen=True)
class Kit:
    """The field kit, as a file that is made only where it is needed.

    Attributes:
        key: A hash that changes when the content does.
        content: Gives the file.
    """

    key: str
    content: Callable[[], bytes] = field(compare=False, repr=False)


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
    kit: Kit | None = None


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
        for root in (guest.userland, *guest.tools.values()):
            cache.unchanged(root, _AGAIN)
        (folder / "guest.cpio").write_bytes(_guest(guest).pack())
        return {"userland": str(guest.userland), "tools": sorted(guest.tools)}

    return cached("guests", key, fill) / "guest.cpio"


def guest_key(guest: Guest) -> str:
    """A hash of all that goes into :func:`guest_archive`."""
    digest = hashlib.sha256(f"{_LAYOUT}".encode())
    for root in (guest.userland, *(guest.tools[name] for name in sorted(guest.tools))):
        manifest = root / cache.MANIFEST
        digest.update(manifest.read_bytes() if manifest.exists() else str(root.resolve()).encode())
    kit = guest.kit.key.encode() if guest.kit else b""
    for data in (kit, diskio.program(), *map(_own, _OURS)):
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()[:16]


def cached(kind: str, key: str, fill: Callable[[Path], Mapping[str, Any]]) -> Path:
    """The folder of a cache entry, filled first if it is not there or a file of it has not its size."""
    entry = cache.find(kind, key)
    if entry is None or entry.damage():
        entry = cache.store(kind, key, fill)
    os.utime(entry.path / cache.MANIFEST)  # so that those used last can be told
    return entry.path


def _own(name: str) -> bytes:
    return (resources.files("worldswitch.lab.l1") / name).read_bytes()


def _guest(guest: Guest) -> cpio.Archive:
    archive = cpio.Archive()
    for folder in ("proc", "sys", "dev", "tmp", "root", "run", "lab/bin", *(f"usr/{name}" for name in _MERGED)):
        archive.folder(folder)
    for name in _MERGED:
        archive.link(name, f"usr/{name}")
    archive.device("dev/console", 5, 1)
    archive.device("dev/null", 1, 3)
    archive.file("init", _own("init"), 0o755)
    archive.file("lab/bin/traced", _own("traced"), 0o755)
    archive.file("lab/disk", diskio.program(), 0o755)
    archive.file("usr/bin/busybox", _program(guest.userland, "busybox").read_bytes(), 0o755)
    _add_python(archive, guest)
    for root in guest.tools.values():
        _add_root(archive, root)
    return archive


def _add_python(archive: cpio.Archive, guest: Guest) -> None:
    python = _interpreter(guest.userland)
    with tempfile.TemporaryDirectory(prefix="wsw-lab-") as work:
        made = Path(work)
        _make_library(guest, python, made)
        library = made / "lib"
        for path in sorted(path for path in library.rglob("*") if path.is_file()):
            archive.file(f"usr/lib/{python.name}/{path.relative_to(library)}", path.read_bytes())
        if guest.kit:
            archive.file(KIT, (made / "wsw.pyz").read_bytes())
            archive.file("lab/waiting.py", _own("waiting.py"))
            archive.file("lab/bin/wsw", f'#!/bin/sh\nexec python3 -I -S /{KIT} "$@"\n'.encode(), 0o755)
    for alias in ("python3", "python"):
        archive.link(f"usr/bin/{alias}", python.name)
    extensions = [name for name in archive.entries if name.endswith(".so")]
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


def _make_library(guest: Guest, python: Path, work: Path) -> None:
    """Have the guest's own interpreter, started on this host by its own loader, make ``lib/`` and ``wsw.pyz``."""
    root = guest.userland
    loader = next((root / folder / _LOADER for folder in elf.FOLDERS if (root / folder / _LOADER).is_file()), root)
    folders = os.pathsep.join(str(root / folder) for folder in elf.FOLDERS)
    environment = {"PYTHONHOME": str(root / "usr"), "PATH": os.defpath}
    given = [str(root / "usr/lib" / python.name), str(work)]
    if guest.kit:
        (work / "kit").write_bytes(guest.kit.content())
        given.append(str(work / "kit"))
    with resources.as_file(resources.files("worldswitch.lab.l1") / "library.py") as script:
        command = (str(loader), "--library-path", folders, str(python), "-sSP", str(script), *given)
        try:
            done = subprocess.run(
                command, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingError(
                f"the guest's {python.name} does not run on this host, an x86-64 Linux: {error}"
            ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise MissingError(f"the guest's {python.name} could not compile its library: {printable(said[0])}; {_AGAIN}")


def _add_root(archive: cpio.Archive, root: Path) -> None:
    """All of an unpacked package's programs and libraries."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if inside.parts[:2] != ("usr", "share") and path.name != cache.MANIFEST:
            _add_file(archive, root, str(inside))


def _add_file(archive: cpio.Archive, root: Path, name: str) -> None:
    path = root / name
    place = f"usr/{name}" if name.partition("/")[0] in _MERGED else name
    if place in archive.entries:
        return
    if path.is_symlink():
        archive.link(place, str(path.readlink()))
    elif path.is_file():
        archive.file(place, path.read_bytes(), 0o755)
