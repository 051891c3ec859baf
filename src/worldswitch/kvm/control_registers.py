"""What a write to CR0 or CR4 does: whether it exits, and what KVM does to the MMU after it.

The after-cost is the larger part of what a control-register write costs: a full reset unloads the page-table
roots, and depending on the MMU they are found again, or the whole tree has to be faulted in anew.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from worldswitch.errors import UsageError
from worldswitch.kvm.ownership import svm_cr0_exits, write_exits
from worldswitch.kvm.policy import Mmu, Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.x86.exits import ISA_SVM, ISA_VMX
from worldswitch.x86.registers import CR0, CR4, bit_mask

CR_ACCESS = (ISA_VMX, 28)
CR0_SEL_WRITE = (ISA_SVM, 0x065)
WRITE_CR0 = (ISA_SVM, 0x010)
WRITE_CR4 = (ISA_SVM, 0x014)

_PG = bit_mask(CR0, "PG")
_WP = bit_mask(CR0, "WP")
_ET = bit_mask(CR0, "ET")
_PGE = bit_mask(CR4, "PGE")
_PCIDE = bit_mask(CR4, "PCIDE")
_PAE = bit_mask(CR4, "PAE")
_SMEP = bit_mask(CR4, "SMEP")
_ROLE = bit_mask(CR4, "PSE", "PAE", "SMEP")


class MmuWork(enum.Enum):
    """What KVM does to the MMU after a write it saw, the cheapest first."""

    NOTHING = "nothing"
    INIT_ONLY = "init-only"  # kvm_init_mmu(): new role and permission bitmap, roots untouched
    UNLOAD = "unload"  # kvm_mmu_unload(): all roots freed
    FULL_RESET = "full reset"  # kvm_mmu_reset_context(): both


class Flush(enum.Enum):
    """The TLB flush KVM requests after a write; each counts one in the statistic tlb_flush."""

    NONE = "none"
    CURRENT = "current"  # KVM_REQ_TLB_FLUSH_CURRENT
    GUEST = "guest"  # KVM_REQ_TLB_FLUSH_GUEST


class Roots(enum.Enum):
    """What becomes of the page tables when their roots are unloaded and loaded again."""

    KEPT = "kept"  # they were not unloaded
    REFERENCED = "referenced"  # TDP MMU: dropping and taking a reference, nothing else
    FOUND = "found"  # legacy and shadow MMU: the old pages are found in the hash; shadow pages are synchronized
    REBUILT = "rebuilt"  # TDP MMU: the last reference frees the tree, every page faults again


class After(NamedTuple):
    """What KVM does after a write: MMU work and TLB flush request."""

    mmu: MmuWork
    flush: Flush


@dataclass(frozen=True, slots=True)
class Outcome:
    """All consequences of one write.

    Attributes:
        exits: The guest leaves for the host.
        reason: ``(isa, exit reason)`` of that exit, None without one.
        mmu: Work on the MMU.
        flush: TLB flush requested.
        roots: What becomes of the page tables.
        other_tables: The guest runs on another set of page tables afterwards, which faults build the first
            time.
        sure: False if the answer depends on what was not given, the direction of the change; then the rest is
            the dearest of the possible answers.
    """

    exits: bool
    reason: tuple[int, int] | None
    mmu: MmuWork
    flush: Flush
    roots: Roots
    other_tables: bool
    sure: bool = True


def change(
    policy: Policy,
    register: int,
    changed: int,
    old: int | None = None,
    *,
    paging: bool = True,
    sole: bool = True,
) -> Outcome:
    """What a write to *register* that changes the bits *changed* does.

    Args:
        policy: The host.
        register: 0 or 4.
        changed: Old value XOR new value.
        old: The old value, None if unknown: then both directions are tried; ``sure`` says if that matters.
        paging: CR0.PG is set before and after, unless *changed* or *old* say otherwise.
        sole: The vCPU is the only one that holds the page-table roots (see :func:`roots_after_reset`).

    Raises:
        UsageError: Another register than CR0 or CR4.
    """
    if old is not None:
        return write(policy, register, old, old ^ changed, sole=sole)
    base = _ET | _WP | (_PG if paging else 0) if register == CR0 else 0
    outcomes = [
        write(policy, register, start, start ^ changed, sole=sole) for start in (base & ~changed, base | changed)
    ]
    dearest = max(outcomes, key=_cost)
    if outcomes[0] == outcomes[1]:
        return dearest
    return Outcome(**{name: getattr(dearest, name) for name in Outcome.__slots__ if name != "sure"}, sure=False)


def write(policy: Policy, register: int, old: int, new: int, *, sole: bool = True) -> Outcome:
    """What replacing *old* by *new* in *register* does; both as the guest sees them.

    Validity is not judged: a write that gets #GP costs its exit, and nothing after it.

    Raises:
        UsageError: Another register than CR0 or CR4.
    """
    if register not in (CR0, CR4):
        raise UsageError(f"what a write to CR{register} does is not known here, only of CR0 and CR4")
    changed = old ^ new
    if not write_exits(policy, register, changed, old):
        return Outcome(False, None, MmuWork.NOTHING, Flush.NONE, Roots.KEPT, other_tables=False)
    after = after_cr0(policy, old, new) if register == CR0 else after_cr4(policy, old, new)
    unloads = after.mmu in (MmuWork.UNLOAD, MmuWork.FULL_RESET)
    roots = roots_after_reset(policy, sole=sole) if unloads else Roots.KEPT
    reason = _reason(policy, register, old)
    return Outcome(True, reason, after.mmu, after.flush, roots, _other_tables(policy, register, changed, after))


@rule(
    id="cr0-after-write",
    sentence="After a CR0 write KVM resets the MMU if PG or WP changed; with two-dimensional paging a "
    "change of WP alone only rebuilds the permission bitmap, and with paging off it does nothing.",
    depends=("cr0-wp-init-only", "cr0-wp-ignored-without-paging", "cr0-pg-clear-flush"),
    tested="tests/kvm/test_control_registers.py::test_after_a_cr0_write",
)
def after_cr0(policy: Policy, old: int, new: int) -> After:
    """What KVM does after an intercepted write: kvm_post_set_cr0, up to 5.10 the end of kvm_set_cr0."""
    changed = (old ^ new) & ~_ET  # KVM stores ET as 1 whatever is written
    if changed == _WP:
        if not new & _PG and policy.has("cr0-wp-ignored-without-paging"):
            return After(MmuWork.NOTHING, Flush.NONE)
        if policy.tdp and policy.has("cr0-wp-init-only"):
            return After(MmuWork.INIT_ONLY, Flush.NONE)
    cleared_pg = changed & _PG and not new & _PG
    flush = Flush.GUEST if cleared_pg and policy.has("cr0-pg-clear-flush") else Flush.NONE
    return After(MmuWork.FULL_RESET if changed & (_PG | _WP) else MmuWork.NOTHING, flush)


@rule(
    id="cr4-after-write",
    sentence="After a CR4 write KVM resets the MMU if a role bit changed (PSE, PAE, SMEP, SMAP, PKE, "
    "LA57; PGE too on old kernels), and asks for TLB flushes as the architecture demands.",
    depends=(
        "cr4-pge-flush-only",
        "cr4-pcide-clear-flush-only",
        "cr4-pcide-set-unloads",
        "cr4-smap-pke-role",
        "cr4-la57-role",
        "cr4-smep-pae-flush",
    ),
    tested="tests/kvm/test_control_registers.py::test_after_a_cr4_write",
)
def after_cr4(policy: Policy, old: int, new: int) -> After:
    """What KVM does after an intercepted write: kvm_post_set_cr4, up to 5.10 the end of kvm_set_cr4."""
    changed, risen, fallen = old ^ new, new & ~old, old & ~new
    flush_only = policy.has("cr4-pge-flush-only")
    clear_flush_only = policy.has("cr4-pcide-clear-flush-only")
    work = MmuWork.NOTHING
    if risen & _PCIDE and not policy.tdp and policy.has("cr4-pcide-set-unloads"):
        work = MmuWork.UNLOAD
    if changed & cr4_role_bits(policy) or (fallen & _PCIDE and not clear_flush_only):
        work = MmuWork.FULL_RESET
    if (changed & _PGE and flush_only) or (fallen & _PCIDE and clear_flush_only):
        return After(work, Flush.GUEST)
    if (changed & _PAE or risen & _SMEP) and policy.has("cr4-smep-pae-flush"):
        return After(work, Flush.CURRENT)
    return After(work, Flush.NONE)


def cr4_role_bits(policy: Policy) -> int:
    """CR4 bits whose change resets the MMU (KVM_MMU_CR4_ROLE_BITS; up to 5.10 mmu_role_bits)."""
    mask = _ROLE
    if not policy.has("cr4-pge-flush-only"):
        mask |= _PGE
    if policy.has("cr4-smap-pke-role"):
        mask |= bit_mask(CR4, "SMAP", "PKE")
    if policy.has("cr4-la57-role"):
        mask |= bit_mask(CR4, "LA57")
    return mask


@rule(
    id="roots-after-reset",
    sentence="Unloaded roots of the legacy and shadow MMU are found again; the TDP MMU frees a tree with "
    "its last reference, unless it keeps the roots until they are invalidated.",
    depends=("tdp-roots-kept",),
    tested="tests/kvm/test_control_registers.py::test_roots_after_a_full_reset",
)
def roots_after_reset(policy: Policy, *, sole: bool = True) -> Roots:
    """What becomes of the page tables when a vCPU unloads its roots and loads them again.

    Args:
        policy: The host.
        sole: No other vCPU of the VM holds a reference to the same root; if one does, the tree survives in
            any case (Message-ID ZSXdYcMUds-DrHAd@google.com).
    """
    if policy.mmu is not Mmu.TDP:
        return Roots.FOUND
    return Roots.REFERENCED if policy.has("tdp-roots-kept") or not sole else Roots.REBUILT


@rule(
    id="tdp-root-role",
    sentence="TDP page tables are one set for all guest modes; on old kernels there is one for each value "
    "of CR0.WP and EFER.NX.",
    depends=("tdp-root-role-constant",),
    tested="tests/kvm/test_control_registers.py::test_sets_of_tdp_page_tables",
)
def tdp_role_bits(policy: Policy) -> tuple[str, ...]:
    """The guest bits that select among sets of TDP page tables; none if there is at most one set."""
    if not policy.tdp or policy.has("tdp-root-role-constant"):
        return ()
    return ("CR0.WP", "EFER.NXE")


def _other_tables(policy: Policy, register: int, changed: int, after: After) -> bool:
    if after.mmu is not MmuWork.FULL_RESET:
        return False
    if policy.tdp:
        return register == CR0 and bool(changed & _WP) and "CR0.WP" in tdp_role_bits(policy)
    # Guest paging bits are part of a shadow page's identity. SMEP and SMAP are so only while CR0.WP is clear,
    # which is taken not to be; from 7.2 on SMEP is in any case (kvm_mmu_page_role).
    identity = _PAE | (_SMEP if policy.has("mbec-gmet") else 0)
    return register == CR0 or bool(changed & identity)


def _reason(policy: Policy, register: int, old: int) -> tuple[int, int]:
    if policy.vendor is Vendor.INTEL:
        return CR_ACCESS
    if register == CR4:
        return WRITE_CR4
    # The full intercept, on while hardware and guest CR0 differ, goes before the selective one.
    return WRITE_CR0 if svm_cr0_exits(policy, 0, old) else CR0_SEL_WRITE


_WORK = list(MmuWork)
_FLUSHES = list(Flush)


def _cost(outcome: Outcome) -> tuple[bool, int, int]:
    return outcome.exits, _WORK.index(outcome.mmu), _FLUSHES.index(outcome.flush)
