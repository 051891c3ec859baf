"""Roles: what of the guest's mode decides how KVM walks its tables, and which page tables of KVM's own fit it.

The CPU role says how the guest's tables are read; when it changes, the permission bitmap is made anew. The root role is
the identity of KVM's own tables: two modes with the same one share them.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.kvm.control_registers import cr4_role_bits, tdp_role_bits
from worldswitch.kvm.permissions import ALL_RIGHTS, Controls, Permissions
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.rules import rule
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask, parse_bit

_WP, _PG = bit_mask(CR0, "WP"), bit_mask(CR0, "PG")
_PAE, _LA57, _SMEP, _SMAP, _PKE = (bit_mask(CR4, name) for name in ("PAE", "LA57", "SMEP", "SMAP", "PKE"))
_NXE, _LMA = bit_mask(EFER, "NXE"), bit_mask(EFER, "LMA")


class CpuRole(NamedTuple):
    """The guest's mode as the MMU sees it.

    Attributes:
        level: Levels of the guest's tables; 0 with paging off, and then all other bits are clear.
        smep: SMEP, where it is in the role as such.
        smep_andnot_wp: SMEP without WP, where that is; smap_andnot_wp is in the role everywhere.
        rest: The CR4 bits that are compared but are no part of a page's identity.
    """

    level: int
    nx: bool = False
    wp: bool = False
    smep: bool = False
    smep_andnot_wp: bool = False
    smap_andnot_wp: bool = False
    rest: int = 0


class PageRole(NamedTuple):
    """The identity of a shadow page beside its gfn: mode bits of the guest, level, direct, rights from above."""

    nx: bool
    wp: bool
    smep: bool
    smap_andnot_wp: bool
    level: int
    direct: bool = False
    access: int = ALL_RIGHTS


@rule(
    id="cpu-role",
    sentence="The CPU role holds the levels of the guest's paging, EFER.NX, CR0.WP, SMEP and SMAP as far as they "
    "count, and with paging off nothing.",
    depends=("cpu-role-split", "mbec-gmet"),
    tested="tests/kvm/test_roles.py::test_the_cpu_role",
)
def cpu_role(policy: Policy, now: Registers) -> CpuRole:
    """The role of the guest's current mode (mmu.c, kvm_calc_cpu_role)."""
    if not now.cr0 & _PG:
        return CpuRole(0)
    wp, smep, smap = bool(now.cr0 & _WP), bool(now.cr4 & _SMEP), bool(now.cr4 & _SMAP)
    long, other = (5 if now.cr4 & _LA57 else 4), (3 if now.cr4 & _PAE else 2)
    whole = policy.has("mbec-gmet")
    return CpuRole(
        long if now.efer & _LMA else other,
        bool(now.efer & _NXE),
        wp,
        smep and whole,
        smep and not wp and not whole,
        smap and not wp,
        now.cr4 & cr4_role_bits(policy),
    )


def permissions(policy: Policy, now: Registers) -> Permissions:
    """The permission bitmap of the guest's current mode."""
    controls = Controls(bool(now.cr0 & _WP), bool(now.cr4 & _SMEP), bool(now.cr4 & _SMAP), bool(now.efer & _NXE))
    return Permissions.of(policy, controls, bool(now.cr4 & _PKE and now.efer & _LMA))


def tdp_root_role(policy: Policy, now: Registers) -> tuple[bool, ...]:
    """What selects among sets of TDP page tables: the bits that :func:`tdp_role_bits` names."""
    values = {CR0: now.cr0, EFER: now.efer}
    bits = (parse_bit(name) for name in tdp_role_bits(policy))
    return tuple(bool(values[bit.register] & bit.mask) for bit in bits)


def tree_role(policy: Policy, now: Registers) -> tuple[bool, ...]:
    """What selects among sets of tables that map guest-physical addresses, with two-dimensional paging or without."""
    return tdp_root_role(policy, now) if policy.tdp else direct_root_role(policy, now)


@rule(
    id="paging-off-role",
    sentence="Under shadow paging a guest with paging off is mapped by direct tables, one set; on old kernels one "
    "for each value of CR0.WP (with WP clear also of SMEP and SMAP) and EFER.NX.",
    depends=("cpu-role-split",),
    tested="tests/kvm/test_flat.py::test_sets_of_direct_tables",
)
def direct_root_role(policy: Policy, now: Registers) -> tuple[bool, ...]:
    """What selects among sets of direct tables (mmu.c, kvm_calc_cpu_role; kvm_calc_shadow_mmu_root_page_role)."""
    if policy.has("cpu-role-split"):
        return ()
    wp = bool(now.cr0 & _WP)
    return wp, bool(now.efer & _NXE), bool(now.cr4 & _SMEP) and not wp, bool(now.cr4 & _SMAP) and not wp


@rule(
    id="shadow-page-role",
    sentence="A shadow page belongs to one value of CR0.WP (with WP clear also of SMEP and SMAP), so each value has a "
    "tree of its own; EFER.NX divides them too on old kernels.",
    depends=("cpu-role-split", "mbec-gmet"),
    tested="tests/kvm/test_roles.py::test_the_identity_of_a_shadow_root",
)
def shadow_root_role(policy: Policy, now: Registers) -> PageRole:
    """The role of the root that shadows the guest's root (mmu.c, kvm_init_shadow_mmu)."""
    role = cpu_role(policy, now)
    nx = True if policy.has("cpu-role-split") else role.nx
    return PageRole(nx, role.wp, role.smep or role.smep_andnot_wp, role.smap_andnot_wp, max(role.level, 3))
