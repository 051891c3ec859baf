# cython: annotation_typing=False, auto_pickle=False
"""Guest-physical memory as 64-bit words: what was loaded, and what was stored since."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

WORD = (1 << 64) - 1
LINE = 64
"""Bytes of what is told apart in what was stored."""


class Memory:
    """Memory of *size* bytes from address 0; what nobody loaded is zero.

    What lies beyond reads as zero, and nothing can be stored there.

    Args:
        segments: Address and bytes of what is loaded; where they overlap, a later one wins.
    """

    __slots__ = ("_bytes", "_lines", "_loaded", "_stored", "_words", "size")

    def __init__(self, size: int, segments: Iterable[tuple[int, bytes]] = ()) -> None:
        self.size = size
        # Anonymous mappings: pages nobody touches cost nothing.
        whole = self._bytes = memoryview(mmap.mmap(-1, max(size, LINE) + 4095 & -4096))
        self._words = whole.cast("Q")
        self._stored = memoryview(mmap.mmap(-1, len(whole) // LINE))
        self._lines: list[int] = []
        self._loaded: set[int] = set()
        for gpa, piece in segments:
            whole[gpa : gpa + len(piece)] = piece
            if piece:
                self._loaded.update(range(gpa >> 12, (gpa + len(piece) - 1 >> 12) + 1))

    def word(self, gpa: int) -> int:
        """The 64-bit word at *gpa*, a multiple of 8."""
        return self._words[gpa >> 3] if gpa < self.size else 0

    def set_word(self, gpa: int, value: int) -> None:
        """Store a 64-bit word at *gpa*, a multiple of 8.

        Raises:
            IndexError: There is no memory there.
        """
        self._words[gpa >> 3] = value
        if not self._stored[gpa >> 6]:
            self._stored[gpa >> 6] = 1
            self._lines.append(gpa >> 6)

    def read(self, gpa: int, size: int) -> int:
        """The little-endian number of *size* bytes, at most 8, at any address."""
        base, shift = gpa & _ALIGNED, 8 * (gpa & 7)
        value = self.word(base) >> shift
        if shift + 8 * size > 64:
            value |= self.word(base + 8) << 64 - shift
        return value & _ALL_BITS >> 64 - 8 * size

    def write(self, gpa: int, value: int, size: int) -> None:
        """Store the low *size* bytes of *value*, at most 8, at any address."""
        base, shift, mask = gpa & _ALIGNED, 8 * (gpa & 7), _ALL_BITS >> 64 - 8 * size
        value &= mask
        low = mask << shift & _ALL_BITS
        self.set_word(base, self.word(base) & ~low & _ALL_BITS | value << shift & _ALL_BITS)
        if shift + 8 * size > 64:
            high, value = mask >> 64 - shift, value >> 64 - shift
            self.set_word(base + 8, self.word(base + 8) & ~high & _ALL_BITS | value)

    def loaded_pages(self) -> set[int]:
        """Numbers of the 4 KiB pages that anything was loaded into."""
        return set(self._loaded)

    def state(self) -> object:
        """A value that is equal only if all of memory is."""
        return [(line, bytes(self._bytes[LINE * line : LINE * (line + 1)])) for line in self._lines]


_ALL_BITS, _ALIGNED = WORD, WORD & ~7
