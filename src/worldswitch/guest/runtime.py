"""What surrounds a program's operations: the pass loop, descriptor tables, exception handlers, the way back from CPL 3.

An exception is recorded in the result area. Without a handler in the program the guest goes on at the resume
address, at CPL 0, with the stack of the code it goes on with. With one, the fix runs first, and with *retry* the
interrupted instruction is tried again, once. What faults within a fix is recorded and skipped and never fixed itself,
so nothing repeats for ever.

Sources: Intel SDM volume 3, sections 3.4.5 (segment descriptors), 6.12 and 6.14 (exception handling), 7.2.1 and 7.7
(task-state segments), 17.3.1.1 (#DB saves RFLAGS with TF set).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from worldswitch.guest import image
from worldswitch.guest.context import (
    BELIEVED,
    CALL_GATE,
    CODE,
    DATA,
    DESCRIPTORS,
    GATES,
    IN_FIX,
    LEAVE_USER,
    RESUME_STACK,
    RETRIED_BIT,
    TASK_STATE,
    TSS,
    USER_DATA,
    Context,
    store_value,
)  # fmt: skip
from worldswitch.guest.emit import BP, DI, R12, R13, SI, SP, A, B, C, D, Imm, Label, Mem, Reg
from worldswitch.guest.layout import OWN_MEMORY
from worldswitch.guest.lowering import lower_all
from worldswitch.guest.program import Handler, Vcpu

EXCEPTIONS = 32
WITH_ERROR_CODE = frozenset({8, 10, 11, 12, 13, 14, 17, 21, 29, 30})
"""Exceptions that push an error code: SDM volume 3, table 6-1; 29 and 30 are AMD's (APM volume 2, section 8.2)."""
PAGE_FAULT = 14
ALIGNMENT_CHECK = 1 << 18
"""RFLAGS.AC."""
RESUME_FLAGS = 1 << 1
"""RFLAGS to resume with, besides AC: only the bit that is always 1."""
SAVED = (A, C, D, B, SI, DI)
"""Registers saved while an exception is handled: scratch registers of operations, and EDI, the last, which 32-bit code
counts in."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a vCPU's code begin: the first instruction, behind the last HLT, a stub for each vector."""

    start: Label
    end: Label
    stubs: dict[int, Label]


def write_bare(c: Context, vcpu: Vcpu) -> Places:
    """The code of a bare program: n in RCX, nothing else around it."""
    asm, state = c.asm, c.program.state
    start = asm.here()
    asm.mov(BP, C)
    asm.mov(R12, state.cr0)
    asm.mov(R13, state.cr4)
    asm.mov(c.body_pass, 0)
    lower_all(c, vcpu.setup, f"vcpu {c.number} setup")
    _write_passes(c, vcpu)
    lower_all(c, vcpu.end, f"vcpu {c.number} end")
    end = _halt(c)
    _write_literals(c)
    return Places(start, end, {})


def write_vcpu(c: Context, vcpu: Vcpu) -> Places:
    """All code of one vCPU."""
    asm, state, path = c.asm, c.program.state, f"vcpu {c.number}"
    start, last = asm.here(), Label()
    if c.long:
        asm.mov(R12, state.cr0)
        asm.mov(R13, state.cr4)
    else:
        # Unlike those of CPL 0, segments of CPL 3 stay loaded when IRET goes there.
        asm.mov(A, USER_DATA)
        asm.ins("MOV_SREG_RM16", "DS", "AX")
        asm.ins("MOV_SREG_RM16", "ES", "AX")
    # Whatever is not expected to fault and does ends the program.
    asm.mov(c.resume, last)
    c.operations.append((last, path))
    asm.mov(c.body_pass, 0)
    lower_all(c, vcpu.setup, f"{path} setup")
    if c.long:
        asm.mov(BP, Mem(disp=c.memory.area + image.N))
    _stamp(c, image.TSC_START)
    _write_passes(c, vcpu)
    _stamp(c, image.TSC_END)
    asm.mov(Mem(disp=c.memory.area + image.PASSES), c.body_pass)
    asm.mov(c.body_pass, 0)
    lower_all(c, vcpu.end, f"{path} end")
    asm.bind(last)
    end = _halt(c)
    stubs = _write_handlers(c, vcpu.handlers)
    _write_literals(c)
    return Places(start, end, stubs)


