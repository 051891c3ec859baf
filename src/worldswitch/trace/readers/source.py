"""Where a reader's bytes come from: a file, standard input, or either of them compressed.

Compression is told by content. A reader that can work front to back uses :meth:`Input.readinto`; one that must jump
uses :meth:`Input.pread`, for which a pipe or a compressed file is first spooled to memory or, when large, to an
unnamed temporary file.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from worldswitch.errors import MissingError, TraceFormatError, printable

if TYPE_CHECKING:
    from types import TracebackType

HEAD = 1 << 16
_IN_MEMORY = 64 << 20
_PIECE = 1 << 20
_STEP = 1 << 10
_WRITER_SECONDS = 5.0
"""How long to wait for somebody to write into a FIFO."""
_EXPANDS = 1000
_FREELY = 256 << 20
"""Bytes that compressed data may always expand to; beyond, not more than a thousandfold."""


class Input:
    """One trace file, decompressed.

    Attributes:
        name: For messages.
        head: The first 64 KiB (or all there is), without moving the position.
        size: Bytes in all, or None while that is not known (a pipe, a compressed file not yet spooled).
    """

    def __init__(self, stream: IO[bytes], name: str, *, seekable: bool) -> None:
        self.name = name
        self._stream = stream
        self._seekable = seekable
        self.head = _read_up_to(stream, HEAD, name)
        self._unread = b"" if seekable else self.head
        self.size: int | None = None
        self.position = 0
        if seekable:
            self.size = stream.seek(0, io.SEEK_END)
            stream.seek(0)

    @classmethod
    def open(cls, path: str | Path) -> Input:
        """Open *path* (``-``: standard input).

        Raises:
            MissingError: It does not exist or may not be read.
            TraceFormatError: It is a directory or empty, or its compression is damaged from the start.
        """
        name = printable(str(path))
        if str(path) == "-":
            if sys.stdin is None:
                raise MissingError("cannot read standard input: it is closed")
            return cls._maybe_compressed(cls(sys.stdin.buffer, "standard input", seekable=False))
        try:
            fifo = stat.S_ISFIFO(Path(path).stat().st_mode)
            stream = _open_fifo(path) if fifo else Path(path).open("rb")  # noqa: SIM115
        except IsADirectoryError:
            raise TraceFormatError(f"{name} is a directory; give the trace file in it") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise MissingError(f"cannot read {name}: {reason}") from None
        regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
        if stat.S_ISBLK(os.fstat(stream.fileno()).st_mode):
            stream.close()
            raise TraceFormatError(f"{name} is a block device; give a trace file")
        return cls._maybe_compressed(cls(stream, name, seekable=regular))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "bytes") -> Input:
        """An input that holds *data*, decompressed if need be."""
        return cls._maybe_compressed(cls(io.BytesIO(data), name, seekable=True))

    @classmethod
    def _maybe_compressed(cls, raw: Input) -> Input:
        if not raw.head:
            raw.close()
            raise TraceFormatError(f"{raw.name} is empty")
        opener = _decompressor(raw.head)
        if opener is None:
            return raw
        checked = _Checked(opener(raw._whole_stream()), raw)
        return cls(cast(IO[bytes], checked), raw.name, seekable=False)

    @property
    def seekable(self) -> bool:
        """Whether :meth:`pread` works without spooling."""
        return self._seekable

    @property
    def consumed(self) -> int:
        """Bytes taken from the underlying file so far."""
        return self._stream.tell() if self._seekable else self.position

    @property
    def damage(self) -> str | None:
        """What was wrong with the compressed stream, once reading has met it."""
        return getattr(self._stream, "damage", None)

    def read(self, n: int) -> bytes:
        """The next *n* bytes, fewer only at the end."""
        start, self._unread = self._unread[:n], self._unread[n:]
        data = start + _read_up_to(self._stream, n - len(start), self.name) if len(start) < n else start
        self.position += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Fill *buffer* from the current position; fewer bytes only at the end."""
        done = 0
        if self._unread:
            part = self._unread[: len(buffer)]
            buffer[: len(part)] = part
            self._unread = self._unread[len(part) :]
            done = len(part)
        stream = cast(Any, self._stream)
        while done < len(buffer):
            try:
                n = stream.readinto(buffer[done:])
            except OSError as error:
                raise MissingError(f"cannot read {self.name}: {error.strerror or error}") from None
            if not n:
                break
            done += n
        self.position += done
        return done

    def pread(self, offset: int, n: int) -> bytes:
        """Bytes ``[offset, offset + n)``, fewer at the end of the file; a lying *n* allocates nothing."""
        size = self.spooled()
        if n <= 0 or offset < 0 or offset >= size:
            return b""
        self._stream.seek(offset)
        return _read_up_to(self._stream, min(n, size - offset), self.name)

    def seek(self, offset: int) -> None:
        """Move where :meth:`read` and :meth:`readinto` go on."""
        self.spooled()
        self._stream.seek(offset)
        self.position = offset

    def spooled(self) -> int:
        """Make the input seekable, copying it once if need be; its size."""
        if not self._seekable:
            spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the Input owns it
            while piece := self.read(_PIECE):
                spool.write(piece)
            damage = self.damage
            self.size = spool.tell()
            spool.seek(0)
            self.close()
            self._stream = cast(IO[bytes], spool)
            if damage:
                self._stream.damage = damage  # type: ignore[attr-defined]
            self._seekable = True
            self.position = 0
        assert self.size is not None
        return self.size

    def close(self) -> None:
        """Close the file (standard input stays open)."""
        if self._stream is not getattr(sys.stdin, "buffer", None):
            self._stream.close()

    def __del__(self) -> None:
        # A reader may stop anywhere, and whoever opened a trace by its path holds nothing to close.
        if hasattr(self, "_stream"):
            self.close()

    def __enter__(self) -> Input:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _whole_stream(self) -> IO[bytes]:
        return self._stream if self._seekable else cast(IO[bytes], io.BufferedReader(_Rest(self)))


