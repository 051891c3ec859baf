# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""A guest program on a :class:`~worldswitch.kvm.machine.Machine`: its operations, and the code around them.

The roles of stack, descriptor tables and result area are those of :mod:`worldswitch.guest.runtime`. What runs for each
operation comes first in the class; methods below it that take a step and say whether it runs at CPL 3 are operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldswitch.guest import image as layout
from worldswitch.guest import operations as ops
from worldswitch.guest.context import CODE, USER_CODE, USER_DATA
from worldswitch.guest.image import Fault, Image
from worldswitch.guest.layout import BARRIER, WINDOWS
from worldswitch.guest.paths import vcpu_places
from worldswitch.guest.program import Program
from worldswitch.kvm import fault_log
from worldswitch.kvm import register_writes as writes
from worldswitch.kvm.effects import Before
from worldswitch.kvm.instruction_sites import rip_of
from worldswitch.kvm.intercepts import dr_exit, emulates_soft_interrupt, instruction_exit
from worldswitch.kvm.machine import GuestFault, Machine, NotModelled
from worldswitch.kvm.recurrence import repeat
from worldswitch.kvm.steps import (
    FETCH,
    LOAD,
    PAGE,
    REGISTERS,
    REPEAT,
    STORE,
    USER_TRIP,
    WRITE_CR,
    Entries,
    Handling,
    Pieces,
    Step,
)
from worldswitch.x86 import verdicts
from worldswitch.x86.registers import CR4, bit_mask

_UD, _DB, _PF = 6, 1, 14
_PKE = bit_mask(CR4, "PKE")
_TS = 1 << 3
_MACHINE_STATUS = 0xF
_POLLED = 1
_ENOSYS = (1 << 64) - 1000
"""-KVM_ENOSYS, what a hypercall nobody knows returns."""
_LAST_VECTOR = 31
_MOST_EFFECTS = 8
"""Settings of the registers for which one step's effect is kept; and how often it is looked for in vain."""
# C variables, declared in the .pxd.
_LOAD, _STORE, _FETCH, _WRITE_CR, _REGISTERS, _USER_TRIP, _REPEAT = (
    LOAD, STORE, FETCH, WRITE_CR, REGISTERS, USER_TRIP, REPEAT
)  # fmt: skip
_READ, _WRITE = verdicts.READ, verdicts.WRITE


