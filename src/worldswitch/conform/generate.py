"""Random guest programs: the same for the same seed, number and features, whatever the machine.

The bounds are those of :mod:`worldswitch.conform.bounds`.
"""

from __future__ import annotations

from random import Random

from worldswitch.conform import bounds
from worldswitch.conform.motifs import PAGE, Ops, Scene, pick
from worldswitch.guest import operations as ops
from worldswitch.guest.image import AREA_SIZE
from worldswitch.guest.layout import WINDOWS
from worldswitch.guest.program import Handler, Mode, Pages, Program, Space, State, Vcpu
from worldswitch.guest.tables import Table, build
from worldswitch.x86.paging import FOUR_LEVEL, PRESENT, TABLE_SIZE, USER, WRITABLE
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask

USED = frozenset(("smep", "smap", "pku", "fsgsbase", "pcid", "umip", "shstk", "invpcid"))
"""CPUID features that programs use where there are."""
_NAMES = ("main", "other", "third")
_SMALL = tuple(base + PAGE * i for base, count in bounds.SLOTS.values() for i in range(count))
_FLAGS = {"W": 0.7, "U": 0.5, "NX": 0.2, "A": 0.3, "D": 0.3}
"""Flag of a page -> how many of all pages have it at first."""
_HIGH = bounds.SLOTS["high"][0]
_BEFORE_TABLES = 4 * PAGE + AREA_SIZE
"""What lies in own memory before the window's page table, from the second page on: barrier, vCPU page, both stacks,
results (:mod:`worldswitch.guest.assemble`)."""


def program(seed: int, index: int, features: frozenset[str]) -> Program:
    """Program number *index* of *seed*, for guests that have *features* (others than :data:`USED` do not matter)."""
    there = features & USED
    random = Random(f"worldswitch conform {seed} {index}")
    reserved = random.random() < bounds.RESERVED
    nx = reserved or random.random() < 0.75
    spaces = _spaces(random, "pku" in there, nx)
    state = _state(random, there, reserved or not nx)
    pcid = "pcid" in there and random.random() < 0.5
    scene = Scene(
        random=random,
        features=there,
        state=state,
        spaces=[space.name for space in spaces],
        slots=_SMALL,
        large=[p.va for p in spaces[0].pages if p.size == "2M"],
        tables=_tables(spaces),
        pcid=pcid,
        globals_=len(spaces) == 1 and random.random() < 0.4,
        user=random.choice((0.0, 0.2, 0.5)),
        nx=nx,
        reserved=reserved,
    )
    body = [one for _ in range(random.randint(*bounds.GROUPS)) for one in pick(scene)]
    if pcid:
        body.insert(random.randrange(len(body) + 1), ops.WriteCr(CR4, set=("PCIDE",)))
    return Program(
        name=f"random-{seed}-{index}",
        summary="Made by chance.",
        unit="pass",
        vcpus=(Vcpu(tuple(body), _setup(), _end(scene, spaces), _handlers(scene)),),
        spaces=spaces,
        state=state,
        memory=bounds.MEMORY,
        default_n=random.choice((1, 2, 3, 5, random.randint(*bounds.PASSES))),
        source=f"wsw conform --seed {seed} --only {index}",
    )


def _state(random: Random, features: frozenset[str], nxe_off: bool) -> State:
    cr0 = bit_mask(CR0, "PE", "MP", "ET", "NE", "AM", "PG")
    cr0 |= bit_mask(CR0, "WP") if random.random() < 0.75 else 0
    cr4 = bit_mask(CR4, "PAE")
    for name, share in (("PGE", 0.5), ("SMEP", 0.35), ("SMAP", 0.35), ("PKE", 0.4), ("OSFXSR", 0.5)):
        if bounds.NEEDS.get(name, "") in ("", *features) and random.random() < share:
            cr4 |= bit_mask(CR4, name)
    efer = bit_mask(EFER, "LME", "LMA") | (0 if nxe_off and random.random() < 0.5 else bit_mask(EFER, "NXE"))
    return State(cr0, cr4, efer)


def _spaces(random: Random, keys: bool, nx: bool) -> tuple[Space, ...]:
    count = random.choice((1, 1, 2, 2, bounds.SPACES))
    large = random.choice((0, 0, 1, bounds.LARGE[1]))
    first = [_page(random, va, count == 1, keys, nx) for va in _SMALL]
    first += [_large(random, i, nx) for i in range(large)]
    spaces = [Space(_NAMES[0], (*first, *_alias()))]
    for name in _NAMES[1:count]:
        pages = [
            one if random.random() < 0.6 else _page(random, one.va, False, keys, nx)
            for one in first
            if one.size == "4K"
        ]
        spaces.append(Space(name, (*pages, *(one for one in first if one.size == "2M"))))
    return tuple(spaces)


