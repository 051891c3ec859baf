"""A VM of one vCPU in real mode that writes to port 0x80 a given number of times: something to record.

Run as a program: ``python throwaway_vm.py COUNT``. The ioctl numbers are those of include/uapi/linux/kvm.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys

_CREATE_VM, _CREATE_VCPU, _VCPU_MMAP_SIZE, _RUN = 0xAE01, 0xAE41, 0xAE04, 0xAE80
_SET_MEMORY, _GET_SREGS, _SET_SREGS, _SET_REGS = 0x4020AE46, 0x8138AE83, 0x4138AE84, 0x4090AE82
_EXIT_IO = 2
_CODE = bytes.fromhex("e680 ebfc")  # out 0x80, al; jmp back
_ENTRY = 0x1000


def run(count: int) -> int:
    """Run the guest for *count* port writes; how many of its exits to userspace were port writes."""
    kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    vm = fcntl.ioctl(kvm, _CREATE_VM, 0)
    memory = mmap.mmap(-1, 0x10000)
    memory[_ENTRY : _ENTRY + len(_CODE)] = _CODE
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(vm, _SET_MEMORY, struct.pack("<IIQQQ", 0, 0, 0, len(memory), address))
    vcpu = fcntl.ioctl(vm, _CREATE_VCPU, 0)
    shared = mmap.mmap(vcpu, fcntl.ioctl(kvm, _VCPU_MMAP_SIZE))
    special = bytearray(312)
    fcntl.ioctl(vcpu, _GET_SREGS, special)
    struct.pack_into("<Q", special, 0, 0)  # CS base
    struct.pack_into("<H", special, 12, 0)  # CS selector
    fcntl.ioctl(vcpu, _SET_SREGS, special)
    registers = bytearray(144)
    struct.pack_into("<QQ", registers, 128, _ENTRY, 2)  # RIP, RFLAGS
    fcntl.ioctl(vcpu, _SET_REGS, registers)
    written = 0
    for _ in range(count):
        fcntl.ioctl(vcpu, _RUN, 0)
        written += struct.unpack_from("<I", shared, 8)[0] == _EXIT_IO
    return written


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    sys.exit(run(wanted) != wanted)
