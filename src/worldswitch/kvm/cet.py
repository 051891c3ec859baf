"""Control-flow enforcement (CET) for guests: which of its features KVM offers, and what its registers take.

Sources: 7.2.13 cpuid.c (kvm_initialize_cpu_caps), vmx.c (vmx_set_cpu_caps, vmx_recalc_msr_intercepts), svm.c
(svm_set_cpu_caps, svm_recalc_msr_intercepts) and x86.c (__kvm_set_msr, __kvm_get_msr). What the processor does with
registers that are the guest's own: :mod:`worldswitch.x86.msrs`.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.kvm.facts import Kernel
from worldswitch.kvm.rules import rule
from worldswitch.x86.msrs import CONTROL_RESERVED, LEGACY_BITMAP, MSRS, SHADOW_STACK_BITS, SUPPRESS, WAIT, canonical

SHSTK, IBT = "SHSTK", "IBT"
_CONTROLS = frozenset((MSRS["U_CET"], MSRS["S_CET"]))
_POINTERS = frozenset(MSRS[f"PL{ring}_SSP"] for ring in range(4))
_TABLE = MSRS["INTERRUPT_SSP_TABLE_ADDR"]
CET_MSRS = _CONTROLS | _POINTERS | {_TABLE}
"""All registers of CET."""


class Offer(NamedTuple):
    """What of a host decides about CET, the processor having it.

    Attributes:
        amd: SVM, not VMX.
        tdp: Two-dimensional paging is on.
        unrestricted_guest: VMX only.
        cet: The parameter kvm_intel.cet.
        smaller_maxphyaddr: The parameter kvm_intel.allow_smaller_maxphyaddr.
    """

    amd: bool
    tdp: bool
    unrestricted_guest: bool = True
    cet: bool = True
    smaller_maxphyaddr: bool = False


@rule(
    id="cet-offered",
    sentence="KVM offers SHSTK and IBT on Intel with an unrestricted guest, and so with EPT, unless kvm_intel.cet=0; "
    "on AMD SHSTK alone, with NPT; none with allow_smaller_maxphyaddr.",
    depends=("cet-virtualized",),
    tested="tests/kvm/test_cet.py::test_what_is_offered",
)
def offered(kernel: Kernel, host: Offer) -> frozenset[str]:
    """Which of SHSTK and IBT KVM_GET_SUPPORTED_CPUID shows (leaf 7: ECX bit 7, EDX bit 20)."""
    if not kernel.has("cet-virtualized") or host.smaller_maxphyaddr:
        return frozenset()
    if host.amd:
        return frozenset((SHSTK,)) if host.tdp else frozenset()
    if not host.cet or not host.unrestricted_guest:
        return frozenset()
    return frozenset((SHSTK, IBT)) if host.tdp else frozenset((IBT,))


@rule(
    id="cet-msrs",
    sentence="U_CET and S_CET exist for a guest with SHSTK or IBT, the shadow-stack pointers and their table for one "
    "with SHSTK; access to one that does not exist is #GP.",
    depends=("cet-virtualized",),
    tested="tests/kvm/test_cet.py::test_which_registers_there_are",
)
def exists(features: frozenset[str], msr: int) -> bool:
    """Whether a guest whose CPUID has *features* has the CET register *msr*, read by it or written."""
    return bool(features) if msr in _CONTROLS else SHSTK in features


@rule(
    id="cet-msr-refused",
    sentence="KVM refuses in U_CET and S_CET reserved bits, bits of a feature the guest has not, a bitmap that begins "
    "at no multiple of four pages, and SUPPRESS with WAIT_ENDBR; a shadow-stack pointer that is not canonical or no "
    "multiple of 4; a table that is not canonical.",
    depends=("cet-virtualized",),
    tested="tests/kvm/test_cet.py::test_values_that_kvm_refuses",
)
def refuses(features: frozenset[str], msr: int, value: int, bits: int = 48) -> bool:
    """Whether a write that KVM judges gets #GP: one that exits, or KVM_SET_MSRS; the register exists."""
    if msr not in _CONTROLS:
        return not canonical(value, bits) or (msr != _TABLE and bool(value & 3))
    forbidden = CONTROL_RESERVED
    if SHSTK not in features:
        forbidden |= SHADOW_STACK_BITS
    if IBT not in features:
        forbidden |= ~(SHADOW_STACK_BITS | CONTROL_RESERVED)
    return bool(value & forbidden or value & LEGACY_BITMAP & 0x3000 or (value & SUPPRESS and value & WAIT))


@rule(
    id="cet-msrs-passed",
    sentence="The CET registers a guest has are its own, without exits, but for the table of interrupt shadow stacks.",
    depends=("cet-virtualized",),
    tested="tests/kvm/test_cet.py::test_which_registers_exit",
)
def passed_through(features: frozenset[str], msr: int) -> bool:
    """Whether RDMSR and WRMSR of the CET register *msr* run in a guest whose CPUID has *features*."""
    return msr != _TABLE and exists(features, msr)
