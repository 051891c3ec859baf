# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""Shadow paging: page faults that KVM answers from the guest's tables, CR3 loads, INVLPG.

The processor walks KVM's shadow pages with CR0.WP and EFER.NXE always set; what they lack is a page fault that exits.
Follows FNAME(page_fault) and FNAME(fetch) of arch/x86/kvm/mmu/paging_tmpl.h.
"""

from __future__ import annotations

from collections.abc import Callable

from worldswitch.kvm.backing import Backing
from worldswitch.kvm.guest_walk import Walk, Walker, walk
from worldswitch.kvm.host import Host, nx_active
from worldswitch.kvm.permissions import U_RIGHT, W_RIGHT, X_RIGHT, F, P, U, W
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import PageRole
from worldswitch.kvm.roots import Roots, new_root
from worldswitch.kvm.rules import rule
from worldswitch.kvm.shadow_pages import Pages, loses
from worldswitch.kvm.shadow_table import Leaf, Page, index_of
from worldswitch.kvm.tdp import GROUP, direct_prefetch
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import ADDRESS, PRESENT

_LONG = 4
"""Fewest levels of a root that is a shadow page itself."""
# Constants of loops are C variables, declared in the .pxd.
_W_RIGHT, _X_RIGHT, _GROUP, _FRAME = W_RIGHT, X_RIGHT, GROUP, (1 << 40) - 1
INVALID, FIXED, EMULATE, SPURIOUS = "invalid", "fixed", "emulate", "spurious"
"""What came of a fault: the guest's own, mapped, to be emulated, nothing to do (RET_PF_*)."""


