"""One vCPU from its entry to its end: every exit to userspace is answered, counted, or an error.

What the fields of struct kvm_run mean: Documentation/virt/kvm/api.rst, section 5.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass, field

from worldswitch.guest.image import Entry, Image, read_report
from worldswitch.live import ioctl
from worldswitch.live.device import Vcpu
from worldswitch.live.errors import (
    FailEntryError,
    GuestError,
    GuestHungError,
    InternalErrorError,
    TripleFaultError,
    UnexpectedExitError,
)
from worldswitch.live.memory import GuestMemory
from worldswitch.live.state import describe

_IO, _HYPERCALL, _HLT, _MMIO, _SHUTDOWN, _FAIL_ENTRY, _INTERNAL, _RDMSR, _MEMORY_FAULT, _NOTIFY = (
    ioctl.EXIT_NUMBERS[name]
    for name in (
        "IO", "HYPERCALL", "HLT", "MMIO", "SHUTDOWN", "FAIL_ENTRY", "INTERNAL_ERROR", "X86_RDMSR", "MEMORY_FAULT",
        "NOTIFY",
    )
)  # fmt: skip
_EVENT = ioctl.EXIT_NUMBERS["SYSTEM_EVENT"]
_NOTHING_TO_DO = frozenset(
    ioctl.EXIT_NUMBERS[name]
    for name in ("DEBUG", "INTR", "IRQ_WINDOW_OPEN", "SET_TPR", "TPR_ACCESS", "X86_WRMSR", "X86_BUS_LOCK", "NMI")
)
_LOOKS_AT_THE_CLOCK = 256
"""Exits to userspace between two looks at the clock, which a guest that exits all the time needs: the timer's signal
then hardly ever comes during KVM_RUN."""

_SUBERRORS = {
    1: "KVM's emulator does not know an instruction",
    2: "exceptions came at once that cannot",
    3: "an exit came while an event was delivered",
    4: "an exit came that KVM does not know",
}
"""KVM_INTERNAL_ERROR_*: include/uapi/linux/kvm.h."""
_VMX_FAILED = 1 << 31
_ENTRY_FAILURES = {
    7: "VM entry with invalid control fields",
    8: "VM entry with invalid host state",
    33: "invalid guest state",
    34: "a model-specific register could not be loaded",
    41: "a machine check",
}
"""VM-instruction errors (SDM volume 3, section 30.4) and basic exit reasons of failed entries (section 26.8)."""
_SVM_INVALID = (0xFFFFFFFF, (1 << 64) - 1)
"""VMEXIT_INVALID: APM volume 2, section 15.5.1 and appendix C."""
_EHWPOISON = 133
"""include/uapi/asm-generic/errno.h; Python has no name for it."""
_INSTRUCTION_BYTES = 1
"""KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES."""


@dataclass
class Running:
    """What the vCPUs of one VM share while they run.

    Attributes:
        deadline: On time.monotonic().
        stop: Set when all are to stop.
    """

    image: Image
    memory: GuestMemory
    deadline: float
    seconds: float
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass
class Ran:
    """How one vCPU ran.

    Attributes:
        exits: Number of the exit to userspace -> how often.
        eintr: How often a signal interrupted KVM_RUN.
        stopped: It was told to stop before its end.
    """

    exits: dict[int, int] = field(default_factory=dict)
    eintr: int = 0
    stopped: bool = False


def run_vcpu(vcpu: Vcpu, entry: Entry, running: Running, ran: Ran) -> None:
    """Run *vcpu* until it halts at the program's end, and note in *ran* how.

    Raises:
        GuestError: It does not get there.
    """
    enter, shared, exits = vcpu.enter, vcpu.run, ran.exits
    until_look = _LOOKS_AT_THE_CLOCK
    while True:
        status = enter()
        if status < 0:
            if status == -errno.EINTR:
                ran.eintr += 1
                if _over(vcpu, running):
                    ran.stopped = True
                    return
                continue
            if status == -errno.EAGAIN:
                continue
            raise _refused(vcpu, running, -status)
        reason = int.from_bytes(shared[ioctl.EXIT_REASON : ioctl.EXIT_REASON + 4], "little")
        exits[reason] = exits.get(reason, 0) + 1
        if reason == _HLT:
            if vcpu.registers()["rip"] == entry.end:
                return
        elif reason == _IO:
            _port(vcpu)
        elif reason not in _NOTHING_TO_DO:
            _answer(vcpu, running, reason)
        until_look -= 1
        if not until_look:
            until_look = _LOOKS_AT_THE_CLOCK
            if _over(vcpu, running):
                ran.stopped = True
                return


def _over(vcpu: Vcpu, running: Running) -> bool:
    """Whether the vCPU was told to stop. Raises GuestHungError at the deadline."""
    if running.stop.is_set():
        return True
    if time.monotonic() >= running.deadline:
        raise _error(GuestHungError, vcpu, running, f"did not end within {running.seconds:g} s and was stopped")
    return False


def _port(vcpu: Vcpu) -> None:
    direction, size, _port, count, offset = ioctl.RUN_IO.unpack_from(vcpu.run, ioctl.UNION)
    if direction == 0:
        vcpu.run[offset : offset + size * count] = bytes(size * count)


def _answer(vcpu: Vcpu, running: Running, reason: int) -> None:
    shared = vcpu.run
    if reason == _MMIO:
        _address, _data, length, is_write = ioctl.RUN_MMIO.unpack_from(shared, ioctl.UNION)
        if not is_write:
            shared[ioctl.UNION + 8 : ioctl.UNION + 8 + min(length, 8)] = bytes(min(length, 8))
    elif reason == _HYPERCALL:
        shared[ioctl.HYPERCALL_RET : ioctl.HYPERCALL_RET + 8] = bytes(8)
    elif reason == _RDMSR:
        _error_flag, why, index, _data = ioctl.RUN_MSR.unpack_from(shared, ioctl.UNION)
        ioctl.RUN_MSR.pack_into(shared, ioctl.UNION, 0, why, index, 0)
    elif reason == _NOTIFY and not shared[ioctl.UNION] & 1:
        # A window without an instruction boundary; the guest can go on (KVM_NOTIFY_CONTEXT_INVALID is clear).
        pass
    else:
        raise _unanswered(vcpu, running, reason)


def _unanswered(vcpu: Vcpu, running: Running, reason: int) -> GuestError:
    shared = vcpu.run
    if reason == _SHUTDOWN:
        return _error(TripleFaultError, vcpu, running, "shut down with a triple fault")
    if reason == _FAIL_ENTRY:
        why, cpu = ioctl.RUN_FAIL_ENTRY.unpack_from(shared, ioctl.UNION)
        return _error(
            FailEntryError, vcpu, running, f"could not be entered: the processor (CPU {cpu}) says {_entry_failure(why)}"
        )
    if reason == _INTERNAL:
        error = _error(InternalErrorError, vcpu, running, f"met an internal error of KVM: {_internal(vcpu)}")
        assert isinstance(error, InternalErrorError)
        error.suberror, error.data = _words(vcpu)
        return error
    if reason == _EVENT:
        kind, _count = ioctl.RUN_SYSTEM_EVENT.unpack_from(shared, ioctl.UNION)
        return _error(UnexpectedExitError, vcpu, running, f"asked for system event {kind}, which no program here does")
    name = f"KVM_EXIT_{ioctl.EXITS[reason]}" if reason in ioctl.EXITS else f"exit {reason}"
    detail = int.from_bytes(shared[ioctl.UNION : ioctl.UNION + 8], "little")
    what = "hardware exit reason" if reason == 0 else "first word"
    return _error(
        UnexpectedExitError, vcpu, running, f"left with {name}, which nothing here answers ({what} {detail:#x})"
    )


def _refused(vcpu: Vcpu, running: Running, number: int) -> GuestError:
    """KVM_RUN itself failed."""
    text = f"cannot be run: KVM_RUN answers {os.strerror(number)} ({errno.errorcode.get(number, number)})"
    if number in (errno.EFAULT, _EHWPOISON):
        reason = int.from_bytes(vcpu.run[ioctl.EXIT_REASON : ioctl.EXIT_REASON + 4], "little")
        if reason == _MEMORY_FAULT:
            flags, gpa, size = ioctl.RUN_MEMORY_FAULT.unpack_from(vcpu.run, ioctl.UNION)
            text += f" for {size:#x} bytes of guest memory at {gpa:#x} (flags {flags:#x})"
        else:
            text += "; the host could not provide the guest's memory"
    elif number == errno.ENOMEM:
        text += "; the host has too little memory, or a memory cgroup's limit is reached"
    return _error(GuestError, vcpu, running, text)


def _entry_failure(why: int) -> str:
    """KVM_EXIT_FAIL_ENTRY's reason in words."""
    if why in _SVM_INVALID:
        return "that the guest's state is invalid (VMEXIT_INVALID)"
    basic = why & ~_VMX_FAILED
    known = _ENTRY_FAILURES.get(basic & 0xFFFF)
    return f"{known} ({why:#x})" if known else f"{why:#x}"


