"""Snapshots: what was read of a host, in one file that can travel; and a snapshot as a host's files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from worldswitch.errors import MissingError, printable
from worldswitch.host import fs, tar

if TYPE_CHECKING:
    from worldswitch.host.facts import Host

INDEX = "worldswitch-snapshot.json"
"""What no file says: device nodes, names in folders, what was not read and why."""
VERSION = 1


def snapshot(host: Host) -> bytes:
    """The archive of what was read of *host*: nothing but files of the allow-list, and those masked as they were read.

    The same host gives the same bytes.
    """
    index = {
        "version": VERSION,
        "devices": {path: list(one[:4]) for path, one in host.devices.items()},
        "folders": {path: list(names) for path, names in host.folders.items()},
        "unreadable": [list(one) for one in host.unreadable],
    }
    files = {path.lstrip("/"): text.encode() for path, text in host.files.items()}
    files[INDEX] = (json.dumps(index, sort_keys=True, separators=(",", ":")) + "\n").encode()
    return tar.pack(files)


class Snapshot:
    """An archive as a host's files: one of :func:`snapshot`, or any tar of parts of a root tree."""

    def __init__(self, path: str) -> None:
        """Read the whole archive.

        Raises:
            MissingError: The file cannot be read, or is no archive.
        """
        self.name = path
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._others: dict[str, str] = {}
        self._folders: dict[str, set[str]] = {"/": set()}
        notes = self._load(path)
        self.notes = tuple(notes)
        self._index = _index(self._files.pop(f"/{INDEX}", b""))

    def read(self, path: str, limit: int = fs.READ_LIMIT) -> bytes:
        """At most *limit* bytes of a regular file. Raises NotRead, also if there are more."""
        place = self._resolved(path)
        if place in self._files:
            if len(self._files[place]) > limit:
                raise fs.NotRead(f"larger than {limit:,} bytes")
            return self._files[place]
        if place in self._others:
            raise fs.NotRead(f"a {self._others[place]}, not a regular file")
        raise fs.NotRead("a folder, not a regular file" if place in self._folders else fs.ABSENT)

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted. Raises NotRead."""
        place = self._resolved(folder)
        found = self._folders.get(place, set()) | set(_strings(self._index["folders"].get(folder)))
        if not found and place not in self._folders and folder not in self._index["folders"]:
            raise fs.NotRead(fs.ABSENT)
        return tuple(sorted(found))

    def device(self, path: str) -> fs.Device:
        """What a device node is like. Raises NotRead."""
        told = self._index["devices"].get(path)
        if isinstance(told, list) and len(told) == 4 and isinstance(told[0], str):
            numbers = [number for number in told[1:] if type(number) is int and 0 <= number < 1 << 32]
            if len(numbers) == 3:
                return fs.Device(told[0], numbers[0], numbers[1], numbers[2])
        raise fs.NotRead(fs.ABSENT)

    def told(self) -> dict[str, str] | None:
        """Path -> why it was not read when the snapshot was made; None if this is another tar."""
        if not self._index["version"]:
            return None
        pairs = [_strings(one) for one in self._index["unreadable"]]
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def _load(self, path: str) -> list[str]:
        notes: list[str] = []
        try:
            # A FIFO or a terminal would wait for ever.
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - pathlib is slow to import
                raise MissingError(f"{printable(path)} is no file; a folder is given as --root {printable(path)}")
            with open(path, "rb") as file:  # noqa: PTH123
                for member in tar.members(file, fs.CONFIG_LIMIT):
                    self._add(member, notes)
        except tar.Damaged as error:
            if not (self._files or self._links or self._others):
                raise MissingError(f"{printable(path)} holds no snapshot: {error}") from None
            notes.append(f"the archive is not whole: {error}")
        except OSError as error:
            if isinstance(error, MissingError):
                raise
            raise MissingError(f"{printable(path)} cannot be read: {fs.reason(error)}") from None
        return list(dict.fromkeys(notes))

    def _add(self, member: tar.Member, notes: list[str]) -> None:
        parts = [part for part in member.path.split("/") if part not in ("", ".")]
        if ".." in parts or len(parts) > 64:
            notes.append("members whose path leads out of the archive were left out")
            return
        place = "/" + "/".join(parts)
        if place in self._files or place in self._links:
            notes.append(f"{printable(place)} is in it more than once; the last one counts")
        for table in (self._files, self._links, self._others):
            table.pop(place, None)
        for depth, part in enumerate(parts):
            self._folders.setdefault("/" + "/".join(parts[:depth]), set()).add(part)
        if member.kind == tar.FILE:
            if len(member.data) <= fs.CONFIG_LIMIT and len(member.data) < member.size:
                notes.append(f"{printable(place)} is cut short")
            self._files[place] = member.data
        elif member.kind == tar.FOLDER:
            self._folders.setdefault(place, set())
        elif member.kind == tar.LINK:
            self._links[place] = member.target
        elif member.kind == tar.HARD_LINK:
            self._links[place] = "/" + member.target
        else:
            self._others[place] = member.target

    def _resolved(self, path: str) -> str:
        """*path* with every link followed, all within the archive. Raises NotRead."""
        if not self._links:
            return path
        waiting = [part for part in reversed(path.split("/")) if part]
        walked: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                del walked[-1:]
                continue
            if part == ".":
                continue
            target = self._links.get("/" + "/".join([*walked, part]))
            if target is None:
                walked.append(part)
                continue
            links += 1
            if links > fs.MOST_LINKS or len(waiting) > 1_000:
                raise fs.NotRead("too many levels of symbolic links")
            if target.startswith("/"):
                walked.clear()
            waiting.extend(one for one in reversed(target.split("/")) if one)
        return "/" + "/".join(walked)


def _index(data: bytes) -> dict[str, Any]:
    """The index with its keys there and of the right kind, whatever *data* is."""
    try:
        found = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        found = {}
    found = found if isinstance(found, Mapping) else {}
    maps: dict[str, Any] = {}
    for key in ("devices", "folders"):
        maps[key] = found[key] if isinstance(found.get(key), Mapping) else {}
    unreadable = found.get("unreadable")
    return {**maps, "unreadable": unreadable if isinstance(unreadable, list) else [], "version": found.get("version")}


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
