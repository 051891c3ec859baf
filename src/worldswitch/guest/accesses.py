"""Code of what reaches memory or CPL 3: load, store, fetch, user blocks, single step."""

from __future__ import annotations

from collections.abc import Callable

from worldswitch.guest.context import LEAVE_USER, USER_CODE, USER_DATA, Context
from worldswitch.guest.emit import SI, SP, A, C, D, Label, Mem
from worldswitch.guest.operations import Access, Fetch, Load, Nop, Operation, SingleStep, Store, User

TRAP_FLAG = 1 << 8
"""RFLAGS.TF."""

Lower = Callable[[Context, Operation], None]
"""Appends the code of one operation."""


def lower_access(c: Context, access: Access) -> None:
    """Load, store or fetch, through CPL 3 if it says so and is not there yet."""
    if access.user and not c.in_user:
        _round_trip(c, [(access, c.place)], _lower_here)
    else:
        with c.guarded():
            _lower_here(c, access)


def lower_user(c: Context, block: User, lower: Lower) -> None:
    """A round trip to CPL 3 with several operations."""
    _round_trip(c, [(operation, f"{c.place}.{i}") for i, operation in enumerate(block.body)], lower)


def lower_single_step(c: Context, step: SingleStep) -> None:
    """One NOP with TF set."""
    if step.user:
        _round_trip(c, [(Nop(), c.place)], _lower_here, trap=True)
        return
    with c.guarded():
        c.asm.ins(_by_width(c, "PUSHF"))
        c.asm.op("OR", Mem(SP), TRAP_FLAG, 32)
        c.asm.ins(_by_width(c, "POPF"))
        c.asm.raw(b"\x90")


def _lower_here(c: Context, operation: Operation) -> None:
    if isinstance(operation, Nop):
        c.asm.raw(b"\x90" * operation.count)
    elif isinstance(operation, Access):
        _reach(c, operation)
        if isinstance(operation, Load) and operation.keep:
            c.keep()


def _by_width(c: Context, name: str) -> str:
    return name + ("Q" if c.long else "D")


def _reach(c: Context, access: Access) -> None:
    asm, at = c.asm, _address(c, access)
    if isinstance(access, Load):
        if access.size <= 2:
            asm.ins(f"MOVZX_R32_RM{8 * access.size}", "EAX", at)
        else:
            asm.op("MOV", A, at, 8 * access.size)
    elif isinstance(access, Store):
        asm.mov(D, access.value & (1 << 8 * access.size) - 1)
        asm.op("MOV", at, D, 8 * access.size)
    elif isinstance(access, Fetch):
        if at.index:
            asm.op("ADD", A, C)
        asm.ins(f"CALL_RM{asm.bits}", A.sized(asm.bits))


def _address(c: Context, access: Access) -> Mem:
    """The address of this pass: A, plus C where it moves."""
    asm = c.asm
    if access.span == 1 or not access.stride:
        asm.mov(A, access.va)
        return Mem(A)
    asm.mov(C, SI if c.in_user and isinstance(c.index, Mem) else c.index)
    asm.mask("AND", C, access.span - 1, A)
    asm.mov(A, access.stride)
    asm.ins(f"IMUL_R{asm.bits}_RM{asm.bits}", C.sized(asm.bits), A.sized(asm.bits))
    asm.mov(A, access.va)
    return Mem(A, C)


def _round_trip(c: Context, body: list[tuple[Operation, str]], lower: Lower, trap: bool = False) -> None:
    """Enter CPL 3, run *body*, and come back.

    An operation that faults there is resumed at CPL 0, which enters CPL 3 again behind it; so a program that has made
    its own code at CPL 3 unreachable still goes on.
    """
    asm, block, start = c.asm, c.place, Label()
    done = c.expect_resume(block)
    _enter_user(c, start, trap)
    asm.section, c.in_user = c.user, True
    asm.bind(start)
    again: list[tuple[Label, Label]] = []
    for operation, path in body:
        if path == block:
            lower(c, operation)
            continue
        with c.listed(path):
            resume, after = c.expect_resume(path), Label()
            lower(c, operation)
            asm.bind(after)
        again.append((resume, after))
    if again:
        asm.mov(c.resume, done)
    asm.op("MOV", C, LEAVE_USER, 32)
    asm.ins("INT3")
    asm.section, c.in_user = c.code, False
    for resume, after in again:
        asm.bind(resume)
        asm.mov(c.resume, done)
        _enter_user(c, after, trap=False)
    asm.bind(done)


def _enter_user(c: Context, target: Label, trap: bool) -> None:
    """IRET to CPL 3 with RFLAGS.AC as it is."""
    asm = c.asm
    if isinstance(c.index, Mem):
        asm.mov(SI, c.index)
    asm.push(USER_DATA)
    asm.push(c.memory.user_stack_top - (1 << 64) if c.long else c.memory.user_stack_top)
    asm.ins(_by_width(c, "PUSHF"))
    if trap:
        asm.op("OR", Mem(SP), TRAP_FLAG, 32)
    asm.push(USER_CODE)
    asm.push(target)
    asm.ins(_by_width(c, "IRET"))
