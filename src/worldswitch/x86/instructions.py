"""Which control register an instruction writes, told from its bytes.

Sources: Intel SDM volume 2, section 2.1 (prefixes), MOV to and from control registers, LMSW, CLTS; AMD APM
volume 3, the same instructions.
"""

from __future__ import annotations

_LEGACY_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf2\xf3")
_LOCK = 0xF0
_REX_R = 4
_LONGEST = 15

_CLTS = 0x06
_GROUP7 = 0x01
_LMSW = 6  # the reg field of ModRM in group 7
_MOV_TO_CR = 0x22
_WRITABLE = frozenset((0, 2, 3, 4, 8))


def cr_write(insn: bytes, bits: int = 64) -> int | None:
    """The number of the control register that *insn* writes, or None if it writes none.

    MOV to CRn gives n, LMSW and CLTS give 0. Prefixes are skipped as the processor does; with LOCK all
    three are undefined (some AMD processors take LOCK MOV CR0 for CR8; that is not decoded). Bytes after the
    instruction, or missing at the end of an LMSW's memory operand, do not matter.

    Args:
        insn: The bytes at the instruction pointer.
        bits: 16, 32 or 64, the code segment's mode; REX prefixes exist only in 64-bit mode.
    """
    rex = 0
    for place, byte in enumerate(insn[:_LONGEST]):
        if byte in _LEGACY_PREFIXES:
            rex = 0  # a REX prefix counts only right before the opcode
        elif bits == 64 and 0x40 <= byte <= 0x4F:
            rex = byte
        else:
            return _opcode(insn[place:_LONGEST], rex) if byte != _LOCK else None
    return None


def _opcode(code: bytes, rex: int) -> int | None:
    """As :func:`cr_write`, after the prefixes."""
    if len(code) < 2 or code[0] != 0x0F:
        return None
    if code[1] == _CLTS:
        return 0
    if len(code) < 3:
        return None
    reg = code[2] >> 3 & 7
    if code[1] == _GROUP7:
        return 0 if reg == _LMSW else None
    if code[1] == _MOV_TO_CR:
        register = reg | (8 if rex & _REX_R else 0)
        return register if register in _WRITABLE else None
    return None
