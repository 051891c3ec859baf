"""The disks that jobs arrive on and results leave by, and the program inside that reads and writes them.

Two raw images at the second ATA channel: the first is read, the second written. The program drives the channel itself,
by port I/O (ATA-6, 9.5 and 9.6, PIO data-in and data-out), so that no kernel needs a disk driver loaded, and a machine
restored from a saved state holds nothing of an earlier image in its memory. It is one small static ELF file.

The first sector of either image is a header: magic, a little-endian 64-bit length, zeros. The writer writes it last, so
an image with a header is whole.
"""

from __future__ import annotations

import struct
from pathlib import Path

SECTOR = 512
HEADER = struct.Struct("<8sQ")
MAGIC = b"wsw-disk"
CYLINDER = 16 * 63 * SECTOR
"""Images are whole cylinders, as Bochs wants them."""

RESULTS = 1 << 30
"""Bytes all results of one start may have."""

BASE = 0x400000
CODE = BASE + 0x78
_BUFFER_END = 0x610000

# Address, bytes, and what they say (the tests disassemble them). Ports 0x170 to 0x177 and 0x376 are the channel's;
# 0x20E0 and 0x30F0 are a command and the drive it goes to: READ SECTORS of the first, WRITE SECTORS of the second.
LISTING = """
400078 bf03000000           mov edi, 3  ; iopl(3)
40007d b8ac000000           mov eax, 0xac
400082 0f05                 syscall
400084 ba76030000           mov edx, 0x376  ; no interrupts from this channel
400089 b002                 mov al, 2
40008b ee                   out dx, al
40008c fc                   cld
40008d 4531e4               xor r12d, r12d
400090 48833c2401           cmp qword ptr [rsp], 1  ; argc
400095 753f                 jne 0x4000d6
400097 e8ae000000           call 0x40014a  ; the header; its length
40009c 4c8bab08feffff       mov r13, [rbx-0x1f8]
4000a3 4d85ed               test r13, r13
4000a6 0f8e8e000000         jle 0x40013a
4000ac 41ffc4               inc r12d
4000af e896000000           call 0x40014a
4000b4 bf01000000           mov edi, 1  ; write(1, sector, what is left of it)
4000b9 be00006000           mov esi, 0x600000
4000be ba00020000           mov edx, 0x200
4000c3 4939d5               cmp r13, rdx
4000c6 410f4cd5             cmovl edx, r13d
4000ca 4929d5               sub r13, rdx
4000cd b801000000           mov eax, 1
4000d2 0f05                 syscall
4000d4 ebcd                 jmp 0x4000a3
4000d6 4531ed               xor r13d, r13d
4000d9 31ff                 xor edi, edi  ; read(0, buffer, 64 KiB)
4000db be00006000           mov esi, 0x600000
4000e0 ba00000100           mov edx, 0x10000
4000e5 31c0                 xor eax, eax
4000e7 0f05                 syscall
4000e9 85c0                 test eax, eax
4000eb 7e22                 jle 0x40010f
4000ed 4901c5               add r13, rax
4000f0 448db0ff010000       lea r14d, [rax+0x1ff]
4000f7 41c1ee09             shr r14d, 9
4000fb bb00006000           mov ebx, 0x600000
400100 41ffc4               inc r12d
400103 e85a000000           call 0x400162
400108 41ffce               dec r14d
40010b 75f3                 jne 0x400100
40010d ebca                 jmp 0x4000d9
40010f bb00006000           mov ebx, 0x600000  ; the header, last
400114 4889df               mov rdi, rbx
400117 48b87773772d6469736b mov rax, 0x6b7369642d777377
400121 48ab                 stosq [rdi]
400123 4c89e8               mov rax, r13
400126 48ab                 stosq [rdi]
400128 31c0                 xor eax, eax
40012a b93e000000           mov ecx, 0x3e
40012f f348ab               rep stosq [rdi]
400132 4531e4               xor r12d, r12d
400135 e828000000           call 0x400162
40013a 31ff                 xor edi, edi
40013c eb05                 jmp 0x400143
40013e bf01000000           mov edi, 1
400143 b83c000000           mov eax, 0x3c
400148 0f05                 syscall
40014a bb00006000           mov ebx, 0x600000  ; a sector from the first disk
40014f 41b8e0200000         mov r8d, 0x20e0
400155 e829000000           call 0x400183
40015a 89df                 mov edi, ebx
40015c 66f36d               rep insw [rdi], dx
40015f 89fb                 mov ebx, edi
400161 c3                   ret
400162 41b8f0300000         mov r8d, 0x30f0  ; a sector to the second disk
400168 e816000000           call 0x400183
40016d 89de                 mov esi, ebx
40016f 66f36f               rep outsw dx, [rsi]
400172 89f3                 mov ebx, esi
400174 ba77010000           mov edx, 0x177
400179 ec                   in al, dx
40017a a880                 test al, 0x80
40017c 75fb                 jne 0x400179
40017e a821                 test al, 0x21
400180 75bc                 jne 0x40013e
400182 c3                   ret
400183 ba76010000           mov edx, 0x176  ; LBA, count 1, command; then wait until the drive has or wants data
400188 4489e0               mov eax, r12d
40018b c1e818               shr eax, 0x18
40018e 4409c0               or eax, r8d
400191 ee                   out dx, al
400192 ba72010000           mov edx, 0x172
400197 b001                 mov al, 1
400199 ee                   out dx, al
40019a ffc2                 inc edx
40019c 4489e0               mov eax, r12d
40019f ee                   out dx, al
4001a0 ffc2                 inc edx
4001a2 c1e808               shr eax, 8
4001a5 ee                   out dx, al
4001a6 ffc2                 inc edx
4001a8 c1e808               shr eax, 8
4001ab ee                   out dx, al
4001ac ba77010000           mov edx, 0x177
4001b1 4489c0               mov eax, r8d
4001b4 c1e808               shr eax, 8
4001b7 ee                   out dx, al
4001b8 ec                   in al, dx
4001b9 a880                 test al, 0x80
4001bb 75fb                 jne 0x4001b8
4001bd a821                 test al, 0x21
4001bf 0f8579ffffff         jne 0x40013e
4001c5 a808                 test al, 8
4001c7 74ef                 je 0x4001b8
4001c9 ba70010000           mov edx, 0x170
4001ce b900010000           mov ecx, 0x100
4001d3 c3                   ret
"""


