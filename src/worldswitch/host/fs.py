"""Where a host's files come from: this machine, a folder that holds a root tree, or a snapshot. Only ever read.

Nothing a tree or an archive holds is trusted: links stay inside, only regular files are opened (a FIFO would hang, a
device might act), and the bytes, names and files that are looked at are bounded.
"""

from __future__ import annotations

import errno
import os
import stat as st
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

READ_LIMIT = 256 << 10
"""Bytes of one file that are looked at; a kernel's configuration is the largest, at some 280 KB, and is read whole."""
CONFIG_LIMIT = 1 << 20
MOST_NAMES = 65_536
"""Names of one folder that are looked at; there is one per VM in ``/sys/kernel/debug/kvm``."""
MOST_FILES = 4_000
MOST_BYTES = 16 << 20
"""What all files together may be."""
MOST_LINKS = 40
"""As the kernel's limit for one path."""

ABSENT = "not there"


class NotRead(Exception):
    """A file was not read; the text says why, in a few words."""


class Device(NamedTuple):
    """What a device node is like, told without opening it.

    Attributes:
        kind: ``char``, ``block`` or what else it is.
        mode: Permission bits.
        uid: Owner.
        gid: Group.
        usable: Whether this process may open it for reading and writing; None where that can't be asked.
        group: The group's name, where it is root or kvm.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    usable: bool | None = None
    group: str = ""


class HostFs(Protocol):
    """A host's files. Paths are absolute, as on that host."""

    name: str
    """What it is called in messages."""
    notes: tuple[str, ...]
    """What was odd about the whole."""

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """At most *limit* bytes of a regular file. Raises NotRead, also if there are more."""

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted. Raises NotRead."""

    def device(self, path: str) -> Device:
        """What a device node is like. Raises NotRead."""

    def told(self) -> dict[str, str] | None:
        """Path -> why it was not read, where this is a record of an earlier reading; None where it is none."""


class Budget:
    """How much of a tree may still be looked at."""

    def __init__(self, files: int = MOST_FILES, size: int = MOST_BYTES) -> None:
        self._files, self._size = files, size

    def spend(self, size: int = 0) -> None:
        """One file more, of *size* bytes. Raises NotRead when there were enough."""
        self._files -= 1
        self._size -= size
        if self._files < 0 or self._size < 0:
            raise NotRead("too much was read before it")


class Root:
    """A folder that holds a host's tree. No link of it leads out: each is followed as if the folder were ``/``."""

    def __init__(self, folder: str) -> None:
        self.name = folder
        self.notes: tuple[str, ...] = ()
        self._folder = folder
        self._budget = Budget()

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """At most *limit* bytes of a regular file. Raises NotRead, also if there are more."""
        with _reasons(), self._parent(path) as (folder, name):
            data = read_regular(name, folder, limit)
        self._budget.spend(len(data))
        return data

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted. Raises NotRead."""
        self._budget.spend()
        with _reasons(), self._parent(folder) as (parent, name):
            if name == ".":
                return _listed(parent)
            handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                return _listed(handle)
            finally:
                os.close(handle)

    def device(self, path: str) -> Device:
        """What a device node is like. Raises NotRead."""
        self._budget.spend()
        with _reasons(), self._parent(path) as (folder, name):
            return _device(os.stat(name, dir_fd=folder, follow_symlinks=False))

    def told(self) -> dict[str, str] | None:
        """None: this is no record."""
        return None

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder that holds *path* once all links are followed, opened, and the name in it (``.`` for ``/``)."""
        walked = [os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            name = self._walk(path, walked)
            yield walked[-1], name
        finally:
            for handle in walked:
                os.close(handle)

    def _walk(self, path: str, walked: list[int]) -> str:
        waiting = [part for part in reversed(path.split("/")) if part]
        links = 0
        while waiting:
            name = waiting.pop()
            if name == "..":
                if len(walked) > 1:
                    os.close(walked.pop())
                continue
            if name == ".":
                continue
            target = _link(name, walked[-1])
            if target is not None:
                links += 1
                if links > MOST_LINKS or len(waiting) > 1_000:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.startswith("/"):
                    while len(walked) > 1:
                        os.close(walked.pop())
                waiting.extend(part for part in reversed(target.split("/")) if part)
            elif not any(part != "." for part in waiting):
                return name
            else:
                walked.append(_folder(name, walked[-1]))
        return "."


class Live(Root):
    """This machine. Also here only regular files are opened; links lead where they lead."""

    def __init__(self) -> None:
        super().__init__("/")
        self.name = "this host"

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """At most *limit* bytes of a regular file. Raises NotRead, also if there are more."""
        with _reasons():
            return read_regular(path, None, limit, follow=True)

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted. Raises NotRead."""
        with _reasons():
            return _listed(folder)

    def device(self, path: str) -> Device:
        """What a device node is like, and whether this process may use it. Raises NotRead."""
        with _reasons():
            found = _device(os.stat(path))  # noqa: PTH116 - pathlib is slow to import
            return found._replace(usable=os.access(path, os.R_OK | os.W_OK, effective_ids=True))


def read_regular(path: str, folder: int | None, limit: int, *, follow: bool = False) -> bytes:
    """At most *limit* bytes of a regular file.

    Args:
        path: The file, in *folder* if that is given.
        folder: An open folder.
        limit: A larger file is not given in part.
        follow: Whether *path* may be a link.

    Raises:
        OSError: As of open and read.
        NotRead: It is no regular file, or too large.
    """
    # Opening a FIFO can hang and opening a device can act: so it is looked at first, and again once it is open.
    _insist_regular(os.stat(path, dir_fd=folder, follow_symlinks=follow))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags, dir_fd=folder)
    try:
        _insist_regular(os.fstat(handle))
        parts, left = [], limit + 1
        while left and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(handle)
    if not left:
        raise NotRead(f"larger than {limit:,} bytes")
    return b"".join(parts)


def _insist_regular(status: os.stat_result) -> None:
    if not st.S_ISREG(status.st_mode):
        raise NotRead(f"a {kind_of(status.st_mode)}, not a regular file")


def kind_of(mode: int) -> str:
    """What a file of this st_mode is."""
    kinds = (
        (st.S_ISREG, "regular file"), (st.S_ISDIR, "folder"), (st.S_ISLNK, "link"), (st.S_ISFIFO, "FIFO"),
        (st.S_ISSOCK, "socket"), (st.S_ISCHR, "character device"), (st.S_ISBLK, "block device"),
    )  # fmt: skip
    return next((kind for test, kind in kinds if test(mode)), "file of unknown kind")


def _device(status: os.stat_result) -> Device:
    return Device(kind_of(status.st_mode), st.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _link(name: str, folder: int) -> str | None:
    """Where the link *name* leads; None if it is no link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _folder(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _listed(folder: int | str) -> tuple[str, ...]:
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > MOST_NAMES:
                raise NotRead(f"a folder of more than {MOST_NAMES:,} names")
    return tuple(sorted(names))


@contextmanager
def _reasons() -> Iterator[None]:
    """Give errors of the system as NotRead."""
    try:
        yield
    except OSError as error:
        raise NotRead(reason(error)) from None
    except ValueError:  # a NUL in a name
        raise NotRead("no name a file can have") from None


def reason(error: OSError) -> str:
    """What an error of the system means, in a few words."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ABSENT
    return (error.strerror or str(error)).lower()