class Shadow:
    """The shadow MMU of one vCPU.

    Args:
        walker: Gives what a walk of the guest's tables needs, now.

    Attributes:
        pages: All shadow pages of the VM.
        roots: The current root and those before it.
    """

    __slots__ = ("_backing", "_memory", "_nx", "_policy", "_walker", "pages", "roots")

    def __init__(
        self,
        policy: Policy,
        host: Host,
        backing: Backing,
        memory: Memory,
        walker: Callable[[], Walker],
        pages: Pages,
    ) -> None:
        self._policy, self._backing, self._memory, self._walker = policy, backing, memory, walker
        self._nx = nx_active(policy, host)
        self.pages = pages
        self.roots = Roots(policy, _free)

    # ---- roots

    def load(self, cr3: int, role: PageRole, pdptes: tuple[int, ...] = ()) -> None:
        """Load the root that shadows the guest's, and bring what it holds in step (kvm_mmu_load).

        With PAE paging that is one for each of the *pdptes* that is present, under a page that shadows nothing.
        """
        self.pages.make_room()
        if pdptes:
            page = Page(cr3 >> 12, role)
            for index, pdpte in enumerate(pdptes):
                if pdpte & PRESENT:
                    below = role._replace(level=role.level - 1)
                    page.put(index, self.pages.get((pdpte & ADDRESS) >> 12, below))
        else:
            page = self.pages.get(cr3 >> 12 & _FRAME, role)
        for root in _roots_of(page):
            root.users += 1
        self.roots.current = new_root(cr3, page)
        self.sync()

    def switch(self, cr3: int, role: PageRole) -> bool:
        """Make the root for *cr3* current if it is among those at hand."""
        if role.level < _LONG:
            self.roots.free_current()  # those of PAE paging are never found again
            return False
        if not self.roots.switch(lambda root: root.pgd == cr3 and root.page.role == role and root.page.valid):
            return False
        assert self.roots.current is not None
        self.roots.current.page.floods = 0  # as it is used now (mmu.c, kvm_mmu_new_pgd)
        return True

    def sync(self) -> None:
        """Bring the current root in step (mmu.c, kvm_mmu_sync_roots)."""
        if self.roots.current is not None:
            for root in _roots_of(self.roots.current.page):
                self.pages.sync_root(root)

    def sync_previous(self) -> None:
        """Drop the roots before the current one that are out of step, which syncs them (kvm_mmu_sync_prev_roots)."""
        self.roots.free_previous(lambda root: self.pages.out_of_step(root.page))

    # ---- what the processor sees

    def last(self, va: int) -> Page:
        """The page where the walk of *va* ends, at a leaf or at nothing."""
        assert self.roots.current is not None
        page: Page = self.roots.current.page
        while page.level > 1:
            entry = page.slots[index_of(va, page.level)]
            if not isinstance(entry, Page):
                break
            page = entry
        return page

    # ---- faults

    def fault(self, va: int, code: int) -> tuple[str, int]:
        """Answer a page fault of the processor: what came of it, and the error code of a fault of the guest's own."""
        walker = self._walker()
        if self.pages.trace is None:
            found = walk(self._memory, walker, va, code & (W | U | F))
        else:
            found = self.pages.trace.walk(self._memory, walker, va, code)
        if not isinstance(found, Walk):
            return INVALID, found
        if code & P and code & W and self.pages.tracked(found.gfn):
            self._clear_floods(va)
            return EMULATE, 0
        if not self._backing.exists(found.gfn):
            return EMULATE, 0
        self._backing.touch(found.gfn)
        rights = wp_clear_rights(found.rights, code, walker)
        small = self._maps_own_table(found, code, walker)
        return self._fetch(va, code, found._replace(rights=rights), small), 0

    def _fetch(self, va: int, code: int, found: Walk, small: bool) -> str:
        """Build the pages down to the leaf, and map."""
        self.pages.make_room()
        page = self._guest_levels(va, found)
        level = found.level
        disallowed = bool(code & F) and self._nx
        whole = not small and level > 1 and self._backing.large(found.gfn) and not self.pages.forbids_large(found.gfn)
        goal = 2 if whole and not disallowed else 1
        if self.pages.trace is not None:
            self.pages.trace.requested(va, found, goal)
        while page.level > goal:
            index = index_of(va, page.level)
            page.floods = 0
            child = page.slots[index]
            if isinstance(child, Page) and child.split and page.level == 2 and self._nx:
                goal = 1
            first = found.gfn >> 9 * (page.level - 1) << 9 * (page.level - 1)
            page = self._direct_below(page, index, first, found.rights, whole and disallowed)
        index = index_of(va, page.level)
        page.floods = 0
        return self._map(page, index, found, code)

    def _guest_levels(self, va: int, found: Walk) -> Page:
        """Down the levels that the guest has tables for."""
        assert self.roots.current is not None
        page: Page = self.roots.current.page
        while page.level > found.level:
            page.floods = 0
            index, below = index_of(va, page.level), page.level - 1
            role = page.role._replace(level=below, access=found.inherited[below], direct=False)
            child = page.slots[index]
            if not self._fits(child, found.tables[below], role):
                child = self.pages.get(found.tables[below], role)
                if below > 1 and self._policy.has("shadow-child-compared"):
                    self.pages.sync_root(child)
                self.pages.link(page, index, child)
            assert isinstance(child, Page)
            page = child
        return page

    def _fits(self, child: Leaf | Page | None, gfn: int, role: PageRole) -> bool:
        if not isinstance(child, Page):
            return False
        return not self._policy.has("shadow-child-compared") or (child.gfn == gfn and child.role == role)

    def _direct_below(self, page: Page, index: int, first: int, rights: int, split: bool) -> Page:
        """The page that maps part of a large guest page."""
        role = page.role._replace(level=page.level - 1, access=rights, direct=True)
        child = page.slots[index]
        if isinstance(child, Page) and child.role.access == rights:
            return child
        made = self.pages.get(first, role)
        made.split |= split and page.level == 2
        self.pages.link(page, index, made)
        return made

    def _map(self, page: Page, index: int, found: Walk, code: int) -> str:
        level = page.level
        gfn = found.gfn >> 9 * (level - 1) << 9 * (level - 1)
        rights, protected = self._granted(page, index, gfn, found.rights, prefetch=False)
        old = page.leaf(index)
        before = old if old is not None and old.gfn == gfn else None
        made_before = self._policy.has("shadow-protected-map-keeps-tlb")
        leaf = Leaf(gfn, rights, True, self.pages.made_dirty(before if made_before else None, rights))
        same = old is not None and old == leaf
        self.pages.set_leaf(page, index, leaf)
        if old is not None and (before is None or loses(self._policy, before, leaf)):
            self.pages.flush()
        outcome = EMULATE if protected and code & W else FIXED
        if same and outcome == FIXED:
            return SPURIOUS
        if self.pages.trace is not None and not (same and self._policy.has("shadow-protected-map-keeps-tlb")):
            self.pages.trace.mapped(gfn, level, rights)
        self._prefetch(page, index)
        return outcome

    def _granted(self, page: Page, index: int, gfn: int, rights: int, prefetch: bool) -> tuple[int, bool]:
        """The rights to map with, and whether writing was taken from them."""
        if page.level > 1 and self._nx:
            rights &= ~_X_RIGHT
        old = page.leaf(index)
        stays = old is not None and old.gfn == gfn and old.rights & _W_RIGHT
        if rights & _W_RIGHT and not stays and not self._all_writable(gfn, 1 << 9 * (page.level - 1), prefetch):
            if not self._policy.has("shadow-protected-map-keeps-tlb"):
                self.pages.request("current")
            return rights & ~_W_RIGHT, True
        return rights, False

    def _all_writable(self, first: int, count: int, prefetch: bool) -> bool:
        """Whether each of *count* frames may be mapped writable; pages that shadow one go out of step for that."""
        for gfn in range(first, first + count):
            if self.pages.of(gfn) and not self.pages.writable(gfn, prefetch):
                return False
        return True

    def _maps_own_table(self, found: Walk, code: int, walker: Walker) -> bool:
        """Whether a large guest page holds a table used to translate it: it is then mapped in small pages."""
        writes = found.rights & W_RIGHT or (not walker.controls.wp and not code & U)
        span = 9 * (found.level - 1)
        return bool(writes) and found.gfn >> span in {table >> span for table in found.tables.values()}

    def _clear_floods(self, va: int) -> None:
        assert self.roots.current is not None
        entry: Page | Leaf | None = self.roots.current.page
        while isinstance(entry, Page):
            entry.floods = 0
            entry = entry.slots[index_of(va, entry.level)]

    # ---- neighbours

    def _prefetch(self, page: Page, index: int) -> None:
        if page.level > 1:
            return
        first = index & -GROUP
        if page.direct:
            frames = range(page.gfn + first, page.gfn + first + GROUP)
            present = {page.gfn + i for i in page.entries}
            for gfn in direct_prefetch(self._policy, frames, present, self._backing):
                self._map_ahead(page, gfn - page.gfn, gfn, page.role.access)
            return
        for neighbour in range(first, first + GROUP):
            if page.slots[neighbour] is None and not self.map_neighbour(page, neighbour):
                return

    def map_neighbour(self, page: Page, index: int) -> bool:
        """Map what a guest entry says, if it needs no fault; False if it does."""
        return prefetch_entry(self.pages, self._backing, page, index, self._memory, self._map_ahead)

    def _map_ahead(self, page: Page, index: int, gfn: int, rights: int) -> None:
        rights, _ = self._granted(page, index, gfn, rights, prefetch=True)
        leaf = Leaf(gfn, rights, dirty=bool(rights & W_RIGHT))
        self.pages.set_leaf(page, index, leaf)
        if self.pages.trace is not None:
            self.pages.trace.mapped(gfn, page.level, rights)

    # ---- INVLPG

    def invalidate(self, va: int, previous: bool = True) -> None:
        """INVLPG: bring in step what the current root, and with *previous* those before it, have of *va*."""
        for root in self.roots.all() if previous else [self.roots.current]:
            if root is not None:
                self._invalidate(root.page, va)

    def _invalidate(self, page: Page, va: int) -> None:
        while True:
            index = index_of(va, page.level)
            entry = page.slots[index]
            if isinstance(entry, Page):
                page = entry
                continue
            if page.unsync:
                invalidate_entry(self._policy, self, page, index)
            return

    def state(self) -> object:
        """A value that is equal whenever all roots are."""
        roots = [(root.pgd, root.page.gfn, root.page.role) if root else None for root in self.roots.previous]
        current = self.roots.current
        under = [root.gfn for root in _roots_of(current.page)] if current else []
        return roots, (current.pgd, current.page.role, under) if current else None


