"""Control groups: finding one by what people call it, and joining it. Both versions, cgroup v1 and v2.

A process joins by writing 0 to ``cgroup.procs`` (Documentation/admin-guide/cgroup-v2.rst, "Processes"). Only worker
processes do so here; they end, and nothing has to be moved back.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import NamedTuple

from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.live.permissions import ROOT, read

_PROCS = "cgroup.procs"


class Mount(NamedTuple):
    """A mounted hierarchy of control groups: where, which version, and its mount options."""

    path: Path
    version: int
    options: tuple[str, ...]


def mounts(root: Path = ROOT) -> list[Mount]:
    """Every hierarchy of control groups that is mounted, v2 first."""
    found = []
    for line in (read(root / "proc/self/mounts") or "").splitlines():
        words = line.split(" ")
        if len(words) > 3 and words[2] in ("cgroup", "cgroup2"):
            # Blanks in names are written as \040: fs/proc_namespace.c, mangle.
            path = words[1].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
            found.append(Mount(root / path.lstrip("/"), 2 if words[2] == "cgroup2" else 1, tuple(words[3].split(","))))
    return sorted(found, key=lambda mount: -mount.version)


def favordynmods(root: Path = ROOT) -> bool | None:
    """Whether the v2 hierarchy is mounted with favordynmods; None if there is none."""
    for mount in mounts(root):
        if mount.version == 2:
            return "favordynmods" in mount.options
    return None


def find(name: str, root: Path = ROOT, make: bool = False) -> Path:
    """The folder of a control group, given as a path (``/sys/fs/cgroup/vms``) or by its name in a hierarchy (``vms``).

    Args:
        make: Make it if its parent is a control group and it does not exist.

    Raises:
        UsageError: The name is empty.
        MissingError: There is no such control group, or it cannot be made; the message says how.
    """
    if not name.strip("/"):
        raise UsageError("a control group needs a name, such as vms or /sys/fs/cgroup/vms")
    hierarchies = [mount.path for mount in mounts(root)]
    given = root / name.lstrip("/")
    places = [given] if name.startswith("/") else []
    places += [hierarchy / name.lstrip("/") for hierarchy in hierarchies]
    for place in places:
        if (place / _PROCS).is_file():
            return place
    if not hierarchies:
        raise MissingError("no hierarchy of control groups is mounted; mount -t cgroup2 none /sys/fs/cgroup")
    new = next((place for place in places if (place.parent / _PROCS).is_file()), None)
    if make and new is not None:
        return _make(new)
    shown = printable(str(new or places[0]))
    raise MissingError(f"there is no control group {printable(name)!r}; make it first: sudo mkdir -p {shown}")


def _make(place: Path) -> Path:
    try:
        place.mkdir()
    except OSError as error:
        raise MissingError(
            f"the control group {printable(str(place))} cannot be made: {error.strerror}; make it as root"
        ) from None
    return place


def join(place: Path) -> None:
    """Move this process, all its threads, into a control group.

    Raises:
        MissingError: It may not; the message says why.
    """
    try:
        # Unbuffered, one write: the kernel takes each write as an order of its own.
        handle = os.open(place / _PROCS, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, b"0")
        finally:
            os.close(handle)
    except OSError as error:
        why = {
            errno.EACCES: "this user may not write to its cgroup.procs; run as root, or have it delegated",
            errno.EBUSY: "it passes controllers on to its children, so only they may hold processes; choose a child",
            errno.EOPNOTSUPP: "it is threaded or lies below a threaded one; choose another",
            errno.ENOSPC: "its cpuset has no CPUs or no memory nodes yet; write cpuset.cpus and cpuset.mems first",
            errno.ENOENT: "it is gone",
        }.get(error.errno or 0, error.strerror)
        raise MissingError(f"processes cannot be moved to the control group {printable(str(place))}: {why}") from None


def remove(place: Path, patience: float = 2.0) -> bool:
    """Remove an empty control group; whether it is gone. Its last process may take a moment to leave."""
    deadline = time.monotonic() + patience
    while True:
        try:
            place.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True
