"""The bits of CR0, CR4 and EFER by their manual names.

Sources: Intel SDM volume 3, section 2.5 "Control Registers" and section 2.2.1 "Extended Feature Enable
Register"; AMD APM volume 2, section 3.1 "System-Control Registers".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from worldswitch.errors import UnknownNameError, UsageError, printable

CR0 = 0
CR4 = 4
EFER = 0xC0000080
"""EFER is a model-specific register; its number here is that of the MSR."""


class RegisterBit(NamedTuple):
    """One bit: the register's number, its position and its name (``bit 40`` where the manuals have none)."""

    register: int
    position: int
    name: str

    @property
    def mask(self) -> int:
        """The register value with only this bit set."""
        return 1 << self.position

    def __str__(self) -> str:
        return f"{register_name(self.register)}.{self.name}"


_CR0 = {
    "PE": 0,
    "MP": 1,
    "EM": 2,
    "TS": 3,
    "ET": 4,
    "NE": 5,
    "WP": 16,
    "AM": 18,
    "NW": 29,
    "CD": 30,
    "PG": 31,
}
_CR4 = {"VME": 0, "PVI": 1, "TSD": 2, "DE": 3, "PSE": 4, "PAE": 5, "MCE": 6, "PGE": 7, "PCE": 8}
_CR4 |= {"OSFXSR": 9, "OSXMMEXCPT": 10, "UMIP": 11, "LA57": 12, "VMXE": 13, "SMXE": 14, "FSGSBASE": 16}
_CR4 |= {"PCIDE": 17, "OSXSAVE": 18, "KL": 19, "SMEP": 20, "SMAP": 21, "PKE": 22, "CET": 23, "PKS": 24}
_CR4 |= {"UINTR": 25, "LASS": 27, "LAM_SUP": 28, "FRED": 32}
_EFER = {"SCE": 0, "LME": 8, "LMA": 10, "NXE": 11, "SVME": 12, "LMSLE": 13, "FFXSR": 14, "TCE": 15}
_EFER |= {"MCOMMIT": 17, "INTWB": 18, "UAIE": 20, "AIBRSE": 21}

REGISTERS: Mapping[int, Mapping[str, int]] = MappingProxyType(
    {number: MappingProxyType(bits) for number, bits in ((CR0, _CR0), (CR4, _CR4), (EFER, _EFER))}
)
"""Register number to (bit name to position)."""

_NAMES = {number: {position: name for name, position in bits.items()} for number, bits in REGISTERS.items()}
_ALIASES = {(EFER, "NX"): "NXE", (CR4, "LAM"): "LAM_SUP", (CR4, "OSXMM"): "OSXMMEXCPT"}


def register_name(register: int) -> str:
    """``"CR0"``, ``"CR8"`` or ``"EFER"``."""
    return "EFER" if register == EFER else f"CR{register}"


def bit_names(register: int, mask: int) -> tuple[str, ...]:
    """Names of the bits set in *mask*, from bit 0 up; ``"bit 40"`` for one without a name."""
    names = _NAMES.get(register, {})
    return tuple(names.get(n, f"bit {n}") for n in range(mask.bit_length()) if mask >> n & 1)


def bit_mask(register: int, *names: str) -> int:
    """The register value in which just the bits *names* (as :func:`bit_names` gives them) are set.

    Raises:
        UnknownNameError: The register has no such bit.
    """
    mask = 0
    for name in names:
        mask |= 1 << _position(register, name)
    return mask


def parse_bit(text: str) -> RegisterBit:
    """The bit that ``"CR0.WP"``, ``"cr4.smep"`` or ``"CR4.bit 40"`` means.

    Raises:
        UsageError: It is not a register, a point and a bit.
        UnknownNameError: No such register or bit; names the nearest.
    """
    register_text, point, name = text.strip().partition(".")
    if not point:
        raise UsageError(f"{printable(text)!r} is not a register bit; write register.bit, such as CR0.WP or CR4.CET")
    numbers = {register_name(number): number for number in REGISTERS}
    register = numbers.get(register_text.upper())
    if register is None:
        raise UnknownNameError("register", register_text, numbers, "Bits are known of CR0, CR4 and EFER")
    position = _position(register, name)
    return RegisterBit(register, position, _NAMES[register].get(position, f"bit {position}"))


def _position(register: int, name: str) -> int:
    bits = REGISTERS.get(register, {})
    word = name.strip().upper()
    word = _ALIASES.get((register, word), word)
    if word in bits:
        return bits[word]
    number = word.removeprefix("BIT").strip()
    if number.isascii() and number.isdecimal() and len(number) <= 2 and int(number) < 64:
        return int(number)
    raise UnknownNameError(f"bit of {register_name(register)}", name, bits, "A number (bit 0 to 63) is understood too")
