"""Page tables of an address space, and where in memory each entry lies."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from worldswitch.guest.layout import OWN_MEMORY
from worldswitch.guest.operations import FLAGS, Bits
from worldswitch.guest.program import SIZES, Pages, ProgramError, Space
from worldswitch.x86.paging import ENTRIES, PRESENT, TABLE_SIZE, Paging, reach

LEVELS = {"4K": 1, "2M": 2, "1G": 3}
"""Page size by name -> the level of the entries that map such pages."""


def flag_mask(flags: Bits) -> int:
    """The entry bits that *flags*, names in ``FLAGS``, stand for."""
    mask = 0
    for name in flags:
        mask |= FLAGS[name]
    return mask


class Table:
    """One table: 512 entries, and the tables that some of them point to."""

    __slots__ = ("children", "entries", "gpa", "level", "used")

    def __init__(self, level: int) -> None:
        self.level = level
        self.gpa: int | None = None
        self.entries = array("Q", bytes(TABLE_SIZE))
        self.used = bytearray(ENTRIES)
        self.children: dict[int, Table] = {}

    def fill(self, first: int, value: int, step: int, count: int) -> bool:
        """Write *count* entries from *first* on, each *step* more than the one before; False if one is in use."""
        if any(self.used[first : first + count]):
            return False
        self.used[first : first + count] = b"\1" * count
        self.entries[first : first + count] = array("Q", range(value, value + step * count, step))
        return True


class Tables:
    """The tables of one space, built in memory; :meth:`place` gives them addresses.

    Args:
        branch: Flags of entries that point to another table.

    Attributes:
        own_tables: Those that are this space's alone, in the order of their addresses; empty until they have some.
    """

    def __init__(self, name: str, paging: Paging, branch: int) -> None:
        self.name = name
        self.paging = paging
        self.branch = branch
        self.root = Table(paging.levels)
        self.own_tables: list[Table] = []

    def map(self, pages: Pages) -> None:
        """Map *pages*.

        Raises:
            ProgramError: The paging mode has no such pages or no keys, or an address is mapped already.
        """
        level, what = LEVELS[pages.size], f"{self.paging.name} has no"
        if level not in self.paging.leaves:
            raise ProgramError(f"space {self.name}: {what} {pages.size} pages; use {self._largest()}")
        if pages.key and not self.paging.keys:
            raise ProgramError(f"space {self.name}: {what} protection keys; leave out key = {pages.key}")
        flags = flag_mask(pages.flags) | (PRESENT if pages.present else 0)
        if not pages.present:
            flags &= ~PRESENT
        value = self.paging.leaf(pages.pa, flags, level, pages.key)
        step, va, left = reach(level), pages.va, pages.count
        while left:
            index = self.paging.slot(va, level)
            count = min(left, ENTRIES - index)
            table = self._descend(va, level)
            if table is None or not table.fill(index, value, step, count):
                raise ProgramError(
                    f"space {self.name}: the {pages.size} pages from {pages.va:#x} on overlap others near {va:#x}; "
                    "map each address once"
                )
            va, value, left = va + step * count, value + step * count, left - count

    def graft(self, va: int, table: Table) -> None:
        """Let *table*, which may be part of several spaces, translate the region around *va*."""
        parent = self._descend(va, table.level + 1)
        index = self.paging.slot(va, table.level + 1)
        if parent is None or parent.used[index]:
            raise ProgramError(f"space {self.name}: pages overlap the program's own window at {va:#x}; move them")
        parent.used[index] = 1
        parent.children[index] = table

    def size(self) -> int:
        """Bytes that the tables of this space alone take."""
        return TABLE_SIZE * sum(table.gpa is None for table in self._walk())

    def place(self, gpa: int) -> None:
        """Put the tables at *gpa*, page by page, from the root down and level by level.

        Grafted tables must have their place already.
        """
        self.own_tables = [table for table in self._walk() if table.gpa is None]
        for table in self.own_tables:
            table.gpa = gpa
            gpa += TABLE_SIZE
        for table in self._walk():
            for index, child in table.children.items():
                assert child.gpa is not None
                table.entries[index] = self.paging.branch(child.gpa, self.branch, table.level)

    def entry(self, va: int, level: int) -> int:
        """Guest-physical address of the entry of *level* that translates *va*.

        Raises:
            ProgramError: There is no such entry.
        """
        if not 1 <= level <= self.paging.levels:
            raise ProgramError(f"{self.paging.name} has no level {level}; levels are 1 to {self.paging.levels}")
        table = self.root
        while table.level > level:
            child = table.children.get(self.paging.slot(va, table.level))
            if child is None:
                used = table.used[self.paging.slot(va, table.level)]
                there = f"level {table.level}, which maps a page" if used else f"nothing below level {table.level}"
                raise ProgramError(
                    f"space {self.name} has no entry of level {level} for {va:#x}: it has {there}; name that level, "
                    "or map the address (with present = false if it is to fault)"
                )
            table = child
        assert table.gpa is not None
        return table.gpa + 8 * self.paging.slot(va, level)

    def _largest(self) -> str:
        return " or ".join(size for size, level in LEVELS.items() if level in self.paging.leaves)

    def _descend(self, va: int, level: int) -> Table | None:
        table = self.root
        while table.level > level:
            index = self.paging.slot(va, table.level)
            if index not in table.children:
                if table.used[index]:
                    return None
                table.used[index] = 1
                table.children[index] = Table(table.level - 1)
            table = table.children[index]
        return table

    def _walk(self) -> Iterator[Table]:
        row = [self.root]
        while row:
            yield from row
            row = [table.children[index] for table in row for index in sorted(table.children)]


def build(space: Space, paging: Paging, branch: int) -> Tables:
    """The tables of *space*, not placed yet.

    Raises:
        ProgramError: Pages overlap, or need more tables than low memory could hold.
    """
    least = sum(pages.count // ENTRIES for pages in space.pages)
    if least * TABLE_SIZE > OWN_MEMORY:
        raise ProgramError(
            f"space {space.name} needs more than {least} page tables, {least * TABLE_SIZE >> 10} KiB; a program has "
            f"{OWN_MEMORY >> 10} KiB for all its tables and code: map fewer or larger pages"
        )
    tables = Tables(space.name, paging, branch)
    for pages in space.pages:
        tables.map(pages)
    return tables


def translations(space: Space, va: int) -> Iterator[tuple[int, str]]:
    """Physical address and page size that the pages of *space* hold for *va*, present or not."""
    for pages in space.pages:
        size = SIZES[pages.size]
        if pages.va <= va < pages.va + size * pages.count:
            yield pages.pa + (va - pages.va), pages.size
