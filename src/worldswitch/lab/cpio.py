"""Archives in the "newc" form of cpio, which is what a kernel unpacks as its first file system.

Source: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

MAGIC = b"070701"
TRAILER = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its mode with the type bits, its content (a link's target, nothing for folders and devices)."""

    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


@dataclass
class Archive:
    """Files by path, in the order they were added; a path's folders are added before it.

    The bytes are a function of the content: no owner but root, no time but 0.
    """

    entries: dict[str, Entry] = field(default_factory=dict)

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Add a file, in place of an earlier one of that path."""
        self._add(path, Entry(stat.S_IFREG | mode, data))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._add(path, Entry(stat.S_IFLNK | 0o777, target.encode()))

    def folder(self, path: str) -> None:
        """Add a folder, unless it is there."""
        if _clean(path) not in self.entries:
            self._add(path, Entry(stat.S_IFDIR | 0o755))

    def device(self, path: str, major: int, minor: int) -> None:
        """Add a character device."""
        self._add(path, Entry(stat.S_IFCHR | 0o600, device=(major, minor)))

    def _add(self, path: str, entry: Entry) -> None:
        name = _clean(path)
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            self.entries.setdefault(str(parent), Entry(stat.S_IFDIR | 0o755))
        self.entries[name] = entry

    def pack(self) -> bytes:
        """The archive, padded to 512 bytes so that another may follow it."""
        parts = [
            part for number, (name, entry) in enumerate(self.entries.items(), 1) for part in _one(number, name, entry)
        ]
        parts += _one(0, TRAILER, Entry(0))
        size = sum(map(len, parts))
        parts.append(bytes(-size % 512))
        return b"".join(parts)


def _clean(path: str) -> str:
    return path.strip("/")


def _one(number: int, name: str, entry: Entry) -> Iterator[bytes]:
    encoded = name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(encoded), 0)
    header = MAGIC + b"".join(b"%08X" % value for value in fields) + encoded
    yield header + bytes(-len(header) % 4)
    yield entry.data
    yield bytes(-len(entry.data) % 4)
