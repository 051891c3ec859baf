"""Formats of page-table entries: 4-level, 5-level and PAE paging.

Sources: Intel SDM volume 3, sections 4.4 "PAE Paging" and 4.5 "4-Level Paging and 5-Level Paging"; AMD APM volume 2,
sections 5.2 and 5.3.
"""

from __future__ import annotations

from typing import NamedTuple

ENTRIES = 512
"""Entries of one table; all are 8 bytes."""
TABLE_SIZE = 4096
ADDRESS = 0x000F_FFFF_FFFF_F000
"""Bits of an entry that may hold a physical address (51:12; how many there are is the processor's)."""
PDPT = 0xFFFF_FFE0
"""Bits of CR3 that hold the address of the four PDPTEs of PAE paging."""
PRESENT, WRITABLE, USER, ACCESSED, DIRTY, PAGE_SIZE = 1 << 0, 1 << 1, 1 << 2, 1 << 5, 1 << 6, 1 << 7
GLOBAL = 1 << 8
NO_EXECUTE = 1 << 63
KEY_SHIFT = 59
KEY = 15 << KEY_SHIFT
"""Protection key, in leaf entries of 4-level and 5-level paging."""


class Paging(NamedTuple):
    """One way to translate linear addresses.

    Attributes:
        levels: Tables walked; level 1 is the page table, the highest is the root.
        leaves: Levels whose entries can map a page.
        linear: Bits of a linear address.
        root_reserves: Entries of the root have neither W nor U, these bits are reserved (PAE).
        keys: Leaf entries have a protection key.
    """

    name: str
    levels: int
    leaves: tuple[int, ...]
    linear: int
    root_reserves: bool = False
    keys: bool = True

    def slot(self, va: int, level: int) -> int:
        """Which entry of a table of *level* translates *va*."""
        top = self.linear - shift(level) if level == self.levels else 9
        return (va >> shift(level)) & ((1 << top) - 1)

    def leaf(self, pa: int, flags: int, level: int, key: int = 0) -> int:
        """The entry of *level* that maps a page to *pa*; PS is set above level 1."""
        return pa & ADDRESS | flags | key << KEY_SHIFT | (PAGE_SIZE if level > 1 else 0)

    def branch(self, table: int, flags: int, level: int) -> int:
        """The entry of *level* that points to the next table, at *table*."""
        if self.root_reserves and level == self.levels:
            flags &= ~(WRITABLE | USER)
        return table | flags


def shift(level: int) -> int:
    """Bits of the address below what an entry of *level* translates: 12 at level 1, 21 at level 2, ..."""
    return 12 + 9 * (level - 1)


def reach(level: int) -> int:
    """Bytes that one entry of *level* covers."""
    return 1 << shift(level)


FOUR_LEVEL = Paging("4-level paging", 4, (1, 2, 3), 48)
FIVE_LEVEL = Paging("5-level paging", 5, (1, 2, 3), 57)
PAE = Paging("PAE paging", 3, (1, 2), 32, root_reserves=True, keys=False)
