"""The registers a vCPU is entered with."""

from __future__ import annotations

import struct

from worldswitch.guest.image import Entry
from worldswitch.live import ioctl
from worldswitch.live.device import Vcpu
from worldswitch.live.errors import GuestError, NoCapabilityError

CODE, DATA, TSS = 0x08, 0x10, 0x28
"""Selectors, as in the GDT of an image."""
_U64 = struct.Struct("<Q")
_BUSY_TSS, _CODE_TYPE, _DATA_TYPE = 11, 11, 3
"""Types of descriptors: SDM volume 3, sections 3.4.5.1 and 3.5."""
_TSS_LIMIT = 0x67
_PG = 1 << 31


def special_registers(before: bytes | bytearray, entry: Entry) -> bytearray:
    """struct kvm_sregs of *entry*; what it does not say (the APIC base, the LDT) stays as *before*.

    TR is a busy TSS even where the program has none, because the processor cannot be entered otherwise (SDM volume 3,
    section 26.3.1.2, "Checks on Guest Segment Registers").
    """
    data = bytearray(before)
    _segment(data, "cs", CODE, _CODE_TYPE, long=entry.long)
    for name in ("ds", "es", "fs", "gs", "ss"):
        _segment(data, name, DATA, _DATA_TYPE)
    base, limit = entry.tss
    ioctl.SEGMENT.pack_into(
        data, ioctl.SEGMENTS["tr"], base, limit or _TSS_LIMIT, TSS if limit else 0, _BUSY_TSS, 1, 0, 0, 0, 0, 0, 0, 0, 0
    )
    ioctl.TABLE.pack_into(data, ioctl.GDT, *entry.gdt)
    ioctl.TABLE.pack_into(data, ioctl.IDT, *entry.idt)
    for at, value in ((ioctl.CR0, entry.cr0), (ioctl.CR3, entry.cr3), (ioctl.CR4, entry.cr4), (ioctl.EFER, entry.efer)):
        _U64.pack_into(data, at, value)
    return data


def _segment(data: bytearray, name: str, selector: int, kind: int, *, long: bool = False) -> None:
    ioctl.SEGMENT.pack_into(
        data, ioctl.SEGMENTS[name], 0, 0xFFFFFFFF, selector, kind, 1, 0, int(not long), 1, int(long), 1, 0, 0, 0
    )


def enter_with(vcpu: Vcpu, entry: Entry, n: int) -> None:
    """Set *vcpu* to the state of *entry*. A bare program gets *n* in RCX.

    Raises:
        GuestError: KVM refuses the state.
        NoCapabilityError: It takes it, but not the paging in it.
    """
    try:
        vcpu.set_special_registers(special_registers(vcpu.special_registers(), entry))
    except OSError as error:
        raise GuestError(
            f"KVM refuses the state vCPU {vcpu.number} is to start with (CR0 {entry.cr0:#x}, CR3 {entry.cr3:#x}, "
            f"CR4 {entry.cr4:#x}, EFER {entry.efer:#x}): {error.strerror}; a bit set there may belong to a feature "
            "this KVM does not offer",
            rip=entry.rip,
            vcpu=vcpu.number,
        ) from None
    _check_paging(vcpu, entry)
    values = {"rip": entry.rip, "rsp": entry.rsp}
    if entry.area is None:
        values["rcx"] = n
    vcpu.set_registers(values)


def _check_paging(vcpu: Vcpu, entry: Entry) -> None:
    """Some software KVMs drop CR0.PG outside long mode without a word, and shut the guest down when it is entered."""
    if not entry.cr0 & _PG or entry.long:
        return
    (cr0,) = _U64.unpack_from(vcpu.special_registers(), ioctl.CR0)
    if not cr0 & _PG:
        raise NoCapabilityError(
            "this KVM does not page outside long mode (it dropped CR0.PG), so 32-bit programs with paging cannot run "
            "here; KVM on VMX or SVM can"
        )


def describe(vcpu: Vcpu) -> tuple[int | None, int | None, str]:
    """RIP, R15 and a sentence part with the registers that matter of a vCPU that is not running."""
    try:
        registers, special = vcpu.registers(), vcpu.special_registers()
    except OSError:
        return None, None, "its registers cannot be read"
    rip = registers["rip"]
    cr0, cr2, cr3, cr4 = (_U64.unpack_from(special, at)[0] for at in (ioctl.CR0, ioctl.CR2, ioctl.CR3, ioctl.CR4))
    efer = _U64.unpack_from(special, ioctl.EFER)[0]
    text = f"RIP {rip:#x}, CR0 {cr0:#x}, CR2 {cr2:#x}, CR3 {cr3:#x}, CR4 {cr4:#x}, EFER {efer:#x}"
    return rip, registers["r15"], text
