"""Machine code by the piece: an encoder with labels and sections on top of iced-x86.

Everything a program owns lies in one window of 2 MiB whose addresses, sign-extended from 32 bits, are the same in
64-bit and 32-bit code. So an address of the program's own is a 32-bit displacement or immediate in both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reg:
    """A general register by its legacy letter (``"A"``, ``"SI"``) or number (``"8"`` to ``"15"``)."""

    name: str

    def sized(self, width: int) -> str:
        """Its name at a width of 8, 16, 32 or 64 bits, as iced-x86 spells it."""
        if self.name.isdecimal():
            return f"R{self.name}" + {8: "L", 16: "W", 32: "D", 64: ""}[width]
        if len(self.name) == 1:
            return {8: f"{self.name}L", 16: f"{self.name}X", 32: f"E{self.name}X", 64: f"R{self.name}X"}[width]
        return {8: f"{self.name}L", 16: self.name, 32: f"E{self.name}", 64: f"R{self.name}"}[width]


A, C, D, B, SP, BP, SI, DI = (Reg(name) for name in ("A", "C", "D", "B", "SP", "BP", "SI", "DI"))
R8, R9, R10, R11, R12, R13, R14, R15 = (Reg(str(number)) for number in range(8, 16))


@dataclass(frozen=True, slots=True)
class Mem:
    """Memory at *base* + *index* + *disp*; without registers at the address *disp*."""

    base: Reg | None = None
    index: Reg | None = None
    disp: int = 0


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate operand of :meth:`Assembler.ins`."""

    value: int


@dataclass(eq=False, slots=True)
class Section:
    """Code that will lie in one piece. *base* is its linear address, once known."""

    data: bytearray = field(default_factory=bytearray)
    fixups: list[tuple[int, Label, bool]] = field(default_factory=list)
    base: int = 0

    def __len__(self) -> int:
        return len(self.data)


@dataclass(eq=False, slots=True)
class Label:
    """A place in a section."""

    section: Section | None = None
    offset: int = 0

    @property
    def address(self) -> int:
        """Linear address; the section must have its base."""
        assert self.section is not None, "the label was never bound"
        return self.section.base + self.offset


Operand = Reg | Mem | int | Label


