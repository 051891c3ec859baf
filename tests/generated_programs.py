"""Hypothesis strategies for whole guest programs: every operation, and only what a guest could run."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from worldswitch.guest import operations as ops
from worldswitch.guest.program import Handler, Mode, Pages, Program, Space, State, Vcpu
from worldswitch.x86.features import FEATURES
from worldswitch.x86.registers import REGISTERS

VA, PA = 0x400000, 0x200000
WORD = st.integers(0, 2**64 - 1)
HALF = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
KEEP = st.booleans()
_AT_CPL0 = st.just(False)
_SPACES = ("main", "other")


def _disjoint(names: list[str], change: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """Each name goes to one of set, clear and toggle."""
    found: dict[str, list[str]] = {"set": [], "clear": [], "toggle": []}
    for name, where in zip(names, change, strict=False):
        found[("set", "clear", "toggle")[where]].append(name)
    return {key: tuple(value) for key, value in found.items()}


def _changes(names: list[str]) -> st.SearchStrategy[dict[str, tuple[str, ...]]]:
    chosen = st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)
    return st.builds(_disjoint, chosen, st.tuples(*[st.integers(0, 2)] * 4))


@cache
def _write_cr() -> st.SearchStrategy[ops.WriteCr]:
    by_bits = [_changes(sorted(REGISTERS[cr])).map(lambda change, cr=cr: ops.WriteCr(cr, **change)) for cr in (0, 4)]
    return st.one_of(st.builds(ops.WriteCr, st.sampled_from((0, 4, 8)), value=WORD), *by_bits)


@cache
def _walk() -> st.SearchStrategy[dict[str, int]]:
    still = st.just({"stride": 0, "span": 1})
    moving = st.builds(
        lambda stride, span: {"stride": stride, "span": 1 << span}, st.integers(1, 1 << 21), st.integers(1, 20)
    )
    return st.one_of(still, moving)


@cache
def _accesses(user: st.SearchStrategy[bool]) -> st.SearchStrategy[ops.Operation]:
    va = st.integers(0, 1 << 46)
    size = st.sampled_from((1, 2, 4, 8))
    load = st.builds(lambda va, walk, user, size, keep: ops.Load(va, **walk, user=user, size=size, keep=keep), va,
                     _walk(), user, size, KEEP)  # fmt: skip
    store = st.builds(lambda va, walk, user, size, value: ops.Store(va, **walk, user=user, size=size,
                      value=value & (1 << 8 * size) - 1), va, _walk(), user, size, WORD)  # fmt: skip
    fetch = st.builds(lambda va, walk, user: ops.Fetch(va, **walk, user=user), va, _walk(), user)
    return st.one_of(load, store, fetch)


@cache
def _entries() -> st.SearchStrategy[ops.Operation]:
    space, va, level = st.sampled_from(_SPACES), st.integers(VA, VA + 0x3FFF), st.integers(1, 4)
    write = st.builds(
        lambda space, va, level, change, pa, key: ops.WriteEntry(space, va, level, **change, pa=pa, key=key),
        space, va, level, _changes(sorted(ops.FLAGS)), st.none() | st.integers(0, 2**40 - 1).map(lambda n: n << 12),
        st.none() | st.integers(0, 15),
    )  # fmt: skip
    return st.one_of(write, st.builds(ops.ReadEntry, space, va, level, KEEP))


@cache
def _user_operations() -> st.SearchStrategy[ops.Operation]:
    return st.one_of(
        st.builds(ops.Nop, st.integers(1, 4096)),
        st.builds(ops.Cpuid, HALF, HALF, KEEP),
        st.builds(ops.ReadPkru, KEEP),
        st.builds(ops.WritePkru, HALF),
        _accesses(_AT_CPL0),
    )


@cache
def _plain_operations() -> st.SearchStrategy[ops.Operation]:
    """What runs at CPL 0, also in a handler."""
    dr, port, size = st.sampled_from((0, 1, 2, 3, 6, 7)), st.integers(0, 0xFFFF), st.sampled_from((1, 2, 4))
    return st.one_of(
        _user_operations(),
        _write_cr(),
        _entries(),
        st.builds(ops.ReadCr, st.sampled_from((0, 2, 3, 4, 8)), KEEP),
        st.builds(ops.SwitchSpace, st.sampled_from(_SPACES), st.integers(0, 4095), st.booleans()),
        st.builds(ops.Lmsw, st.integers(0, 0xFFFF)),
        st.builds(ops.ReadMsr, HALF, KEEP),
        st.builds(ops.WriteMsr, HALF, WORD),
        st.builds(ops.Invlpg, WORD),
        st.builds(ops.Invpcid, st.integers(0, 3), st.integers(0, 4095), WORD),
        st.builds(ops.Vmcall, WORD, st.lists(WORD, max_size=4).map(tuple), KEEP),
        st.builds(ops.In, port, size, KEEP),
        st.builds(lambda port, size, value: ops.Out(port, value & (1 << 8 * size) - 1, size), port, size, HALF),
        st.builds(ops.ReadDr, dr, KEEP),
        st.builds(ops.WriteDr, dr, WORD),
        *(st.just(operation) for operation in (ops.Clts(), ops.Stac(), ops.Clac(), ops.Hlt())),
    )


@cache
def _operations() -> st.SearchStrategy[ops.Operation]:
    leaves = st.one_of(
        _plain_operations(),
        _accesses(KEEP),
        st.builds(ops.SingleStep, st.booleans()),
        st.builds(ops.User, st.lists(_user_operations(), max_size=3).map(tuple)),
    )
    return st.recursive(
        leaves,
        lambda inner: st.builds(ops.Repeat, st.integers(1, 8), st.lists(inner, min_size=1, max_size=3).map(tuple)),
        max_leaves=4,
    )


@cache
def _blocks(most: int = 6) -> st.SearchStrategy[tuple[ops.Operation, ...]]:
    return st.lists(_operations(), max_size=most).map(tuple)


@cache
def _vcpus() -> st.SearchStrategy[Vcpu]:
    fixes = st.lists(_plain_operations(), max_size=2).map(tuple)
    handlers = st.lists(
        st.builds(Handler, st.integers(0, 31), st.booleans(), fixes), max_size=2, unique_by=lambda h: h.vector
    )
    return st.builds(Vcpu, _blocks(), _blocks(2), _blocks(2), handlers.map(tuple))


@cache
def _pages() -> st.SearchStrategy[tuple[Pages, ...]]:
    flags = st.lists(st.sampled_from(sorted(ops.FLAGS.keys() - {"P", "PS"})), unique=True).map(tuple)
    small = st.builds(Pages, st.just(VA), st.just(PA), st.just("4K"), st.integers(4, 64), flags, st.integers(0, 15),
                      st.booleans())  # fmt: skip
    large = st.lists(
        st.builds(Pages, st.integers(8, 64).map(lambda n: n << 21), st.just(PA), st.just("2M"), st.just(1), flags),
        max_size=3,
        unique_by=lambda pages: pages.va,
    )
    return st.builds(lambda first, more: (first, *more), small, large)


def _program(**parts: Any) -> Program:
    meets = (ops.Meet(),) * parts.pop("meets")
    pages, vcpus = parts.pop("pages"), parts.pop("vcpus")
    return Program(
        vcpus=tuple(Vcpu(v.body + meets, v.setup, v.end, v.handlers) for v in vcpus),
        spaces=tuple(Space(name, each) for name, each in zip(_SPACES, pages, strict=True)),
        mode=Mode.LONG,
        state=State(cr4=0x20 | 1 << 17 | parts.pop("cr4")),
        **parts,
    )


def programs() -> st.SearchStrategy[Program]:
    """Programs in 64-bit mode with PCIDs."""
    return st.builds(
        _program,
        name=TEXT.filter(bool),
        summary=TEXT,
        unit=TEXT.filter(bool),
        vcpus=st.lists(_vcpus(), min_size=1, max_size=2),
        meets=st.integers(0, 2),
        pages=st.tuples(_pages(), _pages()),
        cr4=st.sampled_from((0, 0x80, 0x300000)),
        memory=st.sampled_from((4 << 20, 64 << 20)),
        huge=st.booleans(),
        features=st.frozensets(st.sampled_from(sorted(FEATURES)), max_size=3),
        default_n=st.integers(0, 10**9),
        expect=TEXT,
        source=TEXT,
    )