def _page(random: Random, va: int, globals_: bool, keys: bool, nx: bool) -> Pages:
    flags = _flags(random, nx)
    if globals_ and random.random() < 0.2:
        flags.append("G")
    if va >= _HIGH and "U" in flags and random.random() < 0.5:
        flags.remove("U")
    frame = bounds.FRAME_BASE + PAGE * random.randrange(bounds.FRAMES)
    key = random.randrange(4) if keys and random.random() < 0.3 else 0
    return Pages(va, frame, flags=tuple(flags), key=key, present=random.random() < 0.85)


def _large(random: Random, number: int, nx: bool) -> Pages:
    flags = _flags(random, nx)
    frame = random.choice(bounds.LARGE_FRAMES)
    return Pages(bounds.LARGE[0] + (number << 21), frame, "2M", flags=tuple(flags), present=random.random() < 0.9)


def _flags(random: Random, nx: bool) -> list[str]:
    return [name for name, share in _FLAGS.items() if random.random() < share and (nx or name != "NX")]


def _alias() -> tuple[Pages, ...]:
    starts = (bounds.FRAME_BASE, *bounds.LARGE_FRAMES)
    return tuple(
        Pages(bounds.ALIAS + i * PAGE * bounds.FRAMES, frame, count=bounds.FRAMES, flags=("W",))
        for i, frame in enumerate(starts)
    )


def _setup() -> tuple[ops.Operation, ...]:
    """Once to CPL 3, so that its stack is there in every program; and fetches that have all frames filled with RETs."""
    fetches = (ops.Fetch(pages.va + bounds.CODE_START, stride=PAGE, span=bounds.USED_OF_LARGE) for pages in _alias())
    return (ops.User((ops.Nop(),)), *fetches)


def _end(scene: Scene, spaces: tuple[Space, ...]) -> tuple[ops.Operation, ...]:
    """The registers as they were at first, then all memory a program reaches, and all entries of its pages."""
    state, first = scene.state, spaces[0]
    restore: Ops = [ops.ReadCr(0, keep=True), ops.ReadCr(4, keep=True), ops.ReadCr(3, keep=True)]
    restore += [ops.WriteMsr(EFER, state.efer), ops.SwitchSpace(first.name)]
    restore += [ops.WriteCr(CR0, value=state.cr0), ops.WriteCr(CR4, value=state.cr4)] * 2
    restore += [ops.SwitchSpace(first.name)]
    for pages in _alias():
        small = pages.pa == bounds.FRAME_BASE
        for i in range(pages.count if small else 4):
            restore += [ops.Load(pages.va + PAGE * i + at, keep=True) for at in ((0, 16) if small else (0,))]
    for space in spaces:
        mapped = [p for p in space.pages if p.va not in range(bounds.ALIAS, bounds.ALIAS + (1 << 30))]
        restore += [ops.ReadEntry(space.name, p.va, 2 if p.size == "2M" else 1) for p in mapped]
        restore += [ops.ReadEntry(space.name, base, 2) for base, _ in bounds.SLOTS.values()]
    return tuple(restore)


def _handlers(scene: Scene) -> tuple[Handler, ...]:
    found = []
    scene.in_fix = True
    for vector, share in zip(bounds.HANDLED, (0.6, 0.2, 0.1, 0.1), strict=True):
        if scene.chance(share):
            fix = [one for _ in range(scene.random.randint(0, 3)) for one in pick(scene)]
            found.append(Handler(vector, scene.chance(0.6), tuple(fix)))
    scene.in_fix = False
    return tuple(found)


def _tables(spaces: tuple[Space, ...]) -> dict[tuple[str, int], int]:
    """Where the page tables of the slots will lie: laid out as the assembler does."""
    window = Table(1)
    window.gpa = PAGE + _BEFORE_TABLES
    at, found = window.gpa + TABLE_SIZE, {}
    for space in spaces:
        tables = build(space, FOUR_LEVEL, PRESENT | WRITABLE | USER)
        tables.graft(WINDOWS[Mode.LONG], window)
        size = tables.size()
        tables.place(at)
        at += size
        for va in _SMALL:
            found[space.name, va] = tables.entry(va, 1) & -PAGE
    return found
