# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""Shadow pages: the tables KVM keeps beside the guest's under shadow paging, and how they are kept in step.

A page shadows one guest table (or, *direct*, part of one large guest page) for one role. The guest's upper tables are
write-protected, so that each store into them is emulated; those of level 1 may go out of step ("unsync") until the
guest flushes. Follows arch/x86/kvm/mmu/mmu.c.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from worldswitch.kvm.guest_walk import rights_of
from worldswitch.kvm.permissions import W_RIGHT
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import PageRole
from worldswitch.kvm.rules import rule
from worldswitch.kvm.shadow_events import ShadowTrace
from worldswitch.kvm.shadow_table import Leaf, Page
from worldswitch.x86.access import Controls, reserved_bits
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import ACCESSED, ADDRESS, DIRTY, PRESENT

FEWEST, PERMILLE, FREE, REFILL = 64, 20, 5, 25
"""KVM_MIN_ALLOC_MMU_PAGES, KVM_PERMILLE_MMU_PAGES, KVM_MIN_FREE_MMU_PAGES and KVM_REFILL_PAGES."""
# Constants of loops are C variables, declared in the .pxd.
_FREE, _REFILL, _W_RIGHT = FREE, REFILL, W_RIGHT
FLOODED = 3
"""Emulated writes to a page, with no use of it between, after which it is taken for no page table any more."""


