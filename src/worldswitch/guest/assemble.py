"""From a guest program to an image: memory, entry states, and what each address in it stands for."""

from __future__ import annotations

from collections.abc import Iterator

from worldswitch.guest.check import features
from worldswitch.guest.context import Context, Memory
from worldswitch.guest.emit import Assembler, resolve
from worldswitch.guest.image import AREA_SIZE, Entry, Image, Region, Segment
from worldswitch.guest.layout import BARRIER, OWN_MEMORY, WINDOWS
from worldswitch.guest.operations import Access, Fetch, Operation, SingleStep, User, WriteEntry
from worldswitch.guest.paths import places
from worldswitch.guest.program import SIZES, Layout, Mode, Program, ProgramError, Space
from worldswitch.guest.runtime import Places, page_of, tables_of, write_bare, write_vcpu
from worldswitch.guest.tables import Table, Tables, build, translations
from worldswitch.x86.paging import (
    ACCESSED,
    DIRTY,
    ENTRIES,
    FIVE_LEVEL,
    FOUR_LEVEL,
    PAE,
    PRESENT,
    TABLE_SIZE,
    USER,
    WRITABLE,
    Paging,
)  # fmt: skip
from worldswitch.x86.registers import CR4, bit_mask

PAGE = 4096
RET = b"\xc3"
WHOLE_PAGES = 256
"""Up to so many 4K pages that are fetched from are filled; of more, and of larger pages, only the targets are RETs."""


