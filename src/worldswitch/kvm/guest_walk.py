"""How KVM itself walks a guest's page tables: for shadow paging, and wherever it emulates.

Follows walk_addr_generic of arch/x86/kvm/mmu/paging_tmpl.h: reserved bits are judged where they are met, permissions
once at the leaf over the rights of the whole walk, and A and D are set last, from the root down.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.kvm.permissions import ALL_RIGHTS, RSVD, U_RIGHT, W_RIGHT, X_RIGHT, F, P, Permissions, U, W
from worldswitch.kvm.rules import rule
from worldswitch.x86.access import Controls, reserved_bits
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import (
    ACCESSED,
    ADDRESS,
    DIRTY,
    KEY,
    KEY_SHIFT,
    NO_EXECUTE,
    PAGE_SIZE,
    PRESENT,
    USER,
    WRITABLE,
)


class Walker(NamedTuple):
    """What a walk needs besides memory.

    Attributes:
        root: Guest-physical address of the top table, of *levels* levels; CR3 without PCID. PAE paging has no top
            table: *pdptes* are its four entries and *levels* is 2.
        controls: Of the processor: reserved bits, RFLAGS.AC, PKRU.
        fetch_reported: E[4] may be reported: NX or SMEP is on.
    """

    root: int
    levels: int
    controls: Controls
    permissions: Permissions
    fetch_reported: bool
    pdptes: tuple[int, ...] = ()


class Walk(NamedTuple):
    """A translation found.

    Attributes:
        gfn: The guest frame of the address, 4 KiB.
        level: Of the leaf.
        rights: X, W, U of all entries; W is missing while the leaf is clean and the access was no write.
        tables: Level -> gfn of the table that was read there.
        inherited: Level -> rights of the entries above.
        leaf: The leaf entry, as it is now.
    """

    gfn: int
    level: int
    rights: int
    tables: dict[int, int]
    inherited: dict[int, int]
    leaf: int


def rights_of(entry: int) -> int:
    """X, W and U of one entry."""
    return (
        (W_RIGHT if entry & WRITABLE else 0) | (U_RIGHT if entry & USER else 0) | (0 if entry & NO_EXECUTE else X_RIGHT)
    )


@rule(
    id="guest-walk",
    sentence="KVM walks guest tables from the root: an absent entry or a reserved bit ends the walk, rights are judged "
    "once at the leaf, and then A and D are set.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "KVM walks guest tables for what it shadows and emulates. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_guest_walk.py::test_every_case_faults_as_the_processor_says",
)
def walk(memory: Memory, walker: Walker, va: int, code: int) -> Walk | int:
    """The translation of *va* for an access of kind *code* (W, U, F), or the error code of the guest's page fault."""
    reported = code & (W | U) | (F if code & F and walker.fetch_reported else 0)
    table, level, rights = walker.root, walker.levels, ALL_RIGHTS
    if walker.pdptes:
        pdpte = walker.pdptes[va >> 30 & 3]
        if not pdpte & PRESENT:
            return reported
        table = pdpte & ADDRESS
    tables: dict[int, int] = {}
    inherited: dict[int, int] = {}
    places: list[int] = []
    while True:
        place = table + 8 * (va >> 12 + 9 * (level - 1) & 511)
        if place >= memory.size:
            return reported
        entry = memory.word(place)
        if not entry & PRESENT:
            return reported
        if entry & reserved_bits(level, entry, walker.controls):
            return reported | P | RSVD
        tables[level], inherited[level] = table >> 12, rights
        places.append(place)
        rights &= rights_of(entry)
        if level == 1 or entry & PAGE_SIZE:
            break
        table, level = entry & ADDRESS, level - 1
    fault = walker.permissions.fault(rights, (entry & KEY) >> KEY_SHIFT, code, walker.controls.pkru, walker.controls.ac)
    if fault:
        return reported | fault
    writes = bool(code & W)
    leaf = _set_accessed_dirty(memory, places, writes)
    if not writes and not leaf & DIRTY:
        rights &= ~W_RIGHT
    span = 9 * (level - 1)
    gfn = (entry & ADDRESS) >> 12 >> span << span | va >> 12 & (1 << span) - 1
    return Walk(gfn, level, rights, tables, inherited, leaf)


def _set_accessed_dirty(memory: Memory, places: list[int], writes: bool) -> int:
    """Set A in every entry, and D in the leaf for a write; the leaf."""
    entry = 0
    for place in places:
        entry = memory.word(place)
        wanted = entry | ACCESSED | (DIRTY if writes and place == places[-1] else 0)
        if wanted != entry:
            memory.set_word(place, wanted)
            entry = wanted
    return entry
