"""Which values KVM refuses in an intercepted write to CR0 or CR4, with #GP and nothing changed.

The checks stand in the order in which kvm_set_cr0 and kvm_set_cr4 make them. A write that does not exit is judged by
the processor: :mod:`worldswitch.x86.control`.
"""

from __future__ import annotations

from worldswitch.kvm.ownership import reserved_cr4
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.x86.control import PCID, Registers
from worldswitch.x86.registers import CR0, CR4, EFER, REGISTERS, bit_mask

_PE, _WP, _NW, _CD, _PG = (bit_mask(CR0, name) for name in ("PE", "WP", "NW", "CD", "PG"))
_PAE, _PCIDE, _LA57, _CET = (bit_mask(CR4, name) for name in ("PAE", "PCIDE", "LA57", "CET"))
_LME, _LMA = bit_mask(EFER, "LME"), bit_mask(EFER, "LMA")
_LAM, _VMXE, _PKE = (bit_mask(CR4, name) for name in ("LAM_SUP", "VMXE", "PKE"))
_UNKNOWN_TO_KVM = ("SMXE", "KL", "PKS", "UINTR", "LASS", "FRED")
_KNOWN = sum(1 << bit for name, bit in REGISTERS[CR4].items() if name not in _UNKNOWN_TO_KVM)


@rule(
    id="cr0-refused",
    sentence="KVM refuses CR0 values with upper bits, NW without CD, PG without PE; PG that would turn on long mode "
    "from 64-bit code or without PAE; PG clear with PCIDE or, on newer kernels, in 64-bit code; WP clear with CET.",
    depends=("cet-wp-consistency", "cr0-pg-clear-in-64-bit-refused"),
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "set_cr0 refuses what the processor would. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_validity.py::test_cr0_values_that_are_refused",
)
def refuses_cr0(policy: Policy, now: Registers, new: int) -> bool:
    """Whether an intercepted write of *new* to CR0 gets #GP (kvm_set_cr0)."""
    if new >> 32 or (new & _NW and not new & _CD) or (new & _PG and not new & _PE):
        return True
    turned_on = new & _PG and not now.cr0 & _PG
    if turned_on and now.efer & _LME and (not now.cr4 & _PAE or now.long_code):
        return True
    if not new & _PG:
        if now.cr4 & _PCIDE:
            return True
        if now.efer & _LMA and now.long_code and policy.has("cr0-pg-clear-in-64-bit-refused"):
            return True
    return bool(not new & _WP and now.cr4 & _CET and policy.has("cet-wp-consistency"))


@rule(
    id="cr4-refused",
    sentence="KVM refuses CR4 bits it does not know or the guest's CPUID has not; in long mode PAE clear or a change "
    "of LA57; setting PCIDE with a PCID in CR3 or outside long mode; CET without WP.",
    depends=("cet-wp-consistency", "lam-virtualized"),
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "set_cr4 refuses what the processor would. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_validity.py::test_cr4_values_that_are_refused",
)
def refuses_cr4(policy: Policy, now: Registers, new: int) -> bool:
    """Whether an intercepted write of *new* to CR4 gets #GP (kvm_set_cr4)."""
    if new & reserved(policy):
        return True
    if now.efer & _LMA and (not new & _PAE or (new ^ now.cr4) & _LA57):
        return True
    if new & ~now.cr4 & _PCIDE and (now.cr3 & PCID or not now.efer & _LMA):
        return True
    return bool(new & _CET and not now.cr0 & _WP and policy.has("cet-wp-consistency"))


def reserved(policy: Policy) -> int:
    """CR4 bits a guest may never set: those KVM does not know, and those whose feature its CPUID lacks."""
    unknown = 0 if policy.has("lam-virtualized") and policy.vendor is Vendor.INTEL else _LAM
    if policy.vendor is Vendor.AMD:
        unknown |= _VMXE
    if not policy.tdp:
        unknown |= _PKE  # protection keys are offered with two-dimensional paging only
    return ((1 << 64) - 1 & ~_KNOWN) | unknown | reserved_cr4(policy)
