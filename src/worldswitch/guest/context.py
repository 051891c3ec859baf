"""What the code of one vCPU is made with: register roles, where its memory lies, resume addresses, values kept.

Register roles in 64-bit code: R12 and R13 hold the CR0 and CR4 that the program believes in, R14 the pass of the body,
RBP the passes wanted, R8 to R10 the passes of the outer repeats, R15 the resume address of the current operation.
In 32-bit code EDI is the pass of the body, EBP the resume address, and the rest is in memory. All other registers are
scratch within one operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from worldswitch.guest.emit import BP, DI, R8, R9, R10, R12, R13, R14, R15, A, Assembler, C, D, Label, Mem, Reg, Section
from worldswitch.guest.image import MAX_VALUES, VALUES, N
from worldswitch.guest.program import Mode, Program, ProgramError
from worldswitch.guest.tables import Tables

CODE, DATA, USER_CODE, USER_DATA, TSS = 0x08, 0x10, 0x1B, 0x23, 0x28
"""Selectors; those of CPL 3 have their RPL in them."""
CALL_GATE = 3
"""Vector whose gate code at CPL 3 may use, by INT3, with RCX: keep RAX as the value at that offset, or LEAVE_USER.

INT3, because KVM leaves #BP to the guest unless it is debugged, and because a software KVM that emulates CPL 0
(PVM) cannot deliver INT n: ``emulate_int`` in arch/x86/kvm/emulate.c knows it in real mode only.
"""
LEAVE_USER = -1
"""In ECX: go back to CPL 0."""

RESUME_STACK, IN_FIX, BELIEVED, COUNTERS = 0x100, 0x108, 0x110, 0x120
"""Offsets in a vCPU's page: stack pointer to resume with, whether a fix is running, CR0 and CR4 believed (32-bit code),
counters of repeats."""
DESCRIPTORS, TASK_STATE, GATES = 0x000, 0x080, 0x400
"""Offsets in a vCPU's page: GDT, TSS, IDT."""
MAX_DEPTH = (GATES - COUNTERS) // 8 // 2
"""Repeats in repeats, in the program and in a fix."""

RETRIED_BIT = 30
"""Bit of the resume address that is flipped once its operation has been retried; it is the same in the address of all
code of a program, since that lies in one window."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Linear addresses of what belongs to one vCPU; *area* is its result area."""

    page: int
    stack_top: int
    user_stack_top: int
    area: int
    barrier: int


@dataclass(slots=True)
class Context:
    """One vCPU's code under construction.

    Attributes:
        place: What is being assembled, for messages: ``"vcpu 0 body 2"``.
        index: Where the pass of the innermost repeat, or of the body, is.
        depth: Repeats around the current operation.
        in_fix, in_user: Whether the current operation belongs to a handler, runs at CPL 3.
        operations: Resume labels with paths.
        listing: Section, start, end and path of each operation's code.
        literals: Data to put behind the code, and whose they are.
    """

    program: Program
    number: int
    asm: Assembler
    memory: Memory
    tables: dict[str, Tables]
    window: int
    code: Section = field(default_factory=Section)
    user: Section = field(default_factory=Section)
    index: Reg | Mem = R14
    depth: int = 0
    in_fix: bool = False
    in_user: bool = False
    place: str = ""
    operations: list[tuple[Label, str]] = field(default_factory=list)
    listing: list[tuple[Section, int, int, str]] = field(default_factory=list)
    vmcalls: list[Label] = field(default_factory=list)
    keeps: list[str] = field(default_factory=list)
    literals: list[tuple[Label, bytes, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = self.body_pass
        self.asm.section = self.code

    @property
    def long(self) -> bool:
        """Whether this is 64-bit code."""
        return self.program.mode is Mode.LONG

    @property
    def bare(self) -> bool:
        """Whether the program has no descriptor tables, handlers, results and stack."""
        return self.program.layout is not None and self.program.layout.bare

    @property
    def resume(self) -> Reg:
        """Holds the resume address."""
        return R15 if self.long else BP

    @property
    def body_pass(self) -> Reg:
        """Holds the pass of the body."""
        return R14 if self.long else DI

    @property
    def limit(self) -> Reg | Mem:
        """Where the number of passes wanted is."""
        return BP if self.long else Mem(disp=self.memory.area + N)

    def believed(self, cr: int) -> Reg | Mem:
        """Where the value of CR0 or CR4 that the program believes in is."""
        if self.long:
            return R12 if cr == 0 else R13
        return Mem(disp=self.memory.page + BELIEVED + 2 * cr)

    def counter(self) -> Reg | Mem:
        """Where a repeat at the current depth counts its passes.

        Raises:
            ProgramError: Repeats are nested too deeply.
        """
        if self.long and not self.in_fix and self.depth < 3:
            return (R8, R9, R10)[self.depth]
        if self.depth >= MAX_DEPTH or self.bare:
            deepest = 3 if self.bare else MAX_DEPTH
            raise self.error(f"is a repeat in {self.depth} others; {deepest} may be nested")
        slot = self.depth + (MAX_DEPTH if self.in_fix else 0)
        return Mem(disp=self.memory.page + COUNTERS + 8 * slot)

    def error(self, text: str) -> ProgramError:
        """A ProgramError that says where: the place, then *text*."""
        return ProgramError(f"{self.program.name}: {self.place} {text}")

    def expect_resume(self, path: str) -> Label:
        """Let faults from here on resume at the label given, which is to be bound after the operation *path*."""
        label = Label()
        self.asm.mov(self.resume, label)
        self.operations.append((label, path))
        return label

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around code that may fault: if it does, the guest goes on after it. At CPL 3 the block sees to that."""
        if self.bare or self.in_user:
            yield
            return
        label = self.expect_resume(self.place)
        yield
        self.asm.bind(label)

    @contextmanager
    def listed(self, path: str) -> Iterator[None]:
        """Around the code of the operation *path*."""
        outer, self.place = self.place, path
        starts = [(section, len(section)) for section in (self.code, self.user)]
        yield
        self.listing += [(section, start, len(section), path) for section, start in starts if len(section) > start]
        self.place = outer

    def keep(self, pair: bool = False) -> None:
        """Code that keeps the value in A in the results; in 32-bit code D is its high half if *pair*, else 0.

        Raises:
            ProgramError: There is no room, or no result area.
        """
        if self.bare:
            raise self.error("keeps a value, and a bare program has no results; leave out keep or the layout")
        if len(self.keeps) == MAX_VALUES:
            raise self.error(f"is one of more than {MAX_VALUES} operations that keep a value; keep fewer")
        slot = 8 * len(self.keeps)
        self.keeps.append(self.place)
        if not self.long and not pair:
            self.asm.mov(D, 0)
        if self.in_user:
            self.asm.mov(C, slot)
            self.asm.ins("INT3")
            return
        store_value(self, Mem(disp=self.memory.area + VALUES + slot))


def store_value(context: Context, target: Mem) -> None:
    """Code that stores the value in A (and D) at *target*, 8 bytes."""
    context.asm.mov(target, A)
    if not context.long:
        context.asm.mov(Mem(target.base, target.index, target.disp + 4), D)
