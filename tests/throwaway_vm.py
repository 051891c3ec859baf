"""A VM of one vCPU in real mode that writes to port 0x80 a given number of times: something to record.

Run as a program: ``python throwaway_vm.py COUNT``.
"""

from __future__ import annotations

import struct
import sys

from worldswitch.guest.image import Region
from worldswitch.live import ioctl
from worldswitch.live.device import Kvm
from worldswitch.live.memory import GuestMemory

_CODE = bytes.fromhex("e680 ebfc")  # out 0x80, al; jmp back
_ENTRY = 0x1000


def run(count: int) -> int:
    """Run the guest for *count* port writes; how many of its exits to userspace were port writes."""
    with Kvm() as kvm, GuestMemory([Region(0, 0x10000)]) as memory, kvm.create_vm() as vm:
        memory.write(_ENTRY, _CODE)
        memory.give(vm)
        with vm.create_vcpu() as vcpu:
            special = vcpu.special_registers()
            struct.pack_into("<Q", special, ioctl.SEGMENTS["cs"], 0)  # base
            struct.pack_into("<H", special, ioctl.SEGMENTS["cs"] + 12, 0)  # selector
            vcpu.set_special_registers(special)
            vcpu.set_registers({"rip": _ENTRY})
            written = 0
            for _ in range(count):
                vcpu.enter()
                reason = struct.unpack_from("<I", vcpu.run, ioctl.EXIT_REASON)[0]
                written += ioctl.EXITS.get(reason) == "IO"
            return written


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    sys.exit(run(wanted) != wanted)
