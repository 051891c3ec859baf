# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""Two-dimensional paging: the EPT or NPT tables that map guest memory, what a violation adds, what a reload costs.

Under shadow paging a guest with paging off is mapped in the same way, by tables that the processor walks as a guest's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from worldswitch.kvm.backing import SMALL_IN_LARGE, Backing
from worldswitch.kvm.control_registers import Roots, roots_after_reset
from worldswitch.kvm.host import Host, nx_active
from worldswitch.kvm.policy import Mmu, Policy
from worldswitch.kvm.rules import rule

_PLACES = 256
"""Frames known to be mapped that are looked at first."""
_STAMPS = 1 << 20
GROUP = 8
"""PTE_PREFETCH_NUM: so many neighbours, aligned, are looked at when one is mapped."""


class Tree:
    """One set of tables, all a root maps.

    Attributes:
        small: 4 KiB frames mapped; all may be executed.
        large: 2 MiB frames mapped, whether they may be executed.
        split: 2 MiB frames under a table that is there only since they may not be executed when whole.
        tables: The tables below the root: level, and which of that level.
        users: vCPUs that have it loaded.
        version: Grows when anything is mapped no more.
    """

    __slots__ = ("large", "small", "split", "tables", "users", "version")

    def __init__(self) -> None:
        self.users = self.version = 0
        self.tables: set[tuple[int, int]] = set()
        self.small: set[int] = set()
        self.large: dict[int, bool] = {}
        self.split: set[int] = set()

    def allows(self, gfn: int, fetch: bool) -> bool:
        """Whether an access to the frame raises no violation; memory is writable throughout."""
        if gfn in self.small:
            return True
        executable = self.large.get(gfn >> 9)
        return executable is not None and (executable or not fetch)


class Mapped(NamedTuple):
    """What handling a violation did: the level mapped, frames mapped besides, and whether all vCPUs had to flush."""

    level: int
    besides: int = 0
    flushed: bool = False


class Trees:
    """All sets of tables of a VM, by role."""

    __slots__ = ("_mmu", "by_role")

    def __init__(self, policy: Policy) -> None:
        self._mmu = policy.mmu
        self.by_role: dict[tuple[bool, ...], Tree] = {}

    def pages(self) -> tuple[int, int, int]:
        """The statistics pages_4k, pages_2m and nx_lpage_splits: of all sets of tables there are."""
        trees = self.by_role.values()
        return (
            sum(len(tree.small) for tree in trees),
            sum(len(tree.large) for tree in trees),
            sum(len(tree.split) for tree in trees),
        )

    def made(self) -> int:
        """The statistic mmu_cache_miss: tables the legacy MMU made, which it never gives up here."""
        trees = self.by_role.values()
        if self._mmu is Mmu.SHADOW:
            # Four roots of level 2, and what they lead to.
            return sum(4 + sum(level == 1 for level, _ in tree.tables) for tree in trees)
        return sum(1 + len(tree.tables) for tree in trees) if self._mmu is Mmu.LEGACY else 0

    def state(self) -> object:
        """A value that is equal whenever all tables are."""
        return {role: (set(t.small), dict(t.large), set(t.split)) for role, t in self.by_role.items()}