class Pages:
    """All shadow pages of a VM.

    Args:
        controls: Gives the processor's bits of the moment: reserved bits of guest entries.
        flush: Called where KVM has all vCPUs flush.
        request: Called with what is to be done before the next entry: current and sync, by this vCPU; reload, by all.
        trace: Told what KVM says; None where no events are kept.

    Attributes:
        counts: The VM statistics of the shadow MMU by KVM's names.
        most: How many pages there may be.
        stale: How many are out of step.
    """

    __slots__ = (
        "_gfns", "_maps", "_memory", "_oldest", "_policy", "_tracked", "controls", "counts", "flush", "most", "request",
        "stale", "trace",
    )  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        memory: Memory,
        controls: Callable[[], Controls],
        flush: Callable[[], None],
        request: Callable[[str], None],
        trace: ShadowTrace | None = None,
    ) -> None:
        self._policy, self._memory, self.trace = policy, memory, trace
        self.controls, self.flush, self.request = controls, flush, request
        self._gfns: dict[int, list[Page]] = {}
        self._maps: dict[int, set[tuple[Page, int]]] = {}
        self._tracked: dict[int, int] = {}
        self.stale = 0
        self.counts: Counter[str] = Counter()
        self._oldest: dict[int, Page] = {}
        self.most = most_pages(memory.size >> 12)

    # ---- finding and making

    def get(self, gfn: int, role: PageRole) -> Page:
        """The page for *gfn* and *role*, made if there is none (mmu.c, kvm_mmu_get_page)."""
        for page in self._gfns.get(gfn, ()):
            if page.unsync:
                break
            if page.role is role or page.role == role:
                self._use(page)
                return page
        return self._get(gfn, role)

    def _get(self, gfn: int, role: PageRole) -> Page:
        """The same, where a page that shadows the table may be out of step, or none is there."""
        stale = [page for page in self._gfns.get(gfn, ()) if page.unsync]
        for page in list(self._gfns.get(gfn, ())):
            if page.role == role:
                if page.unsync and not self._sync_found(page):
                    break
                self._use(page)
                return page
            if page.unsync and role.level > 1 and self._policy.has("shadow-upper-zaps-unsync"):
                self.zap(page)
        self.counts["mmu_cache_miss"] += 1
        page = Page(gfn, role)
        self._gfns.setdefault(gfn, []).insert(0, page)
        self._oldest[id(page)] = page
        self.counts["mmu_shadow_pages"] += 1
        if not role.direct:
            if role.level > 1:
                self._tracked[gfn] = self._tracked.get(gfn, 0) + 1
            if self.write_protect(gfn):
                self.flush()
            if role.level > 1 and stale and not self._policy.has("shadow-upper-zaps-unsync"):
                self._sync_all([one for one in stale if one.valid])
        if self.trace is not None:
            self.trace.got(page, True)
        return page

    def _use(self, page: Page) -> None:
        """Take a page there is."""
        old = self.stale and page.level > 1 and not self._policy.has("shadow-child-compared")
        if old and self.out_of_step(page):
            self.request("sync")
        page.floods = 0
        if self.trace is not None:
            self.trace.got(page, False)

    def _sync_found(self, page: Page) -> bool:
        """Bring a page in step that stays unsync, for the guest may go on writing; False if that zapped it."""
        flush = self._sync(page)
        if page.valid:
            self._synced(flush)
        return page.valid

    def of(self, gfn: int) -> list[Page]:
        """The pages that shadow a guest table."""
        return [page for page in self._gfns.get(gfn, ()) if not page.direct]

    def tracked(self, gfn: int) -> bool:
        """Whether every write to the frame is emulated: an upper table is shadowed there."""
        return self._tracked.get(gfn, 0) > 0

    def forbids_large(self, gfn: int) -> bool:
        """Whether a guest table is shadowed in the 2 MiB around the frame, which therefore are not mapped whole."""
        return any([found >> 9 == gfn >> 9 and self.of(found) for found in self._gfns])  # noqa: C419 - no closure in C

    # ---- entries

    def link(self, page: Page, index: int, child: Page) -> None:
        """Let an entry point to the page below; what was there is dropped."""
        self.drop(page, index)
        page.put(index, child)
        child.parents.add((page, index))

    def set_leaf(self, page: Page, index: int, leaf: Leaf) -> None:
        """Map, in an entry of *page*."""
        old = page.leaf(index)
        if old is not None and old.gfn == leaf.gfn:
            page.put(index, leaf)
            return
        self.drop(page, index)
        page.put(index, leaf)
        for gfn in self._frames(page, leaf):
            self._maps.setdefault(gfn, set()).add((page, index))

    def drop(self, page: Page, index: int) -> bool:
        """Clear an entry; False if there was none."""
        old = page.take(index)
        if isinstance(old, Page):
            old.parents.discard((page, index))
        elif old is not None:
            for gfn in self._frames(page, old):
                self._maps[gfn].discard((page, index))
        return old is not None

    @staticmethod
    def _frames(page: Page, leaf: Leaf) -> range:
        return range(leaf.gfn, leaf.gfn + (1 << 9 * (page.level - 1)))

    # ---- write protection

    def write_protect(self, gfn: int) -> bool:
        """Take the right to write from all that maps the frame; True if any had it."""
        changed = False
        for page, index in self._maps.get(gfn, ()):
            leaf = page.leaf(index)
            assert leaf is not None
            if leaf.rights & _W_RIGHT:
                page.put(index, leaf.read_only())
                changed = True
        return changed

    def writable(self, gfn: int, prefetch: bool, may_unsync: bool = True) -> bool:
        """Whether the frame may be mapped writable; pages that shadow it go out of step for that."""
        return try_unsync(self._policy, self, gfn, prefetch, may_unsync)

    # ---- synchronization

    def below(self, root: Page) -> list[Page]:
        """*root* and all pages reached from it."""
        seen, rest = {id(root)}, [root]
        found: list[Page] = []
        while rest:
            page = rest.pop()
            found.append(page)
            if page.level > 1:
                for child in page.entries.values():
                    if isinstance(child, Page) and id(child) not in seen:
                        seen.add(id(child))
                        rest.append(child)
        return found

    def out_of_step(self, root: Page) -> bool:
        """Whether any page under *root* is (mmu.c, is_unsync_root)."""
        return self.stale > 0 and any([page.unsync for page in self.below(root)])  # noqa: C419 - as above

    def sync_root(self, root: Page) -> None:
        """Bring all pages under *root* in step with the guest's tables (mmu.c, mmu_sync_children)."""
        if not self.stale:
            return
        stale = [page for page in self.below(root) if page.unsync]
        if stale:
            protected = [self.write_protect(page.gfn) for page in stale]
            if any(protected):
                self.flush()
            self._sync_all(stale)

    def _sync_all(self, stale: list[Page]) -> None:
        flush = False
        for page in stale:
            self._in_step(page)
            flush |= self._sync(page)
        self._synced(flush)

    def _synced(self, lost: bool) -> None:
        """The flush after synchronization: where rights were lost, on old kernels of this vCPU in any case."""
        if lost:
            self.flush()
        elif not self._policy.has("shadow-sync-flushes-losses"):
            self.request("current")

    def _in_step(self, page: Page) -> None:
        if self.trace is not None:
            self.trace.says("kvm_mmu_sync_page", page)
        page.unsync = False
        self.stale -= 1
        self.counts["mmu_unsync"] = self.stale

    def _sync(self, page: Page) -> bool:
        """Make each entry what the guest's entry says now; True if one lost something that needs a flush."""
        lost = [self.sync_entry(page, index) for index in list(page.entries)]
        if not page.entries and not self._policy.has("shadow-sync-keeps-empty"):
            self.zap(page)
        return any(lost)

    def sync_entry(self, page: Page, index: int) -> bool:
        """Make one entry what the guest's says; True if it lost something that needs a flush."""
        leaf = page.leaf(index)
        assert leaf is not None
        granted = self.entry_rights(page, self._memory.word((page.gfn << 12) + 8 * index))
        if granted is None or granted[0] != leaf.gfn:
            self.drop(page, index)
            return self._policy.has("shadow-sync-flushes-losses")
        wanted = granted[1]
        if wanted & W_RIGHT and not leaf.rights & W_RIGHT and not self.writable(leaf.gfn, True, may_unsync=False):
            wanted &= ~W_RIGHT
        # Entries are made anew as if ahead of an access; newer kernels leave alone what stays as it is.
        if wanted == leaf.rights and self._policy.has("shadow-sync-keeps-accessed"):
            return False
        made = Leaf(leaf.gfn, wanted, dirty=self.made_dirty(leaf, wanted))
        page.put(index, made)
        return loses(self._policy, leaf, made)

    def made_dirty(self, old: Leaf | Page | None, rights: int) -> bool:
        """Whether an entry that maps the frame of *old*, if that is a leaf, is made with D set."""
        was_writable = isinstance(old, Leaf) and bool(old.rights & W_RIGHT)
        return bool(rights & W_RIGHT) and (self._policy.has("spte-update-keeps-tlb") or not was_writable)

    def entry_rights(self, page: Page, entry: int) -> tuple[int, int] | None:
        """Frame and rights that a level-1 guest entry grants without a fault of its own; None if it grants none."""
        if not entry & PRESENT or not entry & ACCESSED or entry & reserved_bits(1, entry, self.controls()):
            return None
        rights = page.role.access & rights_of(entry)
        return (entry & ADDRESS) >> 12, rights if entry & DIRTY else rights & ~W_RIGHT

    def mark_unsync(self, page: Page) -> None:
        """Let the guest write the table freely from now on."""
        if self.trace is not None:
            self.trace.says("kvm_mmu_unsync_page", page)
        page.unsync = True
        self.stale += 1
        self.counts["mmu_unsync"] = self.stale

    # ---- zapping

    def zap(self, page: Page) -> None:
        """Take a page out of use, and unsync pages under it with it (mmu.c, kvm_mmu_prepare_zap_page)."""
        if not page.valid:
            return
        if self.trace is not None:
            self.trace.says("kvm_mmu_prepare_zap_page", page)
        page.valid = False
        self.counts["mmu_shadow_zapped"] += 1
        self.counts["mmu_shadow_pages"] -= 1
        del self._oldest[id(page)]
        if self.stale > page.unsync:
            for child in [child for child in self.below(page) if child.unsync and child is not page]:
                self.zap(child)
        for index in list(page.entries):
            self.drop(page, index)
        for parent, index in list(page.parents):
            self.drop(parent, index)
        if page.unsync:
            self._in_step(page)
        self._gfns[page.gfn].remove(page)
        if not page.direct and page.level > 1:
            self._tracked[page.gfn] -= 1
        if page.users:
            self.request("reload")
        self.flush()

    def make_room(self) -> None:
        """Zap the oldest pages if few more may be made (mmu.c, make_mmu_pages_available)."""
        left = self.most - len(self._oldest)
        if left >= _FREE:
            return
        wanted, before = _REFILL - left, len(self._oldest)
        for page in list(self._oldest.values()):
            if before - len(self._oldest) >= wanted:
                break
            if page.valid and not page.users:
                self.zap(page)
        self.counts["mmu_recycled"] += before - len(self._oldest)

    def written(self, gpa: int, size: int) -> None:
        """An emulated write to a frame that is shadowed (mmu.c, kvm_mmu_pte_write)."""
        if not any(self._gfns.values()):
            return
        entry = self._memory.word(gpa & ~7)
        self.counts["mmu_pte_write"] += 1
        flush = False
        for page in self.of(gpa >> 12):
            if misaligned(gpa, size) or flooded(page):
                self.zap(page)
                self.counts["mmu_flooded"] += 1
                continue
            flush |= self.drop(page, (gpa & 0xFFF) >> 3)
            if entry and page.level > 1:
                self.counts["mmu_pde_zapped"] += 1
        if flush:
            self.flush()

    # ---- statistics

    def leaves(self) -> tuple[int, int]:
        """How many entries map 4 KiB, and 2 MiB."""
        small = large = 0
        for pages in self._gfns.values():
            for page in pages:
                found = sum(isinstance(entry, Leaf) for entry in page.entries.values())
                small, large = (small + found, large) if page.level == 1 else (small, large + found)
        return small, large

    def splits(self) -> int:
        """The statistic nx_lpage_splits."""
        return sum(page.split for pages in self._gfns.values() for page in pages)

    def state(self) -> object:
        """A value that is equal whenever all pages are, whatever has been counted."""
        found = []
        for gfn in sorted(self._gfns):
            for page in self._gfns[gfn]:
                entries = {
                    index: entry.key() if isinstance(entry, Leaf) else (entry.gfn, entry.role)
                    for index, entry in page.entries.items()
                }
                found.append((gfn, page.role, page.unsync, page.users, page.floods, entries))
        # Which of them goes first when room is needed is their age.
        return found, [(page.gfn, page.role) for page in self._oldest.values()]


