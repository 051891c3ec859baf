# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""A program's operations with all that executing them needs: operands in place, and where their code lies.

Which pages that is, is taken from the program's image; where roots and entries of page tables lie, from laying them out
again as the assembler does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.guest import operations as ops
from worldswitch.guest.image import Image
from worldswitch.guest.layout import WINDOWS
from worldswitch.guest.program import Handler, Mode, Program
from worldswitch.guest.tables import Table, Tables, build, flag_mask
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import (
    ADDRESS,
    FIVE_LEVEL,
    FOUR_LEVEL,
    KEY,
    KEY_SHIFT,
    PAE,
    PRESENT,
    TABLE_SIZE,
    USER,
    WRITABLE,
)
from worldswitch.x86.registers import CR4, bit_mask

if TYPE_CHECKING:
    from worldswitch.kvm.effects import Effect

PAGE = 4096
_LA57 = bit_mask(CR4, "LA57")

LOAD, STORE, FETCH, WRITE_CR, REGISTERS, OTHER, USER_TRIP, REPEAT = range(8)
"""How an operation is executed: accesses and writes of control registers in place, others by a method; REGISTERS are
those that reach nothing but registers, WRITE_CR among them."""

_KINDS: dict[type[ops.Operation], int] = {
    ops.Load: LOAD, ops.Store: STORE, ops.Fetch: FETCH, ops.WriteCr: WRITE_CR, ops.User: USER_TRIP, ops.Repeat: REPEAT,
    **dict.fromkeys(
        (
            ops.ReadCr, ops.Clts, ops.Lmsw, ops.ReadMsr, ops.WriteMsr, ops.Cpuid, ops.Vmcall, ops.In, ops.Out, ops.Hlt,
            ops.ReadDr, ops.WriteDr, ops.Stac, ops.Clac, ops.WritePkru, ops.ReadPkru, ops.Nop,
        ),
        REGISTERS,
    ),
}  # fmt: skip


class Step:
    """An operation where it stands.

    Attributes:
        kind: How it is executed.
        do: The method of the guest that executes it.
        code: Addresses on each page of its code for CPL 0; *user_code*: those for CPL 3.
        body: What is in a block.
        user: Runs at CPL 3, by itself.
        rip: The first address of its code.
        last: Span - 1 of an access.
        clear, set, toggle: Bits that a write to a register or an entry changes, for want of a value.
        effects: What it was seen to do, if that was to registers alone; *tries*: how often it was looked.
        fetched: The generation of translations in which its code needs no look.
    """

    __slots__ = (
        "body", "clear", "code", "cr", "do", "effects", "fetched", "has_value", "keep", "kind", "last", "operation",
        "path", "rip", "set", "size", "stride", "toggle", "tries", "user", "user_code", "va", "value",
    )  # fmt: skip

    def __init__(
        self,
        operation: ops.Operation,
        path: str,
        code: tuple[int, ...],
        user_code: tuple[int, ...],
        body: tuple[Step, ...],
        rip: int,
        do: Callable[[Any, Step, bool], None] | None,
    ) -> None:
        one: Any = operation
        self.operation, self.path, self.code, self.user_code, self.body, self.do = (
            operation, path, code, user_code, body, do
        )  # fmt: skip
        self.kind = _KINDS.get(type(operation), OTHER)
        self.rip = code[0] if code else rip
        self.user = bool(getattr(one, "user", False))
        self.keep = bool(getattr(one, "keep", False))
        self.va, self.stride = getattr(one, "va", 0), getattr(one, "stride", 0)
        self.last, self.size = getattr(one, "span", 1) - 1, getattr(one, "size", 8)
        value = getattr(one, "value", None)
        self.has_value, self.value = value is not None, value or 0
        self.cr = getattr(one, "cr", 0)
        self.clear, self.set, self.toggle = _masks(operation)
        self.effects: list[Effect] = []
        self.tries = self.fetched = 0

    def address(self, index: int) -> int:
        """Where the access goes in pass *index*."""
        return self.va + (index & self.last) * self.stride


