"""Whether a program is one that a guest could run: its parts fit together and with the processor's rules.

Every complaint is one sentence that starts with the place: ``space main, pages 2: ...``, ``vcpu 0 body 3.1: ...``.

Sources: Intel SDM volume 3, section 2.5 (control registers: which bits exclude or need each other), section 4.5
(canonical addresses, page sizes), section 4.10.1 (PCIDs).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

from worldswitch.errors import UnknownNameError, printable
from worldswitch.guest import operations as ops
from worldswitch.guest.check_operations import complaint
from worldswitch.guest.fields import misfit
from worldswitch.guest.image import MAX_VALUES
from worldswitch.guest.layout import OWN_MEMORY, WINDOW_SIZE, WINDOWS
from worldswitch.guest.operations import FLAGS, OPERATIONS, Operation
from worldswitch.guest.paths import Place, places, vcpu_places
from worldswitch.guest.program import SIZES, Layout, Mode, Pages, Program, ProgramError, Space, State, Vcpu
from worldswitch.x86.features import FEATURES
from worldswitch.x86.registers import CR0, CR4, EFER, REGISTERS, bit_mask, bit_names, register_name

MAX_OPERATIONS = 4096
"""Operations a program may have as written; its code must fit into its own memory."""
MAX_EXECUTED = 10**6
"""Operations one pass of a body may execute."""
MAX_DEPTH = 8
MAX_MEMORY = 3 << 30
"""Guest-physical addresses from 3 GiB on are the PC's interrupt controllers and firmware."""
MAX_VCPUS = 16
MAX_SPACES = 64
MAX_PAGES = 4096
MAX_TABLES = 256
"""Page tables the program's own memory has room for."""
MAX_TEXT = 10_000

_NEEDED: dict[Mode, dict[int, tuple[str, ...]]] = {
    Mode.LONG: {CR0: ("PE", "PG"), CR4: ("PAE",), EFER: ("LME", "LMA")},
    Mode.PAE: {CR0: ("PE", "PG"), CR4: ("PAE",)},
    Mode.FLAT: {CR0: ("PE",)},
}
_EXCLUDED: dict[Mode, dict[int, tuple[str, ...]]] = {
    Mode.LONG: {},
    Mode.PAE: {CR4: ("PCIDE", "LA57"), EFER: ("LME", "LMA")},
    Mode.FLAT: {CR0: ("PG",), CR4: ("PCIDE", "LA57"), EFER: ("LME", "LMA")},
}
_FEATURE_OF_BIT = {
    CR4: {
        "FSGSBASE": "fsgsbase", "PCIDE": "pcid", "OSXSAVE": "xsave", "SMEP": "smep", "SMAP": "smap", "PKE": "pku",
        "CET": "shstk", "UMIP": "umip", "LA57": "la57", "VMXE": "vmx", "SMXE": "smx", "PKS": "pks", "KL": "kl",
        "UINTR": "uintr", "LASS": "lass", "LAM_SUP": "lam", "FRED": "fred",
    },
    EFER: {"NXE": "nx", "SVME": "svm", "FFXSR": "fxsr_opt", "TCE": "tce"},
}  # fmt: skip
"""Register -> bit -> the CPUID feature without which it is reserved: SDM volume 3, 2.5; APM volume 2, 3.1."""
_FEATURE_OF_OPERATION = {
    ops.Stac: "smap",
    ops.Clac: "smap",
    ops.WritePkru: "pku",
    ops.ReadPkru: "pku",
    ops.Invpcid: "invpcid",
}


def check(program: Program) -> None:
    """Complain about the first thing in *program* that no guest could do.

    Raises:
        ProgramError: Says where and what.
    """
    _check_fields(program)
    _check_state(program.state, program.mode)
    _check_memory(program)
    for space in program.spaces:
        _check_space(space, program)
    _check_tables(program)
    _check_layout(program)
    for number, vcpu in enumerate(program.vcpus):
        _check_handlers(number, program)
        _check_types(number, vcpu)
    for number, vcpu in enumerate(program.vcpus):
        _check_blocks(list(vcpu_places(number, vcpu)), program)
    _check_pcids(program)
    _check_meetings(program)


def features(program: Program) -> frozenset[str]:
    """CPUID features the entry state, the pages and the operations need, by their lower-case names.

    CR4.CET needs shstk, unless the program itself names ibt alone.
    """
    found = set(program.features)
    for register, value in ((CR4, program.state.cr4), (EFER, program.state.efer)):
        found |= _features_of_bits(register, value)
    if any(pages.size == "1G" for space in program.spaces for pages in space.pages):
        found.add("pdpe1gb")
    for place in places(program):
        found |= _features_of(place.operation)
    if "ibt" in program.features and "shstk" not in program.features:
        found.discard("shstk")  # either of them makes CR4.CET available: SDM volume 3, 2.5
    return frozenset(found)