@rule(
    id="shadow-update-flush",
    sentence="Changing a shadow entry flushes if it takes away the right to write; up to 6.12 also if it clears A or "
    "D.",
    depends=("spte-update-keeps-tlb",),
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), shadow entries that lose '
    "rights "
    "are flushed from TLBs. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_what_a_changed_entry_flushes",
)
def loses(policy: Policy, old: Leaf, new: Leaf) -> bool:
    """Whether putting *new* in place of *old* needs a flush (mmu.c, mmu_spte_update)."""
    if old.rights & ~new.rights & W_RIGHT:
        return True
    lost = (old.accessed and not new.accessed) or (old.dirty and not new.dirty)
    return lost and not policy.has("spte-update-keeps-tlb")


@rule(
    id="shadow-page-limit",
    sentence="A VM may have one shadow page for each 50 pages of memory, at least 64; the oldest are zapped when few "
    "are left.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), shadow pages are limited '
    "and "
    "reused. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_the_oldest_pages_make_room",
)
def most_pages(frames: int) -> int:
    """How many shadow pages a VM of so many 4 KiB frames may have (mmu.c, kvm_mmu_calculate_default_mmu_pages)."""
    return max(FEWEST, frames * PERMILLE // 1000)


@rule(
    id="shadow-unsync",
    sentence="A guest table of level 1 may be written freely once it has been marked unsync; upper tables never; "
    "mapping a neighbour ahead marks none, on newer kernels.",
    depends=("shadow-prefetch-keeps-sync",),
    source='Since Linux commit 4731d4c7a077 ("KVM: MMU: out of sync shadow core") (v2.6.28), shadowed tables of level '
    "1 "
    "go out of step until the guest flushes. Before that, each write to one was emulated.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_a_level_1_table_is_written_freely_until_a_flush",
)
def try_unsync(policy: Policy, pages: Pages, gfn: int, prefetch: bool, may_unsync: bool) -> bool:
    """Whether the frame may be mapped writable (mmu.c, mmu_try_to_unsync_pages; up to 5.10 mmu_need_write_protect)."""
    if pages.tracked(gfn):
        return False
    for page in pages.of(gfn):
        if not may_unsync:
            return False
        if page.unsync:
            continue
        if prefetch and policy.has("shadow-prefetch-keeps-sync"):
            return False
        pages.mark_unsync(page)
    return True


@rule(
    id="write-flooding",
    sentence="The third emulated write to an upper guest table with no use of it between zaps its shadow page.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "KVM watches writes to the guest tables it shadows. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_the_third_write_in_a_row_zaps_an_upper_table",
)
def flooded(page: Page) -> bool:
    """Count an emulated write to *page*; whether it is taken for no table any more (mmu.c, detect_write_flooding)."""
    if page.level == 1:
        return False
    page.floods += 1
    return page.floods >= FLOODED


def misaligned(gpa: int, size: int) -> bool:
    """Whether a write is not to one whole entry; of one byte it may be to the first of one."""
    if not gpa & 7 and size == 1:
        return False
    return size < 4 or bool((gpa ^ gpa + size - 1) & ~7)