class Tdp:
    """The TDP or the legacy MMU of one vCPU.

    Args:
        trees: Those of the VM; without them, of one with this vCPU alone.

    Attributes:
        tree: The current set of tables; None while the root is unloaded.
    """

    __slots__ = (
        "_backing", "_front", "_host", "_nx", "_policy", "_role", "_seen", "_stamp", "_trees", "_version", "tree",
    )  # fmt: skip

    def __init__(self, policy: Policy, host: Host, backing: Backing, trees: Trees | None = None) -> None:
        self._policy, self._host, self._backing = policy, host, backing
        self._nx = nx_active(policy, host)
        self._trees = Trees(policy) if trees is None else trees
        self._role: tuple[bool, ...] = ()
        self.tree: Tree | None = None
        self._front = memoryview(bytearray(8 * _PLACES)).cast("Q")
        self._seen: Tree | None = None
        self._stamp = self._version = 0

    def reaches(self, gfn: int, fetch: bool) -> bool:
        """Whether the current tables allow an access to the frame (:meth:`Tree.allows`), remembered if they do."""
        tree = self.tree
        if tree is not self._seen or tree.version != self._version:  # type: ignore[union-attr]
            self._restamp()
        key = gfn << _KEY | self._stamp | (1 if fetch else 0)
        if self._front[gfn & _LAST] == key:
            return True
        if not tree.allows(gfn, fetch):  # type: ignore[union-attr]
            return False
        self._front[gfn & _LAST] = key
        return True

    def _restamp(self) -> None:
        """What is remembered counts no more."""
        assert self.tree is not None
        self._seen, self._version, self._stamp = self.tree, self.tree.version, self._stamp + 2
        if self._stamp >= _STAMPS:
            self._stamp = 2
            for place in range(_PLACES):
                self._front[place] = 0

    def load(self, role: tuple[bool, ...]) -> None:
        """Load the root of *role*: the one there is, or an empty one."""
        if self.tree is not None:
            self.tree.users -= 1
        self._role = role
        tree = self._trees.by_role.get(role)
        if tree is None:
            tree = self._trees.by_role[role] = Tree()
        self.tree = tree
        self.tree.users += 1

    def unload(self) -> bool:
        """Drop the root; True if that freed its tables (see :func:`roots_after_reset`)."""
        tree = self.tree
        if tree is None:
            return False
        self.tree = None
        tree.users -= 1
        # Of vCPUs that are not followed: a role without bits is that of every vCPU; the first bit is CR0.WP.
        held = tree.users > 0 or (self._host.other_vcpus and all(self._role[:1]))
        zapped = roots_after_reset(self._policy, sole=not held) is Roots.REBUILT
        if zapped:
            del self._trees.by_role[self._role]
        return zapped

    def map(self, gfn: int, fetch: bool) -> Mapped:
        """Map the frame after a violation."""
        tree = self.tree
        assert tree is not None
        self._backing.touch(gfn)
        disallowed = fetch and self._nx
        whole = self._backing.large(gfn)
        tree.tables.update(((3, gfn >> 27), (2, gfn >> 18)))
        if whole and not disallowed and gfn >> 9 not in tree.split:
            tree.large[gfn >> 9] = not self._nx
            return Mapped(2)
        flushed, besides = False, 0
        if tree.large.pop(gfn >> 9, None) is not None:
            tree.version += 1
            if splits_in_place(self._policy):
                tree.small.update(range(gfn >> 9 << 9, (gfn >> 9) + 1 << 9))
                besides = SMALL_IN_LARGE - 1
            else:
                flushed = True
        tree.tables.add((1, gfn >> 9))
        if whole:
            tree.split.add(gfn >> 9)
        tree.small.add(gfn)
        if self._policy.mmu is Mmu.SHADOW or (self._policy.mmu is Mmu.LEGACY and self._host.accessed_bits):
            besides += self._prefetch(tree, gfn)
        return Mapped(1, besides, flushed)

    def _prefetch(self, tree: Tree, gfn: int) -> int:
        group = range(gfn & -GROUP, (gfn & -GROUP) + GROUP)
        found = list(direct_prefetch(self._policy, group, tree.small, self._backing))
        tree.small.update(found)
        return len(found)

    def pages(self) -> tuple[int, int, int]:
        """The statistics pages_4k, pages_2m and nx_lpage_splits of the VM."""
        return self._trees.pages()

    def state(self) -> object:
        """A value that is equal whenever the same root is loaded."""
        return self._role, self.tree is None


@rule(
    id="nx-split-in-place",
    sentence="A fetch from a huge page that may not be executed replaces it by a table: the TDP MMU fills it with all "
    "512 pages, the legacy MMU and the TDP MMU before map the page fetched and flush.",
    depends=("tdp-split-on-fault",),
    tested="tests/kvm/test_tdp.py::test_the_steps_of_the_selftest",
)
def splits_in_place(policy: Policy) -> bool:
    """Whether a split leaves everything mapped (tdp_mmu.c, kvm_tdp_mmu_map)."""
    return policy.mmu is Mmu.TDP and policy.has("tdp-split-on-fault")


@rule(
    id="direct-prefetch",
    sentence="When the legacy MMU maps a 4 KiB page it also maps absent neighbours in the aligned group of 8 that the "
    "host has in memory, run by run; a run whose first page is not there ends it.",
    depends=("prefetch-trailing",),
    source='Since Linux commit 957ed9effd80 ("KVM: MMU: prefetch ptes when intercepted guest #PF") (v2.6.37), '
    "the neighbours of a faulting page are mapped with it. Before that, each faulted.",
    since="5.4",
    tested="tests/kvm/test_tdp.py::test_neighbours_are_mapped_run_by_run",
)
def direct_prefetch(policy: Policy, group: range, present: Iterable[int], backing: Backing) -> list[int]:
    """The frames of *group* mapped besides (mmu.c, __direct_pte_prefetch); *present* has the one that faulted."""
    there = set(present).intersection(group)
    found: list[int] = []
    run: list[int] = []
    for gfn in group:
        if gfn not in there:
            run.append(gfn)
            continue
        if run and not _take_run(run, backing, found):
            return found
        run = []
    if run and policy.has("prefetch-trailing"):
        _take_run(run, backing, found)
    return found


def _take_run(run: list[int], backing: Backing, found: list[int]) -> bool:
    """Add the frames of a run up to the first that is not in memory; False if that is the very first."""
    for place, gfn in enumerate(run):
        if not backing.resident(gfn):
            return place > 0
        found.append(gfn)
    return True


# C variables, declared in the .pxd.
_KEY, _LAST = 20, _PLACES - 1