def _write_passes(c: Context, vcpu: Vcpu) -> None:
    asm, done = c.asm, Label()
    asm.op("CMP", c.limit, 0)
    asm.jump(done, "JE")
    top = asm.here()
    lower_all(c, vcpu.body, f"vcpu {c.number} body")
    asm.inc(c.body_pass)
    asm.op("CMP", c.body_pass, c.limit)
    asm.jump(top, "JNE")
    asm.bind(done)


def _halt(c: Context) -> Label:
    """HLT for good; the label behind it."""
    halt = c.asm.here()
    c.asm.ins("HLT")
    end = c.asm.here()
    c.asm.jump(halt)
    return end


def _write_literals(c: Context) -> None:
    for label, data, path in c.literals:
        c.asm.bind(label)
        with c.listed(f"{path} operand"):
            c.asm.raw(data)


def _stamp(c: Context, offset: int) -> None:
    """The time stamp, once all before has completed: SDM volume 2, RDTSC."""
    at = c.memory.area + offset
    c.asm.ins("LFENCE")
    c.asm.ins("RDTSC")
    c.asm.op("MOV", Mem(disp=at), A, 32)
    c.asm.op("MOV", Mem(disp=at + 4), D, 32)
    c.asm.ins("LFENCE")


def _write_handlers(c: Context, handlers: tuple[Handler, ...]) -> dict[int, Label]:
    asm, skip, common = c.asm, Label(), Label()
    own = {handler.vector: Label() for handler in handlers}
    stubs = {}
    for vector in range(EXCEPTIONS):
        stubs[vector] = asm.here()
        if vector not in WITH_ERROR_CODE:
            asm.push(0)
        asm.push(vector)
        asm.jump(own.get(vector, common))
    path = f"vcpu {c.number}"
    asm.bind(common)
    with c.listed(f"{path} exceptions"):
        _record(c)
    asm.bind(skip)
    with c.listed(f"{path} skip"):
        _skip(c)
    for handler in handlers:
        asm.bind(own[handler.vector])
        _write_handler(c, handler, skip)
    with c.listed(f"{path} gate"):
        stubs[CALL_GATE] = _write_call_gate(c, stubs[CALL_GATE])
    return stubs