def _open_fifo(path: str | Path) -> IO[bytes]:
    """A FIFO somebody writes into; plain opening would wait for a writer for ever."""
    import select

    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(_WRITER_SECONDS * 1000):
        os.close(descriptor)
        raise OSError("nobody writes into this FIFO; start what writes the trace first")
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


class _Rest(io.RawIOBase):
    """A pipe's bytes from the start, the head already read included."""

    def __init__(self, source: Input) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Checked:
    """A decompressing stream that ends, and remembers why, where its data is damaged."""

    def __init__(self, stream: Any, raw: Input) -> None:
        self._stream = stream
        self._raw = raw
        self._given = 0
        self.damage: str | None = None

    def read(self, n: int) -> bytes:
        if self.damage is not None:
            return b""
        try:
            # read1, for read would lose what it had when it meets the damage.
            data: bytes = self._stream.read1(n)
        except Exception as error:  # zstandard, lzma, zlib and gzip share no base class
            self.damage = f"the compressed data is damaged ({printable(str(error))}); what follows is lost"
            return b""
        self._given += len(data)
        if self._given > max(_FREELY, _EXPANDS * self._raw.consumed):
            self.damage = f"the data expands more than {_EXPANDS}-fold when decompressed; what follows is not read"
        return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


class _Zstd:
    """Decompressed frames; unlike zstandard's own reader it tells when the last one is cut short."""

    def __init__(self, stream: IO[bytes]) -> None:
        import zstandard

        self._new = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new()
        self._stream = stream
        self._packed = b""
        self._at = 0
        self._plain = b""
        self._in_frame = False

    def read1(self, n: int) -> bytes:
        """Some bytes, at most *n*; none only at the end."""
        while not self._plain:
            if self._frame.eof:
                self._at -= len(self._frame.unused_data)
                self._frame, self._in_frame = self._new(), False
            if self._at == len(self._packed):
                self._packed, self._at = self._stream.read(_PIECE), 0
                if not self._packed and self._in_frame:
                    raise EOFError("its last frame is cut short")
                if not self._packed:
                    return b""
            # In small steps: the most that one can unpack to must fit in memory.
            piece = self._packed[self._at : self._at + _STEP]
            self._at += len(piece)
            self._in_frame = True
            self._plain = self._frame.decompress(piece)
        part, self._plain = self._plain[:n], self._plain[n:]
        return part

    def close(self) -> None:
        """Nothing to close; the stream is the caller's."""


def _decompressor(head: bytes) -> Any:
    if head.startswith(b"\x1f\x8b"):
        import gzip

        return lambda stream: gzip.GzipFile(fileobj=stream)
    if head.startswith(b"\xfd7zXZ\0"):
        import lzma

        return lzma.LZMAFile
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _Zstd
    return None


def _read_up_to(stream: IO[bytes], n: int, name: str) -> bytes:
    """*n* bytes, or all there are; reads in pieces, so that a lying *n* allocates nothing."""
    parts = []
    try:
        while n > 0 and (part := stream.read(min(n, _PIECE * 16))):
            parts.append(part)
            n -= len(part)
    except OSError as error:
        raise MissingError(f"cannot read {name}: {error.strerror or error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
