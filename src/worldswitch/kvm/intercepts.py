"""Which instructions and exceptions leave the guest, besides writes to CR0 and CR4
(:mod:`~worldswitch.kvm.ownership`).
"""

from __future__ import annotations

from worldswitch.kvm.cet import CET_MSRS, passed_through
from worldswitch.kvm.ownership import svm_cr0_exits
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.x86.exits import ISA_SVM, ISA_VMX
from worldswitch.x86.msrs import MSRS
from worldswitch.x86.registers import CR0, CR4, bit_mask

Reason = tuple[int, int]
"""Instruction-set extension and number, as in :mod:`worldswitch.x86.exits`."""

EXTERNAL, EXCEPTION, CR_ACCESS, VIOLATION = (ISA_VMX, 1), (ISA_VMX, 0), (ISA_VMX, 28), (ISA_VMX, 48)
NPF, SVM_EXCEPTION = (ISA_SVM, 0x400), 0x40
_DB, _UD, _PF, _AC, _MC = 1, 6, 14, 17, 18
_FIRST = 'Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
_ALWAYS: dict[str, tuple[int, int]] = {
    "cpuid": (10, 0x72), "hlt": (12, 0x78), "io": (30, 0x7B), "vmcall": (18, 0x81),
}  # fmt: skip
_SHADOW: dict[str, tuple[int, int]] = {"invlpg": (14, 0x79), "invpcid": (58, 0xA2)}
_READ_CR, _WRITE_CR, _READ_DR, _WRITE_DR = 0x000, 0x010, 0x020, 0x030
_MSR_READ, _MSR_WRITE, _SVM_MSR, _DR_ACCESS = 31, 32, 0x7C, 29

_VMX_PASSED = frozenset(
    MSRS[name] for name in ("FS_BASE", "GS_BASE", "KERNEL_GS_BASE", "SYSENTER_CS", "SYSENTER_ESP", "SYSENTER_EIP")
)
_SVM_PASSED = frozenset(
    MSRS[name] for name in ("STAR", "SYSENTER_CS", "GS_BASE", "FS_BASE", "KERNEL_GS_BASE", "LSTAR", "CSTAR", "FMASK")
)
_TS_MP = bit_mask(CR0, "TS", "MP")
_SYSENTER = frozenset((MSRS["SYSENTER_ESP"], MSRS["SYSENTER_EIP"]))


def _either(policy: Policy, numbers: tuple[int, int]) -> Reason:
    return (ISA_VMX, numbers[0]) if policy.vendor is Vendor.INTEL else (ISA_SVM, numbers[1])


@rule(
    id="instruction-exits",
    sentence="CPUID, HLT, I/O and hypercalls always exit; INVLPG and INVPCID do under shadow paging.",
    source=_FIRST + "these instructions are intercepted. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_intercepts.py::test_instructions_that_exit",
)
def instruction_exit(policy: Policy, word: str) -> Reason | None:
    """The exit of an instruction by name (cpuid, hlt, io, vmcall, invlpg, invpcid); None if it runs in the guest."""
    if word in _ALWAYS:
        return _either(policy, _ALWAYS[word])
    return None if policy.tdp else _either(policy, _SHADOW[word])


@rule(
    id="cr-access-exits",
    sentence="CR3 is intercepted under shadow paging; CR8 without an interrupt controller in the kernel, reads of it "
    "under VMX only; reads of CR0 and CR4 exit under SVM, those of CR0 while hardware and guest differ.",
    source=_FIRST + "accesses to CR3 and CR8 are intercepted. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_intercepts.py::test_accesses_to_control_registers",
)
def cr_exit(policy: Policy, cr: int, write: bool, cr0: int) -> Reason | None:
    """The exit of a MOV to CR3 or CR8, or from any (vmx_exec_control, init_vmcb); *cr0* is the guest's CR0."""
    if policy.vendor is Vendor.INTEL:
        exits = (cr == 3 and not policy.tdp) or cr == 8
    elif write:
        exits = cr == 8 or (cr == 3 and not policy.tdp)
    else:
        exits = cr == CR4 or (cr == 3 and not policy.tdp) or (cr == CR0 and svm_cr0_exits(policy, 0, cr0))
    if not exits:
        return None
    return CR_ACCESS if policy.vendor is Vendor.INTEL else (ISA_SVM, (_WRITE_CR if write else _READ_CR) + cr)


@rule(
    id="lmsw-clts-exits",
    sentence="Under VMX CLTS never exits and LMSW exits if it changes PE, MP or EM; under SVM LMSW always exits, and "
    "CLTS while hardware and guest CR0 differ.",
    source='Since Linux commit 2a32a77cefa6 ("KVM: SVM: merge update_cr0_intercept into svm_set_cr0") (v5.13), '
    "svm_set_cr0 alone decides on the full intercept of CR0 writes. Before that, update_cr0_intercept did.",
    since="5.4",
    tested="tests/kvm/test_intercepts.py::test_lmsw_and_clts",
)
def short_cr0_write_exit(policy: Policy, changed: int, cr0: int, lmsw: bool, always: bool = True) -> Reason | None:
    """The exit of LMSW, or of CLTS, that changes the bits *changed* (TS aside, which the guest owns under VMX).

    Args:
        always: LMSW exits whatever it changes (:attr:`worldswitch.kvm.host.Host.lmsw_exits`).
    """
    if policy.vendor is Vendor.INTEL:
        return CR_ACCESS if lmsw and changed & 7 else None
    if svm_cr0_exits(policy, 0, cr0):
        return ISA_SVM, _WRITE_CR
    return (ISA_SVM, 0x065) if lmsw and (always or changed & ~_TS_MP) else None


