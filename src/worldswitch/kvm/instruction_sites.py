"""Which instruction of an operation's code an exception points at."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from worldswitch.guest import operations as ops
from worldswitch.guest.image import Image

_BY_NAME: dict[type[ops.Operation], str] = {
    ops.WriteCr: "MOV_CR_R", ops.ReadCr: "MOV_R64_CR", ops.SwitchSpace: "MOV_CR_R", ops.WriteMsr: "WRMSR",
    ops.ReadMsr: "RDMSR", ops.Stac: "STAC", ops.Clac: "CLAC", ops.WritePkru: "WRPKRU", ops.ReadPkru: "RDPKRU",
    ops.Invpcid: "INVPCID", ops.Vmcall: "VMCALL", ops.WriteDr: "MOV_DR_R", ops.ReadDr: "MOV_R64_DR",
    ops.Fetch: "CALL_RM",
}  # fmt: skip


def rip_of(image: Image, window: int, operation: ops.Operation, path: str, user: bool, address: int) -> int:
    """RIP in the frame of an exception that *operation* met; *address* is CR2 of a page fault, else 0.

    A fault points at the instruction, and at its target where that is what could not be fetched; the trap of a single
    step points behind the NOP.
    """
    pieces = [(at, length) for at, length, name in image.listing if name == path]
    at, length = pieces[-1] if user else pieces[0]
    if isinstance(operation, ops.SingleStep):
        return at + 1 if user else at + length
    if isinstance(operation, ops.Fetch) and address and not (address - operation.va) % max(operation.stride, 1):
        return address
    wanted = _BY_NAME.get(type(operation))
    if wanted and image.mode != "long":
        wanted = wanted.replace("R64", "R32")
    for rip, name, reaches in _decoded(image, window, at, length):
        if name.startswith(wanted) if wanted else reaches:
            return rip
    return at


def _decoded(image: Image, window: int, at: int, length: int) -> Iterator[tuple[int, str, bool]]:
    """RIP, name of the code, and whether it reaches memory through RAX or at an address of its own."""
    import iced_x86

    gpa = at - window
    data = next(s.data[gpa - s.gpa :] for s in image.segments if s.gpa <= gpa < s.gpa + len(s.data))[:length]
    names, memory = _names(), iced_x86.OpKind.MEMORY
    for instruction in iced_x86.Decoder(64 if image.mode == "long" else 32, data, ip=at):
        reaches = any(instruction.op_kind(i) == memory for i in range(instruction.op_count))
        yield instruction.ip & (1 << 64) - 1, names[instruction.code], reaches


@cache
def _names() -> dict[int, str]:
    """Names of instruction codes, as the decoder numbers them."""
    from iced_x86 import Code

    return {value: name for name, value in vars(Code).items() if isinstance(value, int) and not name.startswith("_")}
