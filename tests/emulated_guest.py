"""An image run by QEMU's emulator, without KVM: processors whose paging modes and features the host may lack.

A small ROM takes the one vCPU from reset to the state of the image's entry. The guest's memory is a file, so that what
the guest left there can be read when QEMU has ended.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from worldswitch.guest.emit import SP, A, Assembler, C, D, Label, Mem, resolve
from worldswitch.guest.image import AREA_SIZE, Entry, Image, N, Report, read_report
from worldswitch.guest.layout import WINDOWS
from worldswitch.guest.program import Mode
from worldswitch.x86.registers import CR4, EFER, bit_mask

MEMORY = 64 << 20
ROM, ROM_SIZE = 0xF0000, 0x10000
STUB = 0x1FF000
"""Guest-physical page for the code that enters the program; programs run here do not fill their own memory."""
TABLES = 48 << 20
HOLE = range(0xA0000, 0x100000)
"""The PC's video memory and ROM: no memory for an image."""
EXIT_PORT = 0xF4
LEGACY = bytes.fromhex("e6f4f4")
"""out 0xf4, al; hlt"""


def run_emulated(folder: Path, image: Image, n: int, cpu: str = "max") -> Report:
    """What the guest left behind after *n* passes."""
    (entry,) = image.entries
    memory = bytearray(MEMORY)
    for segment in image.segments:
        assert segment.gpa + len(segment.data) <= HOLE.start or segment.gpa >= HOLE.stop
        memory[segment.gpa : segment.gpa + len(segment.data)] = segment.data
    assert entry.area is not None
    struct.pack_into("<Q", memory, entry.area + N, n)
    base = WINDOWS[Mode(image.mode)]
    halt = entry.end - 1 - base
    memory[halt : halt + len(LEGACY)] = LEGACY
    memory[STUB : STUB + 4096] = _stub(entry, base).ljust(4096, b"\0")
    _temporary_tables(memory, image, entry)
    (folder / "memory").write_bytes(memory)
    (folder / "rom").write_bytes(_rom(image, entry, base))
    command = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", cpu, "-m", str(MEMORY >> 20), "-no-reboot"]
    command += ["-object", f"memory-backend-file,id=m,size={MEMORY},mem-path={folder / 'memory'},share=on"]
    command += ["-machine", "pc,memory-backend=m", "-bios", str(folder / "rom"), "-nodefaults", "-display", "none"]
    command += ["-device", f"isa-debug-exit,iobase={EXIT_PORT:#x},iosize=1"]
    done = subprocess.run(command, timeout=20, capture_output=True, text=True, check=False)
    # The device ends QEMU with 2 * AL + 1; a triple fault would end it with 0.
    assert done.returncode & 1, done.stderr or "the guest was reset"
    with (folder / "memory").open("rb") as file:
        file.seek(entry.area)
        report = read_report(image, entry, file.read(AREA_SIZE))
    (folder / "memory").unlink()
    assert report is not None
    return report


def _temporary_tables(memory: bytearray, image: Image, entry: Entry) -> None:
    """The program's root with the lowest addresses mapped to themselves, where the ROM is."""
    memory[TABLES : TABLES + 4096] = memory[entry.cr3 : entry.cr3 + 4096]
    levels = {"flat": 0, "pae": 3}.get(image.mode, 5 if entry.cr4 & bit_mask(CR4, "LA57") else 4)
    flags = 1 if image.mode == "pae" else 3
    for level in range(levels, 1, -1):
        at = TABLES + 4096 * (levels - level)
        struct.pack_into("<Q", memory, at, 0x83 if level == 2 else at + 4096 | flags)
        flags = 3


def _stub(entry: Entry, base: int) -> bytes:
    """Code in the window: all control registers, all tables, all segments, and away."""
    asm, gdt, idt = Assembler(64 if entry.long else 32), Label(), Label()
    asm.section.base = base + STUB
    for register, value in (("CR3", entry.cr3), ("CR4", entry.cr4), ("CR0", entry.cr0)):
        asm.mov(A, value)
        asm.ins(f"MOV_CR_R{asm.bits}", register, A.sized(asm.bits))
    for name, label in (("LGDT", gdt), ("LIDT", idt)):
        asm.mov(C, label)
        asm.ins(f"{name}_M1664" if entry.long else f"{name}_M1632", Mem(C))
    asm.mov(A, 0x10)
    for segment in ("DS", "ES", "FS", "GS", "SS"):
        asm.ins("MOV_SREG_RM16", segment, "AX")
    asm.mov(A, 0x28)
    asm.ins("LTR_RM16", "AX")
    asm.mov(SP, entry.rsp)
    asm.push(8)
    asm.mov(A, entry.rip)
    asm.push(A)
    asm.ins("RETFQ" if entry.long else "RETFD")
    for label, (where, limit) in ((gdt, entry.gdt), (idt, entry.idt)):
        asm.bind(label)
        asm.raw(struct.pack("<HQ" if entry.long else "<HI", limit, where))
    return resolve(asm.section)


def _rom(image: Image, entry: Entry, base: int) -> bytes:
    """From reset to the stub."""
    rom = bytearray(ROM_SIZE)
    gdt = struct.pack("<4Q", 0, 0x00CF9B000000FFFF, 0x00CF93000000FFFF, 0x00AF9B000000FFFF)
    rom[0x800 : 0x800 + len(gdt)] = gdt
    struct.pack_into("<HI", rom, 0x7F0, len(gdt) - 1, ROM + 0x800)
    real = bytes.fromhex("fa 66 2e 0f01 16 f007 0f20c0 0c01 0f22c0 66ea") + struct.pack("<IH", ROM + 0x100, 8)
    rom[: len(real)] = real
    rom[0xFFF0:0xFFF5] = bytes.fromhex("ea000000f0")
    asm = Assembler(32)
    asm.section.base = ROM + 0x100
    asm.mov(A, 0x10)
    for segment in ("DS", "ES", "SS"):
        asm.ins("MOV_SREG_RM16", segment, "AX")
    if image.mode != "flat":
        for register, value in (("CR4", entry.cr4 & bit_mask(CR4, "PAE", "LA57")), ("CR3", TABLES)):
            asm.mov(A, value)
            asm.ins("MOV_CR_R32", register, "EAX")
    asm.mov(C, EFER)
    asm.mov(A, entry.efer & ~bit_mask(EFER, "LMA"))
    asm.mov(D, 0)
    asm.ins("WRMSR")
    if image.mode != "flat":
        asm.mov(A, 0x80000011)
        asm.ins("MOV_CR_R32", "CR0", "EAX")
    if entry.long:
        here = ROM + 0x100 + len(asm.section)
        asm.raw(b"\xea" + struct.pack("<IH", here + 7, 0x18))
        asm.raw(b"\x48\xc7\xc0" + struct.pack("<I", base + STUB & 0xFFFFFFFF) + b"\xff\xe0")
    else:
        asm.mov(A, base + STUB)
        asm.ins("JMP_RM32", "EAX")
    code = resolve(asm.section)
    rom[0x100 : 0x100 + len(code)] = code
    return bytes(rom)
