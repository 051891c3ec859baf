"""What is wrong with one operation of a program: a sentence without its place, or None.

Sources: Intel SDM volume 2 (which modes and privilege levels an instruction exists in), volume 3 section 2.5 (control
registers) and section 4.5 (levels of a page walk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from worldswitch.errors import UnknownNameError
from worldswitch.guest import operations as ops
from worldswitch.guest.layout import WINDOW_SIZE, WINDOWS
from worldswitch.guest.operations import FLAGS
from worldswitch.guest.paths import Place
from worldswitch.guest.program import SIZES, Mode, Program
from worldswitch.x86.registers import CR0, CR4, REGISTERS, bit_mask, bit_names, register_name

MAX_NOPS = 4096
MAX_SPAN = 1 << 20
MAX_STRIDE = 1 << 30
USER_OPERATIONS = (ops.Nop, ops.Load, ops.Store, ops.Fetch, ops.Cpuid, ops.ReadPkru, ops.WritePkru)
_NOT_IN_HANDLERS = (ops.User, ops.SingleStep, ops.Meet)
_PAGED = (ops.SwitchSpace, ops.WriteEntry, ops.ReadEntry)
_LONG_ONLY = (ops.ReadPkru, ops.WritePkru)
_SIZE_OF_LEVEL = {1: "4K", 2: "2M", 3: "1G"}
_TRANSLATED = 52  # bits of an address in an entry: SDM volume 3, section 4.5
_MODE_BITS: dict[Mode, dict[int, tuple[str, ...]]] = {
    Mode.LONG: {},
    Mode.PAE: {CR0: ("PG", "PE"), CR4: ("PAE",)},
    Mode.FLAT: {CR0: ("PE", "PG")},
}
"""Bits whose change would take the code away from under itself; in 64-bit mode such a write only faults."""


def complaint(place: Place, program: Program) -> str | None:
    """What makes the operation at *place* impossible in *program*; its fields have the right types."""
    problem = _out_of_place(place, program)
    if problem:
        return problem
    for kind, rule in _RULES.items():
        if isinstance(place.operation, kind):
            problem = rule(place.operation, program)
            if problem:
                return problem
    return None


def _out_of_place(place: Place, program: Program) -> str | None:
    operation, in_user, in_handler = place.operation, place.in_user, place.in_handler
    word = operation.word
    at_cpl3 = isinstance(operation, ops.Access | ops.SingleStep) and operation.user
    if in_user and not isinstance(operation, USER_OPERATIONS):
        allowed = ", ".join(kind.word for kind in USER_OPERATIONS)
        return f"{word} cannot run at CPL 3; a user block takes {allowed}"
    if in_user and at_cpl3:
        return f"{word} is at CPL 3 already in a user block; leave out user = true"
    if in_handler and (at_cpl3 or isinstance(operation, _NOT_IN_HANDLERS)):
        return f"{word}{' at CPL 3' if at_cpl3 else ''} cannot run in a handler"
    if program.mode is Mode.FLAT and isinstance(operation, _PAGED):
        return f"{word} needs paging, which mode flat has not; use mode long or pae"
    if program.mode is not Mode.LONG and isinstance(operation, _LONG_ONLY):
        return f"{word} needs mode long: protection keys exist with 4- and 5-level paging only"
    if program.layout is not None and program.layout.bare:
        return _not_bare(operation, at_cpl3)
    return None


def _not_bare(operation: ops.Operation, at_cpl3: bool) -> str | None:
    needs_runtime = (ops.User, ops.SingleStep, ops.Meet, ops.Fetch)
    if isinstance(operation, needs_runtime) or at_cpl3:
        return f"{operation.word} needs a stack or descriptor tables, which a bare layout has not"
    # ReadEntry keeps unless told otherwise.
    if getattr(operation, "keep", False):
        return f"{operation.word} cannot keep a value: a bare layout has no place for results"
    return None


def _access(access: ops.Access, program: Program) -> str | None:
    if access.span < 1 or access.span & (access.span - 1) or access.span > MAX_SPAN:
        return f"span {access.span} is not a power of two from 1 to {MAX_SPAN}"
    if not 0 <= access.stride <= MAX_STRIDE:
        return f"stride {access.stride} is not from 0 to {MAX_STRIDE:#x}"
    if (access.span > 1) != (access.stride > 0):
        return "stride and span go together: a stride above 0 needs a span above 1, and the other way round"
    size = 1 if isinstance(access, ops.Fetch) else getattr(access, "size", 1)
    if size not in (1, 2, 4, 8):
        return f"size {size} is none of 1, 2, 4, 8"
    if size == 8 and program.mode is not Mode.LONG:
        return f"8 bytes at once need mode long; say size = 4 in mode {program.mode}"
    last = access.va + (access.span - 1) * access.stride + size - 1
    if not 0 <= access.va <= last <= _top(program):
        return f"addresses {access.va:#x} to {last:#x} do not fit in {'64' if _top(program) >> 32 else '32'} bits"
    return _into_own_memory(access, last, program)


def _into_own_memory(access: ops.Access, last: int, program: Program) -> str | None:
    """A store or a jump of the program into itself would end it in a way that says nothing."""
    if isinstance(access, ops.Load) or program.layout is not None:
        return None
    base = WINDOWS[program.mode]
    if access.va < base + WINDOW_SIZE and last >= base and not access.user:
        window = f"the program's own window, {base:#x} to {base + WINDOW_SIZE - 1:#x}"
        return f"{access.word} at {access.va:#x} reaches {window}"
    if program.mode is Mode.FLAT and isinstance(access, ops.Fetch) and last >= program.memory:
        return f"fetch at {access.va:#x} lies outside of memory, which ends at {program.memory:#x}"
    return None


def _store(store: ops.Store, _: Program) -> str | None:
    return _fits("value", store.value, 8 * store.size)


def _write_cr(write: ops.WriteCr, program: Program) -> str | None:
    if write.cr not in (0, 4, 8):
        return f"there is no writing of CR{write.cr} here; cr is 0, 4 or 8 (CR3: switch-space)"
    if write.cr == 8 and program.mode is not Mode.LONG:
        return "CR8 exists in mode long only"
    by_bits = write.set or write.clear or write.toggle
    if (write.value is None) == (not by_bits):
        return "give either a value, or bits to set, clear or toggle"
    if write.value is not None:
        return _fits("value", write.value, _width(program)) or _leaves_mode(write, program)
    if write.cr == 8:
        return "CR8 has no named bits; give a value"
    return (
        _bits(write.cr, (*write.set, *write.clear, *write.toggle))
        or _disjoint(write, lambda name: bit_mask(write.cr, name))
        or _leaves_mode(write, program)
    )


def _leaves_mode(write: ops.WriteCr, program: Program) -> str | None:
    for name in _MODE_BITS[program.mode].get(write.cr, ()):
        mask = bit_mask(write.cr, name)
        wanted = (program.state.cr0 if write.cr == CR0 else program.state.cr4) & mask
        changed = write.value is not None and write.value & mask != wanted
        named = {name} & {_plain(write.cr, n) for n in (*write.toggle, *(write.clear if wanted else write.set))}
        if changed or named:
            return (
                f"a change of {register_name(write.cr)}.{name} would leave mode {program.mode}, for which the code is"
            )
    return None


def _plain(register: int, name: str) -> str:
    return bit_names(register, bit_mask(register, name))[0]


def _bits(register: int, names: Iterable[str]) -> str | None:
    for name in names:
        try:
            bit_mask(register, name)
        except UnknownNameError as error:
            owner = next((other for other, bits in REGISTERS.items() if name.upper() in bits), None)
            return (
                str(error)
                if owner is None
                else f"{name} is a bit of {register_name(owner)}, not of {register_name(register)}"
            )
    return None


def _disjoint(operation: Any, mask: Callable[[str], int]) -> str | None:
    seen = 0
    for name in (*operation.set, *operation.clear, *operation.toggle):
        if seen & mask(name):
            return f"{name} is named twice; a bit is set, cleared or toggled"
        seen |= mask(name)
    return None


def _read_cr(read: ops.ReadCr, program: Program) -> str | None:
    if read.cr not in (0, 2, 3, 4, 8):
        return f"there is no CR{read.cr}; cr is 0, 2, 3, 4 or 8"
    return "CR8 exists in mode long only" if read.cr == 8 and program.mode is not Mode.LONG else None


def _switch_space(switch: ops.SwitchSpace, program: Program) -> str | None:
    return _space(switch.space, program) or _range("pcid", switch.pcid, 0, 4095)


def _space(name: str, program: Program) -> str | None:
    known = [space.name for space in program.spaces]
    return None if name in known else str(UnknownNameError("space", name, known, f"There are: {', '.join(known)}"))


def _entry(entry: ops.WriteEntry | ops.ReadEntry, program: Program) -> str | None:
    top = 3 if program.mode is Mode.PAE else 5 if program.state.cr4 & bit_mask(CR4, "LA57") else 4
    problem = _space(entry.space, program) or _range("level", entry.level, 1, top)
    if problem:
        return problem
    space = next(space for space in program.spaces if space.name == entry.space)
    pages = next((p for p in space.pages if p.va <= entry.va < p.va + SIZES[p.size] * p.count), None)
    if pages is None:
        return f"space {entry.space} has no pages at {entry.va:#x}, so no entries for them"
    leaf = next(level for level, size in _SIZE_OF_LEVEL.items() if size == pages.size)
    if entry.level < leaf:
        return f"{entry.va:#x} is in a {pages.size} page: its lowest entry is of level {leaf}, not {entry.level}"
    if isinstance(entry, ops.ReadEntry):
        return None
    return _write_entry(entry, program)


def _write_entry(entry: ops.WriteEntry, program: Program) -> str | None:
    names = (*entry.set, *entry.clear, *entry.toggle)
    for name in names:
        if name not in FLAGS:
            return str(UnknownNameError("flag of a page-table entry", name, FLAGS))
    if not names and entry.pa is None and entry.key is None:
        return "it changes nothing; name flags to set, clear or toggle, or give pa or key"
    if entry.pa is not None and (entry.pa & 0xFFF or not 0 <= entry.pa < 1 << _TRANSLATED):
        return f"pa {entry.pa:#x} is not a multiple of 0x1000 below 2**{_TRANSLATED}"
    if entry.key is not None and (program.mode is not Mode.LONG or not 0 <= entry.key <= 15):
        return f"key {entry.key} is not from 0 to 15, in mode long"
    shift = 12 + 9 * (entry.level - 1)
    base, first = WINDOWS[program.mode], entry.va >> shift << shift
    if program.layout is None and first < base + WINDOW_SIZE and first + (1 << shift) > base:
        return (
            f"the entry of level {entry.level} for {entry.va:#x} maps the program's own code too; use another address"
        )
    return _disjoint(entry, lambda name: FLAGS[name])


def _lmsw(lmsw: ops.Lmsw, _: Program) -> str | None:
    return _fits("value", lmsw.value, 16)


def _msr(msr: ops.ReadMsr | ops.WriteMsr, _: Program) -> str | None:
    return _fits("msr", msr.msr, 32) or (_fits("value", msr.value, 64) if isinstance(msr, ops.WriteMsr) else None)


def _invlpg(invlpg: ops.Invlpg, program: Program) -> str | None:
    return _fits("va", invlpg.va, _width(program))


def _invpcid(invpcid: ops.Invpcid, _: Program) -> str | None:
    return _range("type", invpcid.type, 0, 3) or _range("pcid", invpcid.pcid, 0, 4095) or _fits("va", invpcid.va, 64)


def _pkru(write: ops.WritePkru, _: Program) -> str | None:
    return _fits("value", write.value, 32)


def _cpuid(cpuid: ops.Cpuid, _: Program) -> str | None:
    return _fits("leaf", cpuid.leaf, 32) or _fits("subleaf", cpuid.subleaf, 32)


def _vmcall(vmcall: ops.Vmcall, program: Program) -> str | None:
    if len(vmcall.args) > 4:
        return f"a hypercall takes at most 4 args, not {len(vmcall.args)}"
    problems = (_fits(f"args {i}", arg, _width(program)) for i, arg in enumerate(vmcall.args))
    return _fits("nr", vmcall.nr, _width(program)) or next(filter(None, problems), None)


def _port(access: ops.In | ops.Out, _: Program) -> str | None:
    if access.size not in (1, 2, 4):
        return f"size {access.size} is none of 1, 2, 4"
    problem = _range("port", access.port, 0, 0xFFFF)
    return problem or (_fits("value", access.value, 8 * access.size) if isinstance(access, ops.Out) else None)


def _dr(access: ops.ReadDr | ops.WriteDr, program: Program) -> str | None:
    if access.dr not in (0, 1, 2, 3, 6, 7):
        return f"there is no DR{access.dr} here; dr is 0, 1, 2, 3, 6 or 7"
    return _fits("value", access.value, _width(program)) if isinstance(access, ops.WriteDr) else None


def _nop(nop: ops.Nop, _: Program) -> str | None:
    return _range("count", nop.count, 1, MAX_NOPS)


def _repeat(repeat: ops.Repeat, _: Program) -> str | None:
    return None if repeat.body else "repeat has nothing to repeat"


def _range(name: str, value: int, low: int, high: int) -> str | None:
    return None if low <= value <= high else f"{name} {value} is not from {low} to {high}"


def _fits(name: str, value: int, bits: int) -> str | None:
    return None if 0 <= value < 1 << bits else f"{name} {value:#x} does not fit in {bits} bits"


def _width(program: Program) -> int:
    return 64 if program.mode is Mode.LONG else 32


def _top(program: Program) -> int:
    return (1 << _width(program)) - 1


_RULES: dict[Any, Callable[[Any, Program], str | None]] = {
    ops.Access: _access,
    ops.Store: _store,
    ops.WriteCr: _write_cr,
    ops.ReadCr: _read_cr,
    ops.SwitchSpace: _switch_space,
    ops.Lmsw: _lmsw,
    (ops.ReadMsr, ops.WriteMsr): _msr,
    ops.Invlpg: _invlpg,
    ops.Invpcid: _invpcid,
    (ops.WriteEntry, ops.ReadEntry): _entry,
    ops.WritePkru: _pkru,
    ops.Cpuid: _cpuid,
    ops.Vmcall: _vmcall,
    (ops.In, ops.Out): _port,
    (ops.ReadDr, ops.WriteDr): _dr,
    ops.Nop: _nop,
    ops.Repeat: _repeat,
}
"""Class or classes -> the rule for them."""