def _free(page: Page) -> None:
    for root in _roots_of(page):
        root.users -= 1


def _roots_of(page: Page) -> list[Page]:
    """The root itself, or of PAE paging those that its PDPTEs lead to (mmu->pae_root)."""
    if page.level >= _LONG:
        return [page]
    return [one for one in page.entries.values() if isinstance(one, Page)]


@rule(
    id="shadow-invlpg",
    sentence="INVLPG brings the entry of a page that is out of step in step, and flushes if that lost something; on "
    "old kernels it drops the entry, if there is one, and flushes, and maps what the guest's says.",
    depends=("invlpg-syncs",),
    source='Since Linux commit 4731d4c7a077 ("KVM: MMU: out of sync shadow core") (v2.6.28), INVLPG works on pages '
    "that are "
    "out of step. Before that, there were none.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_invlpg_flushes_if_something_was_lost",
)
def invalidate_entry(policy: Policy, shadow: Shadow, page: Page, index: int) -> None:
    """What INVLPG does with a leaf of an unsync page (mmu.c, __kvm_mmu_invalidate_addr; before, FNAME(invlpg))."""
    there = page.slots[index] is not None
    if policy.has("invlpg-syncs"):
        if there and shadow.pages.sync_entry(page, index):
            shadow.pages.flush()
        return
    if there:
        shadow.pages.drop(page, index)
        shadow.pages.flush()
    shadow.map_neighbour(page, index)


