"""Tar archives as a host's files, read into memory and never extracted, and written so that the same gives the same.

Read are POSIX ustar and pax and GNU's long names, plain or compressed by gzip or xz. The reader is our own: the
standard library's follows headers without a bound (a chain of long names recurses, a negative offset loops).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

BLOCK = 512
MOST_MEMBERS = 20_000
MOST_UNPACKED = 32 << 20
"""Bytes of the archive once it is decompressed."""
_MOST_HEADER = 64 << 10
_PIECE = 64 << 10

FILE, FOLDER, HARD_LINK, LINK, OTHER = "file", "folder", "hard link", "link", "other"
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"5": FOLDER, b"1": HARD_LINK, b"2": LINK}
_OTHERS = {b"3": "character device", b"4": "block device", b"6": "FIFO"}


class Member(NamedTuple):
    """One entry of an archive.

    Attributes:
        path: As the archive spells it.
        kind: One of the constants of this module.
        data: Of a file, what was read of it.
        size: Of a file, what it should have.
        target: Of a link, where it leads; of an ``other``, what it is.
    """

    path: str
    kind: str
    data: bytes
    size: int
    target: str


class Damaged(Exception):
    """The archive cannot be read further; the text says why."""


class _Stream:
    """The archive's bytes, decompressed as they are asked for, up to a bound."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()
        self._total = self._taken = 0
        self._ended = False
        head = file.read(6)
        self._waiting = head
        self._kind = "gzip" if head.startswith(b"\x1f\x8b") else "xz" if head == b"\xfd7zXZ\0" else ""
        if head.startswith(b"\x28\xb5\x2f\xfd"):
            raise Damaged("zstandard, which is not read; decompress it (zstd -d)")
        self._inflate: Any = self._decompressor()

    def take(self, size: int) -> bytes:
        """The next *size* bytes; fewer at the end."""
        while len(self._buffer) < size and (piece := self._next()):
            self._total += len(piece)
            if self._total > MOST_UNPACKED:
                raise Damaged(f"more than {MOST_UNPACKED >> 20} MiB when unpacked; the rest was not read")
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def skip(self, size: int) -> int:
        """Pass over *size* bytes; how many there were."""
        left = size
        while left and (piece := self.take(min(left, _PIECE))):
            left -= len(piece)
        return size - left

    def _next(self) -> bytes:
        """The next piece of the archive; empty at its end."""
        if not self._kind:
            return self._input()
        while not self._ended:
            try:
                piece = self._decompressed()
            except Exception as error:
                if isinstance(error, (zlib.error, EOFError, MemoryError)) or type(error).__name__ == "LZMAError":
                    raise Damaged(f"the {self._kind} data is damaged or wants too much memory") from None
                raise
            if piece:
                return piece
        return b""

    def _decompressed(self) -> bytes:
        """One step: perhaps nothing, though more is to come."""
        inflate = self._inflate
        if inflate.eof:
            # Another stream may follow; what is padding ends the archive.
            rest = inflate.unused_data + self._input()
            self._ended = not rest.startswith((b"\x1f\x8b", b"\xfd7zXZ\0"))
            self._inflate, self._waiting = self._decompressor(), rest
            return b""
        if self._kind == "xz":
            data = self._input() if inflate.needs_input else b""
            self._ended = inflate.needs_input and not data
        else:
            data = inflate.unconsumed_tail or self._input()
            self._ended = not data
        return bytes(inflate.decompress(data, _PIECE))

    def _input(self) -> bytes:
        data, self._waiting = self._waiting or self._file.read(_PIECE), b""
        self._taken += len(data)
        if self._taken > MOST_UNPACKED:
            raise Damaged(f"more than {MOST_UNPACKED >> 20} MiB; the rest was not read")
        return data

    def _decompressor(self) -> Any:
        if self._kind == "gzip":
            return zlib.decompressobj(31)
        if self._kind == "xz":
            try:
                lzma = import_module("lzma")  # which a python3 may lack
            except ImportError:
                raise Damaged("xz, which this python3 was built without; decompress it (xz -d)") from None
            return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=128 << 20)
        return None