@rule(
    id="msr-exits",
    sentence="RDMSR and WRMSR exit but for a few registers that belong to the guest: segment bases and system-call "
    "entries, and those of CET where it has CET.",
    depends=("cet-virtualized", "svm-sysenter-passed"),
    tested="tests/kvm/test_intercepts.py::test_registers_that_are_passed_through",
)
def msr_exit(policy: Policy, msr: int, write: bool) -> Reason | None:
    """The exit of RDMSR or WRMSR (vmx.c, vmx_vcpu_create; svm.c, direct_access_msrs)."""
    if policy.vendor is Vendor.INTEL:
        passed = msr in _VMX_PASSED or (msr == MSRS["TSC"] and not write)
    else:
        passed = msr in _SVM_PASSED or (msr in _SYSENTER and policy.has("svm-sysenter-passed"))
    if passed or (msr in CET_MSRS and passed_through(policy.cet, msr)):
        return None
    return _either(policy, (_MSR_WRITE if write else _MSR_READ, _SVM_MSR))


@rule(
    id="debug-register-exits",
    sentence="The first MOV DR after any exit exits; those after it run in the guest until the next exit.",
    source='Since Linux commit c77fb5fe6f03 ("KVM: x86: Allow the guest to run with dirty debug registers") (v3.15), '
    "the "
    "guest gets the debug registers at its first access. Before that, every access exited.",
    since="5.4",
    tested="tests/kvm/test_intercepts.py::test_only_the_first_access_to_a_debug_register_exits",
)
def dr_exit(policy: Policy, dr: int, write: bool, given: bool) -> Reason | None:
    """The exit of a MOV DR; *given*: the guest has had the registers since the last exit."""
    if given:
        return None
    return _either(policy, (_DR_ACCESS, (_WRITE_DR if write else _READ_DR) + dr))


@rule(
    id="exception-exits",
    sentence="#DB, #UD, #AC and #MC exit and are injected again; #PF does under shadow paging.",
    source=_FIRST + "page faults are intercepted under shadow paging. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_intercepts.py::test_exceptions_that_exit",
)
def exception_exit(policy: Policy, vector: int) -> Reason | None:
    """The exit of an exception (vmx.c, vmx_update_exception_bitmap; svm.c, init_vmcb)."""
    if vector not in (_DB, _UD, _AC, _MC) and (vector != _PF or policy.tdp):
        return None
    return EXCEPTION if policy.vendor is Vendor.INTEL else (ISA_SVM, SVM_EXCEPTION + vector)


@rule(
    id="soft-interrupt-reinjected",
    sentence="Where the delivery of INT3 or INT n exits under SVM, KVM injects it again behind its instruction, which "
    "the emulator has to skip where the processor saves no next RIP.",
    depends=("svm-soft-interrupt-reinjected",),
    tested="tests/kvm/test_intercepts.py::test_an_interrupted_soft_interrupt",
)
def emulates_soft_interrupt(policy: Policy, next_rip: bool) -> bool:
    """Whether each exit while INT3 or INT n is delivered has KVM emulate it (svm.c, svm_update_soft_interrupt_rip)."""
    return policy.vendor is Vendor.AMD and not next_rip and policy.has("svm-soft-interrupt-reinjected")


def violation_exit(policy: Policy) -> Reason:
    """The exit of an access to guest memory that is not mapped: EPT violation or nested page fault."""
    return VIOLATION if policy.vendor is Vendor.INTEL else NPF


def violation_code(policy: Policy, kind: int, table: bool, linear: bool = True) -> int:
    """What that exit says of the access: the exit qualification, EXITINFO1, or the error code of the page fault.

    A walk of the guest's tables reads and writes them, for A and D. NPT takes every access for one of a user.
    Sources: SDM volume 3, table 28-7 "Exit Qualification for EPT Violations", with 29.3.3.2 for accesses to tables;
    the APM volume 2, 15.25.6 "Nested versus Guest Page Faults, Fault Ordering".

    Args:
        policy: The host.
        kind: READ, WRITE or FETCH.
        table: The walk of the guest's tables makes the access.
        linear: There is a linear address that led to it; there is none where MOV to CR3 loads PDPTEs.
    """
    if not policy.tdp:
        return (0, 2, 0x10)[kind]
    if policy.vendor is Vendor.INTEL:
        return 0x83 if table else (0x180 if linear else 0) | 1 << kind
    return 0x2_0000_0006 if table else 0x1_0000_0004 | (0, 2, 0x10)[kind]
