"""Exit reasons as texts name them: the kernel's words, libtraceevent's, and numbers."""

from __future__ import annotations

import re

from worldswitch.x86.exits import ISA_SVM, reason_number

_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,16}\Z|[0-9]{1,10}\Z")
_PLUGIN_SVM = {
    "EXIT_INTR": "interrupt",
    "EXIT_IOIO": "io",
    "EXIT_VMMCALL": "hypercall",
    "EXIT_ERR": "invalid_guest_state",
}
_EXCEPTIONS = (
    *("DE", "DB", "NMI", "BP", "OF", "BR", "UD", "NM", "DF", "CSO", "TS", "NP", "SS", "GP", "PF", "15", "MF"),
    *("AC", "MC", "XF"),
)
_SVM_NUMBERS = {f"EXIT_EXCP_{name}": 0x40 + vector for vector, name in enumerate(_EXCEPTIONS)} | {
    "EXIT_SMI": 0x62,
    "EXIT_IDTR_READ": 0x66,
    "EXIT_GDTR_READ": 0x67,
    "EXIT_LDTR_READ": 0x68,
    "EXIT_TR_READ": 0x69,
    "EXIT_IDTR_WRITE": 0x6A,
    "EXIT_GDTR_WRITE": 0x6B,
    "EXIT_LDTR_WRITE": 0x6C,
    "EXIT_TR_WRITE": 0x6D,
    "EXIT_FERR_FREEZE": 0x7E,
    "EXIT_MWAIT_COND": 0x8C,
}
"""libtraceevent's kvm plugin names SVM exits after the APM; numbers: AMD APM volume 2, appendix C."""


def number(name: str) -> tuple[int, int] | None:
    """``(isa, reason)`` of a reason's name, or None if no table has it.

    libtraceevent's plugin prints ``EXIT_NPF`` where the kernel prints ``npf``; kernels before 2.6.38 print
    VMX reasons in small letters.
    """
    known = reason_number(name)
    if known is None and name.startswith("EXIT_"):
        if name in _SVM_NUMBERS:
            return ISA_SVM, _SVM_NUMBERS[name]
        known = reason_number(_PLUGIN_SVM.get(name, name[5:].lower()), ISA_SVM)
    if known is None and name == name.lower():
        known = reason_number(name.upper())
    return known


def is_number(name: str) -> bool:
    """Whether a reason is printed as its number."""
    return _NUMBER.match(name) is not None


def printed_number(name: str) -> int:
    """The value of a reason printed as a number, 32 bits; it does not say whose reason it is."""
    return int(name, 0 if name.startswith("0x") else 10) & 0xFFFFFFFF
