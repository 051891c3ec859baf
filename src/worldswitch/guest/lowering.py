"""Code of each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldswitch.guest.accesses import lower_access, lower_single_step, lower_user
from worldswitch.guest.context import Context
from worldswitch.guest.emit import SI, A, B, C, D, Imm, Label, Mem
from worldswitch.guest.operations import (
    Clac,
    Clts,
    Cpuid,
    Fetch,
    Hlt,
    In,
    Invlpg,
    Invpcid,
    Lmsw,
    Load,
    Meet,
    Nop,
    Operation,
    Out,
    ReadCr,
    ReadDr,
    ReadEntry,
    ReadMsr,
    ReadPkru,
    Repeat,
    SingleStep,
    Stac,
    Store,
    SwitchSpace,
    User,
    Vmcall,
    WriteCr,
    WriteDr,
    WriteEntry,
    WriteMsr,
    WritePkru,
)  # fmt: skip
from worldswitch.guest.tables import flag_mask
from worldswitch.x86.paging import ADDRESS, KEY, KEY_SHIFT
from worldswitch.x86.registers import bit_mask

U32 = (1 << 32) - 1
NOFLUSH = 1 << 63
TASK_SWITCHED = 1 << 3
MACHINE_STATUS = 0xF
"""Bits of CR0 that LMSW loads; of them PE can only be set."""


def lower(c: Context, operation: Operation) -> None:
    """Append the code of *operation*, which ``c.place`` names.

    Raises:
        ProgramError: A page-table entry is not there, or there is no room for a counter or a value.
    """
    _LOWER[type(operation)](c, operation)


def lower_all(c: Context, operations: tuple[Operation, ...], path: str, separator: str = " ") -> None:
    """Append the code of *operations*; the n-th is called *path*, *separator*, n."""
    for i, operation in enumerate(operations):
        with c.listed(f"{path}{separator}{i}"):
            lower(c, operation)


def _write_cr(c: Context, write: WriteCr) -> None:
    asm = c.asm
    with c.guarded():
        if write.value is not None:
            asm.mov(A, write.value)
        else:
            asm.mov(A, c.believed(write.cr))
            _change(c, [bit_mask(write.cr, *names) for names in (write.clear, write.set, write.toggle)])
        asm.ins(f"MOV_CR_R{asm.bits}", f"CR{write.cr}", A.sized(asm.bits))
        if write.cr in (0, 4):
            asm.mov(c.believed(write.cr), A)


def _change(c: Context, masks: list[int]) -> None:
    """Clear, set and toggle bits of A; C is scratch."""
    clear, set_, toggle = masks
    if clear:
        c.asm.mask("AND", A, ~clear, C)
    if set_:
        c.asm.mask("OR", A, set_, C)
    if toggle:
        c.asm.mask("XOR", A, toggle, C)


def _read_cr(c: Context, read: ReadCr) -> None:
    c.asm.ins(f"MOV_R{c.asm.bits}_CR", A.sized(c.asm.bits), f"CR{read.cr}")
    if read.keep:
        c.keep()


def _switch_space(c: Context, switch: SwitchSpace) -> None:
    root = c.tables[switch.space].root.gpa
    assert root is not None
    with c.guarded():
        c.asm.mov(A, root | switch.pcid | (NOFLUSH if switch.noflush else 0))
        c.asm.ins(f"MOV_CR_R{c.asm.bits}", "CR3", A.sized(c.asm.bits))


def _clts(c: Context, _: Clts) -> None:
    c.asm.ins("CLTS")
    c.asm.op("AND", c.believed(0), ~TASK_SWITCHED)


def _lmsw(c: Context, lmsw: Lmsw) -> None:
    c.asm.mov(A, lmsw.value & 0xFFFF)
    c.asm.ins("LMSW_RM16", "AX")
    c.asm.op("AND", c.believed(0), ~(MACHINE_STATUS & ~1))
    c.asm.op("OR", c.believed(0), lmsw.value & MACHINE_STATUS)


def _read_msr(c: Context, read: ReadMsr) -> None:
    with c.guarded():
        c.asm.mov(C, read.msr)
        c.asm.ins("RDMSR")
        if read.keep:
            _join(c, D)
            c.keep(pair=True)


def _join(c: Context, high: Any) -> None:
    """Make A (64-bit code) or D:A (32-bit code) the value whose high half is in *high*."""
    if c.long:
        c.asm.ins("SHL_RM64_IMM8", high.sized(64), Imm(32))
        c.asm.op("OR", A, high)
    elif high != D:
        c.asm.mov(D, high)


def _write_msr(c: Context, write: WriteMsr) -> None:
    with c.guarded():
        c.asm.mov(C, write.msr)
        c.asm.mov(A, write.value & U32)
        c.asm.mov(D, write.value >> 32 & U32)
        c.asm.ins("WRMSR")


def _invlpg(c: Context, invlpg: Invlpg) -> None:
    c.asm.mov(A, invlpg.va)
    c.asm.ins("INVLPG_M", Mem(A))


def _invpcid(c: Context, invpcid: Invpcid) -> None:
    asm, descriptor = c.asm, Label()
    c.literals.append((descriptor, invpcid.pcid.to_bytes(8, "little") + invpcid.va.to_bytes(8, "little"), c.place))
    with c.guarded():
        asm.mov(A, invpcid.type)
        asm.mov(D, descriptor)
        asm.ins(f"INVPCID_R{asm.bits}_M128", A.sized(asm.bits), Mem(D))


def _write_entry(c: Context, write: WriteEntry) -> None:
    """Read, change, write: one store in 64-bit code; in 32-bit code one to each half that changes, high one first."""
    clear, set_, toggle = (flag_mask(names) for names in (write.clear, write.set, write.toggle))
    if write.pa is not None:
        clear, set_ = clear | ADDRESS, set_ | (write.pa & ADDRESS)
    if write.key is not None:
        clear, set_ = clear | KEY, set_ | write.key << KEY_SHIFT
    at = c.window + c.tables[write.space].entry(write.va, write.level)
    for offset, shift in ((0, 0),) if c.long else ((4, 32), (0, 0)):
        part = (1 << c.asm.bits) - 1
        masks = [mask >> shift & part for mask in (clear, set_, toggle)]
        if any(masks) or c.long:
            c.asm.mov(A, Mem(disp=at + offset))
            _change(c, masks)
            c.asm.mov(Mem(disp=at + offset), A)


def _read_entry(c: Context, read: ReadEntry) -> None:
    at = c.window + c.tables[read.space].entry(read.va, read.level)
    c.asm.mov(A, Mem(disp=at))
    if not c.long:
        c.asm.mov(D, Mem(disp=at + 4))
    if read.keep:
        c.keep(pair=True)


def _stac(c: Context, _: Stac) -> None:
    with c.guarded():
        c.asm.ins("STAC")


def _clac(c: Context, _: Clac) -> None:
    with c.guarded():
        c.asm.ins("CLAC")


def _write_pkru(c: Context, write: WritePkru) -> None:
    with c.guarded():
        c.asm.mov(A, write.value & U32)
        c.asm.mov(C, 0)
        c.asm.mov(D, 0)
        c.asm.ins("WRPKRU")


def _read_pkru(c: Context, read: ReadPkru) -> None:
    with c.guarded():
        c.asm.mov(C, 0)
        c.asm.ins("RDPKRU")
        if read.keep:
            c.keep()


def _cpuid(c: Context, cpuid: Cpuid) -> None:
    c.asm.mov(A, cpuid.leaf)
    c.asm.mov(C, cpuid.subleaf)
    c.asm.ins("CPUID")
    if cpuid.keep:
        _join(c, B)
        c.keep(pair=True)


def _vmcall(c: Context, vmcall: Vmcall) -> None:
    with c.guarded():
        for register, value in zip((A, B, C, D, SI), (vmcall.nr, *vmcall.args), strict=False):
            c.asm.mov(register, value)
        c.vmcalls.append(c.asm.here())
        c.asm.ins("VMCALL")
        if vmcall.keep:
            c.keep()


def _in(c: Context, read: In) -> None:
    register = A.sized(8 * read.size)
    c.asm.mov(D, read.port)
    c.asm.mov(A, 0)
    c.asm.ins(f"IN_{register}_DX", register, "DX")
    if read.keep:
        c.keep()


def _out(c: Context, write: Out) -> None:
    register = A.sized(8 * write.size)
    c.asm.mov(D, write.port)
    c.asm.mov(A, write.value & U32)
    c.asm.ins(f"OUT_DX_{register}", "DX", register)


def _hlt(c: Context, _: Hlt) -> None:
    c.asm.ins("HLT")


def _read_dr(c: Context, read: ReadDr) -> None:
    with c.guarded():
        c.asm.ins(f"MOV_R{c.asm.bits}_DR", A.sized(c.asm.bits), f"DR{read.dr}")
        if read.keep:
            c.keep()


def _write_dr(c: Context, write: WriteDr) -> None:
    with c.guarded():
        c.asm.mov(A, write.value)
        c.asm.ins(f"MOV_DR_R{c.asm.bits}", f"DR{write.dr}", A.sized(c.asm.bits))


def _nop(c: Context, nop: Nop) -> None:
    c.asm.raw(b"\x90" * nop.count)


def _user(c: Context, block: User) -> None:
    lower_user(c, block, lower)


def _repeat(c: Context, repeat: Repeat) -> None:
    if repeat.count < 1:
        return
    asm, counter, outer = c.asm, c.counter(), c.index
    asm.mov(counter, 0)
    c.index, c.depth = counter, c.depth + 1
    top = asm.here()
    lower_all(c, repeat.body, c.place, ".")
    c.index, c.depth = outer, c.depth - 1
    asm.inc(counter)
    if isinstance(counter, Mem):
        asm.mov(A, counter)
        counter = A
    asm.mask("CMP", counter, repeat.count, C)
    asm.jump(top, "JNE")


def _meet(c: Context, _: Meet) -> None:
    """The last to arrive resets the count and starts a new generation; the others spin on the generation."""
    asm, spin, over = c.asm, Label(), Label()
    arrived, generation = Mem(disp=c.memory.barrier), Mem(disp=c.memory.barrier + 64)
    asm.op("MOV", D, generation, 32)
    asm.mov(A, 1)
    asm.raw(b"\xf0")
    asm.ins("XADD_RM32_R32", arrived, "EAX")
    asm.op("CMP", A, len(c.program.vcpus) - 1, 32)
    asm.jump(spin, "JNE")
    asm.op("MOV", arrived, 0, 32)
    asm.ins("INC_RM32", generation)
    asm.jump(over)
    asm.bind(spin)
    asm.ins("PAUSE")
    asm.op("CMP", D, generation, 32)
    asm.jump(spin, "JE")
    asm.bind(over)


_LOWER: dict[type[Operation], Callable[[Context, Any], None]] = {
    Load: lower_access, Store: lower_access, Fetch: lower_access, WriteCr: _write_cr, ReadCr: _read_cr,
    SwitchSpace: _switch_space, Clts: _clts, Lmsw: _lmsw, ReadMsr: _read_msr, WriteMsr: _write_msr, Invlpg: _invlpg,
    Invpcid: _invpcid, WriteEntry: _write_entry, ReadEntry: _read_entry, Stac: _stac, Clac: _clac,
    WritePkru: _write_pkru, ReadPkru: _read_pkru, Cpuid: _cpuid, Vmcall: _vmcall, In: _in, Out: _out, Hlt: _hlt,
    ReadDr: _read_dr, WriteDr: _write_dr, SingleStep: lower_single_step, Nop: _nop, User: _user, Repeat: _repeat,
    Meet: _meet,
}  # fmt: skip