class Guest:
    """One vCPU's program under way.

    Args:
        machine: The vCPU; its number says whose part of the program this is.
        whole: Execute every pass of repeats.

    Attributes:
        faults: Exceptions met; *log* has the first of them.
        values: Path -> value kept, of those the model knows.
        period: Passes after which accesses that move with the pass start over.
    """

    def __init__(self, machine: Machine, program: Program, image: Image, whole: bool = False) -> None:
        self.m, self.program, self.image, self._whole = machine, program, image, whole
        number = machine.number
        self.entry = image.entries[number]
        self.bare = self.entry.area is None
        self.is_long = self.entry.long
        self.window = 0 if program.layout else WINDOWS[program.mode]
        self.believed_cr0, self.believed_cr4 = self.entry.cr0, self.entry.cr4
        self.faults = self.retries = 0
        self.log: list[Fault] = []
        self.values: dict[str, int] = dict.fromkeys(self.entry.keeps, 0)
        self._index = self._pass = 0
        self._in_fix = self._user = False
        self._skips_soft = emulates_soft_interrupt(machine.policy, machine.host.next_rip)
        vcpu = program.vcpus[number]
        self._tables = Entries(program, image)
        pieces = Pieces(image, self.window, self.entry.rip, _DO)
        self.setup = pieces.steps(vcpu.setup, f"vcpu {number} setup")
        self.body = pieces.steps(vcpu.body, f"vcpu {number} body")
        self.end = pieces.steps(vcpu.end, f"vcpu {number} end")
        self._handlers: dict[int, Handling] = {}
        self._stubs: tuple[tuple[int, ...], ...] = ()
        if not self.bare:
            self._stubs = pieces.stubs(self.entry.idt[0], machine.memory)
            self._records, self._skips = pieces.code(f"vcpu {number} exceptions"), pieces.code(f"vcpu {number} skip")
        for handler in vcpu.handlers:
            path = f"vcpu {number} handler {handler.vector}"
            fix = pieces.steps(handler.fix, f"{path} fix")
            self._handlers[handler.vector] = Handling(handler, fix, pieces.code(path), pieces.code(f"{path} after"))
        self._operands = pieces.operands()
        self._gdt, self._idt = (0, 0) if self.bare else (self.entry.gdt[0], self.entry.idt[0])
        self._stack, self._word = self.entry.rsp, 8 if self.is_long else 4
        self.period = max([getattr(place.operation, "span", 1) for place in vcpu_places(number, vcpu)], default=1)

    @property
    def guests(self) -> tuple[Guest, ...]:
        """All that takes part in a pass: this one."""
        return (self,)

    # ---- parts

    def start(self) -> None:
        """From the first instruction to the first pass."""
        self.begin()
        self._run_all(self.setup)
        self.begin_passes()

    def begin(self) -> None:
        """Enter the guest, at its first instruction."""
        self.m.rip = self.entry.rip
        self.m.enter()
        self.m.fetch(self.entry.rip)
        if not self.is_long:
            self._descriptors(USER_DATA)  # for DS and ES

    def begin_passes(self) -> None:
        """Between set-up and the first pass."""
        if self.entry.area is not None:
            if self.is_long:
                self.m.load(self._area(layout.N), 8)
            self._touch_area(layout.TSC_START)

    def passes(self, steps: tuple[Step, ...], first: int, end: int) -> None:
        """Passes *first* to *end* - 1 of the body, or of a block in it."""
        whole = steps is self.body
        for number in range(first, end):
            self.pass_begins(number, whole)
            self._run_all(steps)
            if not self.is_long:
                self.pass_ends(whole)

    def pass_begins(self, number: int, whole: bool = True) -> None:
        """Accesses that move with the pass are in pass *number* now; *whole*: of the body."""
        self._index = number
        if whole:
            self._pass = number

    def pass_ends(self, whole: bool = True) -> None:
        """32-bit code compares the pass with what is in memory; a repeat's is there itself."""
        if whole:
            self.m.translate(self._area(layout.N), _READ, False)
        else:
            self._variables()

    @property
    def index(self) -> int:
        """The pass that accesses are in."""
        return self._index

    def perform(self, steps: tuple[Step, ...]) -> None:
        """Execute operations in the pass that has begun."""
        self._run_all(steps)

    def end_passes(self) -> None:
        """Between the last pass and what comes at the end."""
        self._index = self._pass = 0
        if not self.bare:
            self._touch_area(layout.TSC_END)

    def finish(self) -> None:
        """From the last pass to the final HLT."""
        self.end_passes()
        self._run_all(self.end)
        self.stop()

    def stop(self) -> None:
        """The final HLT."""
        self.m.rip = self.entry.end - 1
        self.m.fetch(self.entry.end - 1)
        self._halt(last=True)

    def state(self) -> tuple[object, ...]:
        """What the program's own registers hold, as one value to compare; and which page the log of faults is at."""
        page = fault_log.page_of(self.faults) if self.faults < layout.MAX_FAULTS else -1
        return self.believed_cr0, self.believed_cr4, page, tuple(sorted(self.values.items()))

    def log_room(self) -> int:
        """How many more faults can be logged on the page of the last, or at all once the log is full."""
        return fault_log.room(self.faults)

    def repeat_faults(self, faults: int, retries: int, times: int) -> None:
        """Count the last *faults* exceptions and *retries* again, *times* times."""
        if self.faults == len(self.log):
            fault_log.repeat(self.log, faults, times)
        self.faults += faults * times
        self.retries += retries * times

    # ---- the flow of operations

    def _run_all(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            self._run(step)

    def _run(self, step: Step) -> None:
        """One operation, with what its faults bring about."""
        if step.kind == _REPEAT:
            outer = self._index
            self.m.fetches(step.code[:1])
            if not self.is_long:
                self._variables()
            repeat(self, step.operation.count, step.body, self._whole)  # type: ignore[attr-defined]
            self._index = outer
        elif step.kind == _USER_TRIP:
            self._round_trip(step, step.body)
        elif step.user:
            self._round_trip(step, (step,))
        else:
            self._attempt(step, False)

    def _attempt(self, step: Step, user: bool) -> bool:
        """Run one operation, again after a fix that says so; False if it was skipped in the end."""
        retried = False
        while True:
            self._user = user
            try:
                if retried and step.kind == _FETCH:
                    # The call is done and its return address pushed: what is tried again is the instruction called.
                    self.m.fetch(step.address(self._index), user)
                else:
                    self._execute(step, user)
            except GuestFault as fault:
                if not self._handled(fault, step, user, retried):
                    return False
                if fault.vector == _DB:
                    return True  # a trap: what is gone back to is the next instruction, with TF clear
                retried = True
                continue
            return True

    def _execute(self, step: Step, user: bool) -> None:
        """Fetch an operation's code, and do it."""
        m = self.m
        if user:
            for address in step.user_code:
                m.fetch(address, True)
            m.rip = step.user_code[0]
        else:
            if step.fetched != m.tlb.generation and m.fetches(step.code):
                step.fetched = m.tlb.generation
            m.rip = step.rip
        if m.retries is not None:
            m.retries.store_at = (step.user_code if user else step.code or (step.rip,))[-1]
        if step.kind <= _FETCH:
            self._access(step, user)
        elif step.kind <= _REGISTERS and not step.keep and m.events is None and self.is_long:
            self._change_registers(step, user)
        else:
            step.do(self, step, user)  # type: ignore[misc]

    def _access(self, step: Step, user: bool) -> None:
        va = step.address(self._index)
        if step.kind == _LOAD:
            value = self.m.load(va, step.size, user)
            if step.keep:
                self.keep(step, value)
        elif step.kind == _STORE:
            self.m.store(va, step.value, step.size, user)
        else:
            # The address to return to goes onto the stack.
            self.m.translate(self._stack + (PAGE if user else 0) - self._word, _WRITE, user)
            if self.m.emulating:
                self._refuse_emulated_stack()
            self.m.fetch(va, user)

    def _change_registers(self, step: Step, user: bool) -> None:
        """What reaches nothing but registers; what it did with the same ones before, it does again."""
        m = self.m
        for effect in step.effects:
            if effect.before.are(m, self.believed_cr0, self.believed_cr4):
                effect.again(m)
                self.believed_cr0, self.believed_cr4 = effect.after.believed_cr0, effect.after.believed_cr4
                return
        if step.tries >= _MOST_EFFECTS:
            step.do(self, step, user)  # type: ignore[misc]
            return
        step.tries += 1
        before = Before(m, self.believed_cr0, self.believed_cr4)
        step.do(self, step, user)  # type: ignore[misc]
        seen = before.effect(m, self.believed_cr0, self.believed_cr4)
        if seen is not None:
            step.effects.append(seen)
            m.effects.append(seen)

    def _round_trip(self, block: Step, body: tuple[Step, ...]) -> None:
        """To CPL 3 by IRET, and back by INT3, which KVM leaves to the guest."""
        self.m.fetches(block.code)
        self._push()
        self._descriptors(USER_CODE)
        for step in body:
            if self._attempt(step, True):
                continue
            if step is block:
                return  # what faults alone at CPL 3 is resumed behind the way back
            self.m.fetches(block.code)
            self._push()
            self._descriptors(USER_CODE)
        for address in block.user_code[-1:]:
            self.m.fetch(address, True)
        self._call_gate()

    # ---- exceptions

    def _handled(self, fault: GuestFault, step: Step, user: bool, retried: bool) -> bool:
        """Record the exception and run its fix; True if the operation is to be tried again."""
        if self.bare:
            raise NotModelled(f"{self.program.name}: vector {fault.vector} ends a program without descriptor tables")
        if fault.vector == _PF:
            self.m.cr2 = fault.cr2
        self._interrupt(fault.vector)
        handling = self._handlers.get(fault.vector)
        self.m.fetches(self._records if handling is None else handling.code)
        number = self.faults
        self.faults += 1
        self.m.translate(self._area(layout.FAULTS), _READ, False)
        if number < layout.MAX_FAULTS:
            address = fault.cr2 if fault.vector == _PF else 0
            rip = rip_of(self.image, self.window, step.operation, step.path, user, address)
            self.log.append(Fault(step.path, fault.vector, fault.code, fault.cr2, rip))
            entry = layout.FAULT_LOG + layout.FAULT.size * number
            self._touch_area(entry)
            if fault_log.page_of(number) != entry // PAGE:
                self._touch_area(fault_log.page_of(number) * PAGE)
        self._touch_area(layout.FAULTS)
        if handling is None or self._in_fix or (handling.handler.retry and retried):
            self._skip()
            return False
        outer, self._index, self._in_fix = self._index, self._pass, True
        self._variables()
        self._push()
        self._run_all(handling.fix)
        self.m.fetches(handling.after)
        self._variables()
        self._index, self._in_fix = outer, False
        if not handling.handler.retry:
            self._skip()
            return False
        self._pop()
        self.retries += 1
        self._touch_area(layout.RETRIES)
        return True

    def _skip(self) -> None:
        """On behind what faulted, by IRET."""
        self.m.fetches(self._skips)
        self._descriptors()
        self._pop()

    def _interrupt(self, vector: int) -> None:
        """Through the gate of a vector: IDT, TSS and GDT lie on one page; then the stack, and the code."""
        self.m.translate(self._idt + 2 * self._word * vector, _READ, False)
        self._descriptors()
        self._push()
        self.m.injects_again = False
        self.m.delivered = self.m.retries is not None
        self.m.fetches(self._stubs[vector])

    def _call_gate(self) -> None:
        """INT3 at CPL 3, whose handler looks at where it is from."""
        self.m.injects_again = self._skips_soft
        self._interrupt(3)
        self._pop()

    def _descriptors(self, selector: int = CODE) -> None:
        self.m.translate(self._gdt + (selector & ~7), _READ, False)

    def _variables(self) -> None:
        """The handler's variables, on the page of the descriptors."""
        self.m.translate(self._gdt, _WRITE, False)

    def _push(self) -> None:
        self.m.translate(self._stack - self._word, _WRITE, False)
        if self.m.emulating:
            self._refuse_emulated_stack()

    def _refuse_emulated_stack(self) -> None:
        raise NotModelled(f"{self.program.name}: its stack lies in a page table")

    def _pop(self) -> None:
        self.m.translate(self._stack - self._word, _READ, False)

    def _area(self, offset: int) -> int:
        assert self.entry.area is not None
        return self.window + self.entry.area + offset

    def _touch_area(self, offset: int) -> None:
        self.m.translate(self._area(offset), _WRITE, False)

    # ---- operations

    def keep(self, step: Step, value: int | None) -> None:
        """Keep the value of an operation that does; one the model does not know is left out."""
        if not step.keep:
            return
        if self._user:
            self._call_gate()
        self._touch_area(layout.VALUES)
        if self._user:
            self._descriptors()
            self._pop()
        if value is None:
            self.values.pop(step.path, None)
        else:
            self.values[step.path] = value & (1 << 64) - 1

    def write_cr(self, step: Step, _: bool) -> None:
        """MOV to CR0, CR4, CR8."""
        value = step.value
        if not step.has_value:
            self._remembered(_READ)
            believed = self.believed_cr0 if step.cr == 0 else self.believed_cr4
            value = (believed & ~step.clear | step.set) ^ step.toggle
        writes.write_cr(self.m, step.cr, value)
        if step.cr == 0:
            self.believed_cr0 = value
        elif step.cr != 8:
            self.believed_cr4 = value
        if step.cr != 8:
            self._remembered(_WRITE)

    def _remembered(self, kind: int) -> None:
        """32-bit code has what it believes to be in CR0 and CR4 among its variables."""
        if not self.is_long:
            self.m.translate(self._gdt, kind, False)

    def read_cr(self, step: Step, _: bool) -> None:
        """MOV from a control register."""
        operation: Any = step.operation
        self.keep(step, writes.read_cr(self.m, operation.cr))

    def switch_space(self, step: Step, _: bool) -> None:
        """MOV to CR3."""
        operation: Any = step.operation
        root = self._tables.root(operation.space)
        writes.write_cr3(self.m, root | operation.pcid | (writes.NOFLUSH if operation.noflush else 0))

    def clts(self, _: Step, __: bool) -> None:
        """CLTS."""
        writes.clts(self.m)
        self.believed_cr0 &= ~_TS
        self._remembered(_WRITE)

    def lmsw(self, step: Step, _: bool) -> None:
        """LMSW."""
        operation: Any = step.operation
        writes.lmsw(self.m, operation.value & _MACHINE_STATUS)
        self.believed_cr0 = self.believed_cr0 & ~(_MACHINE_STATUS & ~1) | operation.value & _MACHINE_STATUS
        self._remembered(_WRITE)

    def read_msr(self, step: Step, _: bool) -> None:
        """RDMSR."""
        operation: Any = step.operation
        self.keep(step, writes.read_msr(self.m, operation.msr))

    def write_msr(self, step: Step, _: bool) -> None:
        """WRMSR."""
        operation: Any = step.operation
        writes.write_msr(self.m, operation.msr, operation.value)

    def invlpg(self, step: Step, _: bool) -> None:
        """INVLPG."""
        operation: Any = step.operation
        writes.invlpg(self.m, operation.va)

    def invpcid(self, step: Step, _: bool) -> None:
        """INVPCID."""
        operation: Any = step.operation
        if self.m.policy.tdp:
            # Where it exits, KVM reads the operand itself.
            for word in (0, 8):
                self.m.load(self._operands[step.path] + word, 8)
        writes.invpcid(self.m, operation.type, operation.pcid, operation.va)

    def write_entry(self, step: Step, _: bool) -> None:
        """A store into the guest's own page tables."""
        write: Any = step.operation
        at = self.window + self._tables.entry(write.space, write.va, write.level)
        if self.is_long:
            self.m.store(at, (self.m.load(at, 8) & ~step.clear | step.set) ^ step.toggle, 8)
        for offset in () if self.is_long else (4, 0):  # each half that changes
            clear, set_, toggle = (mask >> 8 * offset & 0xFFFF_FFFF for mask in (step.clear, step.set, step.toggle))
            if clear or set_ or toggle:
                self.m.store(at + offset, (self.m.load(at + offset, 4) & ~clear | set_) ^ toggle, 4)

    def read_entry(self, step: Step, _: bool) -> None:
        """A load from them."""
        read: Any = step.operation
        self.keep(step, self.m.load(self.window + self._tables.entry(read.space, read.va, read.level), 8))

    def set_ac(self, step: Step, _: bool) -> None:
        """STAC and CLAC."""
        self._needs("smap")
        self.m.ac = isinstance(step.operation, ops.Stac)
        self.m.mode_changed()

    def pkru(self, step: Step, _: bool) -> None:
        """WRPKRU and RDPKRU."""
        operation: Any = step.operation
        if not self.m.cr4 & _PKE:
            self.m.raise_in_guest(_UD)
        if isinstance(operation, ops.WritePkru):
            self.m.pkru = operation.value & (1 << 32) - 1
            self.m.mode_changed()
        else:
            self.keep(step, self.m.pkru)

    def _needs(self, feature: str) -> None:
        if feature.upper() in self.m.policy.hidden:
            self.m.raise_in_guest(_UD)

    def cpuid(self, step: Step, _: bool) -> None:
        """CPUID."""
        self._always("cpuid")
        self.m.skip_instruction()
        self.keep(step, None)

    def _always(self, word: str) -> None:
        reason = instruction_exit(self.m.policy, word)
        assert reason is not None
        self.m.exit(reason)

    def vmcall(self, step: Step, _: bool) -> None:
        """VMCALL or VMMCALL."""
        operation: Any = step.operation
        self._always("vmcall")
        self.m.stats["hypercalls"] += 1
        if self.m.events is not None:
            names = ("a0", "a1", "a2", "a3")
            given = (*operation.args, 0, 0, 0, 0)[:4]
            self.m.event("kvm_hypercall", {"nr": operation.nr, **dict(zip(names, given, strict=True))})
        self.m.skip_instruction()
        self.keep(step, 0 if operation.nr == _POLLED else _ENOSYS)

    def port(self, step: Step, _: bool) -> None:
        """IN and OUT, which nobody in the kernel answers."""
        self._always("io")
        self.m.stats["io_exits"] += 1
        self.m.to_userspace("IO")
        self.m.enter()
        self.keep(step, None)

    def hlt(self, _: Step, __: bool) -> None:
        """HLT."""
        self._halt()

    def _halt(self, last: bool = False) -> None:
        self._always("hlt")
        self.m.skip_instruction(enter=False)
        self.m.stats["halt_exits"] += 1
        self.m.to_userspace("HLT")
        if not last:
            self.m.enter()

    def debug_register(self, step: Step, _: bool) -> None:
        """MOV to and from debug registers."""
        operation: Any = step.operation
        reason = dr_exit(self.m.policy, operation.dr, isinstance(operation, ops.WriteDr), self.m.dr_given)
        if reason is not None:
            self.m.exit(reason)
            self.m.enter()
            self.m.dr_given = True
        if isinstance(operation, ops.ReadDr):
            self.keep(step, None)

    def single_step(self, _: Step, __: bool) -> None:
        """A NOP with TF set."""
        self.m.raise_in_guest(_DB)

    def nop(self, _: Step, __: bool) -> None:
        """NOPs."""

    def meet(self, _: Step, __: bool) -> None:
        """Count the arrival; who waits for whom is decided by :mod:`worldswitch.kvm.turns`."""
        self.m.translate(self.window + BARRIER, _READ, False)
        self.m.translate(self.window + BARRIER, _WRITE, False)
        if self.m.emulating:
            self._refuse_emulated_stack()


_DO: dict[type[ops.Operation], Callable[[Guest, Step, bool], None]] = {
    ops.WriteCr: Guest.write_cr,
    ops.ReadCr: Guest.read_cr, ops.SwitchSpace: Guest.switch_space, ops.Clts: Guest.clts, ops.Lmsw: Guest.lmsw,
    ops.ReadMsr: Guest.read_msr, ops.WriteMsr: Guest.write_msr, ops.Invlpg: Guest.invlpg, ops.Invpcid: Guest.invpcid,
    ops.WriteEntry: Guest.write_entry, ops.ReadEntry: Guest.read_entry, ops.Stac: Guest.set_ac, ops.Clac: Guest.set_ac,
    ops.WritePkru: Guest.pkru, ops.ReadPkru: Guest.pkru, ops.Cpuid: Guest.cpuid, ops.Vmcall: Guest.vmcall,
    ops.In: Guest.port, ops.Out: Guest.port, ops.Hlt: Guest.hlt, ops.ReadDr: Guest.debug_register,
    ops.WriteDr: Guest.debug_register, ops.SingleStep: Guest.single_step, ops.Nop: Guest.nop, ops.Meet: Guest.meet,
}  # fmt: skip
