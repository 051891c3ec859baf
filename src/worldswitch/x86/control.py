"""What the processor itself refuses in a write to a control register: #GP.

Sources: Intel SDM volume 2, "MOV - Move to/from Control Registers", and volume 3, section 2.5; AMD APM volume 2,
sections 3.1 and 5.5. They judge a write that no hypervisor sees.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask

_PE, _ET, _WP, _NW, _CD, _PG = (bit_mask(CR0, name) for name in ("PE", "ET", "WP", "NW", "CD", "PG"))
_PAE, _PCIDE, _LA57, _CET = (bit_mask(CR4, name) for name in ("PAE", "PCIDE", "LA57", "CET"))
_LME, _LMA = bit_mask(EFER, "LME"), bit_mask(EFER, "LMA")
_PDPTE_CR0, _PDPTE_CR4 = bit_mask(CR0, "CD", "NW", "PG"), bit_mask(CR4, "PAE", "PGE", "PSE", "SMEP")
PCID = 0xFFF
"""Bits of CR3 that hold the PCID while CR4.PCIDE is set."""


class Registers(NamedTuple):
    """The registers that judge each other; *long_code*: CS is a 64-bit code segment."""

    cr0: int
    cr3: int
    cr4: int
    efer: int
    long_code: bool = True

    @property
    def pae(self) -> bool:
        """Paging is on and PAE paging: four PDPTEs, then two levels."""
        return bool(self.cr0 & _PG and self.cr4 & _PAE and not self.efer & _LMA)


def refuses_cr0(now: Registers, new: int) -> bool:
    """Whether MOV to CR0 of *new* is #GP."""
    if new >> 32 or (new & _NW and not new & _CD) or (new & _PG and not new & _PE):
        return True
    turned_on = new & _PG and not now.cr0 & _PG
    if turned_on and now.efer & _LME and (not now.cr4 & _PAE or now.long_code):
        return True
    if not new & _PG and (now.cr4 & _PCIDE or (now.efer & _LMA and now.long_code)):
        return True
    return bool(not new & _WP and now.cr4 & _CET)


def loads_pdptes(cr: int, old: int, new: int) -> bool:
    """Whether a write to CR0 or CR4 under PAE paging loads the four PDPTEs: SDM volume 3, 4.4.1."""
    return bool((old ^ new) & (_PDPTE_CR0 if cr == CR0 else _PDPTE_CR4))


def refuses_cr4(now: Registers, new: int, reserved: int) -> bool:
    """Whether MOV to CR4 of *new* is #GP; *reserved* are the bits this processor does not have."""
    if new & reserved:
        return True
    if now.efer & _LMA and (not new & _PAE or (new ^ now.cr4) & _LA57):
        return True
    if new & ~now.cr4 & _PCIDE and (now.cr3 & PCID or not now.efer & _LMA):
        return True
    return bool(new & _CET and not now.cr0 & _WP)
