"""The lab's cache: whole entries only, each with a manifest that tells whether it is still as it was stored.

An entry is a folder ``KIND/NAME`` below :func:`root` with a ``manifest.json``: what it is, from which packages, and the
size and SHA-256 of each file. It is filled under another name and renamed when complete, so an interrupted run leaves
nothing that looks like an entry, and of two runs that want the same one the second waits and finds it there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, printable

FORMAT = 1
MANIFEST = "manifest.json"
_FILLING = ".filling-"


@dataclass(frozen=True, slots=True)
class Entry:
    """One complete entry of the cache.

    Attributes:
        kind: What sort of thing: ``"kernels"``, ``"builds"``, ``"emulators"``, ...
        name: Its name within the kind, such as a kernel's release.
        path: The folder.
        about: What was noted when it was stored: versions, packages, hashes; JSON values.
        files: Path within the folder -> (size in bytes, SHA-256), or (-1, target) of a symbolic link.
    """

    kind: str
    name: str
    path: Path
    about: Mapping[str, Any] = field(hash=False)
    files: Mapping[str, tuple[int, str]] = field(hash=False, repr=False)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(max(size, 0) for size, _ in self.files.values())

    def damage(self, thorough: bool = False) -> str | None:
        """What is no longer as it was stored, None if nothing is.

        Args:
            thorough: Read every file and compare its hash, not just its size.
        """
        for name, (size, digest) in self.files.items():
            path = self.path / name
            try:
                found = path.lstat()
            except OSError:
                return f"{name} is gone"
            if size < 0:
                if not stat.S_ISLNK(found.st_mode) or str(path.readlink()) != digest:
                    return f"the link {name} was changed"
            elif found.st_size != size:
                return f"{name} has {found.st_size} bytes, not {size}"
            elif thorough and _sha256(path) != digest:
                return f"the content of {name} was changed"
        return None


def root() -> Path:
    """The folder of the lab's cache, by the XDG rules; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "worldswitch" / "lab"


def find(kind: str, name: str) -> Entry | None:
    """The entry, or None if it was never stored (or its manifest cannot be read)."""
    path = root() / kind / name
    try:
        document = json.loads((path / MANIFEST).read_text("utf-8"))
        if document["format"] != FORMAT:
            return None
        files = {str(file): (int(size), str(digest)) for file, (size, digest) in document["files"].items()}
        return Entry(kind, name, path, dict(document["about"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def kinds() -> list[str]:
    """The kinds there are entries of; kernels and what was built for them first."""
    first = ["kernels", "builds", "buildroots", "emulators", "userland", "tools"]
    with suppress(OSError):
        there = sorted(path.name for path in root().iterdir() if path.is_dir() and entries(path.name))
        return sorted(there, key=lambda kind: (first.index(kind) if kind in first else len(first), kind))
    return []


def entries(kind: str) -> list[Entry]:
    """All entries of a kind, by name."""
    with suppress(OSError):
        names = sorted(path.name for path in (root() / kind).iterdir() if not path.name.startswith("."))
        return [entry for name in names if (entry := find(kind, name))]
    return []


def whole(entry: Entry, remedy: str) -> Entry:
    """*entry*, if every file of it is there with its size.

    Raises:
        MissingError: It is damaged; the message ends in *remedy*.
    """
    if damage := entry.damage():
        raise MissingError(f"{entry.path} in the cache is damaged: {printable(damage)}; {remedy}")
    return entry


def unchanged(path: Path, remedy: str) -> None:
    """Check, if *path* lies in the cache, that every file of its entry has the content it was stored with.

    Raises:
        MissingError: It is damaged; the message ends in *remedy*.
    """
    try:
        kind, name, *_ = path.relative_to(root()).parts
    except ValueError:
        return
    entry = find(kind, name)
    if entry and (damage := entry.damage(thorough=True)):
        raise MissingError(f"{entry.path} in the cache is damaged: {printable(damage)}; {remedy}")


def store(kind: str, name: str, fill: Callable[[Path], Mapping[str, Any]], *, anew: bool = False) -> Entry:
    """The entry, filled first unless it is there and undamaged.

    Args:
        kind: See :class:`Entry`.
        name: See :class:`Entry`.
        fill: Fills the empty folder it is given and returns what to note as ``about``.
        anew: Replace the entry even if it is there.

    Raises:
        MissingError: The cache cannot be written, or the disk is full.
    """
    with locked(f"{kind}-{name}"), writable():
        here = find(kind, name)
        if here and not anew and here.damage(thorough=True) is None:
            return here
        parent = root() / kind
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent, name)
        folder = Path(tempfile.mkdtemp(prefix=f"{_FILLING}{name}-", dir=parent))
        try:
            about = fill(folder)
            _write_manifest(folder, about)
            folder.chmod(0o755)
            _replace(folder, parent / name)
        finally:
            discard(folder)
        entry = find(kind, name)
        if entry is None:
            raise MissingError(f"{parent / name} was stored and is not there; does something else clean this folder?")
        return entry


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of that name; waits for another run that holds it.

    Raises:
        MissingError: The cache cannot be written.
    """
    folder = root() / "locks"
    with writable():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
            raise _unwritable(error) from error
        descriptor = os.open(folder / name.replace("/", "-"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writable() -> Iterator[None]:
    """Turn "disk full" and "not yours to write" in the cache into a MissingError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full() from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise _unwritable(error) from error
        raise


def _unwritable(error: OSError) -> MissingError:
    return MissingError(
        f"the cache {root()} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder of yours"
    )


def full() -> MissingError:
    """The error of a full disk."""
    free = 0
    with suppress(OSError):
        free = shutil.disk_usage(_existing(root())).free
    return MissingError(
        f"the disk of {root()} is full ({free >> 20} MiB free); free some space or set XDG_CACHE_HOME to a folder on"
        " another disk, then run the command again: what is complete is kept"
    )


def remove(kind: str, name: str) -> bool:
    """Remove an entry; whether there was one."""
    with locked(f"{kind}-{name}"):
        path = root() / kind / name
        if not path.exists():
            return False
        gone = path.with_name(f"{_FILLING}{name}-gone")
        discard(gone)
        path.rename(gone)
        discard(gone)
        return True


def discard(folder: Path) -> None:
    """Remove a folder and what is in it, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path, name: str) -> None:
    """Remove what interrupted runs left of this entry; the lock is ours, so nobody fills them."""
    for left in parent.glob(f"{_FILLING}*"):
        if left.name[len(_FILLING) :].rpartition("-")[0] == name:
            discard(left)


def _replace(folder: Path, target: Path) -> None:
    if target.exists():
        old = target.with_name(f"{_FILLING}{target.name}-old")
        discard(old)
        target.rename(old)
        folder.rename(target)
        discard(old)
    else:
        folder.rename(target)


def _write_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            files[name] = (-1, str(path.readlink()))
        elif stat.S_ISREG(mode):
            files[name] = (path.stat().st_size, _sha256(path))
    document = {"format": FORMAT, "about": dict(about), "files": files}
    with (folder / MANIFEST).open("w", encoding="utf-8") as sink:
        json.dump(document, sink, indent=1)
        sink.flush()
        os.fsync(sink.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
