"""A guest program on a :class:`~worldswitch.kvm.machine.Machine`: its operations, and the code around them.

Which pages the code of an operation lies on is taken from its image; the roles of stack, descriptor tables and result
area from :mod:`worldswitch.guest.runtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from worldswitch.guest import image as layout
from worldswitch.guest import operations as ops
from worldswitch.guest.image import Fault, Image
from worldswitch.guest.layout import WINDOWS
from worldswitch.guest.paths import vcpu_places
from worldswitch.guest.program import Handler, Program
from worldswitch.guest.tables import Table, Tables, build, flag_mask
from worldswitch.kvm import register_writes as writes
from worldswitch.kvm.instruction_sites import rip_of
from worldswitch.kvm.intercepts import dr_exit, instruction_exit
from worldswitch.kvm.machine import GuestFault, Machine, NotModelled
from worldswitch.kvm.recurrence import repeat
from worldswitch.x86.access import Kind
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import ADDRESS, FIVE_LEVEL, FOUR_LEVEL, KEY, KEY_SHIFT, PRESENT, TABLE_SIZE, USER, WRITABLE
from worldswitch.x86.registers import CR4, bit_mask

_UD, _DB, _PF = 6, 1, 14
_PKE, _LA57 = bit_mask(CR4, "PKE"), bit_mask(CR4, "LA57")
_TS = 1 << 3
_MACHINE_STATUS = 0xF
_POLLED = 1
_ENOSYS = (1 << 64) - 1000
"""-KVM_ENOSYS, what a hypercall nobody knows returns."""
PAGE = 4096


class Step(NamedTuple):
    """An operation where it stands.

    Attributes:
        code: Addresses on each page of its code for CPL 0, then those for CPL 3.
        body: What is in a block.
        masks: Bits that a write to a register or an entry clears, sets and toggles.
    """

    operation: ops.Operation
    path: str
    code: tuple[int, ...]
    user_code: tuple[int, ...]
    body: tuple[Step, ...] = ()
    masks: tuple[int, int, int] = (0, 0, 0)


class Guest:
    """One vCPU's program under way.

    Args:
        whole: Execute every pass of repeats.

    Attributes:
        faults: Exceptions met; *log* has the first of them.
        values: Path -> value kept, of those the model knows.
        period: Passes after which accesses that move with the pass start over.
    """

    def __init__(self, machine: Machine, program: Program, image: Image, whole: bool = False) -> None:
        self.m, self.program, self.image, self._whole = machine, program, image, whole
        self.entry = image.entries[0]
        self.bare = self.entry.area is None
        self.window = 0 if program.layout else WINDOWS[program.mode]
        self.believed = {0: self.entry.cr0, 4: self.entry.cr4}
        self.faults = self.retries = 0
        self.log: list[Fault] = []
        self.values: dict[str, int] = {}
        self._index = self._pass = 0
        self._in_fix = False
        vcpu = program.vcpus[0]
        self._tables = _Entries(program, image)
        pieces = _Pieces(image, self.window)
        self._setup = pieces.steps(vcpu.setup, "vcpu 0 setup")
        self._body = pieces.steps(vcpu.body, "vcpu 0 body")
        self._end = pieces.steps(vcpu.end, "vcpu 0 end")
        self._handlers: dict[int, tuple[Handler, tuple[Step, ...]]] = {
            handler.vector: (handler, pieces.steps(handler.fix, f"vcpu 0 handler {handler.vector} fix"))
            for handler in vcpu.handlers
        }
        self._stubs = () if self.bare else pieces.stubs(self.entry.idt[0])
        spans = [getattr(place.operation, "span", 1) for place in vcpu_places(0, vcpu)]
        self.period = max(spans, default=1)

    # ---- parts

    def start(self, n: int) -> None:
        """From the first instruction to the first pass."""
        self.m.rip = self.entry.rip
        self.m.enter()
        self.m.fetch(self.entry.rip)
        self._run_all(self._setup)
        if self.entry.area is not None:
            self.m.load(self._area(layout.N), 8)
            self._touch_area(layout.TSC_START)

    def one_pass(self, number: int) -> None:
        """One pass of the body."""
        self._index = self._pass = number
        for step in self._body:
            self._run(step)

    def finish(self) -> None:
        """From the last pass to the final HLT."""
        self._index = self._pass = 0
        if not self.bare:
            self._touch_area(layout.TSC_END)
        self._run_all(self._end)
        self.m.rip = self.entry.end - 1
        self.m.fetch(self.entry.end - 1)
        self._halt(last=True)

    def state(self) -> tuple[object, ...]:
        """What the program's own registers hold, as one value to compare; and which page the log of faults is at."""
        page = _log_page(self.faults) if self.faults < layout.MAX_FAULTS else -1
        return self.believed[0], self.believed[4], page, tuple(sorted(self.values.items()))

    def log_room(self) -> int:
        """How many more faults can be logged on the page of the last, or at all once the log is full."""
        if self.faults >= layout.MAX_FAULTS:
            return 1 << 62
        end = (_log_page(self.faults - 1) + 1) * PAGE - layout.FAULT_LOG
        return max(0, min(-(-end // layout.FAULT.size), layout.MAX_FAULTS) - self.faults)

    def repeat_faults(self, faults: int, retries: int, times: int) -> None:
        """Count the last *faults* exceptions and *retries* again, *times* times."""
        if self.faults == len(self.log) and faults:
            recent = self.log[-faults:]
            self.log += recent * min(times, -(-(layout.MAX_FAULTS - len(self.log)) // faults))
            del self.log[layout.MAX_FAULTS :]
        self.faults += faults * times
        self.retries += retries * times

    # ---- the flow of operations

    def _run_all(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._run(step)

    def _run(self, step: Step) -> None:
        """One operation, with what its faults bring about."""
        operation = step.operation
        if isinstance(operation, ops.Repeat):
            self._repeat(step, operation)
        elif isinstance(operation, ops.User):
            self._round_trip(step, step.body)
        elif getattr(operation, "user", False):
            self._round_trip(step, (step,))
        else:
            self._attempt(step, user=False)

    def _attempt(self, step: Step, user: bool) -> bool:
        """Run one operation, again after a fix that says so; False if it was skipped in the end."""
        retried = False
        while True:
            try:
                if user:
                    for address in step.user_code:
                        self.m.fetch(address, True)
                else:
                    self._fetch_code(step.code)
                self.m.rip = step.user_code[0] if user else step.code[0] if step.code else self.entry.rip
                _DO[type(step.operation)](self, step, user)
            except GuestFault as fault:
                if self._handled(fault, step, user, retried):
                    retried = True
                    continue
                return False
            return True

    def _fetch_code(self, pages: Sequence[int]) -> None:
        """Fetch the program's own code for CPL 0; what the processor remembers of it is enough almost always."""
        remembered = self.m.tlb.now
        for address in pages:
            known = remembered.get(address >> 12)
            if known is None or known.user or not (known.executable and known.host_executable):
                self.m.fetch(address)
                remembered = self.m.tlb.now

    def _repeat(self, step: Step, block: ops.Repeat) -> None:
        outer = self._index
        self._fetch_code(step.code[:1])

        def one(number: int) -> None:
            self._index = number
            self._run_all(step.body)

        repeat(self, block.count, one, self._whole)
        self._index = outer

    def _round_trip(self, block: Step, body: Sequence[Step]) -> None:
        """To CPL 3 by IRET, and back by INT3, which KVM leaves to the guest."""
        self._push(5)
        self._fetch_code(block.code)
        self._descriptors()
        for step in body:
            if self._attempt(step, user=True):
                continue
            if step is block:
                return  # what faults alone at CPL 3 is resumed behind the way back
            self._push(5)
            self._descriptors()
        for address in block.user_code[-1:]:
            self.m.fetch(address, True)
        self._interrupt(3)

    # ---- exceptions

    def _handled(self, fault: GuestFault, step: Step, user: bool, retried: bool) -> bool:
        """Record the exception and run its fix; True if the operation is to be tried again."""
        if self.bare:
            raise NotModelled(f"{self.program.name}: vector {fault.vector} ends a program without descriptor tables")
        if fault.vector == _PF:
            self.m.cr2 = fault.cr2
        self._interrupt(fault.vector)
        number = self.faults
        self.faults += 1
        self._touch_area(layout.FAULTS)
        if number < layout.MAX_FAULTS:
            address = fault.cr2 if fault.vector == _PF else 0
            rip = rip_of(self.image, self.window, step.operation, step.path, user, address)
            self.log.append(Fault(step.path, fault.vector, fault.code, fault.cr2, rip))
            self._touch_area(layout.FAULT_LOG + layout.FAULT.size * number)
        handler, fix = self._handlers.get(fault.vector, (None, ()))
        if handler is None or self._in_fix or (handler.retry and retried):
            self._pop()
            return False
        outer, self._index, self._in_fix = self._index, self._pass, True
        self._variables()
        self._push(6)
        self._run_all(fix)
        self._variables()
        self._index, self._in_fix = outer, False
        if handler.retry:
            self.retries += 1
            self._touch_area(layout.RETRIES)
        self._pop()
        return handler.retry

    def _interrupt(self, vector: int) -> None:
        """Through the gate of a vector: IDT, TSS and GDT lie on one page; then the stack, and the code."""
        self.m.load(self.entry.idt[0] + 16 * vector, 8)
        self._descriptors()
        self._push(5)
        self._fetch_code(self._stubs[vector])

    def _descriptors(self) -> None:
        self.m.load(self.entry.gdt[0], 8)

    def _variables(self) -> None:
        """The handler's variables, on the page of the descriptors."""
        self.m.translate(self.entry.gdt[0], Kind.WRITE, False)

    def _push(self, words: int) -> None:
        self.m.translate(self.entry.rsp - 8 * words, Kind.WRITE, False)
        if self.m.emulating:
            raise NotModelled(f"{self.program.name}: its stack lies in a page table")

    def _pop(self) -> None:
        self.m.translate(self.entry.rsp - 8, Kind.READ, False)

    def _area(self, offset: int) -> int:
        assert self.entry.area is not None
        return self.window + self.entry.area + offset

    def _touch_area(self, offset: int) -> None:
        self.m.translate(self._area(offset), Kind.WRITE, False)

    # ---- operations

    def keep(self, step: Step, value: int | None) -> None:
        """Keep the value of an operation that does; one the model does not know is left out."""
        if not getattr(step.operation, "keep", False):
            return
        self._touch_area(layout.VALUES)
        if value is None:
            self.values.pop(step.path, None)
        else:
            self.values[step.path] = value & (1 << 64) - 1

    def access(self, step: Step, user: bool) -> None:
        """Load, store, fetch."""
        operation: Any = step.operation
        va = operation.va + self._index % operation.span * operation.stride
        if isinstance(operation, ops.Load):
            self.keep(step, self.m.load(va, operation.size, user))
        elif isinstance(operation, ops.Store):
            self.m.store(va, operation.value, operation.size, user)
        else:
            self._push_user() if user else self._push(1)
            self.m.fetch(va, user)

    def _push_user(self) -> None:
        self.m.translate(self.entry.rsp + PAGE - 8, Kind.WRITE, True)

    def write_cr(self, step: Step, _: bool) -> None:
        """MOV to CR0, CR4, CR8."""
        operation: Any = step.operation
        if operation.value is not None:
            value = operation.value
        else:
            clear, set_, toggle = step.masks
            value = (self.believed[operation.cr] & ~clear | set_) ^ toggle
        writes.write_cr(self.m, operation.cr, value)
        if operation.cr != 8:
            self.believed[operation.cr] = value

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
        self.believed[0] &= ~_TS

    def lmsw(self, step: Step, _: bool) -> None:
        """LMSW."""
        operation: Any = step.operation
        writes.lmsw(self.m, operation.value & _MACHINE_STATUS)
        self.believed[0] = self.believed[0] & ~(_MACHINE_STATUS & ~1) | operation.value & _MACHINE_STATUS

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
        writes.invpcid(self.m, operation.type, operation.pcid, operation.va)

    def write_entry(self, step: Step, _: bool) -> None:
        """A store into the guest's own page tables."""
        write: Any = step.operation
        at = self.window + self._tables.entry(write.space, write.va, write.level)
        clear, set_, toggle = step.masks
        self.m.store(at, (self.m.load(at, 8) & ~clear | set_) ^ toggle, 8)

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
        self.m.stats["halt_exits"] += 1
        self.m.to_userspace("HLT")
        if not last:
            self.m.skip_instruction()

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


_DO: dict[type[ops.Operation], Callable[[Guest, Step, bool], None]] = {
    ops.Load: Guest.access, ops.Store: Guest.access, ops.Fetch: Guest.access, ops.WriteCr: Guest.write_cr,
    ops.ReadCr: Guest.read_cr, ops.SwitchSpace: Guest.switch_space, ops.Clts: Guest.clts, ops.Lmsw: Guest.lmsw,
    ops.ReadMsr: Guest.read_msr, ops.WriteMsr: Guest.write_msr, ops.Invlpg: Guest.invlpg, ops.Invpcid: Guest.invpcid,
    ops.WriteEntry: Guest.write_entry, ops.ReadEntry: Guest.read_entry, ops.Stac: Guest.set_ac, ops.Clac: Guest.set_ac,
    ops.WritePkru: Guest.pkru, ops.ReadPkru: Guest.pkru, ops.Cpuid: Guest.cpuid, ops.Vmcall: Guest.vmcall,
    ops.In: Guest.port, ops.Out: Guest.port, ops.Hlt: Guest.hlt, ops.ReadDr: Guest.debug_register,
    ops.WriteDr: Guest.debug_register, ops.SingleStep: Guest.single_step, ops.Nop: Guest.nop, ops.Meet: Guest.nop,
}  # fmt: skip


class _Pieces:
    """Where the code of each operation lies."""

    def __init__(self, image: Image, window: int) -> None:
        self._image, self._window = image, window
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for at, length, path in image.listing:
            self._spans.setdefault(path, []).append((at, length))

    def steps(self, operations: Sequence[ops.Operation], path: str, joint: str = " ") -> tuple[Step, ...]:
        """The operations of a block."""
        return tuple(self._step(operation, f"{path}{joint}{i}") for i, operation in enumerate(operations))

    def _step(self, operation: ops.Operation, path: str, in_user: bool = False) -> Step:
        spans = [_pages(at, length) for at, length in self._spans.get(path, [])]
        code, user_code = ((), spans[-1] if spans else ()) if in_user else (spans[0] if spans else (), ())
        if len(spans) > 1:
            user_code = spans[1]
        body: tuple[Step, ...] = ()
        if isinstance(operation, ops.Repeat):
            body = self.steps(operation.body, path, ".")
        elif isinstance(operation, ops.User):
            body = tuple(self._step(inner, f"{path}.{i}", True) for i, inner in enumerate(operation.body))
        return Step(operation, path, code, user_code, body, _masks(operation))

    def stubs(self, idt: int, vectors: int = 32) -> tuple[tuple[int, ...], ...]:
        """For each vector the pages of its handler's code: from its stub to the end of all code."""
        memory = Memory(self._image.regions[0].size, [(s.gpa, s.data) for s in self._image.segments])
        found = []
        for vector in range(vectors):
            gate = idt - self._window + 16 * vector
            low, high = memory.word(gate), memory.word(gate + 8)
            stub = low & 0xFFFF | low >> 48 << 16 | (high & 0xFFFF_FFFF) << 32
            gpa = stub - self._window
            ends = (s.gpa + len(s.data) for s in self._image.segments if s.gpa <= gpa < s.gpa + len(s.data))
            found.append(_pages(stub, next(ends) - gpa))
        return tuple(found)


def _log_page(number: int) -> int:
    """The page of the result area that the entry of a fault begins on."""
    return (layout.FAULT_LOG + layout.FAULT.size * number) // PAGE


def _masks(operation: ops.Operation) -> tuple[int, int, int]:
    if isinstance(operation, ops.WriteCr) and operation.value is None:
        clear, set_, toggle = (
            bit_mask(operation.cr, *names) for names in (operation.clear, operation.set, operation.toggle)
        )
        return clear, set_, toggle
    if not isinstance(operation, ops.WriteEntry):
        return 0, 0, 0
    clear, set_, toggle = (flag_mask(names) for names in (operation.clear, operation.set, operation.toggle))
    if operation.pa is not None:
        clear, set_ = clear | ADDRESS, set_ | operation.pa & ADDRESS
    if operation.key is not None:
        clear, set_ = clear | KEY, set_ | operation.key << KEY_SHIFT
    return clear, set_, toggle


def _pages(at: int, length: int) -> tuple[int, ...]:
    """An address on each page of a piece of code."""
    return (at, *range((at & -PAGE) + PAGE, at + length, PAGE))


class _Entries:
    """Where the roots and entries of a program's page tables lie: laid out again as the assembler does."""

    def __init__(self, program: Program, image: Image) -> None:
        self._program, self._first = program, image.entries[0].cr3
        self._built: dict[str, Tables] | None = None

    def root(self, space: str) -> int:
        """Guest-physical address of the root of a space."""
        gpa = self._tables()[space].root.gpa
        assert gpa is not None
        return gpa

    def entry(self, space: str, va: int, level: int) -> int:
        """Guest-physical address of an entry."""
        return self._tables()[space].entry(va, level)

    def _tables(self) -> dict[str, Tables]:
        if self._built is None:
            program, at, found = self._program, self._first, {}
            paging = FIVE_LEVEL if program.state.cr4 & _LA57 else FOUR_LEVEL
            window = Table(1)
            window.gpa = at - TABLE_SIZE
            for space in program.spaces:
                tables = build(space, paging, PRESENT | WRITABLE | USER)
                if program.layout is None:
                    tables.graft(WINDOWS[program.mode], window)
                size = tables.size()
                tables.place(at)
                found[space.name] = tables
                at += size
            self._built = found
        return self._built
