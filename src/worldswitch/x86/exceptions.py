"""Exceptions by vector, and what the error code of a page fault says.

Sources: Intel SDM volume 3, "Protected-Mode Exceptions and Interrupts" (a table) and section 4.7 ("Page-Fault
Exceptions"); AMD APM volume 2, sections 8.2 and 8.4.2. Standard library only, Python 3.9: the field kit has it too.
"""

from __future__ import annotations

PAGE_FAULT = 14

NAMES = {
    0: "DE", 1: "DB", 2: "NMI", 3: "BP", 4: "OF", 5: "BR", 6: "UD", 7: "NM", 8: "DF", 10: "TS", 11: "NP", 12: "SS",
    13: "GP", PAGE_FAULT: "PF", 16: "MF", 17: "AC", 18: "MC", 19: "XM", 20: "VE", 21: "CP", 28: "HV", 29: "VC",
    30: "SX",
}  # fmt: skip
"""Vector -> its name in the manuals; 28 to 30 are AMD's."""

ERROR_BITS = {"P": 0, "W": 1, "U": 2, "RSVD": 3, "I": 4, "PK": 5, "SS": 6, "HLAT": 7, "SGX": 15, "RMP": 31}
"""Bits of a page fault's error code: present, write, user, reserved bit set, instruction fetch, protection key,
shadow stack, HLAT paging, SGX; RMP is AMD's."""


def exception_name(vector: int) -> str:
    """``#PF`` for 14; a vector without a name is a number."""
    return f"#{NAMES[vector]}" if vector in NAMES else f"vector {vector}"


def error_bits(code: int) -> str:
    """The bits set in a page fault's error code: ``P W`` for 3; empty for 0."""
    return " ".join(name for name, bit in ERROR_BITS.items() if code >> bit & 1)