@rule(
    id="shadow-wp-clear",
    sentence="With CR0.WP clear, a supervisor's write to a read-only user page maps it writable for the supervisor "
    "only, and not executable under SMEP; the next user access takes that back.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "shadow paging runs the guest with hardware CR0.WP set and lets such writes through. Before that, there was no "
    "KVM.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_a_read_only_user_page_flips_while_wp_is_clear",
)
def wp_clear_rights(rights: int, code: int, walker: Walker) -> int:
    """The rights to map a page with after a fault of kind *code* (paging_tmpl.h, FNAME(page_fault))."""
    if not code & W or code & U or rights & W_RIGHT or walker.controls.wp:
        return rights
    rights = (rights | W_RIGHT) & ~U_RIGHT
    return rights & ~X_RIGHT if walker.controls.smep else rights


@rule(
    id="shadow-prefetch",
    sentence="When a 4 KiB guest page is mapped, so are the absent neighbours of its aligned group of 8 whose guest "
    "entries are present and accessed and whose memory the host has, up to the first for which that is not so.",
    source='Since Linux commit 957ed9effd80 ("KVM: MMU: prefetch ptes when intercepted guest #PF") (v2.6.37), '
    "the neighbours of a faulting page are mapped with it. Before that, each faulted.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_neighbours_that_were_accessed_are_mapped",
)
def prefetch_entry(
    pages: Pages,
    backing: Backing,
    page: Page,
    index: int,
    memory: Memory,
    map_ahead: Callable[[Page, int, int, int], None],
) -> bool:
    """Map guest entry *index* of the table that *page* shadows; False if it needs a fault (FNAME(prefetch_gpte))."""
    granted = pages.entry_rights(page, memory.word((page.gfn << 12) + 8 * index))
    if granted is None or not backing.resident(granted[0]):
        return False
    map_ahead(page, index, *granted)
    return True