def write_image(path: Path, payload: bytes) -> None:
    """An image that the program inside reads *payload* from."""
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, len(payload)).ljust(SECTOR, b"\0"))
        file.write(payload)
        file.truncate(-(-file.tell() // CYLINDER) * CYLINDER)


def empty_image(path: Path, size: int) -> None:
    """An image of at least *size* bytes to write to; it takes no room until then."""
    with path.open("wb") as file:
        file.truncate(-(-(size + SECTOR) // CYLINDER) * CYLINDER)


def read_image(path: Path) -> bytes | None:
    """What the program inside wrote; None if it did not come to an end."""
    with path.open("rb") as file:
        magic, length = HEADER.unpack(file.read(HEADER.size))
        if magic != MAGIC:
            return None
        file.seek(SECTOR)
        payload = file.read(length)
    return payload if len(payload) == length else None


def program() -> bytes:
    """The program, a static ELF file.

    Without an argument it copies the first disk's payload to its standard output; with one it copies its standard
    input, which must be a file, to the second disk. Exit status 1 if the drive reports an error.
    """
    code = b"".join(bytes.fromhex(row.split()[1]) for row in LISTING.strip().splitlines())
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, CODE, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    # One segment for all: the file, and after it zeros up to the end of the buffer.
    segment = struct.pack("<IIQQQQQQ", 1, 7, 0, BASE, BASE, len(code) + CODE - BASE, _BUFFER_END - BASE, 0x1000)
    return header + segment + code