def members(file: BinaryIO, limit: int) -> Iterator[Member]:
    """The archive's members in its order; of each file at most *limit* bytes and one more.

    Raises:
        Damaged: It ends early, is no archive or too large; what came before was given.
    """
    stream = _Stream(file)
    longer: dict[str, str] = {}
    for number in range(MOST_MEMBERS + 1):
        header = stream.take(BLOCK)
        if not header.strip(b"\0"):
            if number == 0:
                raise Damaged("empty" if not header else "no tar archive")
            if len(header) < BLOCK:
                raise Damaged("truncated (its end is missing)")
            return
        if len(header) < BLOCK:
            raise Damaged("truncated" if number else "no tar archive")
        if not _checksum(header):
            raise Damaged("damaged: a header's checksum is wrong" if number else "no tar archive")
        kind, size = header[156:157], _number(header[124:136])
        if kind in b"LKxg":
            if size > _MOST_HEADER:
                raise Damaged(f"a header of {size:,} bytes")
            data = stream.take(size)
            stream.skip(-size % BLOCK)
            longer.update(_longer(kind, data))
            continue
        size = _pax_size(longer.get("size"), size)
        path = longer.get("path") or _name(header)
        target = longer.get("linkpath") or _text(header[157:257])
        longer = {}
        what = _KINDS.get(kind, OTHER)
        data = stream.take(min(size, limit + 1)) if what == FILE else b""
        skipped = stream.skip(size - len(data)) if what == FILE else 0
        cut = what == FILE and len(data) + skipped < size
        yield Member(path, what, data, size, target if what != OTHER else _OTHERS.get(kind, "member of unknown kind"))
        if cut or stream.skip(-size % BLOCK if what == FILE else 0) < (-size % BLOCK if what == FILE else 0):
            raise Damaged("truncated")
    raise Damaged(f"more than {MOST_MEMBERS:,} members; the rest was not read")


def _checksum(header: bytes) -> bool:
    try:
        told = int(header[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return told == sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _number(field: bytes) -> int:
    if field[:1] in (b"\x80", b"\xff"):
        value = int.from_bytes(field[1:], "big") if field[:1] == b"\x80" else -1
    else:
        try:
            value = int(field.strip(b" \0") or b"0", 8)
        except ValueError:
            value = -1
    if not 0 <= value < 1 << 62:
        raise Damaged("damaged: a size that no file has")
    return value


def _pax_size(text: str | None, size: int) -> int:
    if text is None:
        return size
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Damaged("damaged: a size that no file has")
    return int(text)


def _name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _longer(kind: bytes, data: bytes) -> dict[str, str]:
    """What a header of a header says; nothing of a global one."""
    if kind == b"g":
        return {}
    if kind in b"LK":
        return {"path" if kind == b"L" else "linkpath": _text(data)}
    found = {}
    while data:
        length, _, rest = data.partition(b" ")
        if not (length.isdigit() and len(length) < 8 and len(length) + 1 < int(length) <= len(data)):
            break
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        if key in (b"path", b"linkpath", b"size"):
            found[key.decode()] = value.decode("utf-8", "backslashreplace")
        data = data[int(length) :]
    return found


def pack(files: Mapping[str, bytes]) -> bytes:
    """An archive of regular files, sorted, without owners and times.

    Args:
        files: Path -> contents; a path has at most 100 bytes after a prefix of at most 155.
    """
    out = bytearray()
    for path, data in sorted(files.items()):
        out += _header(path, len(data)) + data + bytes(-len(data) % BLOCK)
    return (
        bytes(out + bytes(-len(out) % (20 * BLOCK) or 20 * BLOCK))
        if len(out) % (20 * BLOCK)
        else bytes(out + bytes(20 * BLOCK))
    )


def _header(path: str, size: int) -> bytes:
    name, prefix = path.encode(), b""
    if len(name) > 100:
        cut = name.rindex(b"/", 0, 156)
        prefix, name = name[:cut], name[cut + 1 :]
    fields = (
        name.ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, f"{size:011o}\0".encode(), b"00000000000\0",
        b" " * 8, b"0", bytes(100), b"ustar\x0000", bytes(64), b"0000000\0" * 2, prefix.ljust(155, b"\0"), bytes(12),
    )  # fmt: skip
    header = b"".join(fields)
    return header[:148] + f"{sum(header):06o}\0 ".encode() + header[156:]
