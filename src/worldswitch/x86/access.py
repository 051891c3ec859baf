"""What the processor makes of a memory access: nothing, or a page fault with its error code.

Sources: Intel SDM volume 3, sections 4.5 (formats of entries, reserved bits), 4.6 (access rights, protection keys) and
4.7 (error codes); AMD APM volume 2, sections 5.6 "Page-Protection Checks" and 8.4.2 "Page-Fault Error Code".
Shadow-stack accesses, supervisor protection keys and paging with 32-bit entries are not covered.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from worldswitch.x86.exceptions import ERROR_BITS
from worldswitch.x86.paging import KEY, KEY_SHIFT, NO_EXECUTE, PAGE_SIZE, PRESENT, USER, WRITABLE

_P, _W, _U = (1 << ERROR_BITS[name] for name in ("P", "W", "U"))
_RSVD, _I, _PK = (1 << ERROR_BITS[name] for name in ("RSVD", "I", "PK"))
_ADDRESS_BITS = 52


class Kind(enum.Enum):
    """What an access does."""

    READ = "read"
    WRITE = "write"
    FETCH = "fetch"


class Controls(NamedTuple):
    """The bits that decide, by their registers: CR0.WP, CR4.SMEP, SMAP and PKE, EFER.NXE, RFLAGS.AC, PKRU.

    Attributes:
        maxphyaddr: Bits of a physical address; those from here to 51 are reserved in every entry.
        gigabyte_pages: Level 3 may map a page; else its PS bit is reserved.
        keys: The paging mode has protection keys: 4 and 5 levels do, PAE does not.
    """

    wp: bool = True
    smep: bool = False
    smap: bool = False
    pke: bool = False
    nxe: bool = True
    ac: bool = False
    pkru: int = 0
    maxphyaddr: int = 48
    gigabyte_pages: bool = True
    keys: bool = True


def page_fault(
    entries: Sequence[int], kind: Kind, user: bool, controls: Controls, levels: int = 4, implicit: bool = False
) -> int | None:
    """The error code of the page fault that an access raises; None if it goes ahead.

    Args:
        entries: The entries of the walk from the root (of level *levels*) down to the one that maps the page or is not
            present; those after it do not count. PAE paging has 2 levels here: its four PDPTEs are loaded with CR3.
        kind: Read, write or fetch.
        user: From CPL 3.
        controls: The bits that decide.
        implicit: An access of the processor itself to a system structure: a supervisor's at any CPL, and RFLAGS.AC does
            not count.

    Raises:
        ValueError: The entries end before the page.

    Source: SDM volume 3, section 4.6.1 (which accesses are allowed) and 4.7 (the error code).
    """
    user = user and not implicit
    code = _W * (kind is Kind.WRITE) | _U * user
    # SDM 4.7: I/D tells fetches only where the processor keeps them apart.
    code |= _I * (kind is Kind.FETCH and (controls.nxe or controls.smep))
    rights = _Rights(True, True, True)
    for level, entry in zip(range(levels, 0, -1), entries, strict=False):
        if not entry & PRESENT:
            return code
        if entry & reserved_bits(level, entry, controls):
            return code | _P | _RSVD
        rights = rights.narrowed(entry)
        if level == 1 or entry & PAGE_SIZE:
            denied = _key_denies(rights, (entry & KEY) >> KEY_SHIFT, kind, user, controls)
            allowed = _allowed(rights, kind, user, controls, implicit) and not denied
            return None if allowed else code | _P | _PK * denied
    raise ValueError(f"{len(entries)} entries of a walk of {levels} levels do not reach a page")


class _Rights(NamedTuple):
    """Rights combined over the walk: each needs its bit in every entry (SDM 4.6)."""

    writable: bool
    user: bool
    executable: bool

    def narrowed(self, entry: int) -> _Rights:
        return _Rights(
            self.writable and bool(entry & WRITABLE),
            self.user and bool(entry & USER),
            self.executable and not entry & NO_EXECUTE,
        )


def reserved_bits(level: int, entry: int, controls: Controls) -> int:
    """The bits of a present *entry* of *level* that must be clear.

    Source: SDM volume 3, section 4.5, tables of the formats; bit 7 of a PML4E and PML5E is reserved on both vendors.
    """
    mask = ((1 << _ADDRESS_BITS) - 1) & ~((1 << controls.maxphyaddr) - 1)
    if not controls.nxe:
        mask |= NO_EXECUTE
    if not controls.keys:
        # PAE: bits 62:52 are reserved (SDM 4.4.2).
        mask |= ((1 << 63) - 1) & ~((1 << _ADDRESS_BITS) - 1)
    if entry & PAGE_SIZE and level > 1:
        if level > 3 or (level == 3 and not controls.gigabyte_pages):
            return mask | PAGE_SIZE
        # Bit 12 is PAT; the address begins at the page's size.
        mask |= ((1 << 12 + 9 * (level - 1)) - 1) & ~((1 << 13) - 1)
    return mask


def pdpte_reserved(pdpte: int, controls: Controls) -> int:
    """The bits of a present PDPTE of PAE paging that must be clear and are not.

    Source: SDM volume 3, table 4-8, and the APM volume 2, 5.2.3: W, U and bits 8:5, and those from *maxphyaddr* on.
    """
    return pdpte & (_W | _U | 0xF << 5 | ((1 << 64) - 1) & ~((1 << controls.maxphyaddr) - 1))


def _allowed(rights: _Rights, kind: Kind, user: bool, controls: Controls, implicit: bool) -> bool:
    """SDM volume 3, section 4.6.1, but for protection keys."""
    if user and not rights.user:
        return False
    if kind is Kind.FETCH:
        if controls.smep and rights.user and not user:
            return False
        return rights.executable or not controls.nxe
    if controls.smap and rights.user and not user and (implicit or not controls.ac):
        return False
    return kind is Kind.READ or rights.writable or (not user and not controls.wp)


def _key_denies(rights: _Rights, key: int, kind: Kind, user: bool, controls: Controls) -> bool:
    """SDM volume 3, section 4.6.2: PKRU limits data accesses to user-mode addresses, also those of the supervisor."""
    if not controls.pke or not controls.keys or kind is Kind.FETCH or not rights.user:
        return False
    access_disable, write_disable = controls.pkru >> 2 * key & 1, controls.pkru >> 2 * key + 1 & 1
    return bool(access_disable or (write_disable and kind is Kind.WRITE and (user or controls.wp)))
