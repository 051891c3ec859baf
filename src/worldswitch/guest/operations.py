"""The operations of a guest program: frozen values with two meanings, one for a model and one for the assembler.

Each class is one operation; ``OPERATIONS`` maps the word that names it in TOML (``"write-cr"``) to the class.
Addresses are virtual unless a field says otherwise. An operation that faults is skipped, or fixed and tried once
more, as the vCPU's handlers say, and the fault is recorded either way.

Sources: Intel SDM volume 2 (instructions) and volume 3, chapters 2 and 4; AMD APM volume 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

Bits = tuple[str, ...]
"""Names of bits of one register, or of flags of a page-table entry (``FLAGS``), as the manuals have them."""

FLAGS = MappingProxyType(
    {"P": 1, "W": 1 << 1, "U": 1 << 2, "PWT": 1 << 3, "PCD": 1 << 4, "A": 1 << 5, "D": 1 << 6, "PS": 1 << 7}
    | {"G": 1 << 8, "NX": 1 << 63}
)
"""Flags of a page-table entry: SDM volume 3, section 4.5, "4-Level Paging and 5-Level Paging"."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Base of all operations."""

    word: ClassVar[str]
    """How TOML names the operation."""


@dataclass(frozen=True, slots=True)
class Access(Operation):
    """Base of load, store and fetch.

    Attributes:
        va: Address of the first access.
        stride: Bytes added on each pass of the innermost repeat (or of the body): pass *i* uses
            ``va + (i % span) * stride``.
        span: Passes after which the address starts over; a power of two. 1 means always the same address.
        user: At CPL 3 (through one switch to user mode and back) instead of CPL 0.
    """

    va: int
    stride: int = 0
    span: int = 1
    user: bool = False


@dataclass(frozen=True, slots=True)
class Load(Access):
    """Read *size* (1, 2, 4, 8) bytes; *keep* the value in the results."""

    word: ClassVar[str] = "load"
    size: int = 8
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Store(Access):
    """Write the low *size* bytes of *value*."""

    word: ClassVar[str] = "store"
    value: int = 0
    size: int = 8


@dataclass(frozen=True, slots=True)
class Fetch(Access):
    """Call the code at the address, which is a RET: the image fills pages that are fetched from with RETs."""

    word: ClassVar[str] = "fetch"


@dataclass(frozen=True, slots=True)
class WriteCr(Operation):
    """MOV to CR0, CR4 or CR8.

    Either *value*, or bits to *set*, *clear* and *toggle* in the value the program last wrote (the entry state to begin
    with). That value is kept in a register of the guest; the control register itself is not read, because on some
    processors reading it is an exit of its own.
    """

    word: ClassVar[str] = "write-cr"
    cr: int
    value: int | None = None
    set: Bits = ()
    clear: Bits = ()
    toggle: Bits = ()


@dataclass(frozen=True, slots=True)
class ReadCr(Operation):
    """MOV from CR0, CR2, CR3, CR4 or CR8."""

    word: ClassVar[str] = "read-cr"
    cr: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class SwitchSpace(Operation):
    """MOV to CR3: the root of *space*, with *pcid* in bits 11:0, and bit 63 if *noflush* (needs CR4.PCIDE)."""

    word: ClassVar[str] = "switch-space"
    space: str
    pcid: int = 0
    noflush: bool = False


@dataclass(frozen=True, slots=True)
class Clts(Operation):
    """CLTS: clears CR0.TS."""

    word: ClassVar[str] = "clts"


@dataclass(frozen=True, slots=True)
class Lmsw(Operation):
    """LMSW: bits 3:0 of CR0 from *value*; PE can be set but not cleared."""

    word: ClassVar[str] = "lmsw"
    value: int


@dataclass(frozen=True, slots=True)
class ReadMsr(Operation):
    """RDMSR."""

    word: ClassVar[str] = "read-msr"
    msr: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class WriteMsr(Operation):
    """WRMSR."""

    word: ClassVar[str] = "write-msr"
    msr: int
    value: int


@dataclass(frozen=True, slots=True)
class Invlpg(Operation):
    """INVLPG."""

    word: ClassVar[str] = "invlpg"
    va: int


@dataclass(frozen=True, slots=True)
class Invpcid(Operation):
    """INVPCID of *type* 0 (one address), 1 (one PCID), 2 (all and global) or 3 (all but global)."""

    word: ClassVar[str] = "invpcid"
    type: int
    pcid: int = 0
    va: int = 0


