"""What capstone reads in an image, piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterator

import capstone

from worldswitch.guest.image import Image
from worldswitch.guest.layout import WINDOWS
from worldswitch.guest.program import Mode

AROUND = re.compile(r"vcpu \d+ (exceptions|skip|gate|handler \d+( after)?)")
"""What is done about exceptions, which is no operation's."""


def code_at(image: Image, address: int, length: int) -> bytes:
    """The image's bytes at a linear address of its own."""
    gpa = address - (0 if image.entries[0].area is None else WINDOWS[Mode(image.mode)])
    for segment in image.segments:
        if segment.gpa <= gpa and gpa + length <= segment.gpa + len(segment.data):
            return segment.data[gpa - segment.gpa : gpa - segment.gpa + length]
    raise AssertionError(f"no segment holds {address:#x}")


def instructions(image: Image, address: int, length: int) -> list[capstone.CsInsn]:
    """The instructions of a piece of code, which must be all instructions."""
    bits = capstone.CS_MODE_64 if image.mode == "long" else capstone.CS_MODE_32
    found = list(capstone.Cs(capstone.CS_ARCH_X86, bits).disasm(code_at(image, address, length), address))
    assert sum(i.size for i in found) == length, f"not all of {address:#x} + {length} is code"
    return found


def pieces(image: Image) -> Iterator[tuple[str, list[capstone.CsInsn]]]:
    """Path and instructions of each operation's pieces of the listing."""
    for address, length, path in image.listing:
        if path.endswith(" operand"):
            continue
        found = instructions(image, address, length)
        if not AROUND.fullmatch(path):
            yield path, found


def text(image: Image, path: str) -> list[str]:
    """The instructions of the operation *path*, all its pieces in order of address."""
    return [f"{i.mnemonic} {i.op_str}".strip() for name, found in pieces(image) if name == path for i in found]