def fits(value: int, bits: int = 32) -> bool:
    """Whether *value* is a signed number of *bits* bits."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def signed(value: int, bits: int = 64) -> int:
    """*value* modulo 2^bits, as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Assembler:
    """Appends instructions to a section.

    Attributes:
        bits: 64 or 32, the code's and the default operand width.
        section: Where instructions go now.
    """

    def __init__(self, bits: int) -> None:
        import iced_x86

        self.bits = bits
        self.section = Section()
        self._iced: Any = iced_x86
        self._encoder = iced_x86.Encoder(bits)

    def bind(self, label: Label) -> None:
        """Let *label* be here."""
        label.section, label.offset = self.section, len(self.section)

    def here(self) -> Label:
        """A label that is here."""
        label = Label()
        self.bind(label)
        return label

    def ins(self, code: str, *operands: str | Mem | Imm) -> None:
        """One instruction by the name of its iced-x86 ``Code``; registers are given by name."""
        iced, kinds, values = self._iced, [], []
        for operand in operands:
            if isinstance(operand, str):
                kinds.append("reg")
                values.append(getattr(iced.Register, operand))
            elif isinstance(operand, Mem):
                kinds.append("mem")
                values.append(self._memory(operand))
            else:
                wide = code.endswith("IMM64")
                kinds.append("u64" if wide else "i32")
                values.append(operand.value & (1 << 64) - 1 if wide else signed(operand.value, 32))
        create = getattr(iced.Instruction, "_".join(["create", *kinds]))
        self._encoder.encode(create(getattr(iced.Code, code), *values), 0)
        self.section.data += self._encoder.take_buffer()

    def op(self, name: str, target: Reg | Mem, source: Operand, width: int = 0) -> None:
        """MOV, ADD, OR, AND, XOR, SUB, CMP or TEST of *width* bits (the code's if 0).

        A number must be a signed 32-bit one unless it is moved to a register; a label stands for its address.
        """
        width = width or self.bits
        to: str | Mem = target.sized(width) if isinstance(target, Reg) else target
        if isinstance(source, Label):
            self.ins(f"{name}_RM{width}_IMM32", to, Imm(0))
            self._fix(source, relative=False)
        elif isinstance(source, int):
            self._immediate(name, target, source, width)
        elif isinstance(source, Reg):
            self.ins(f"{name}_RM{width}_R{width}", to, source.sized(width))
        else:
            self.ins(f"{name}_R{width}_RM{width}", to, source)

    def mov(self, target: Reg | Mem, source: Operand, width: int = 0) -> None:
        """Move *source* to *target*."""
        self.op("MOV", target, source, width)

    def mask(self, name: str, target: Reg, value: int, scratch: Reg) -> None:
        """AND, OR, XOR or CMP with any number; one that is no immediate goes through *scratch*."""
        value = signed(value, self.bits)
        if fits(value):
            self.op(name, target, value)
        else:
            self.mov(scratch, value)
            self.op(name, target, scratch)

    def push(self, source: Reg | int | Label) -> None:
        """PUSH of a register, a signed 32-bit number or the address of a label."""
        if isinstance(source, Reg):
            self.ins(f"PUSH_R{self.bits}", source.sized(self.bits))
        else:
            self.ins(
                "PUSHQ_IMM32" if self.bits == 64 else "PUSHD_IMM32", Imm(0 if isinstance(source, Label) else source)
            )
            if isinstance(source, Label):
                self._fix(source, relative=False)

    def pop(self, target: Reg) -> None:
        """POP to a register."""
        self.ins(f"POP_R{self.bits}", target.sized(self.bits))

    def inc(self, target: Reg | Mem) -> None:
        """INC of a register or of memory."""
        self.ins(f"INC_RM{self.bits}", target.sized(self.bits) if isinstance(target, Reg) else target)

    def jump(self, label: Label, condition: str = "JMP") -> None:
        """JMP, or Jcc such as ``"JNE"``, to *label* in this section; always with a 32-bit displacement."""
        self.section.data += b"\xe9" if condition == "JMP" else bytes((0x0F, 0x80 | _CONDITIONS[condition]))
        self.section.data += bytes(4)
        self._fix(label, relative=True)

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.section.data += data

    def _fix(self, label: Label, relative: bool) -> None:
        self.section.fixups.append((len(self.section) - 4, label, relative))

    def _immediate(self, name: str, target: Reg | Mem, value: int, width: int) -> None:
        to: str | Mem = target.sized(width) if isinstance(target, Reg) else target
        if name == "MOV" and isinstance(target, Reg) and width == 64:
            value &= (1 << 64) - 1
            if value >> 32 == 0:
                self.ins("MOV_R32_IMM32", target.sized(32), Imm(value))
            elif fits(signed(value)):
                self.ins("MOV_RM64_IMM32", to, Imm(value))
            else:
                self.ins("MOV_R64_IMM64", to, Imm(value))
        elif width == 8:
            self.ins(f"{name}_RM8_IMM8", to, Imm(value))
        elif name not in ("MOV", "TEST") and fits(signed(value, width), 8):
            self.ins(f"{name}_RM{width}_IMM8", to, Imm(value))
        else:
            self.ins(f"{name}_RM{width}_IMM32", to, Imm(value))

    def _memory(self, mem: Mem) -> Any:
        register, none = self._iced.Register, self._iced.Register.NONE
        base = getattr(register, mem.base.sized(self.bits)) if mem.base else none
        index = getattr(register, mem.index.sized(self.bits)) if mem.index else none
        size = self.bits // 8 if mem.disp or not mem.base else 0
        return self._iced.MemoryOperand(base, index, displ=signed(mem.disp, self.bits), displ_size=size)


_CONDITIONS = {"JB": 2, "JAE": 3, "JE": 4, "JNE": 5}


def resolve(section: Section) -> bytes:
    """The section's bytes; it and all sections it names must have their base."""
    for at, label, relative in section.fixups:
        value = label.address - (section.base + at + 4) if relative else label.address
        struct.pack_into("<i", section.data, at, signed(value, 32))
    return bytes(section.data)
