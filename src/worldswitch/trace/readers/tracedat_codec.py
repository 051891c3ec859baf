"""A trace.dat's compressions, each into a buffer of the reader's own: a lying size allocates nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_AT_ONCE = 400_000
_own = threading.local()
"""Each thread's decompressor: making one costs as much as a small chunk."""

Unpack = Callable[[bytes | memoryview, memoryview], int]


class Chunk(NamedTuple):
    """Compressed data, how many bytes it says it unpacks to, and where in the file it lies."""

    data: bytes
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression.

    Attributes:
        name: As in the file's header.
        unpack: Decompresses its first argument into the second; returns how many bytes it filled. Damaged or
            cut data gives what stands before the damage. The GIL is released meanwhile.
    """

    name: str
    unpack: Unpack

    def unpack_all(self, chunks: Sequence[Chunk], target: memoryview, page_size: int) -> tuple[int, list[Chunk]]:
        """Decompress *chunks* one behind the other into *target*, which has room for all.

        Returns:
            Bytes filled, and the chunks that were damaged. Of those only whole pages are kept, unless it is
            the last: there the last page may be incomplete.
        """
        filled = 0
        damaged: list[Chunk] = []
        for group in _groups(chunks):
            if self.name == "zstd" and _zstd_at_once(group, target[filled:]):
                filled += sum(chunk.size for chunk in group)
                continue
            for chunk in group:
                n = self.unpack(chunk.data, target[filled : filled + chunk.size])
                if n < chunk.size:
                    damaged.append(chunk)
                    if chunk is not chunks[-1]:
                        n -= n % page_size
                filled += n
        return filled, damaged


def _groups(chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
    """Runs of chunks so small that the allocator keeps their memory: fresh memory costs more than zstd."""
    begin = size = 0
    for end, chunk in enumerate(chunks):
        if size and size + chunk.size > _AT_ONCE:
            yield chunks[begin:end]
            begin, size = end, 0
        size += chunk.size
    if begin < len(chunks):
        yield chunks[begin:]


def _copy(data: bytes | memoryview, target: memoryview) -> int:
    n = min(len(data), len(target))
    target[:n] = data[:n]
    return n


def _zlib(data: bytes | memoryview, target: memoryview) -> int:
    import zlib

    if not len(target):
        return 0
    try:
        unpacked = zlib.decompressobj().decompress(data, len(target))
    except zlib.error:
        return 0
    return _copy(unpacked, target)


def _zstd(data: bytes | memoryview, target: memoryview) -> int:
    import zstandard

    filled = 0
    try:
        with _decompressor().stream_reader(data) as reader:
            while filled < len(target) and (n := reader.readinto(target[filled:])):
                filled += n
    except (zstandard.ZstdError, MemoryError):
        pass
    return filled


def _zstd_at_once(chunks: Sequence[Chunk], target: memoryview) -> bool:
    """Decompress all in one call, which takes the GIL once and not per chunk; False if that does not work."""
    import zstandard
    from numpy import array

    sizes = array([chunk.size for chunk in chunks], "u8")
    try:
        results = _decompressor().multi_decompress_to_buffer(
            [chunk.data for chunk in chunks], decompressed_sizes=sizes, threads=1
        )
    except (zstandard.ZstdError, ValueError, MemoryError, AttributeError, NotImplementedError):
        return False
    filled = 0
    for result in results:
        target[filled : filled + len(result)] = result
        filled += len(result)
    return True


def _decompressor() -> Any:
    if not hasattr(_own, "zstd"):
        import zstandard

        _own.zstd = zstandard.ZstdDecompressor()
    return _own.zstd


CODECS = {codec.name: codec for codec in (Codec("none", _copy), Codec("zlib", _zlib), Codec("zstd", _zstd))}
