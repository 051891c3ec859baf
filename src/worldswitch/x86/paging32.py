"""32-bit paging: two levels of 4-byte entries, with pages of 4 KiB and, with CR4.PSE, of 4 MiB.

Source: Intel SDM volume 3, section 4.3 "32-Bit Paging", tables 4-3 to 4-6; 4.6 and 4.7 for rights and error codes.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldswitch.x86 import access
from worldswitch.x86.access import Controls, Kind
from worldswitch.x86.exceptions import ERROR_BITS
from worldswitch.x86.paging import PAGE_SIZE, PRESENT, USER, WRITABLE

ENTRIES, ENTRY_SIZE = 1024, 4
LARGE = 4 << 20
"""Bytes of a page that an entry of level 2 maps."""
ADDRESS = 0xFFFF_F000
"""Bits of an entry that hold the address of a table or of a 4 KiB page."""
PSE36_BITS = 40
"""Bits of a physical address that the entry of a 4 MiB page can hold, if the processor has so many and PSE-36."""
_LARGE_LOW, _LARGE_HIGH_AT = 0xFFC0_0000, 13
_P, _RSVD = (1 << ERROR_BITS[name] for name in ("P", "RSVD"))


def slot(va: int, level: int) -> int:
    """Which entry of a table of *level* (2 is the page directory) translates *va*."""
    return va >> 12 + 10 * (level - 1) & ENTRIES - 1


def large_entry(pa: int, flags: int) -> int:
    """The entry that maps 4 MiB at *pa*, a multiple of that below 2^40: bits 39:32 lie in bits 20:13."""
    return pa & _LARGE_LOW | pa >> 32 << _LARGE_HIGH_AT | flags | PAGE_SIZE


def large_address(entry: int) -> int:
    """The address that a 4 MiB page's entry holds."""
    return entry & _LARGE_LOW | (entry >> _LARGE_HIGH_AT & 0xFF) << 32


def reserved_bits(level: int, entry: int, maxphyaddr: int, pse: bool = True, pse36: bool = True) -> int:
    """The bits of a present *entry* of *level* that must be clear: only those of 4 MiB pages have any.

    Args:
        maxphyaddr: Bits of a physical address.
        pse: CR4.PSE; without it the entry's PS bit is ignored.
        pse36: CPUID has PSE-36; without it a 4 MiB page lies below 4 GiB.
    """
    if level == 1 or not pse or not entry & PAGE_SIZE:
        return 0
    bits = min(PSE36_BITS, maxphyaddr) if pse36 else 32
    first = max(bits, 32) - 32 + _LARGE_HIGH_AT
    return (1 << 22) - (1 << first)


def page_fault(
    entries: Sequence[int],
    kind: Kind,
    user: bool,
    controls: Controls,
    pse: bool = True,
    pse36: bool = True,
    implicit: bool = False,
) -> int | None:
    """The error code of the page fault that an access raises; None if it goes ahead.

    As :func:`worldswitch.x86.access.page_fault`, but that *entries* are one of the page directory and, where that maps
    no page, one of a page table. There is no right to execute and there are no keys, whatever EFER.NXE and CR4.PKE say;
    so only CR4.SMEP makes error codes tell fetches.

    Raises:
        ValueError: The entries end before the page.
    """
    controls = controls._replace(nxe=False, keys=False)
    rights = []
    for level, entry in zip((2, 1), entries, strict=False):
        if entry & PRESENT and entry & reserved_bits(level, entry, controls.maxphyaddr, pse, pse36):
            code = access.page_fault((0,), kind, user, controls, 2, implicit)
            assert code is not None
            return code | _P | _RSVD
        large = PAGE_SIZE if level == 2 and pse else 0
        rights.append(entry & (PRESENT | WRITABLE | USER | large))
    return access.page_fault(rights, kind, user, controls, 2, implicit)