def _features_of(operation: Operation) -> set[str]:
    if isinstance(operation, ops.WriteCr):
        return _features_of_bits(CR4, _cr4_set_by(operation))
    if isinstance(operation, ops.WriteMsr) and operation.msr == EFER:
        return _features_of_bits(EFER, operation.value)
    name = _FEATURE_OF_OPERATION.get(type(operation))
    return {name} if name else set()


def _features_of_bits(register: int, value: int) -> set[str]:
    names = _FEATURE_OF_BIT[register]
    return {names[bit] for bit in bit_names(register, value) if bit in names}


def _fail(where: str, problem: str) -> NoReturn:
    raise ProgramError(f"{where}: {problem}")


def _check_fields(program: Program) -> None:
    parts: list[tuple[str, object]] = [("program", program), ("state", program.state)]
    problem = misfit(program)
    if problem:
        _fail("program", problem)
    if program.layout is not None:
        parts.append(("layout", program.layout))
    for i, space in enumerate(program.spaces):
        parts.append((f"space {i}", space))
    for where, part in parts:
        problem = misfit(part)
        if problem:
            _fail(where, problem)
    for i, vcpu in enumerate(program.vcpus):
        problem = misfit(vcpu)
        if problem:
            _fail(f"vcpu {i}", problem)
    for name in ("name", "summary", "unit", "expect", "source"):
        _check_text(name, getattr(program, name))
    for name in program.features:
        if name not in FEATURES:
            _fail("program", str(UnknownNameError("CPUID feature", name, FEATURES)))
    if not program.name or not program.unit:
        _fail("program", "it needs a name and a unit")


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_TEXT:
        _fail("program", f"{name} has {len(text)} characters; {MAX_TEXT} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError:
        _fail("program", f"{name} has a surrogate without its other half, which no file can hold")


def _check_state(state: State, mode: Mode) -> None:
    values = {CR0: state.cr0, CR4: state.cr4, EFER: state.efer}
    for register, value in values.items():
        if not 0 <= value < 1 << 64:
            _fail("state", f"{register_name(register)} {value:#x} does not fit in 64 bits")
        unnamed = [n for n in bit_names(register, value) if n not in REGISTERS[register]]
        if unnamed:
            _fail("state", f"{register_name(register)} {value:#x} has {unnamed[0]}, which no manual names")
        for name in _NEEDED[mode].get(register, ()):
            if not value & bit_mask(register, name):
                _fail("state", f"mode {mode} needs {register_name(register)}.{name}")
        for name in _EXCLUDED[mode].get(register, ()):
            if value & bit_mask(register, name):
                _fail("state", f"{register_name(register)}.{name} cannot be set in mode {mode}")

    def on(register: int, name: str) -> bool:
        return bool(values[register] & bit_mask(register, name))

    if not on(CR0, "ET"):
        _fail("state", "CR0.ET is always 1; set it, so that writes change what they say they change")
    if on(CR0, "NW") and not on(CR0, "CD"):
        _fail("state", "CR0.NW needs CR0.CD")
    if on(CR4, "CET") and not on(CR0, "WP"):
        _fail("state", "CR4.CET needs CR0.WP")


def _check_memory(program: Program) -> None:
    unit = SIZES["2M"] if program.huge else SIZES["4K"]
    if program.memory % unit or not OWN_MEMORY <= program.memory <= MAX_MEMORY:
        span = f"from {OWN_MEMORY:#x} to {MAX_MEMORY:#x}"
        _fail("memory", f"{program.memory:#x} bytes are not a multiple of {unit:#x} {span}")
    if not 1 <= len(program.vcpus) <= MAX_VCPUS:
        _fail("program", f"{len(program.vcpus)} vCPUs are not from 1 to {MAX_VCPUS}")
    if program.default_n < 0:
        _fail("program", f"default_n {program.default_n} is negative")
    names = [space.name for space in program.spaces]
    if program.mode is not Mode.FLAT and not names:
        _fail("program", f"mode {program.mode} needs an address space")
    if len(names) > MAX_SPACES:
        _fail("program", f"{len(names)} spaces are more than {MAX_SPACES}")
    for name in names:
        if not name or names.count(name) > 1:
            _fail("program", f"two spaces are called {printable(name)!r}" if name else "a space needs a name")


def _check_space(space: Space, program: Program) -> None:
    if space.pages and program.mode is Mode.FLAT:
        _fail(f"space {space.name}", "mode flat has no paging, so no pages; addresses are guest-physical")
    if len(space.pages) > MAX_PAGES:
        _fail(f"space {space.name}", f"{len(space.pages)} pages are more than {MAX_PAGES}; use count")
    taken: list[tuple[int, int, int]] = []
    for i, pages in enumerate(space.pages):
        where = f"space {space.name}, pages {i}"
        problem = misfit(pages) or _wrong_pages(pages, program)
        if problem:
            _fail(where, problem)
        taken.append((pages.va, pages.va + SIZES[pages.size] * pages.count, i))
    if program.layout is None and program.mode is not Mode.FLAT:
        base = WINDOWS[program.mode]
        taken.append((base, base + WINDOW_SIZE, -1))
    taken.sort()
    for one, other in pairwise(taken):
        if other[0] < one[1]:
            # The window stays where it is, and so do the pages named first.
            (begin, end, i), (second, second_end, k) = sorted([one, other], key=lambda span: span[2])
            what = "the program's own window" if i < 0 else f"pages {i}"
            problem = f"{second:#x} to {second_end - 1:#x} overlaps {what}, {begin:#x} to {end - 1:#x}"
            _fail(f"space {space.name}, pages {k}", problem)


def _wrong_pages(pages: Pages, program: Program) -> str | None:
    sizes = ("4K", "2M") if program.mode is Mode.PAE else tuple(SIZES)
    if pages.size not in sizes:
        return str(UnknownNameError("page size", pages.size, sizes, f"Mode {program.mode} has {', '.join(sizes)}"))
    size = SIZES[pages.size]
    if not 1 <= pages.count <= MAX_MEMORY // size:
        return f"count {pages.count} is not from 1 to {MAX_MEMORY // size}"
    for name, address in (("va", pages.va), ("pa", pages.pa)):
        if address % size:
            return f"{name} {address:#x} is not a multiple of the page size {pages.size}"
    return _wrong_addresses(pages, size * pages.count, program) or _wrong_flags(pages, program)


def _wrong_addresses(pages: Pages, length: int, program: Program) -> str | None:
    last = pages.va + length - 1
    if not _canonical(pages.va, program) or not _canonical(last, program) or pages.va >> 63 != last >> 63:
        return f"va {pages.va:#x} to {last:#x} is not canonical in mode {program.mode}"
    if pages.pa < 0 or pages.pa + length > program.memory:
        return (
            f"pa {pages.pa:#x} to {pages.pa + length - 1:#x} lies outside of memory, which ends at {program.memory:#x}"
        )
    if program.layout is None and pages.pa < OWN_MEMORY:
        return f"pa {pages.pa:#x} is the program's own memory; pages start at {OWN_MEMORY:#x}"
    return None


def _canonical(address: int, program: Program) -> bool:
    if program.mode is not Mode.LONG:
        return 0 <= address < 1 << 32
    width = 57 if program.state.cr4 & bit_mask(CR4, "LA57") else 48
    top = address >> width - 1
    return top in (0, (1 << 65 - width) - 1)


def _wrong_flags(pages: Pages, program: Program) -> str | None:
    for name in pages.flags:
        if name not in FLAGS:
            return str(UnknownNameError("flag of a page-table entry", name, FLAGS))
        if name in ("P", "PS"):
            return f"flag {name} is not given: {'present = false clears P' if name == 'P' else 'size says it'}"
        if pages.flags.count(name) > 1:
            return f"flag {name} is named twice"
    if not 0 <= pages.key <= 15:
        return f"key {pages.key} is not from 0 to 15"
    return "protection keys exist in mode long only" if pages.key and program.mode is not Mode.LONG else None


def _check_tables(program: Program) -> None:
    """Each space has a root and a chain of tables to its window, and a table for each span its pages touch."""
    total = 0
    for space in program.spaces:
        total += 4
        for shift, leaf_sizes in ((21, ("4K",)), (30, ("4K", "2M")), (39, ("4K", "2M", "1G"))):
            spans = {
                span
                for p in space.pages
                if p.size in leaf_sizes
                for span in range(p.va >> shift, ((p.va + SIZES[p.size] * p.count - 1) >> shift) + 1)
            }
            total += len(spans)
    if total > MAX_TABLES:
        _fail("program", f"its spaces need about {total} page tables; {MAX_TABLES} fit: use larger pages or fewer")


def _check_layout(program: Program) -> None:
    layout = program.layout
    if layout is None:
        return
    if program.mode is Mode.FLAT or len(program.vcpus) != 1 or len(program.spaces) != 1:
        _fail("layout", "a fixed layout takes one vCPU, one space and a mode with paging")
    for name, address in (("code", layout.code), ("tables", layout.tables)):
        if not 0 <= address < program.memory:
            _fail("layout", f"{name} {address:#x} lies outside of memory, which ends at {program.memory:#x}")
    if layout.tables % SIZES["4K"]:
        _fail("layout", f"tables {layout.tables:#x} is not a multiple of the page size 4K")
    if not _maps_itself(layout, program):
        _fail("layout", f"no pages map {layout.code:#x}, where the code is, to the same address")
    if layout.bare and program.vcpus[0].handlers:
        _fail("layout", "a bare layout has no descriptor tables, so no handlers")


def _maps_itself(layout: Layout, program: Program) -> bool:
    return any(
        p.va == p.pa and p.va <= layout.code < p.va + SIZES[p.size] * p.count and p.present
        for p in program.spaces[0].pages
    )


def _check_handlers(number: int, program: Program) -> None:
    vectors = set()
    for i, handler in enumerate(program.vcpus[number].handlers):
        where = f"vcpu {number} handler {i}"
        problem = misfit(handler)
        if problem:
            _fail(where, problem)
        if not 0 <= handler.vector <= 31:
            _fail(where, f"vector {handler.vector} is not an exception; they are 0 to 31")
        if handler.vector in vectors:
            _fail(where, f"vector {handler.vector} has a handler already")
        vectors.add(handler.vector)


def _check_types(number: int, vcpu: Vcpu) -> None:
    """Each block before what is in it, so that what is looked into is sound."""
    executed = 0
    for count, place in enumerate(vcpu_places(number, vcpu), 1):
        operation = place.operation
        if type(operation) not in OPERATIONS.values():
            _fail(place.path, f"{printable(type(operation).__name__)} is no operation")
        problem = misfit(operation)
        if problem:
            _fail(place.path, problem)
        if place.depth > MAX_DEPTH:
            _fail(place.path, f"blocks are nested deeper than {MAX_DEPTH}")
        if count > MAX_OPERATIONS:
            _fail(f"vcpu {number}", f"it has more than {MAX_OPERATIONS} operations; repeat blocks make it shorter")
        if isinstance(operation, ops.Repeat) and not 1 <= operation.count <= MAX_EXECUTED:
            _fail(
                place.path, f"count {operation.count} is not from 1 to {MAX_EXECUTED}; -n gives more passes of the body"
            )
        executed += place.times
        if executed > MAX_EXECUTED:
            _fail(place.path, f"repeats make more than {MAX_EXECUTED} operations of one pass; -n gives more passes")


def _check_blocks(found: list[Place], program: Program) -> None:
    for place in found:
        problem = complaint(place, program)
        if problem:
            _fail(place.path, problem)
    kept = [place for place in found if getattr(place.operation, "keep", False)]
    if len(kept) > MAX_VALUES:
        _fail(kept[MAX_VALUES].path, f"a vCPU has room for {MAX_VALUES} kept values")


def _check_pcids(program: Program) -> None:
    pcide = bit_mask(CR4, "PCIDE")
    found = [place for place in places(program) if isinstance(place.operation, ops.SwitchSpace | ops.WriteCr)]
    if program.state.cr4 & pcide or any(_cr4_set_by(place.operation) & pcide for place in found):
        return
    for place in found:
        if isinstance(place.operation, ops.SwitchSpace) and (place.operation.pcid or place.operation.noflush):
            _fail(place.path, "pcid and noflush need CR4.PCIDE, which neither the entry state nor a write-cr sets")


def _cr4_set_by(operation: Operation) -> int:
    if isinstance(operation, ops.WriteCr) and operation.cr == CR4:
        return (operation.value or 0) | bit_mask(CR4, *operation.set, *operation.toggle)
    return 0


def _check_meetings(program: Program) -> None:
    """All vCPUs must meet equally often, or those that come once more wait for ever."""
    counts: dict[str, list[int]] = {"setup": [], "body": [], "end": []}
    for number, vcpu in enumerate(program.vcpus):
        for part, times in counts.items():
            head = f"vcpu {number} {part} "
            of_part = (p for p in vcpu_places(number, vcpu) if p.path.startswith(head))
            times.append(sum(p.times for p in of_part if isinstance(p.operation, ops.Meet)))
    for part, times in counts.items():
        for number, count in enumerate(times):
            if count != times[0]:
                _fail(
                    f"vcpu {number} {part}", f"it meets {count} times, vcpu 0 {times[0]} times; it would wait for ever"
                )
