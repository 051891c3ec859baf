"""Which CR0 and CR4 bits the guest owns, and so which writes exit.

Under VMX a guest/host mask decides bit by bit: a write that changes only guest-owned bits does not exit. SVM
has no such mask: it intercepts CR4 writes, and CR0 writes that change anything but TS and MP.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.kvm.policy import FEATURES, Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.x86.registers import CR0, CR4, bit_mask

_SELECTIVE = bit_mask(CR0, "TS", "MP")
_CD_NW = bit_mask(CR0, "CD", "NW")
_WP = bit_mask(CR0, "WP")
_PG_WP = bit_mask(CR0, "PG", "WP")
_BASE = bit_mask(CR4, "PVI", "DE", "PCE", "OSFXSR", "OSXMMEXCPT", "PGE")
_PGE = bit_mask(CR4, "PGE")
_CET = bit_mask(CR4, "CET")

_OWNED_BY_FACT = (("cr4-tsd-owned", "TSD"), ("cr4-fsgsbase-owned", "FSGSBASE"), ("cr4-la57-owned", "LA57"))


class Owned(NamedTuple):
    """The guest-owned bits of both registers, as masks."""

    cr0: int
    cr4: int


def owned(policy: Policy) -> Owned:
    """The bits an L1 guest may change without an exit."""
    return Owned(owned_cr0(policy), owned_cr4(policy))


@rule(
    id="cr0-guest-owned",
    sentence="Under VMX the guest owns CR0.TS, and CR0.WP with EPT; under SVM it owns none.",
    depends=("cr0-wp-owned", "cr0-ts-owned"),
    tested="tests/kvm/test_ownership.py::test_owned_bits_of_each_kernel",
)
def owned_cr0(policy: Policy) -> int:
    """CR0 bits the guest owns, as a mask.

    With EPT off WP is host-owned even while the guest's paging is off (vmx.h, vmx_l1_guest_owned_cr0_bits).
    """
    if policy.vendor is Vendor.AMD:
        return 0
    mask = bit_mask(CR0, "TS") if policy.has("cr0-ts-owned") else 0
    if policy.has("cr0-wp-owned") and policy.tdp:
        mask |= _WP
    return mask


@rule(
    id="cr4-guest-owned",
    sentence="Under VMX the guest owns PVI, DE, PCE, OSFXSR, OSXMMEXCPT, TSD, FSGSBASE and CET of CR4, and "
    "PGE with EPT, as far as its CPUID has them; under SVM it owns none.",
    depends=(
        "cr4-cet-owned",
        "cr4-fsgsbase-owned",
        "cr4-tsd-owned",
        "cr4-la57-owned",
        "cr4-reserved-intercepted",
    ),
    tested="tests/kvm/test_ownership.py::test_owned_bits_of_each_kernel",
)
def owned_cr4(policy: Policy) -> int:
    """CR4 bits the guest owns, as a mask (vmx.c, set_cr4_guest_host_mask)."""
    if policy.vendor is Vendor.AMD:
        return 0
    mask = _BASE if policy.has("cr4-base-owned") else 0
    for fact, bit in _OWNED_BY_FACT:
        if policy.has(fact):
            mask |= bit_mask(CR4, bit)
    if policy.has("cr4-cet-owned"):
        mask |= _CET
    if policy.has("cr4-reserved-intercepted"):
        mask &= ~reserved_cr4(policy)
    if not policy.tdp:
        mask &= ~_PGE
    return mask


def reserved_cr4(policy: Policy) -> int:
    """CR4 bits the guest may not set since its CPUID lacks their features; all others it has."""
    mask = 0 if policy.cet else _CET
    for feature in policy.hidden:
        if FEATURES[feature] != "CET":  # either of two features makes CR4.CET available: policy.cet says
            mask |= bit_mask(CR4, FEATURES[feature])
    return mask


def write_exits(policy: Policy, register: int, changed: int, value: int | None = None) -> bool:
    """Whether a MOV to *register* that changes the bits *changed* exits.

    Args:
        policy: The host.
        register: 0 or 4.
        changed: Old value XOR new value, as the guest sees them (the read shadow under VMX).
        value: The old value, where known: under SVM it decides whether every CR0 write exits.
    """
    if policy.vendor is Vendor.AMD:
        return svm_cr4_exits(changed) if register == CR4 else svm_cr0_exits(policy, changed, value)
    mask = owned_cr0(policy) if register == CR0 else owned_cr4(policy)
    return bool(changed & ~mask)


@rule(
    id="svm-cr0-intercept",
    sentence="Under SVM a MOV to CR0 exits if it changes any bit but TS and MP; all of them exit while the "
    "hardware value differs from the guest's.",
    source="Since Linux commit 2a32a77cefa6 "
    '("KVM: SVM: merge update_cr0_intercept into svm_set_cr0") (v5.13), '
    "svm_set_cr0 leaves only the selective intercept on when hardware and guest CR0 agree. "
    "Before that, update_cr0_intercept did.",
    since="5.4",
    tested="tests/kvm/test_ownership.py::test_svm_cr0_writes_exit_but_for_ts_and_mp",
)
def svm_cr0_exits(policy: Policy, changed: int, value: int | None = None) -> bool:
    """Whether a MOV to CR0 exits under SVM (svm.c, svm_set_cr0; the processor's part: APM volume 2).

    Without nested paging the hardware has PG and WP set whatever the guest has; and CD and NW are never set
    in hardware. While that makes a difference the full intercept is on.
    """
    if changed & ~_SELECTIVE:
        return True
    if value is None:
        return False
    forced = 0 if policy.tdp else _PG_WP & ~value
    return bool(forced or value & _CD_NW)


@rule(
    id="svm-cr4-intercept",
    sentence="Under SVM every MOV to CR4 exits.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), KVM intercepts '
    "CR4 writes under SVM. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_ownership.py::test_svm_cr4_writes_always_exit",
)
def svm_cr4_exits(changed: int) -> bool:  # noqa: ARG001 - which bits change makes no difference
    """True: SVM has no mask for CR4, and KVM intercepts all writes (svm.c, init_vmcb)."""
    return True
