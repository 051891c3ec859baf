"""An assembled program: what a VMM loads, what state it enters with, and where the guest leaves its results.

Standard library only, Python 3.9: images travel to hosts that have neither this package nor an assembler.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, field

from worldswitch.errors import TraceFormatError

MAGIC = b"wsw-image 1\n"

# The result area of a vCPU: 64-bit little-endian words.
N, TSC_START, TSC_END, PASSES, FAULTS, RETRIES = 0, 8, 16, 24, 32, 40
"""Offsets: passes wanted (written by the VMM), time stamps around the body, passes done, faults seen, retries."""
VALUES = 64
"""Offset of the values kept, one word each; a value kept twice is the last one."""
MAX_VALUES = 256
FAULT_LOG = VALUES + 8 * MAX_VALUES
"""Offset of the first faults in order: vector, error code, CR2, RIP, resume address, 64-bit each."""
FAULT = struct.Struct("<5Q")
MAX_FAULTS = 1024
AREA_SIZE = (FAULT_LOG + FAULT.size * MAX_FAULTS + 4095) // 4096 * 4096


@dataclass(frozen=True)
class Segment:
    """Bytes to put at a guest-physical address."""

    gpa: int
    data: bytes


@dataclass(frozen=True)
class Region:
    """Guest-physical memory to provide, one memory slot; *huge*: ask the host to back it by huge pages."""

    gpa: int
    size: int
    huge: bool = False


@dataclass(frozen=True)
class Entry:
    """State one vCPU is entered with.

    Attributes:
        long: CS is a 64-bit code segment; else a flat 32-bit one. All segments are flat, selectors as in the GDT.
        gdt, idt, tss: (linear base, limit); (0, 0) where there is none.
        end: RIP after the HLT that ends the program.
        area: Guest-physical address of the result area, None if the program is bare: then n is passed in RCX.
        keeps: Path of the operation that keeps each value, by place.
    """

    rip: int
    rsp: int
    cr0: int
    cr3: int
    cr4: int
    efer: int
    long: bool
    end: int
    area: int | None = None
    gdt: tuple[int, int] = (0, 0)
    idt: tuple[int, int] = (0, 0)
    tss: tuple[int, int] = (0, 0)
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """A program as memory and entry states.

    Attributes:
        features: CPUID features the guest must have.
        vmcalls: Guest-physical addresses of VMCALL instructions (0F 01 C1), to be made VMMCALL (0F 01 D9) for a guest
            whose CPUID vendor is AMD.
        operations: Resume address of each operation that can fault -> its path in the program
            (``"vcpu 0 body 2"``).
        listing: Linear address, length and path of the code of each operation, by address; an operation that goes to
            CPL 3 has two pieces. And of what is done about exceptions: ``"vcpu 0 exceptions"`` records them,
            ``"vcpu 0 skip"`` goes on, ``"vcpu 0 handler 14"`` and ``"vcpu 0 handler 14 after"`` stand around a fix,
            ``"vcpu 0 gate"`` is the way back from CPL 3. And of operands in memory: ``"vcpu 0 body 2 operand"``.
    """

    name: str
    summary: str
    unit: str
    mode: str
    regions: tuple[Region, ...]
    segments: tuple[Segment, ...]
    entries: tuple[Entry, ...]
    features: tuple[str, ...] = ()
    vmcalls: tuple[int, ...] = ()
    operations: dict[int, str] = field(default_factory=dict)
    listing: tuple[tuple[int, int, str], ...] = ()
    default_n: int = 500
    expect: str = ""
    parameters: dict[str, int | bool | str] = field(default_factory=dict)

    def operation_at(self, rip: int) -> str | None:
        """Path of the innermost piece of the listing that holds the linear address *rip*; None between them."""
        around = [piece for piece in self.listing if piece[0] <= rip < piece[0] + piece[1]]
        return min(around, key=lambda piece: piece[1])[2] if around else None

    def to_bytes(self) -> bytes:
        """The image as one compressed document; :meth:`from_bytes` gives an equal one back."""
        head = asdict(self)
        head["segments"] = [(s.gpa, len(s.data)) for s in self.segments]
        head["operations"] = sorted(self.operations.items())
        text = json.dumps(head, separators=(",", ":")).encode()
        body = struct.pack("<I", len(text)) + text + b"".join(s.data for s in self.segments)
        return MAGIC + zlib.compress(body, 9)

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """The image that :meth:`to_bytes` wrote.

        Raises:
            TraceFormatError: It is none, or damaged.
        """
        if not data.startswith(MAGIC):
            raise TraceFormatError("not an image of a guest program; wsw bundle writes them")
        try:
            body = zlib.decompress(data[len(MAGIC) :])
            (size,) = struct.unpack_from("<I", body)
            head = json.loads(body[4 : 4 + size])
            at, segments = 4 + size, []
            for gpa, length in head.pop("segments"):
                segments.append(Segment(gpa, body[at : at + length]))
                at += length
            entries = tuple(
                Entry(**{**e, **{k: tuple(e[k]) for k in ("gdt", "idt", "tss", "keeps")}}) for e in head.pop("entries")
            )
            return cls(
                regions=tuple(Region(**r) for r in head.pop("regions")),
                segments=tuple(segments),
                entries=entries,
                features=tuple(head.pop("features")),
                vmcalls=tuple(head.pop("vmcalls")),
                operations={int(k): v for k, v in head.pop("operations")},
                listing=tuple((at, length, path) for at, length, path in head.pop("listing")),
                **head,
            )
        except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error) as error:
            raise TraceFormatError(
                f"the image of a guest program is damaged ({error}); make it again: wsw bundle"
            ) from None


@dataclass(frozen=True)
class Fault:
    """One exception the guest met: *operation* is the path of the operation in the program."""

    operation: str
    vector: int
    error_code: int
    cr2: int
    rip: int


@dataclass(frozen=True)
class Report:
    """What one vCPU left behind.

    Attributes:
        cycles: TSC cycles of the n passes of the body.
        passes: Passes completed.
        faults: How many there were; *log* has the first ``MAX_FAULTS``.
        values: Path of each operation that keeps a value -> the value.
    """

    passes: int
    cycles: int
    faults: int
    retries: int
    log: tuple[Fault, ...]
    values: dict[str, int]


def read_report(image: Image, entry: Entry, area: bytes) -> Report | None:
    """The report in a vCPU's result area; None for a bare program, which leaves none."""
    if entry.area is None:
        return None
    words = struct.Struct("<Q")

    def word(at: int) -> int:
        value: int = words.unpack_from(area, at)[0]
        return value

    faults = word(FAULTS)
    log = []
    for i in range(min(faults, MAX_FAULTS)):
        vector, code, cr2, rip, resume = FAULT.unpack_from(area, FAULT_LOG + i * FAULT.size)
        log.append(Fault(image.operations.get(resume, f"at {resume:#x}"), vector, code, cr2, rip))
    values = {path: word(VALUES + 8 * i) for i, path in enumerate(entry.keeps)}
    cycles = (word(TSC_END) - word(TSC_START)) % (1 << 64)
    return Report(word(PASSES), cycles, faults, word(RETRIES), tuple(log), values)