_STUB = 5
"""Bytes of a stub before its jump ends, at least: two pushes of a byte, and the jump's first."""
Methods = Mapping[type[ops.Operation], Callable[[Any, Step, bool], None]]


class Pieces:
    """Makes steps of operations.

    Args:
        rip: Where an operation without code of its own is taken to be.
        methods: What executes each type.
    """

    def __init__(self, image: Image, window: int, rip: int, methods: Methods) -> None:
        self._image, self._window, self._rip, self._methods = image, window, rip, methods
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for at, length, path in image.listing:
            self._spans.setdefault(path, []).append((at, length))

    def steps(self, operations: Sequence[ops.Operation], path: str, joint: str = " ") -> tuple[Step, ...]:
        """The operations of a block."""
        return tuple([self._step(operation, f"{path}{joint}{i}") for i, operation in enumerate(operations)])

    def _step(self, operation: ops.Operation, path: str, in_user: bool = False) -> Step:
        spans = [_pages(at, length) for at, length in self._spans.get(path, [])]
        code, user_code = ((), spans[-1] if spans else ()) if in_user else (spans[0] if spans else (), ())
        if len(spans) > 1:
            user_code = spans[1]
        body: tuple[Step, ...] = ()
        if isinstance(operation, ops.Repeat):
            body = self.steps(operation.body, path, ".")
        elif isinstance(operation, ops.User):
            body = tuple([self._step(inner, f"{path}.{i}", True) for i, inner in enumerate(operation.body)])
        return Step(operation, path, code, user_code, body, self._rip, self._methods.get(type(operation)))

    def code(self, path: str) -> tuple[int, ...]:
        """An address on each page of a piece of the listing."""
        ((at, length),) = self._spans[path]
        return _pages(at, length)

    def operands(self) -> dict[str, int]:
        """Path of each operation that has an operand in memory -> its address."""
        end = " operand"
        return {path[: -len(end)]: pieces[0][0] for path, pieces in self._spans.items() if path.endswith(end)}

    def stubs(self, idt: int, memory: Memory, vectors: int = 32) -> tuple[tuple[int, ...], ...]:
        """For each vector the pages of the code that its gate leads to, up to the first jump."""
        found = []
        long = self._image.mode == "long"
        lengths = {at: length for at, length, _ in self._image.listing}
        for vector in range(vectors):
            gate = idt - self._window + (16 if long else 8) * vector
            low, high = memory.word(gate), memory.word(gate + 8) if long else 0
            stub = low & 0xFFFF | low >> 48 << 16 | (high & 0xFFFF_FFFF) << 32
            found.append(_pages(stub, lengths.get(stub, _STUB)))
        return tuple(found)


class Handling(NamedTuple):
    """What is done about a vector: the fix, and the pages of the code before and after it."""

    handler: Handler
    fix: tuple[Any, ...]
    code: tuple[int, ...]
    after: tuple[int, ...]


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


class Entries:
    """Where the roots and entries of a program's page tables lie."""

    def __init__(self, program: Program, image: Image) -> None:
        self._program, self._first = program, image.entries[0].cr3
        self._built: dict[str, Tables] | None = None
        self._found: dict[tuple[str, int, int], int] = {}

    def root(self, space: str) -> int:
        """Guest-physical address of the root of a space."""
        gpa = self._tables()[space].root.gpa
        assert gpa is not None
        return gpa

    def entry(self, space: str, va: int, level: int) -> int:
        """Guest-physical address of an entry."""
        key = (space, va, level)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._tables()[space].entry(va, level)
        return found

    def _tables(self) -> dict[str, Tables]:
        if self._built is None:
            program, at, found = self._program, self._first, {}
            paging = FIVE_LEVEL if program.state.cr4 & _LA57 else FOUR_LEVEL
            if program.mode is Mode.PAE:
                paging = PAE
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
