"""Images made by hand from machine code: guests that run without the assembler."""

from __future__ import annotations

import struct

from worldswitch.guest.image import Entry, Image, Region, Segment

CODE, TABLES, STACK, AREA = 0x1000, 0x100000, 0x7000, 0x10000
MEMORY = 0x400000
P, W, U = 1, 2, 4


def tables(size: int = MEMORY) -> bytes:
    """PML4, PDPT, PD and PTs that map the first *size* bytes (at most 512 MiB) to themselves, for CPL 0."""
    count = -(-size // 0x200000)
    pd = TABLES + 0x2000
    out = struct.pack("<Q", TABLES + 0x1000 | P | W).ljust(4096, b"\0")
    out += struct.pack("<Q", pd | P | W).ljust(4096, b"\0")
    out += b"".join(struct.pack("<Q", pd + 0x1000 * (1 + i) | P | W) for i in range(count)).ljust(4096, b"\0")
    return out + b"".join(struct.pack("<Q", page << 12 | P | W) for page in range(512 * count))


def image(
    code: str | bytes,
    *,
    end: int | None = None,
    entries: int = 1,
    bare: bool = True,
    size: int = MEMORY,
    huge: bool = False,
    **rest: object,
) -> Image:
    """A 64-bit guest that runs *code* (hexadecimal) from CODE on, bare: n is in RCX. Its last byte is its HLT."""
    program = bytes.fromhex(code) if isinstance(code, str) else code
    place = CODE + (len(program) if end is None else end)
    entry = [
        Entry(
            CODE, STACK - 0x1000 * i, 0x80050033, TABLES, 0x20, 0xD00, True, place, None if bare else AREA + 0x20000 * i
        )
        for i in range(entries)
    ]
    regions = (Region(0, 0x200000), Region(0x200000, size - 0x200000, huge))
    segments = (Segment(CODE, program), Segment(TABLES, tables(size)))
    known = {"summary": "by hand", "unit": "pass", "mode": "long", **rest}
    return Image(name="by-hand", regions=regions, segments=segments, entries=tuple(entry), **known)  # type: ignore[arg-type]


TOGGLE_WP = image("0f20c0 e30b 4835 00000100 0f22c0 e2f5 f4")
"""mov rax,cr0; jrcxz +11; L: xor rax,0x10000; mov cr0,rax; loop L; hlt: n writes of CR0."""