def _internal(vcpu: Vcpu) -> str:
    suberror, words = _words(vcpu)
    at, count = ioctl.UNION + ioctl.RUN_INTERNAL.size, len(words)
    text = f"{_SUBERRORS.get(suberror, 'unknown')} (suberror {suberror})"
    if suberror == 1 and count >= 3 and words[0] & _INSTRUCTION_BYTES:
        size = min(vcpu.run[at + 8], 15)
        return f"{text}, at the bytes {vcpu.run[at + 9 : at + 9 + size].hex(' ')}"
    return f"{text}, data {' '.join(f'{word:#x}' for word in words)}" if words else text


def _words(vcpu: Vcpu) -> tuple[int, tuple[int, ...]]:
    suberror, count = ioctl.RUN_INTERNAL.unpack_from(vcpu.run, ioctl.UNION)
    at = ioctl.UNION + ioctl.RUN_INTERNAL.size
    words = [int.from_bytes(vcpu.run[at + 8 * i : at + 8 * i + 8], "little") for i in range(min(count, 16))]
    return suberror, tuple(words)


def _error(kind: type[GuestError], vcpu: Vcpu, running: Running, what: str) -> GuestError:
    """The error, with where the vCPU was: the operation, the registers, the last fault the guest itself saw."""
    rip, resume, registers = describe(vcpu)
    image = running.image
    entry = image.entries[vcpu.number]
    operation = image.operation_at(rip) if rip is not None else None
    if operation is None and resume is not None:
        operation = image.operations.get(resume)
    near = f" near operation {operation!r}" if operation else ""
    # A read of an area the guest may have damaged.
    report = None
    if entry.area is not None:
        from worldswitch.guest.image import AREA_SIZE

        report = read_report(image, entry, running.memory.read(entry.area, AREA_SIZE))
    seen = ""
    if report and report.log:
        last = report.log[-1]
        seen = (
            f"; the last of {report.faults} faults it handled was vector {last.vector}, "
            f"error code {last.error_code:#x}, CR2 {last.cr2:#x} in {last.operation}"
        )
    return kind(
        f"vCPU {vcpu.number} of program {image.name} {what}{near}; {registers}{seen}", rip=rip, vcpu=vcpu.number
    )
