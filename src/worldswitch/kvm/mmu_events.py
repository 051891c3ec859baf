"""The kvmmmu events of two-dimensional paging: what KVM says when it loads a root and when it maps a page.

Fields that hold addresses of the host (pfn, spte, sptep, old_spte, new_spte) are left out: the model has none. Not
here: what is said when a VM goes, when the TDP MMU frees a tree, and when a huge page is split; and all of shadow
paging.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Mmu, Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.kvm.tdp import Tree
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, EFER, bit_mask

Event = tuple[str, dict[str, Any]]

_WP, _NXE = bit_mask(CR0, "WP"), bit_mask(EFER, "NXE")
_DIRECT, _EIGHT_BYTES = 1 << 7, 1 << 4
_ACCESS = 8
_RET_INVALID = 2
_FETCH = 0x10


@rule(
    id="tdp-role-word",
    sentence="The role of TDP tables, as kvm_mmu_get_page gives it: level, direct, all rights, WP and NX (of the guest "
    "where they have a part in it, else set), and whether accessed bits are missing; 7.2 has one right more.",
    depends=("tdp-root-role-constant", "mbec-gmet"),
    tested="tests/kvm/test_mmu_events.py::test_events_are_those_of_the_recording",
)
def role_word(policy: Policy, host: Host, now: Registers, level: int) -> int:
    """The role's 32 bits (union kvm_mmu_page_role; mmu.c, kvm_calc_tdp_mmu_root_page_role)."""
    wide = policy.has("mbec-gmet")
    access, nx = (0xF, 13) if wide else (0x7, 12)
    constant = policy.has("tdp-root-role-constant")
    word = level | _DIRECT | access << _ACCESS
    word |= (constant or bool(now.efer & _NXE)) << nx | (constant or bool(now.cr0 & _WP)) << nx + 1
    word |= (not host.accessed_bits) << 16
    if wide:
        return word | (policy.vendor is Vendor.INTEL) << 20  # cr4_smep: EPT tells user pages apart without it
    return word if constant else word | _EIGHT_BYTES


def root_loaded(policy: Policy, host: Host, now: Registers, tree: Tree, level: int = 4) -> Iterator[Event]:
    """The events of loading a root; *tree* is empty if it was made for that.

    The legacy MMU looks a root up in its hash each time and says so; the TDP MMU speaks of new ones, on old kernels of
    none (mmu.c, kvm_mmu_get_page; tdp_mmu.c, tdp_mmu_init_sp).
    """
    created = not tree.tables
    legacy = policy.mmu is Mmu.LEGACY
    if legacy or (created and policy.has("tdp-root-role-constant")):
        yield _get_page(role_word(policy, host, now, level), 0, created)


def fault_begins(policy: Policy, vcpu: int, gpa: int, code: int) -> Iterator[Event]:
    """What is said before KVM looks for the page: with EPT, the legacy MMU of old kernels tries to fix it fast.

    It does so for whatever is not present, since its entries could be marked for access tracking (mmu.c,
    page_fault_can_be_fast of 5.10).
    """
    if policy.mmu is Mmu.LEGACY and policy.vendor is Vendor.INTEL and not policy.has("tdp-root-role-constant"):
        error = (4 if code & 1 else 0) | (2 if code & 2 else 0) | (_FETCH if code & 4 else 0)
        yield "fast_page_fault", {"vcpu_id": vcpu, "cr2_or_gpa": gpa, "error_code": error, "ret": _RET_INVALID}


def page_mapped(
    policy: Policy,
    host: Host,
    now: Registers,
    gfn: int,
    level: int,
    executable: bool,
    tables: Set[tuple[int, int]],
    besides: Set[int],
) -> Iterator[Event]:
    """The events of mapping a frame.

    Args:
        policy, host, now: As everywhere.
        gfn: The frame that faulted.
        level: Level it was mapped at.
        executable: With the right to execute.
        tables: New tables: level, and which of that level.
        besides: Frames the legacy MMU mapped with it.
    """
    access = {"access": 0xF} if policy.has("trace-spte-requested-access") else {}
    yield "kvm_mmu_spte_requested", {"gfn": gfn, "level": level, **access}
    changes = policy.mmu is Mmu.TDP and policy.has("tdp-root-role-constant")
    for table, number in sorted(tables, reverse=True):
        base = number << 9 * table
        yield _get_page(role_word(policy, host, now, table), base, created=True)
        if changes:
            yield _changed(gfn, table + 1)
    if changes:
        yield _changed(gfn, level)
    for one in (gfn, *sorted(besides)):
        row = {"gfn": _base(one, level), "level": level, "r": True, "x": executable, "u": 1}
        yield "kvm_mmu_set_spte", row


def _get_page(role: int, gfn: int, created: bool) -> Event:
    row = {"created": created, "mmu_valid_gen": 0, "gfn": gfn, "role": role, "root_count": 0, "unsync": False}
    return "kvm_mmu_get_page", row


def _changed(gfn: int, level: int) -> Event:
    return "kvm_tdp_mmu_spte_changed", {"gfn": _base(gfn, level), "level": level, "as_id": 0}


def _base(gfn: int, level: int) -> int:
    """First frame of what an entry of *level* maps."""
    return gfn >> 9 * (level - 1) << 9 * (level - 1)
