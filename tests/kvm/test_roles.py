"""Roles. Expected: kvm_calc_cpu_role, kvm_calc_tdp_mmu_root_page_role and kvm_init_shadow_mmu of 5.10.223 to 7.2.13."""

from __future__ import annotations

import pytest

from worldswitch.kvm.permissions import ALL_RIGHTS
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import CpuRole, PageRole, cpu_role, shadow_root_role, tdp_root_role
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask

LONG = Registers(0x80050033, 0x2000, bit_mask(CR4, "PAE"), 0xD00)
WP, PG = bit_mask(CR0, "WP"), bit_mask(CR0, "PG")
SMEP, SMAP, LA57 = (bit_mask(CR4, name) for name in ("SMEP", "SMAP", "LA57"))


def test_the_cpu_role() -> None:
    """Rule cpu-role."""
    old, new = Policy.of("6.12"), Policy.of("7.2")
    clear = LONG._replace(cr0=LONG.cr0 & ~WP, cr4=LONG.cr4 | SMEP | SMAP)
    rest = LONG.cr4 | SMEP | SMAP
    assert cpu_role(old, clear) == CpuRole(4, True, False, False, True, True, rest)
    assert cpu_role(new, clear) == CpuRole(4, True, False, True, False, True, rest)
    assert cpu_role(old, clear._replace(cr0=LONG.cr0)).smep_andnot_wp is False
    assert cpu_role(new, LONG._replace(cr4=LONG.cr4 | LA57)).level == 5
    assert cpu_role(new, LONG._replace(efer=0)).level == 3
    assert cpu_role(new, LONG._replace(cr0=LONG.cr0 & ~PG)) == CpuRole(0)


@pytest.mark.parametrize(("kernel", "sets"), [("5.10", 4), ("5.15", 4), ("6.1", 1), ("7.2", 1)])
def test_how_many_sets_of_tdp_tables_there_are(kernel: str, sets: int) -> None:
    policy, nx = Policy.of(kernel), bit_mask(EFER, "NXE")
    modes = [LONG._replace(cr0=cr0, efer=efer) for cr0 in (LONG.cr0, LONG.cr0 ^ WP) for efer in (0xD00, 0xD00 ^ nx)]
    assert len({tdp_root_role(policy, mode) for mode in modes}) == sets


def test_the_identity_of_a_shadow_root() -> None:
    """Rule shadow-page-role."""
    without_nx = LONG._replace(efer=LONG.efer & ~bit_mask(EFER, "NXE"))
    clear = LONG._replace(cr0=LONG.cr0 & ~WP)
    for kernel in ("5.10", "6.1", "7.2"):
        policy = Policy.of(kernel, mmu="shadow")
        role = shadow_root_role(policy, LONG)
        assert role == PageRole(True, True, False, False, 4, False, ALL_RIGHTS)
        assert shadow_root_role(policy, clear) == role._replace(wp=False)
        assert shadow_root_role(policy, without_nx) == role._replace(nx=kernel != "5.10")
    for kernel, with_wp in (("5.10", False), ("6.12", False), ("7.2", True)):
        policy = Policy.of(kernel, mmu="shadow")
        assert shadow_root_role(policy, LONG._replace(cr4=LONG.cr4 | SMEP)).smep is with_wp
        assert shadow_root_role(policy, clear._replace(cr4=LONG.cr4 | SMEP)).smep is True
