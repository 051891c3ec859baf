"""Guest-physical memory as 64-bit words: what was loaded, and what was stored since."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

WORD = (1 << 64) - 1


class Memory:
    """Memory of *size* bytes from address 0; what nobody loaded is zero.

    Args:
        segments: Address and bytes of what is loaded; where they overlap, a later one wins.

    Attributes:
        stored: Word address -> value, of the words stored since.
    """

    __slots__ = ("_data", "_starts", "size", "stored")

    def __init__(self, size: int, segments: Iterable[tuple[int, bytes]] = ()) -> None:
        self.size = size
        self.stored: dict[int, int] = {}
        data: dict[int, bytearray] = {}
        for gpa, piece in segments:
            _lay(data, gpa, piece)
        self._starts = sorted(data)
        self._data = [bytes(data[start]) for start in self._starts]

    def word(self, gpa: int) -> int:
        """The 64-bit word at *gpa*, a multiple of 8."""
        value = self.stored.get(gpa)
        return self._loaded(gpa) if value is None else value

    def set_word(self, gpa: int, value: int) -> None:
        """Store a 64-bit word at *gpa*, a multiple of 8."""
        self.stored[gpa] = value

    def read(self, gpa: int, size: int) -> int:
        """The little-endian number of *size* bytes, at most 8, at any address."""
        base, shift = gpa & ~7, 8 * (gpa & 7)
        value = self.word(base) >> shift
        if shift + 8 * size > 64:
            value |= self.word(base + 8) << 64 - shift
        return value & (1 << 8 * size) - 1

    def write(self, gpa: int, value: int, size: int) -> None:
        """Store the low *size* bytes of *value*, at most 8, at any address."""
        base, shift = gpa & ~7, 8 * (gpa & 7)
        mask = (1 << 8 * size) - 1 << shift
        value = value << shift & mask
        self.stored[base] = self.word(base) & ~mask & WORD | value & WORD
        if mask >> 64:
            self.stored[base + 8] = self.word(base + 8) & ~(mask >> 64) | value >> 64

    def loaded_pages(self) -> set[int]:
        """Numbers of the 4 KiB pages that anything was loaded into."""
        return {start >> 12 for start in self._starts}

    def _loaded(self, gpa: int) -> int:
        place = bisect_right(self._starts, gpa) - 1
        if place < 0 or gpa >= self._starts[place] + 4096:
            return 0
        offset = gpa - self._starts[place]
        return int.from_bytes(self._data[place][offset : offset + 8], "little")


def _lay(pages: dict[int, bytearray], gpa: int, piece: bytes) -> None:
    at = 0
    while at < len(piece):
        page, offset = (gpa + at) & ~4095, (gpa + at) & 4095
        part = piece[at : at + 4096 - offset]
        pages.setdefault(page, bytearray(4096))[offset : offset + len(part)] = part
        at += len(part)
