"""Guest programs as frozen values: address spaces, operations, fault handlers, vCPUs.

A program says what a guest does and nothing of how it is run: the assembler makes an image of it for a real
VMM, a model can execute it as it stands. Programs compare, hash, print themselves as TOML and come back equal from it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from worldswitch.errors import UsageError
from worldswitch.guest.operations import Bits, Operation


class ProgramError(UsageError):
    """A program that no guest could run: what is wrong, where in it, and what would do."""


class Mode(enum.StrEnum):
    """The processor mode a program runs in."""

    LONG = "long"
    """64-bit, 4-level paging (5-level where CR4.LA57 is in the entry state)."""
    PAE = "pae"
    """32-bit protected mode with PAE paging."""
    FLAT = "flat"
    """32-bit protected mode without paging."""


SIZES = {"4K": 1 << 12, "2M": 1 << 21, "1G": 1 << 30}
"""Page sizes by name, in bytes."""


@dataclass(frozen=True, slots=True)
class Pages:
    """*count* pages of one size, from *va* on, mapped to guest-physical memory from *pa* on.

    Attributes:
        flags: Names in ``operations.FLAGS``; P is understood unless *present* is false. Intermediate entries are P, W
            and U, so the leaf decides, until a program writes an intermediate entry.
        key: Protection key, 0 to 15.
        present: False leaves P clear (the rest of the entry is as it would be).
    """

    va: int
    pa: int
    size: str = "4K"
    count: int = 1
    flags: Bits = ("W",)
    key: int = 0
    present: bool = True


@dataclass(frozen=True, slots=True)
class Space:
    """An address space: a root and what it maps besides the program's own code, stack and results.

    Those lie where ``layout`` says and are in every space, mapped for CPL 0 only (but for the code that runs at CPL 3).
    """

    name: str
    pages: tuple[Pages, ...] = ()


@dataclass(frozen=True, slots=True)
class Handler:
    """What is done about one exception *vector*: *fix* runs at CPL 0, then the operation is tried again or skipped.

    Attributes:
        retry: Try the operation once more after the fix; if it faults again it is skipped.
    """

    vector: int
    retry: bool = False
    fix: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Vcpu:
    """What one vCPU does: *setup* once, *body* n times (one pass is one unit of n), *end* once.

    A vector without a handler is recorded and the operation skipped.
    """

    body: tuple[Operation, ...] = ()
    setup: tuple[Operation, ...] = ()
    end: tuple[Operation, ...] = ()
    handlers: tuple[Handler, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Control registers on entry. What *mode* needs (PE, PG, PAE, LME and LMA) must be in them."""

    cr0: int = 0x80050033
    cr4: int = 0x20
    efer: int = 0xD00


@dataclass(frozen=True, slots=True)
class Layout:
    """A memory layout fixed by the program, for one that was recorded elsewhere. Addresses are guest-physical.

    Attributes:
        code: Where the first instruction lies, at the same virtual address.
        tables: Where the root lies; the other tables follow it page by page, from the root down.
        bare: No descriptor tables, no handlers, no results, no stack: just the code. A fault ends such a guest.
    """

    code: int
    tables: int
    bare: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """A guest program.

    Attributes:
        name: What the command line calls it.
        summary: One sentence: what it does.
        unit: What one pass of the body is: ``"pair"``, ``"write"``, ``"page"``.
        vcpus: At least one.
        spaces: The first is the one that is entered. Paging modes need at least one.
        memory: Bytes of guest-physical memory, from 0.
        huge: Back the memory above 2 MiB by huge pages of the host, as far as it has them.
        features: CPUID features without which the program makes no sense, beyond those its operations need
            (:func:`worldswitch.guest.check.features`).
        expect, source: What to expect of it, and where it comes from.

    Raises:
        ProgramError: The parts do not fit; see :mod:`worldswitch.guest.check`.
    """

    name: str
    summary: str
    unit: str
    vcpus: tuple[Vcpu, ...]
    spaces: tuple[Space, ...] = (Space("main"),)
    mode: Mode = Mode.LONG
    state: State = field(default_factory=State)
    memory: int = 4 << 20
    huge: bool = False
    layout: Layout | None = None
    features: frozenset[str] = frozenset()
    default_n: int = 500
    expect: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        from worldswitch.guest.check import check

        check(self)

    def __str__(self) -> str:
        from worldswitch.guest.toml import dumps

        return dumps(self)
