"""Control-register writes, held against the decoder iced-x86."""

from __future__ import annotations

import iced_x86
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldswitch.x86.instructions import cr_write


def by_iced(insn: bytes, bits: int) -> int | None:
    """What iced-x86 says *insn* writes."""
    found = iced_x86.Decoder(bits, insn).decode()
    if found.mnemonic in (iced_x86.Mnemonic.LMSW, iced_x86.Mnemonic.CLTS):
        return 0
    if found.mnemonic == iced_x86.Mnemonic.MOV and found.op0_kind == iced_x86.OpKind.REGISTER:
        number = found.op0_register - iced_x86.Register.CR0
        return number if 0 <= number < 16 else None
    return None


PREFIXES = st.lists(
    st.sampled_from([0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3, *range(0x40, 0x50)]),
    max_size=7,
).map(bytes)
OPCODES = st.sampled_from([b"\x0f\x22", b"\x0f\x06", b"\x0f\x01", b"\x0f\x20", b"\x0f\x23", b"\x0f\x00", b"\x8b"])


@given(PREFIXES, OPCODES, st.binary(min_size=6, max_size=6), st.sampled_from([16, 32, 64]))
@example(b"", b"\x0f\x22", b"\xc0" + bytes(5), 64)
@example(b"\x44", b"\x0f\x22", b"\xc0" + bytes(5), 64)
@example(b"\x44", b"\x0f\x22", b"\xc0" + bytes(5), 32)
@example(b"\xf0", b"\x0f\x22", b"\xc0" + bytes(5), 64)
def test_agrees_with_iced_on_what_looks_like_one(prefixes: bytes, opcode: bytes, rest: bytes, bits: int) -> None:
    insn = prefixes + opcode + rest
    assert cr_write(insn, bits) == by_iced(insn[:15], bits)


@given(st.binary(min_size=15, max_size=15), st.sampled_from([16, 32, 64]))
def test_agrees_with_iced_on_any_bytes(insn: bytes, bits: int) -> None:
    assert cr_write(insn, bits) == by_iced(insn, bits)


@pytest.mark.parametrize(
    ("insn", "register"),
    [
        ("0f22c0", 0),  # mov cr0, rax
        ("0f22e0", 4),  # mov cr4, rax
        ("440f22c0", 8),  # mov cr8, rax
        ("0f01f0", 0),  # lmsw ax
        ("0f06", 0),  # clts
        ("0f20c0", None),  # mov rax, cr0
        ("0f22", None),
        ("0f", None),
        ("", None),
        ("66" * 20 + "0f22c0", None),
    ],
)
def test_known_encodings(insn: str, register: int | None) -> None:
    assert cr_write(bytes.fromhex(insn)) == register
