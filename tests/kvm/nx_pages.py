"""Runs in a guest of the lab: a VM of its own reads and executes huge pages; prints KVM's statistics after each step.

First errors of opting out, then the steps of the selftest nx_huge_pages_test with ratio 1 in a VM that did and in one
that did not, then 16 executed pages and the passes of a recovery with ratio 2. Printed: {"opt_out": [error, ...],
"opted_out": [[pages_2m, splits], ...], "selftest": the same, "recovery": [splits after each change]}.
"""

import ctypes
import errno
import json
import mmap
import os
import struct
import time
from fcntl import ioctl
from pathlib import Path

PARAMETERS, STATISTICS = Path("/sys/module/kvm/parameters"), Path("/sys/kernel/debug/kvm")
HUGE = 2 << 20
BASE = 16 * HUGE
CREATE_VM, CREATE_VCPU, RUN, VCPU_MMAP_SIZE = 0xAE01, 0xAE41, 0xAE80, 0xAE04
SET_MEMORY, SET_REGS, GET_SREGS, SET_SREGS = 0x4020AE46, 0x4090AE82, 0x8138AE83, 0x4138AE84
ENABLE_CAP, DISABLE_NX_HUGE_PAGES, CAP_SYS_BOOT = 0x4068AEA3, 220, 22
CAPGET, CAPSET = 125, 126
PAGES = 20


def set_parameter(name, value):
    (PARAMETERS / name).write_text(value)


def statistic(*names):
    for name in names:
        if (STATISTICS / name).exists():
            return int((STATISTICS / name).read_text())
    raise FileNotFoundError(names[0])


def splits():
    return statistic("nx_lpage_splits", "nx_largepages_splitted")


class Machine:
    """A VM with PAGES huge pages of HLT instructions at BASE, and a small page with a load at 0."""

    def __init__(self, opted_out=False):
        device = os.open("/dev/kvm", os.O_RDWR)
        self.vm = ioctl(device, CREATE_VM, 0)
        if opted_out:
            assert opt_out(self.vm) == ""
        self.memory = mmap.mmap(-1, (PAGES + 1) * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        skip = -address % HUGE
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(PAGES):
            self.memory[skip + page * HUGE] = 0xF4
        self.code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.code[:3] = b"\x8a\x03\xf4"  # mov (%ebx), %al; hlt
        where = ctypes.addressof(ctypes.c_char.from_buffer(self.code))
        ioctl(self.vm, SET_MEMORY, struct.pack("IIQQQ", 0, 0, 0, 4096, where))
        ioctl(self.vm, SET_MEMORY, struct.pack("IIQQQ", 1, 0, BASE, PAGES * HUGE, address + skip))
        self.vcpu = ioctl(self.vm, CREATE_VCPU, 0)
        self.state = mmap.mmap(self.vcpu, ioctl(device, VCPU_MMAP_SIZE, 0))
        registers = bytearray(ioctl(self.vcpu, GET_SREGS, bytes(312)))
        for place in range(8):  # cs, ds, es, fs, gs, ss, tr, ldt of 24 bytes: flat, 32 bits, as protected mode has it
            if place < 6:
                kind = 11 if place == 0 else 3
                struct.pack_into("QIH8B", registers, 24 * place, 0, 0xFFFFFFFF, 8 if place == 0 else 16,
                                 kind, 1, 0, 1, 1, 0, 1, 0)  # fmt: skip
        struct.pack_into("Q", registers, 224, struct.unpack_from("Q", registers, 224)[0] | 1)  # CR0.PE
        ioctl(self.vcpu, SET_SREGS, bytes(registers))

    def run(self, rip, rbx=0):
        registers = [0] * 18
        registers[1], registers[16], registers[17] = rbx, rip, 2
        ioctl(self.vcpu, SET_REGS, struct.pack("18Q", *registers))
        ioctl(self.vcpu, RUN, 0)
        reason = struct.unpack_from("I", self.state, 8)[0]
        assert reason == 5, f"exit {reason}"

    def load(self, page):
        self.run(0, BASE + page * HUGE)

    def call(self, page):
        self.run(BASE + page * HUGE)


def opt_out(vm, flags=0, cap_sys_boot=True, argument=0):
    """Name of the error of KVM_ENABLE_CAP, empty if there was none."""
    header, data = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8), (ctypes.c_uint32 * 6)()
    call = ctypes.CDLL(None, use_errno=True).syscall
    assert call(CAPGET, header, data) == 0
    had = data[0]
    data[0] = had if cap_sys_boot else had & ~(1 << CAP_SYS_BOOT)
    assert call(CAPSET, header, data) == 0
    try:
        ioctl(vm, ENABLE_CAP, struct.pack("IIQ", DISABLE_NX_HUGE_PAGES, flags, argument) + bytes(88))
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        data[0] = had
        assert call(CAPSET, header, data) == 0
    return ""


def opt_out_errors():
    """Flags without the capability; an argument and a vCPU without it; it missing, an argument, a vCPU; none of it."""
    device = os.open("/dev/kvm", os.O_RDWR)
    bare, full = ioctl(device, CREATE_VM, 0), ioctl(device, CREATE_VM, 0)
    vcpu = ioctl(full, CREATE_VCPU, 0)
    results = [
        opt_out(bare, flags=1, cap_sys_boot=False),
        opt_out(full, cap_sys_boot=False, argument=1),
        opt_out(bare, cap_sys_boot=False),
        opt_out(bare, argument=1),
        opt_out(full),
        opt_out(bare),
    ]
    for file in (vcpu, full, bare, device):
        os.close(file)
    return results


def selftest(machine):
    seen = []
    for step in (None, (0, False), (1, False), (0, True), (2, True), (0, False), "wait", (2, False)):
        if step == "wait":
            set_parameter("nx_huge_pages_recovery_ratio", "1")
            time.sleep(WAIT_S)
            set_parameter("nx_huge_pages_recovery_ratio", "0")
        elif step:
            (machine.call if step[1] else machine.load)(step[0])
        seen.append([statistic("pages_2m", "largepages") - before_pages, splits()])
    return seen


def recovery(machine):
    for page in range(3, 19):
        machine.call(page)
    seen = [splits()]
    set_parameter("nx_huge_pages_recovery_ratio", "2")
    end = time.time() + 6 * max(WAIT_S / 2, 1)
    while time.time() < end and seen[-1]:
        now = splits()
        if now != seen[-1]:
            seen.append(now)
        time.sleep(0.02)
    return seen


Path("/sys/kernel/mm/transparent_hugepage/enabled").write_text("madvise")
set_parameter("nx_huge_pages", "force")
set_parameter("nx_huge_pages_recovery_ratio", "0")
WAIT_S = 2
if (PARAMETERS / "nx_huge_pages_recovery_period_ms").exists():
    set_parameter("nx_huge_pages_recovery_period_ms", "500")
else:
    WAIT_S = 62
before_pages = statistic("pages_2m", "largepages")
out = {"opt_out": opt_out_errors()}
if out["opt_out"][-1] == "":
    vm = Machine(opted_out=True)
    out["opted_out"] = selftest(vm)
    # With its memory go its mappings, which count for all VMs.
    del vm
vm = Machine()
print(json.dumps(out | {"selftest": selftest(vm), "recovery": recovery(vm)}))
