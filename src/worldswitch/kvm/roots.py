# cython: annotation_typing=False, auto_pickle=False, wraparound=True
"""The roots an MMU has at hand: the current one and up to three before it, so that a guest that switches address spaces
and back finds its tables without building them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.rules import rule

PREVIOUS = 3
"""KVM_MMU_NUM_PREV_ROOTS."""
_PREVIOUS = PREVIOUS  # a C variable, declared in the .pxd


class Root:
    """A root: the guest's CR3 it was made for (PCID included), and its page."""

    __slots__ = ("page", "pgd")

    def __init__(self, pgd: int, page: Any) -> None:
        self.pgd, self.page = pgd, page


def new_root(pgd: int, page: Any) -> Root:
    """A root, made fast."""
    one = Root.__new__(Root)
    one.pgd, one.page = pgd, page
    return one


class Roots:
    """The cache of one MMU.

    Args:
        free: Called with the page of each root that is dropped.

    Attributes:
        current: None where the next entry has to load one.
        previous: The most recent first.
    """

    __slots__ = ("_free", "_policy", "current", "previous")

    def __init__(self, policy: Policy, free: Callable[[Any], None]) -> None:
        self._policy = policy
        self._free = free
        self.current: Root | None = None
        self.previous: list[Root | None] = [None] * PREVIOUS

    def switch(self, usable: Callable[[Root], bool]) -> bool:
        """Make the root current that *usable* accepts; False if there is none, and then none is current."""
        if switch_root(self._policy, self, usable):
            return True
        self.free_current()
        return False

    def free_current(self) -> None:
        """Drop the current root."""
        if self.current is not None:
            self._free(self.current.page)
            self.current = None

    def free_previous(self, which: Callable[[Root], bool]) -> None:
        """Drop the previous roots that *which* names."""
        for place, root in enumerate(self.previous):
            if root is not None and which(root):
                self._free(root.page)
                self.previous[place] = None

    def free_all(self) -> None:
        """Drop all: kvm_mmu_unload."""
        self.free_current()
        for place in range(_PREVIOUS):
            one = self.previous[place]
            if one is not None:
                self._free(one.page)
                self.previous[place] = None

    def all(self) -> list[Root]:
        """The current root and the previous ones."""
        return [root for root in (self.current, *self.previous) if root is not None]


@rule(
    id="root-cache",
    sentence="An MMU keeps the current root and the three before it; a switch to one of them needs no new root, the "
    "oldest is dropped.",
    depends=("root-cache-without-current",),
    source='Since Linux commit b94742c958f0 ("kvm: x86: Add multi-entry LRU cache for previous CR3s") (v4.19), an MMU '
    "keeps three previous roots. Before that, it kept one.",
    since="5.4",
    tested="tests/kvm/test_roots.py::test_the_three_roots_before_are_found_again",
)
def switch_root(policy: Policy, roots: Roots, usable: Callable[[Root], bool]) -> bool:
    """Rotate the cache until a usable root is current (mmu.c, fast_pgd_switch); if none is: False."""
    if roots.current is None and policy.has("root-cache-without-current"):
        return _take(roots, usable)
    if roots.current is not None and usable(roots.current):
        return True
    for place in range(PREVIOUS):
        roots.current, roots.previous[place] = roots.previous[place], roots.current
        if roots.current is not None and usable(roots.current):
            return True
    return False


def _take(roots: Roots, usable: Callable[[Root], bool]) -> bool:
    for place, root in enumerate(roots.previous):
        if root is not None and usable(root):
            roots.current = root
            roots.previous = [*roots.previous[:place], *roots.previous[place + 1 :], None]
            return True
    return False
