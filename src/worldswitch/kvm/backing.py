# cython: annotation_typing=False, auto_pickle=False
"""The host's memory behind a guest's: which of it is there, and in pages of which size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SMALL_IN_LARGE = 512
"""4 KiB frames in a huge page of 2 MiB."""


class Slot(NamedTuple):
    """A memory slot: 4 KiB frames *first* to *end* - 1, of huge pages of the host as far as they fit, or not."""

    first: int
    end: int
    huge: bool


class Backing:
    """The slots of a VM, and which of their frames the host has in memory.

    A page of the host is there once anything touched it: the VMM that loaded it, or the guest through a fault.
    """

    __slots__ = ("_resident", "_slots")

    def __init__(self, slots: Iterable[Slot], loaded: Iterable[int]) -> None:
        self._slots = tuple(slots)
        self._resident: set[int] = set()
        for gfn in loaded:
            self.touch(gfn)

    def exists(self, gfn: int) -> bool:
        """Whether a slot has the frame."""
        for first, end, _ in self._slots:  # noqa: SIM110 - compiles to a plain loop
            if first <= gfn < end:
                return True
        return False

    def large(self, gfn: int) -> bool:
        """Whether the frame lies in a huge page of the host that its slot holds whole."""
        whole = gfn >> 9 << 9
        for first, end, huge in self._slots:  # noqa: SIM110 - as above
            if huge and first <= whole and whole + SMALL_IN_LARGE <= end:
                return True
        return False

    def resident(self, gfn: int) -> bool:
        """Whether the host has the frame in memory."""
        return gfn in self._resident or (self.large(gfn) and gfn >> 9 << 9 in self._resident)

    def touch(self, gfn: int) -> None:
        """The frame is in memory from now on, with the whole huge page it is part of."""
        self._resident.add(gfn >> 9 << 9 if self.large(gfn) else gfn)

    def count(self) -> int:
        """How many pages of the host there are; they only grow more."""
        return len(self._resident)
