"""Page tables against the recorded program's entries, and against a walk by the manual's rules."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.guest.program import Pages, ProgramError, Space
from worldswitch.guest.tables import Table, Tables, build, translations
from worldswitch.x86.paging import FIVE_LEVEL, FOUR_LEVEL, PAE, Paging

P, W, U, PS = 1, 2, 4, 0x80


def memory_of(tables: Tables) -> dict[int, int]:
    """Address -> entry, of all entries that are not 0."""
    found = {}
    for table in tables.own_tables:
        for index, (entry,) in enumerate(struct.iter_unpack("<Q", table.entries.tobytes())):
            if entry:
                found[table.gpa + 8 * index] = entry
    return found


def walk(memory: dict[int, int], root: int, va: int, paging: Paging) -> tuple[int, int] | None:
    """Level and value of the entry that ends the walk, by the SDM, volume 3, sections 4.4.2 and 4.5.4."""
    table, low = root, 12 + 9 * (paging.levels - 1)
    for level in range(paging.levels, 0, -1):
        index = va >> low & (3 if paging is PAE and level == 3 else 511)
        entry = memory.get(table + 8 * index, 0)
        if level == 1 or entry & PS or not entry & P:
            return (level, entry) if entry else None
        table, low = entry & 0x000FFFFFFFFFF000, low - 9
    return None


def test_the_recorded_program_of_one_2m_page():
    """PML4, PDPT and PD one behind the other; recorded from a VM whose CR3 was 0x2000."""
    tables = build(Space("main", (Pages(0, 0, "2M"),)), FOUR_LEVEL, P | W)
    tables.place(0x2000)
    assert memory_of(tables) == {0x2000: 0x3003, 0x3000: 0x4003, 0x4000: 0x83}


def test_flags_key_and_absence():
    pages = (
        Pages(0x1000, 0x200000, flags=("W", "U", "A", "D", "G", "NX"), key=5),
        Pages(0x2000, 0x201000, flags=("PWT", "PCD"), present=False),
    )
    tables = build(Space("main", pages), FOUR_LEVEL, P | W | U)
    tables.place(0x10000)
    memory = memory_of(tables)
    assert memory[tables.entry(0x1000, 1)] == 0x8000000000200167 | 5 << 59
    assert memory[tables.entry(0x2000, 1)] == 0x201018
    assert memory[tables.entry(0x2000, 2)] & 0xFFF == 7


def test_pointers_of_pae_have_no_writable_and_user_bits():
    """They are reserved: SDM volume 3, table 4-8."""
    tables = build(Space("main", (Pages(0xC0000000, 0x200000),)), PAE, P | W | U)
    tables.place(0x10000)
    memory = memory_of(tables)
    assert memory[tables.entry(0xC0000000, 3)] == 0x11001
    assert tables.entry(0xC0000000, 3) == 0x10018
    assert memory[tables.entry(0xC0000000, 2)] == 0x12007


def test_pages_across_tables_and_several_levels():
    pages = (Pages(0x1FF000, 0x200000, count=3), Pages(0x40000000, 0x40000000, "1G"), Pages(0x400000, 0x400000, "2M"))
    tables = build(Space("main", pages), FOUR_LEVEL, P | W | U)
    tables.place(0x10000)
    memory = memory_of(tables)
    expected = {0x1FF000: (1, 0x200003), 0x200000: (1, 0x201003), 0x201000: (1, 0x202003)}
    expected |= {0x40123000: (3, 0x40000083), 0x5FF000: (2, 0x400083)}
    assert {va: walk(memory, 0x10000, va, FOUR_LEVEL) for va in expected} == expected
    assert walk(memory, 0x10000, 0x202000, FOUR_LEVEL) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(["4K", "2M"]), st.integers(1, 40)),
        max_size=6,
        unique_by=lambda p: p[0],
    ),
    st.sampled_from([FOUR_LEVEL, FIVE_LEVEL, PAE]),
)
def test_a_walk_finds_what_was_mapped(parts, paging):
    size = {"4K": 1 << 12, "2M": 1 << 21}
    slots = {
        slot: Pages(slot << 26, (number + 1) << 28, kind, min(count, 31))
        for number, (slot, kind, count) in enumerate(parts)
    }
    space = Space("main", tuple(slots.values()))
    tables = build(space, paging, P | W | U)
    tables.place(0x10000)
    memory = memory_of(tables)
    for pages in space.pages:
        for i in (0, pages.count // 2, pages.count - 1):
            va, pa = pages.va + i * size[pages.size], pages.pa + i * size[pages.size]
            level = 1 if pages.size == "4K" else 2
            assert walk(memory, 0x10000, va, paging) == (level, pa | P | W | (PS if level == 2 else 0))
            assert memory[tables.entry(va, level)] & ~0xFFF == pa
            assert (pa + 5, pages.size) in translations(space, va + 5)
    assert len({table.gpa for table in tables.own_tables}) == len(tables.own_tables)


def test_a_shared_table_is_placed_once():
    window = Table(1)
    window.gpa = 0x5000
    one, two = (build(Space(name), FOUR_LEVEL, P | W | U) for name in ("one", "two"))
    for at, tables in ((0x10000, one), (0x20000, two)):
        tables.graft(0xFFFFFFFFFFC00000, window)
        assert tables.size() == 3 * 4096
        tables.place(at)
        assert memory_of(tables)[tables.entry(0xFFFFFFFFFFC00000, 2)] == 0x5007
        assert tables.entry(0xFFFFFFFFFFC01000, 1) == 0x5008


@pytest.mark.parametrize(
    ("level", "message"),
    [(1, "level 2, which maps a page"), (6, "no level 6; levels are 1 to 4"), (0, "no level 0")],
)
def test_no_such_entry(level, message):
    tables = build(Space("main", (Pages(0x400000, 0x400000, "2M"),)), FOUR_LEVEL, P | W | U)
    tables.place(0x10000)
    with pytest.raises(ProgramError, match=message):
        tables.entry(0x400000, level)


def test_nothing_mapped_there():
    tables = build(Space("main"), FOUR_LEVEL, P | W | U)
    tables.place(0x10000)
    with pytest.raises(ProgramError, match="nothing below level 4"):
        tables.entry(0x400000, 1)


@pytest.mark.parametrize(
    ("pages", "paging", "message"),
    [
        ((Pages(0x1000, 0x200000), Pages(0x1000, 0x201000)), FOUR_LEVEL, "overlap"),
        ((Pages(0x200000, 0x200000, "2M"), Pages(0x201000, 0x201000)), FOUR_LEVEL, "overlap"),
        ((Pages(0x201000, 0x201000), Pages(0x200000, 0x200000, "2M")), FOUR_LEVEL, "overlap"),
        ((Pages(0, 0, "1G"),), PAE, "no 1G pages; use 4K or 2M"),
        ((Pages(0, 0, key=3),), PAE, "no protection keys"),
        ((Pages(0, 0, count=10**9),), FOUR_LEVEL, "1953125 page tables.*2048 KiB"),
    ],
)
def test_impossible_pages(pages, paging, message):
    with pytest.raises(ProgramError, match=message):
        build(Space("main", pages), paging, P | W | U)