@dataclass(frozen=True, slots=True)
class WriteEntry(Operation):
    """A store into the guest's own page tables, by CPL 0: the entry of *level* (1 = PTE, 2 = PDE, ...) that maps *va*.

    *set*, *clear* and *toggle* name ``FLAGS`` (``key`` and ``pa`` replace the protection key and the address). The new
    value follows from what the program's own operations left there, read from memory; A and D, which the processor
    sets, stay as they are unless named. Nothing is flushed: say ``invlpg`` where a guest would.
    """

    word: ClassVar[str] = "write-entry"
    space: str
    va: int
    level: int = 1
    set: Bits = ()
    clear: Bits = ()
    toggle: Bits = ()
    pa: int | None = None
    key: int | None = None


@dataclass(frozen=True, slots=True)
class ReadEntry(Operation):
    """Read the entry of *level* that maps *va* from the guest's own page tables, by CPL 0."""

    word: ClassVar[str] = "read-entry"
    space: str
    va: int
    level: int = 1
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Stac(Operation):
    """STAC: sets RFLAGS.AC."""

    word: ClassVar[str] = "stac"


@dataclass(frozen=True, slots=True)
class Clac(Operation):
    """CLAC: clears RFLAGS.AC."""

    word: ClassVar[str] = "clac"


@dataclass(frozen=True, slots=True)
class WritePkru(Operation):
    """WRPKRU."""

    word: ClassVar[str] = "write-pkru"
    value: int


@dataclass(frozen=True, slots=True)
class ReadPkru(Operation):
    """RDPKRU."""

    word: ClassVar[str] = "read-pkru"
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Cpuid(Operation):
    """CPUID; *keep* keeps EAX and EBX (low and high half of one value)."""

    word: ClassVar[str] = "cpuid"
    leaf: int = 0
    subleaf: int = 0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Vmcall(Operation):
    """VMCALL on an Intel guest, VMMCALL on an AMD one, with *nr* in RAX and *args* in RBX, RCX, RDX, RSI."""

    word: ClassVar[str] = "vmcall"
    nr: int = 1
    args: tuple[int, ...] = ()
    keep: bool = False


@dataclass(frozen=True, slots=True)
class In(Operation):
    """IN from *port*."""

    word: ClassVar[str] = "in"
    port: int
    size: int = 1
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Out(Operation):
    """OUT to *port*."""

    word: ClassVar[str] = "out"
    port: int
    value: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True)
class Hlt(Operation):
    """HLT: without an in-kernel interrupt controller an exit to userspace, which enters the guest again."""

    word: ClassVar[str] = "hlt"


@dataclass(frozen=True, slots=True)
class ReadDr(Operation):
    """MOV from a debug register."""

    word: ClassVar[str] = "read-dr"
    dr: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class WriteDr(Operation):
    """MOV to a debug register."""

    word: ClassVar[str] = "write-dr"
    dr: int
    value: int


@dataclass(frozen=True, slots=True)
class SingleStep(Operation):
    """Run one NOP with RFLAGS.TF set: exactly one #DB, whose handler clears TF."""

    word: ClassVar[str] = "single-step"
    user: bool = False


@dataclass(frozen=True, slots=True)
class Nop(Operation):
    """*count* NOPs."""

    word: ClassVar[str] = "nop"
    count: int = 1


@dataclass(frozen=True, slots=True)
class User(Operation):
    """A round trip to CPL 3 and back, running *body* there (nop, load, store, fetch, cpuid, read-pkru, write-pkru)."""

    word: ClassVar[str] = "user"
    body: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat(Operation):
    """*body*, *count* times."""

    word: ClassVar[str] = "repeat"
    count: int
    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Meet(Operation):
    """Wait until every vCPU of the program has come here (a spinning barrier)."""

    word: ClassVar[str] = "meet"


OPERATIONS: MappingProxyType[str, type[Operation]] = MappingProxyType(
    {
        kind.word: kind
        for kind in (
            Load, Store, Fetch, WriteCr, ReadCr, SwitchSpace, Clts, Lmsw, ReadMsr, WriteMsr, Invlpg, Invpcid,
            WriteEntry, ReadEntry, Stac, Clac, WritePkru, ReadPkru, Cpuid, Vmcall, In, Out, Hlt, ReadDr, WriteDr,
            SingleStep, Nop, User, Repeat, Meet,
        )
    }
)  # fmt: skip
"""Word in TOML -> class."""
