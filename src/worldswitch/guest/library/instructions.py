"""Programs of one instruction that may exit, or of none."""

from __future__ import annotations

import re
from typing import Any

from worldswitch.errors import UsageError
from worldswitch.guest.library.registry import limited, shipped
from worldswitch.guest.operations import (
    Cpuid,
    Hlt,
    In,
    Invlpg,
    Invpcid,
    Nop,
    Operation,
    Out,
    ReadCr,
    ReadDr,
    ReadMsr,
    SingleStep,
    User,
    Vmcall,
    WriteCr,
    WriteDr,
    WriteMsr,
)
from worldswitch.guest.program import Handler, Pages, Space, Vcpu
from worldswitch.x86.msrs import MSRS, msr_number

_RESET_PAT = 0x0007040600070406


def _each(unit: str, *body: Operation, **more: Any) -> dict[str, Any]:
    return {"unit": unit, "vcpus": (Vcpu(body=body),), **more}


@shipped("nop")
def nop(*, count: int = 1) -> dict[str, Any]:
    """Does nothing: what the loop around every other program costs.

    Expect: 0 exits.

    Source: none needed.
    """
    return _each("pass", Nop(limited("count", count, 1, 4096)))


@shipped("cpuid")
def cpuid(*, leaf: int = 0, subleaf: int = 0) -> dict[str, Any]:
    """Executes CPUID: the exit that KVM handles in the kernel with the least work.

    Expect: 1 exit on every host.

    Source: Intel SDM volume 3, "Instructions That Cause VM Exits Unconditionally"; kvm-unit-tests' x86/vmexit.c.
    """
    return _each("instruction", Cpuid(leaf, subleaf))


@shipped("vmcall")
def vmcall(*, nr: int = 1) -> dict[str, Any]:
    """Makes a hypercall, VMCALL on an Intel guest and VMMCALL on an AMD one; number 1 is answered at once.

    Expect: 1 exit on every host with hardware virtualization; kvm_pvm knows neither instruction, and the guest hangs.

    Source: Documentation/virt/kvm/x86/hypercalls.rst (KVM_HC_VAPIC_POLL_IRQ); kvm-unit-tests' x86/vmexit.c.
    """
    return _each("hypercall", Vmcall(nr))


@shipped("io")
def io(*, port: int = 0x80, read: bool = False, size: int = 1) -> dict[str, Any]:
    """Writes to an I/O port, or reads from it, that nobody in the kernel listens to: an exit to userspace and back.

    Expect: 1 exit, which is one to userspace too.

    Source: Documentation/virt/kvm/api.rst, KVM_EXIT_IO.
    """
    return _each("access", In(port, size) if read else Out(port, 0, size))


@shipped("msr")
def msr(*, name: str = "PAT", write: bool = False, value: int = _RESET_PAT) -> dict[str, Any]:
    """Reads a model-specific register, or writes value to it; PAT is one that KVM intercepts and that is cheap.

    Expect: 1 exit where the MSR is intercepted, 0 where it is passed through (FS_BASE); #GP if there is none such.

    Source: Intel SDM volume 3, "MSR-Bitmap Address"; AMD APM volume 2, section 15.11 "MSR Intercepts".
    """
    number = int(name, 0) if re.fullmatch("0x[0-9a-fA-F]+|[0-9]+", name) else msr_number(name)
    if write and value == _RESET_PAT and number != MSRS["PAT"]:
        raise UsageError(f"msr: say which value to write to {name}, such as msr:name={name},write=true,value=0")
    return _each("access", WriteMsr(number, value) if write else ReadMsr(number))


@shipped("cr8")
def cr8(*, read: bool = False) -> dict[str, Any]:
    """Writes CR8, the task priority, or reads it.

    Expect: reads 0 or 1, writes 1 exit without an interrupt controller in the kernel, 0 with a virtualized one.

    Source: Intel SDM volume 3, "Virtualizing CR8-Based TPR Accesses"; kvm-unit-tests' x86/vmexit.c.
    """
    return _each("access", ReadCr(8) if read else WriteCr(8, value=0))


@shipped("read-cr")
def read_cr(*, cr: int = 0) -> dict[str, Any]:
    """Reads a control register (0, 2, 3, 4 or 8).

    Expect: 0 exits for CR0 and CR4 on Intel, where reads take the shadow; CR3 exits without EPT and NPT.

    Source: Intel SDM volume 3, "Guest/Host Masks and Read Shadows for CR0 and CR4"; init_vmcb() in
    arch/x86/kvm/svm/svm.c.
    """
    return _each("read", ReadCr(cr))


@shipped("dr6")
def dr6() -> dict[str, Any]:
    """Reads DR6 and writes it back to its reset value, as a handler of #DB does.

    Expect: 1 exit or none: KVM stops intercepting after the first access until the next exit.

    Source: handle_dr() in arch/x86/kvm/vmx/vmx.c.
    """
    return _each("read and write", ReadDr(6), WriteDr(6, 0xFFFF0FF0))


@shipped("hlt")
def hlt() -> dict[str, Any]:
    """Halts; without an interrupt controller in the kernel userspace sees it and enters the guest again.

    Expect: 1 exit, which is one to userspace too.

    Source: Documentation/virt/kvm/api.rst, KVM_EXIT_HLT.
    """
    return _each("halt", Hlt())


@shipped("invlpg")
def invlpg() -> dict[str, Any]:
    """Invalidates the translation of one page.

    Expect: 0 exits with EPT or NPT, 1 with shadow paging.

    Source: Intel SDM volume 3, "INVLPG exiting"; init_vmcb() in arch/x86/kvm/svm/svm.c.
    """
    return _each("instruction", Invlpg(0x400000), spaces=(Space("main", (Pages(0x400000, 0x200000),)),))


@shipped("invpcid")
def invpcid(*, type: int = 2) -> dict[str, Any]:
    """Invalidates translations by PCID: one address (0), one PCID (1), all (2), all but global ones (3).

    Expect: 0 exits with EPT or NPT, 1 with shadow paging.

    Source: Intel SDM volume 2, INVPCID; vmx_adjust_secondary_exec_control() in arch/x86/kvm/vmx/vmx.c.
    """
    return _each("instruction", Invpcid(type, va=0x400000), spaces=(Space("main", (Pages(0x400000, 0x200000),)),))


@shipped("user")
def user() -> dict[str, Any]:
    """Goes to CPL 3, does nothing there and comes back, as after a system call.

    Expect: 0 exits on hardware; a software KVM such as PVM switches worlds in its own way.

    Source: Intel SDM volume 2, IRET; Documentation/arch/x86/pti.rst.
    """
    return _each("round trip", User((Nop(),)))


@shipped("single-step")
def single_step(*, user: bool = True, dr6: bool = True) -> dict[str, Any]:
    """Runs one instruction with RFLAGS.TF set, as PTRACE_SINGLESTEP does; the handler of #DB reads and resets DR6.

    Expect: 1 exit for #DB, which KVM intercepts and injects again, and about 1 for MOV DR.

    Source: exc_debug() in arch/x86/kernel/traps.c; vmx_update_exception_bitmap() and handle_dr() in
    arch/x86/kvm/vmx/vmx.c.
    """
    fix: tuple[Operation, ...] = (ReadDr(6), WriteDr(6, 0xFFFF0FF0)) if dr6 else ()
    return {"unit": "step", "vcpus": (Vcpu(body=(SingleStep(user),), handlers=(Handler(1, fix=fix),)),)}