def _write_call_gate(c: Context, exception: Label) -> Label:
    """Where INT3 leads: from CPL 3 a request, from CPL 0 an *exception* like others."""
    asm, gate, leave = c.asm, c.asm.here(), Label()
    asm.op("TEST", Mem(SP, disp=asm.bits // 8), 3, 32)
    asm.jump(exception, "JE")
    asm.op("CMP", C, LEAVE_USER, 32)
    asm.jump(leave, "JE")
    store_value(c, Mem(C, disp=c.memory.area + image.VALUES))
    asm.ins(_iret(c))
    asm.bind(leave)
    asm.mov(SP, c.memory.stack_top)
    _unmark(c, c.resume)
    asm.ins(f"JMP_RM{asm.bits}", c.resume.sized(asm.bits))
    return gate


def _iret(c: Context) -> str:
    return "IRETQ" if c.long else "IRETD"


def _frame(c: Context, word: int) -> Mem:
    """A word of the exception's frame, above the registers saved: 0 vector, 1 error code, 2 RIP, 3 CS, 4 RFLAGS."""
    return Mem(SP, disp=(len(SAVED) + word) * c.asm.bits // 8)


def _unmark(c: Context, register: Reg) -> None:
    """Make the resume address in *register* what it was before a retry marked it."""
    mark = 1 << RETRIED_BIT
    if c.window & mark:
        c.asm.op("OR", register, mark)
    else:
        c.asm.op("AND", register, ~mark)


def _record(c: Context) -> None:
    """Save the scratch registers, count the exception, and log it if there is room."""
    asm, area = c.asm, c.memory.area
    for register in SAVED:
        asm.push(register)
    full, other = Label(), Label()
    count, log = Mem(disp=area + image.FAULTS), area + image.FAULT_LOG
    asm.mov(A, count)
    asm.op("CMP", A, image.MAX_FAULTS)
    asm.jump(full, "JAE")
    asm.ins(f"IMUL_R{asm.bits}_RM{asm.bits}_IMM32", DI.sized(asm.bits), A.sized(asm.bits), Imm(image.FAULT.size))
    for word, offset in ((0, 0), (1, 8), (2, 24)):
        asm.mov(A, _frame(c, word))
        asm.mov(Mem(DI, disp=log + offset), A)
    # CR2 is what the last #PF left there; with any other exception it would be noise.
    asm.mov(A, 0)
    asm.op("CMP", _frame(c, 0), PAGE_FAULT)
    asm.jump(other, "JNE")
    asm.ins(f"MOV_R{asm.bits}_CR", A.sized(asm.bits), "CR2")
    asm.bind(other)
    asm.mov(Mem(DI, disp=log + 16), A)
    asm.mov(A, c.resume)
    _unmark(c, A)
    asm.mov(Mem(DI, disp=log + 32), A)
    asm.bind(full)
    asm.inc(count)
    if c.body_pass == DI:
        asm.mov(DI, Mem(SP))


def _skip(c: Context) -> None:
    """Go on at the resume address. RFLAGS.AC stays as the program has it, all else is as on entry."""
    asm = c.asm
    _unmark(c, c.resume)
    _current_alignment_check(c)
    asm.op("OR", A, RESUME_FLAGS)
    asm.mov(SP, Mem(disp=c.memory.page + RESUME_STACK))
    if not c.long:
        # KVM's emulator, by which a software KVM runs 32-bit code, has IRET in real mode only.
        asm.push(A)
        asm.ins("POPFD")
        asm.ins("JMP_RM32", c.resume.sized(32))
        return
    asm.mov(C, SP)
    asm.push(DATA)
    asm.push(C)
    asm.push(A)
    asm.push(CODE)
    asm.push(c.resume)
    asm.ins("IRETQ")


def _current_alignment_check(c: Context) -> None:
    """RFLAGS.AC in A. An exception leaves it alone, so it is what the program, or a fix, has set."""
    c.asm.ins("PUSHFQ" if c.long else "PUSHFD")
    c.asm.pop(A)
    c.asm.op("AND", A, ALIGNMENT_CHECK)


def _write_handler(c: Context, handler: Handler, skip: Label) -> None:
    asm, after, page = c.asm, Label(), c.memory.page
    path = f"vcpu {c.number} handler {handler.vector}"
    in_fix, stack = Mem(disp=page + IN_FIX), Mem(disp=page + RESUME_STACK)
    with c.listed(path):
        _record(c)
        asm.op("CMP", in_fix, 0, 32)
        asm.jump(skip, "JNE")
        if handler.retry:
            asm.mov(A, c.resume)
            asm.op("AND", A, 1 << RETRIED_BIT)
            asm.op("CMP", A, c.window & 1 << RETRIED_BIT)
            asm.jump(skip, "JNE")
        asm.push(c.resume)
        asm.op("MOV", in_fix, 1, 32)
        asm.mov(stack, SP)
        asm.mov(c.resume, after)
    c.operations.append((after, path))
    c.in_fix, depth, c.depth = True, c.depth, 0
    lower_all(c, handler.fix, f"{path} fix")
    c.in_fix, c.depth = False, depth
    asm.bind(after)
    with c.listed(f"{path} after"):
        _write_after(c, handler, skip)


def _write_after(c: Context, handler: Handler, skip: Label) -> None:
    """What follows a fix: the interrupted code again, or on behind it."""
    asm, page = c.asm, c.memory.page
    asm.mov(A, c.memory.stack_top)
    asm.mov(Mem(disp=page + RESUME_STACK), A)
    asm.op("MOV", Mem(disp=page + IN_FIX), 0, 32)
    asm.pop(c.resume)
    if not handler.retry:
        asm.jump(skip)
        return
    asm.ins(f"BTC_RM{asm.bits}_IMM8", c.resume.sized(asm.bits), Imm(RETRIED_BIT))
    asm.inc(Mem(disp=c.memory.area + image.RETRIES))
    # A fix may have changed AC (STAC after a SMAP fault), and a single step must not repeat.
    _current_alignment_check(c)
    asm.op("AND", _frame(c, 4), ~(ALIGNMENT_CHECK | 1 << 8))
    asm.op("OR", _frame(c, 4), A)
    for register in reversed(SAVED):
        asm.pop(register)
    asm.op("ADD", SP, 2 * asm.bits // 8)
    asm.ins(_iret(c))


def page_of(c: Context, places: Places) -> bytes:
    """The vCPU's page: GDT, TSS, variables, IDT. All addresses must be known."""
    page = bytearray(4096)
    struct.pack_into("<4Q", page, DESCRIPTORS + CODE, *_segments(c.long))
    base, limit = c.memory.page + TASK_STATE, 0x67
    descriptor = limit | (base & 0xFFFFFF) << 16 | 0x89 << 40 | (base >> 24 & 0xFF) << 56
    struct.pack_into("<2Q", page, DESCRIPTORS + TSS, descriptor, base >> 32 if c.long else 0)
    if c.long:
        struct.pack_into("<Q", page, TASK_STATE + 4, c.memory.stack_top)
    else:
        struct.pack_into("<II", page, TASK_STATE + 4, c.memory.stack_top, DATA)
    # The I/O permission bitmap lies beyond the limit: there is none.
    struct.pack_into("<H", page, TASK_STATE + 0x66, limit + 1)
    struct.pack_into("<Q", page, RESUME_STACK, c.memory.stack_top)
    struct.pack_into("<QQ", page, BELIEVED, c.program.state.cr0, c.program.state.cr4)
    for vector, stub in places.stubs.items():
        kind = 0xEE if vector == CALL_GATE else 0x8E
        at, low = stub.address, struct.Struct("<HHBBH")
        offset = GATES + vector * (16 if c.long else 8)
        low.pack_into(page, offset, at & 0xFFFF, CODE, 0, kind, at >> 16 & 0xFFFF)
        if c.long:
            struct.pack_into("<Q", page, offset + 8, at >> 32)
    return bytes(page)


def tables_of(c: Context) -> dict[str, tuple[int, int]]:
    """Base and limit of GDT, IDT and TSS, by the names that :class:`~worldswitch.guest.image.Entry` has for them."""
    page, gate = c.memory.page, 16 if c.long else 8
    return {
        "gdt": (page + DESCRIPTORS, TSS + gate - 1),
        "idt": (page + GATES, EXCEPTIONS * gate - 1),
        "tss": (page + TASK_STATE, 0x67),
    }


def _segments(long: bool) -> tuple[int, int, int, int]:
    """Descriptors of code and data of CPL 0 and CPL 3: flat, accessed, 64-bit or 32-bit code."""
    size = 0xA if long else 0xC
    return tuple(  # type: ignore[return-value]
        0xF_0000_0000_FFFF | flags << 52 | access << 40
        for flags, access in ((size, 0x9B), (0xC, 0x93), (size, 0xFB), (0xC, 0xF3))
    )


assert OWN_MEMORY <= 1 << RETRIED_BIT
