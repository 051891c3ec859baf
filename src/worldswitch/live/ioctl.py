"""KVM's ioctl numbers and the layouts of their arguments, x86-64.

Sources: include/uapi/linux/kvm.h and arch/x86/include/uapi/asm/kvm.h; what each call does is in
Documentation/virt/kvm/api.rst. Numbers are built as include/uapi/asm-generic/ioctl.h builds them.
"""

from __future__ import annotations

import struct

_KVMIO = 0xAE
_WRITE, _READ = 1, 2


def _io(number: int, size: int = 0, direction: int = 0) -> int:
    return direction << 30 | size << 16 | _KVMIO << 8 | number


API_VERSION = 12
"""What KVM_GET_API_VERSION must return: api.rst, section 4.1."""

REGION = struct.Struct("<IIQQQ")
"""struct kvm_userspace_memory_region: slot, flags, guest_phys_addr, memory_size, userspace_addr."""
ENABLE = struct.Struct("<II4Q64x")
"""struct kvm_enable_cap: cap, flags, args."""
REGS = struct.Struct("<18Q")
"""struct kvm_regs, in the order of :data:`REGISTERS`."""
REGISTERS = (
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
    "rflags",
)  # fmt: skip
SEGMENT = struct.Struct("<QIH10B")
"""struct kvm_segment: base, limit, selector, type, present, dpl, db, s, l, g, avl, unusable, padding."""
TABLE = struct.Struct("<QH6x")
"""struct kvm_dtable: base, limit."""
SREGS_SIZE = 312
"""Size of struct kvm_sregs; the offsets of its members follow."""
SEGMENTS = {"cs": 0, "ds": 24, "es": 48, "fs": 72, "gs": 96, "ss": 120, "tr": 144, "ldt": 168}
GDT, IDT, CR0, CR2, CR3, CR4, CR8, EFER = 192, 208, 224, 232, 240, 248, 256, 264
CPUID_HEAD = struct.Struct("<II")
"""The head of struct kvm_cpuid2: nent, padding."""
CPUID_ENTRY = struct.Struct("<7I12x")
"""struct kvm_cpuid_entry2: function, index, flags, eax, ebx, ecx, edx."""
TRANSLATION = struct.Struct("<QQBBB5x")
"""struct kvm_translation: linear_address, physical_address, valid, writeable, usermode."""

GET_API_VERSION = _io(0x00)
CREATE_VM = _io(0x01)
CHECK_EXTENSION = _io(0x03)
GET_VCPU_MMAP_SIZE = _io(0x04)
GET_SUPPORTED_CPUID = _io(0x05, CPUID_HEAD.size, _READ | _WRITE)
CREATE_VCPU = _io(0x41)
SET_USER_MEMORY_REGION = _io(0x46, REGION.size, _WRITE)
SET_TSS_ADDR = _io(0x47)
SET_IDENTITY_MAP_ADDR = _io(0x48, 8, _WRITE)
RUN = _io(0x80)
GET_REGS = _io(0x81, REGS.size, _READ)
SET_REGS = _io(0x82, REGS.size, _WRITE)
GET_SREGS = _io(0x83, SREGS_SIZE, _READ)
SET_SREGS = _io(0x84, SREGS_SIZE, _WRITE)
TRANSLATE = _io(0x85, TRANSLATION.size, _READ | _WRITE)
SET_CPUID2 = _io(0x90, CPUID_HEAD.size, _WRITE)
GET_TSC_KHZ = _io(0xA3)
ENABLE_CAP = _io(0xA3, ENABLE.size, _WRITE)
GET_STATS_FD = _io(0xCE)

# struct kvm_run: offsets of what is read and written here.
IMMEDIATE_EXIT, EXIT_REASON, RUN_FLAGS, UNION = 1, 8, 14, 32
RUN_IO = struct.Struct("<BBHIQ")
"""kvm_run.io: direction, size, port, count, data_offset."""
RUN_MMIO = struct.Struct("<Q8sIB")
"""kvm_run.mmio: phys_addr, data, len, is_write."""
RUN_INTERNAL = struct.Struct("<II")
"""The head of kvm_run.internal: suberror, ndata; ndata 64-bit words follow, 16 at most."""
RUN_FAIL_ENTRY = struct.Struct("<QI")
"""kvm_run.fail_entry: hardware_entry_failure_reason, cpu."""
RUN_MSR = struct.Struct("<B7xIIQ")
"""kvm_run.msr: error, reason, index, data."""
RUN_MEMORY_FAULT = struct.Struct("<QQQ")
"""kvm_run.memory_fault: flags, gpa, size."""
RUN_SYSTEM_EVENT = struct.Struct("<II")
"""The head of kvm_run.system_event: type, ndata."""
HYPERCALL_RET = UNION + 8 * 7
"""Offset of kvm_run.hypercall.ret."""

EXITS = {
    0: "UNKNOWN", 1: "EXCEPTION", 2: "IO", 3: "HYPERCALL", 4: "DEBUG", 5: "HLT", 6: "MMIO", 7: "IRQ_WINDOW_OPEN",
    8: "SHUTDOWN", 9: "FAIL_ENTRY", 10: "INTR", 11: "SET_TPR", 12: "TPR_ACCESS", 16: "NMI", 17: "INTERNAL_ERROR",
    24: "SYSTEM_EVENT", 26: "IOAPIC_EOI", 27: "HYPERV", 29: "X86_RDMSR", 30: "X86_WRMSR", 31: "DIRTY_RING_FULL",
    32: "AP_RESET_HOLD", 33: "X86_BUS_LOCK", 34: "XEN", 37: "NOTIFY", 39: "MEMORY_FAULT", 40: "TDX",
    43: "SNP_REQ_CERTS",
}  # fmt: skip
"""KVM_EXIT_* of x86, without the prefix."""
EXIT_NUMBERS = {name: number for number, name in EXITS.items()}

CAPABILITIES = {
    "USER_MEMORY": 3, "SET_TSS_ADDR": 4, "EXT_CPUID": 7, "NR_VCPUS": 9, "NR_MEMSLOTS": 10, "SET_IDENTITY_MAP_ADDR": 37,
    "INTERNAL_ERROR_DATA": 40, "TSC_CONTROL": 60, "GET_TSC_KHZ": 61, "MAX_VCPUS": 66, "ENABLE_CAP_VM": 98,
    "IMMEDIATE_EXIT": 136, "X86_USER_SPACE_MSR": 188, "EXIT_HYPERCALL": 201, "BINARY_STATS_FD": 203,
    "EXIT_ON_EMULATION_FAILURE": 204, "X86_NOTIFY_VMEXIT": 219, "VM_DISABLE_NX_HUGE_PAGES": 220,
}  # fmt: skip
"""KVM_CAP_* without the prefix -> number, for KVM_CHECK_EXTENSION."""