class Arena:
    """The program's own memory, given out page by page from the second page on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.next = PAGE

    def take(self, size: int) -> int:
        """Guest-physical address of *size* bytes, in whole pages."""
        at = self.next
        self.next += (size + PAGE - 1) // PAGE * PAGE
        return at

    def check(self) -> None:
        """Raises ProgramError if more was given out than there is."""
        if self.next > OWN_MEMORY:
            raise ProgramError(
                f"{self._name} needs {self.next >> 10} KiB for code, page tables and results, and has "
                f"{OWN_MEMORY >> 10} KiB: map fewer or larger pages, or write repeats instead of long lists"
            )


def assemble(program: Program) -> Image:
    """The image of *program*.

    Raises:
        ProgramError: It is too large for its own memory, or asks for something a layout or mode has not.
    """
    if program.layout is not None:
        return _assemble_bare(program, program.layout)
    arena, base = Arena(program.name), WINDOWS[program.mode]
    barrier = base + arena.take(PAGE)
    assert barrier == base + BARRIER
    memories = [_memory(program, number, arena, base, barrier) for number in range(len(program.vcpus))]
    window, tables = _tables(program, arena)
    contexts, starts = [], []
    bits = 64 if program.mode is Mode.LONG else 32
    for number, vcpu in enumerate(program.vcpus):
        context = Context(program, number, Assembler(bits), memories[number], tables, base)
        starts.append(write_vcpu(context, vcpu))
        contexts.append(context)
    sections = [section for context in contexts for section in (context.code, context.user) if len(section)]
    for section in sections:
        section.base = base + arena.take(len(section))
    arena.check()
    segments = [Segment(section.base - base, resolve(section)) for section in sections]
    segments += [Segment(c.memory.page - base, page_of(c, at)) for c, at in zip(contexts, starts, strict=True)]
    if window is not None:
        _fill_window(window, contexts, base, program.memory)
    if len(program.vcpus) > 1:
        # Written by the VMM, for a page that a guest reads first and then writes is given to it twice by the host.
        segments.append(Segment(BARRIER, bytes(PAGE)))
    segments += _table_segments(tables, window)
    entries = tuple(_entry(c, at, tables) for c, at in zip(contexts, starts, strict=True))
    return _image(program, contexts, entries, [*segments, *_returns(program)])


def _assemble_bare(program: Program, layout: Layout) -> Image:
    if not layout.bare:
        raise ProgramError(
            f"{program.name}: a layout with bare = false is not supported; leave out the layout, or say bare = true"
        )
    if program.mode is not Mode.LONG:
        raise ProgramError(f"{program.name}: a bare layout needs mode long, not {program.mode}")
    tables = build(program.spaces[0], _paging(program), PRESENT | WRITABLE)
    tables.place(layout.tables)
    c = Context(program, 0, Assembler(64), Memory(0, 0, 0, 0, 0), {program.spaces[0].name: tables}, 0)
    at = write_bare(c, program.vcpus[0])
    c.code.base = layout.code
    code = Segment(layout.code, resolve(c.code))
    below, above = layout.tables, layout.tables + TABLE_SIZE * len(tables.own_tables)
    if code.gpa < above and below < code.gpa + len(code.data):
        raise ProgramError(
            f"{program.name}: its code, {code.gpa:#x} to {code.gpa + len(code.data) - 1:#x}, overlaps its page tables, "
            f"{below:#x} to {above - 1:#x}; move layout.code or layout.tables"
        )
    if max(above, code.gpa + len(code.data)) > program.memory:
        raise ProgramError(f"{program.name}: code or page tables reach beyond its {program.memory:#x} bytes of memory")
    return _image(program, [c], (_entry(c, at, c.tables),), [code, *_table_segments(c.tables, None)])


def _memory(program: Program, number: int, arena: Arena, base: int, barrier: int) -> Memory:
    page = base + arena.take(PAGE)
    stack = base + arena.take(PAGE) + PAGE
    goes_to_cpl3 = any(
        _at_cpl3(place.operation) for place in places(program) if place.path.startswith(f"vcpu {number} ")
    )
    user_stack = base + arena.take(PAGE) + PAGE if goes_to_cpl3 else 0
    return Memory(page, stack, user_stack, base + arena.take(AREA_SIZE), barrier)


def _at_cpl3(operation: Operation) -> bool:
    return isinstance(operation, User) or (isinstance(operation, Access | SingleStep) and operation.user)


def _paging(program: Program) -> Paging:
    if program.mode is Mode.PAE:
        return PAE
    return FIVE_LEVEL if program.state.cr4 & bit_mask(CR4, "LA57") else FOUR_LEVEL


def _tables(program: Program, arena: Arena) -> tuple[Table | None, dict[str, Tables]]:
    """The page table that maps the window, part of every space, and the tables of the spaces, all placed."""
    if program.mode is Mode.FLAT:
        return None, {}
    window = Table(1)
    window.gpa = arena.take(TABLE_SIZE)
    found = {}
    for space in program.spaces:
        tables = build(space, _paging(program), PRESENT | WRITABLE | USER)
        tables.graft(WINDOWS[program.mode], window)
        tables.place(arena.take(tables.size()))
        found[space.name] = tables
    return window, found


def _fill_window(window: Table, contexts: list[Context], base: int, memory: int) -> None:
    """Own memory for CPL 0, but for code and stack of CPL 3. A and D are set: the processor need not set them later."""
    flags = PRESENT | WRITABLE | ACCESSED | DIRTY
    window.fill(0, flags, PAGE, min(ENTRIES, memory // PAGE))
    for c in contexts:
        if c.memory.user_stack_top:
            first, last = c.user.base - base, c.user.base - base + len(c.user) - 1
            for page in (*range(first // PAGE, last // PAGE + 1), (c.memory.user_stack_top - base) // PAGE - 1):
                window.entries[page] |= USER


def _table_segments(tables: dict[str, Tables], window: Table | None) -> list[Segment]:
    found = [table for space in tables.values() for table in space.own_tables]
    if window is not None:
        found.append(window)
    segments = []
    for table in found:
        assert table.gpa is not None
        segments.append(Segment(table.gpa, table.entries.tobytes()))
    return segments


def _entry(c: Context, at: Places, tables: dict[str, Tables]) -> Entry:
    program, state = c.program, c.program.state
    root = tables[program.spaces[0].name].root.gpa if tables else 0
    assert root is not None
    own = {} if c.bare else {"area": c.memory.area - c.window, **tables_of(c)}
    return Entry(
        rip=at.start.address,
        rsp=c.memory.stack_top,
        cr0=state.cr0,
        cr3=root,
        cr4=state.cr4,
        efer=state.efer,
        long=c.long,
        end=at.end.address,
        keeps=tuple(c.keeps),
        **own,  # type: ignore[arg-type]
    )


def _image(program: Program, contexts: list[Context], entries: tuple[Entry, ...], segments: list[Segment]) -> Image:
    high = program.memory - OWN_MEMORY
    regions = (Region(0, OWN_MEMORY), Region(OWN_MEMORY, high, huge=True)) if program.huge and high else None
    listing = [(section.base + start, end - start, path) for c in contexts for section, start, end, path in c.listing]
    return Image(
        name=program.name,
        summary=program.summary,
        unit=program.unit,
        mode=program.mode.value,
        regions=regions or (Region(0, program.memory),),
        segments=tuple(segments),
        entries=entries,
        features=tuple(sorted(features(program))),
        vmcalls=tuple(label.address - c.window for c in contexts for label in c.vmcalls),
        operations={label.address: path for c in contexts for label, path in c.operations},
        default_n=program.default_n,
        expect=program.expect,
        listing=tuple(sorted(listing)),
    )


def _returns(program: Program) -> list[Segment]:
    """RET wherever a fetch of the program can land, whether or not the page is mapped from the beginning."""
    targets = {target for target in _targets(program) if target[0] < program.memory}
    pages = {gpa // PAGE for gpa, size in targets if size == "4K"}
    if len(pages) <= WHOLE_PAGES:
        whole = [Segment(page * PAGE, RET * PAGE) for page in sorted(pages)]
        return whole + [Segment(gpa, RET) for gpa, size in sorted(targets) if gpa // PAGE not in pages]
    return [Segment(gpa, RET) for gpa, _ in sorted(targets)]


def _targets(program: Program) -> Iterator[tuple[int, str]]:
    """Guest-physical address and page size of each fetch, in every space that knows the address."""
    operations = [place.operation for place in places(program)]
    moved = [operation for operation in operations if isinstance(operation, WriteEntry) and operation.pa is not None]
    for fetch in operations:
        if not isinstance(fetch, Fetch):
            continue
        for i in range(fetch.span):
            va = fetch.va + i * fetch.stride
            if program.mode is Mode.FLAT:
                yield va, "4K"
            for space in program.spaces:
                for gpa, size in translations(space, va):
                    yield gpa, size
                    yield from ((new, size) for new in _moved(moved, space, va, size))


def _moved(writes: list[WriteEntry], space: Space, va: int, size: str) -> Iterator[int]:
    """Where *va* lies once one of *writes* has given its page another address."""
    reach = SIZES[size]
    for write in writes:
        same_page = write.space == space.name and write.va // reach == va // reach
        if same_page and write.pa is not None and SIZES[size] == 1 << (12 + 9 * (write.level - 1)):
            yield write.pa + va % reach
