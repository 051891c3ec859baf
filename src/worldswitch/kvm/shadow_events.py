"""The kvmmmu events of shadow paging: what KVM says of its shadow pages, of what it maps, and of the guest's tables.

Fields that hold addresses of the host (pfn, spte, sptep) are left out: the model has none. Not here: what is said when
a VM goes, and kvm_mmu_zap_all_fast.
"""

from __future__ import annotations

from typing import Any

from worldswitch.kvm.guest_walk import Walk, Walker, walk
from worldswitch.kvm.permissions import U_RIGHT, W_RIGHT, X_RIGHT, F, P, U, W
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import PageRole
from worldswitch.kvm.rules import rule
from worldswitch.kvm.shadow_table import Page
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import ACCESSED, ADDRESS, DIRTY, PAGE_SIZE, PRESENT, USER

Event = tuple[str, dict[str, Any]]

_FRAME_BITS = 12
_DIRECT, _EIGHT_BYTES, _SMEP = 1 << 7, 1 << 4, 1 << 20
_ACCESS = 8
_READ_RIGHT = 1


@rule(
    id="shadow-role-word",
    sentence="The role of a shadow page, as kvm_mmu_get_page gives it: level, direct, rights, whether it has been "
    "zapped, NX, WP, and SMEP and SMAP as far as they count; 5.10 sets a bit more for entries of 8 bytes, 7.2 has one "
    "right more.",
    depends=("tdp-root-role-constant", "mbec-gmet"),
    tested="tests/kvm/test_shadow_events.py::test_events_are_those_of_the_recording",
)
def shadow_role_word(policy: Policy, role: PageRole, valid: bool = True) -> int:
    """The role's 32 bits (union kvm_mmu_page_role of asm/kvm_host.h)."""
    wide = policy.has("mbec-gmet")
    above = _ACCESS + (4 if wide else 3)  # the bit behind the rights
    word = role.level | (_DIRECT if role.direct else 0) | access_word(policy, role.access) << _ACCESS
    word |= (not valid) << above | role.nx << above + 1 | role.wp << above + 2
    if wide:
        word |= role.smap_andnot_wp << above + 3 | (_SMEP if role.smep else 0)
    else:
        word |= role.smep << above + 3 | role.smap_andnot_wp << above + 4
    return word if policy.has("tdp-root-role-constant") else word | _EIGHT_BYTES


def access_word(policy: Policy, rights: int) -> int:
    """Rights as events have them: X, W and U; where reading is a right of its own, R, W, U and X (ACC_*_MASK)."""
    if not policy.has("mbec-gmet"):
        return rights
    return _READ_RIGHT | rights & (W_RIGHT | U_RIGHT) | (8 if rights & X_RIGHT else 0)


class ShadowTrace:
    """Says what KVM's shadow MMU says, into a VM's events.

    Args:
        events: Rows (event, fields) of the VM, which these are added to.
    """

    __slots__ = ("_events", "_policy")

    def __init__(self, policy: Policy, events: list[Event]) -> None:
        self._policy, self._events = policy, events

    # ---- pages

    def got(self, page: Page, created: bool) -> None:
        """A page was looked up (mmu.c, kvm_mmu_get_page)."""
        self._events.append(("kvm_mmu_get_page", {"created": created, **self._page(page)}))

    def says(self, event: str, page: Page) -> None:
        """*event*, one of kvm_mmu_prepare_zap_page, kvm_mmu_sync_page and kvm_mmu_unsync_page, is about to happen."""
        self._events.append((event, self._page(page)))

    def _page(self, page: Page) -> dict[str, Any]:
        return {
            "mmu_valid_gen": 0,
            "gfn": page.gfn,
            "role": shadow_role_word(self._policy, page.role, page.valid),
            "root_count": page.users,
            "unsync": page.unsync,
        }

    # ---- mapping

    def requested(self, va: int, found: Walk, level: int) -> None:
        """A page is to be mapped at *level*; old kernels say so of its linear address and the guest's own level."""
        row = {"gfn": found.gfn, "level": level}
        if not self._policy.has("shadow-child-compared"):
            row = {"gfn": va >> _FRAME_BITS, "level": found.level}
        if self._policy.has("trace-spte-requested-access"):
            row["access"] = access_word(self._policy, found.rights)
        self._events.append(("kvm_mmu_spte_requested", row))

    def mapped(self, gfn: int, level: int, rights: int) -> None:
        """An entry was set (mmu.c, mmu_set_spte)."""
        row = {"gfn": gfn, "level": level, "r": True, "x": bool(rights & X_RIGHT), "u": int(bool(rights & U_RIGHT))}
        self._events.append(("kvm_mmu_set_spte", row))

    # ---- the guest's tables

    def walk(self, memory: Memory, walker: Walker, va: int, code: int) -> Walk | int:
        """:func:`~worldswitch.kvm.guest_walk.walk`, told: what it read, what it marked, or the error it met.

        Args:
            code: May have P, which only the event shows.
        """
        return walk_told(self._events, memory, walker, va, code)


def fetch_told(events: list[Event], memory: Memory, walker: Walker, rip: int) -> None:
    """KVM's emulator fetches the instruction at *rip*: for CPL 3 if its page is a user's."""
    entries = _entries(memory, walker, rip)
    user = U if entries and all(entry & USER for _, _, entry in entries) else 0
    walk_told(events, memory, walker, rip, F | user)


def walk_told(events: list[Event], memory: Memory, walker: Walker, va: int, code: int) -> Walk | int:
    """As :meth:`ShadowTrace.walk`, into *events*."""
    entries = _entries(memory, walker, va)
    events.append(("kvm_mmu_pagetable_walk", {"addr": va, "pferr": code & (P | W | U | F)}))
    if walker.pdptes:
        events.append(("kvm_mmu_paging_element", {"pte": walker.pdptes[va >> 30 & 3], "level": 3}))
    events += [("kvm_mmu_paging_element", {"pte": entry, "level": level}) for level, _, entry in entries]
    found = walk(memory, walker, va, code & (W | U | F))
    if not isinstance(found, Walk):
        events.append(("kvm_mmu_walker_error", {"pferr": found}))
        return found
    for level, place, entry in entries:
        if not entry & ACCESSED:
            events.append(("kvm_mmu_set_accessed_bit", {"gpa": place}))
        if level == found.level and code & W and not entry & DIRTY:
            events.append(("kvm_mmu_set_dirty_bit", {"gpa": place}))
    return found


def _entries(memory: Memory, walker: Walker, va: int) -> list[tuple[int, int, int]]:
    """Level, place and content of what a walk reads, from the root down: to the leaf or what is not present."""
    table, level = walker.root, walker.levels
    if walker.pdptes:
        pdpte = walker.pdptes[va >> 30 & 3]
        if not pdpte & PRESENT:
            return []
        table = pdpte & ADDRESS
    found: list[tuple[int, int, int]] = []
    while True:
        place = table + 8 * (va >> 12 + 9 * (level - 1) & 511)
        if place >= memory.size:
            return found
        entry = memory.word(place)
        found.append((level, place, entry))
        if not entry & PRESENT or level == 1 or entry & PAGE_SIZE:
            return found
        table, level = entry & ADDRESS, level - 1
