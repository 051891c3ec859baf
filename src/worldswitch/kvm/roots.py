"""The roots an MMU has at hand: the current one and up to three before it, so that a guest that switches address spaces
and back finds its tables without building them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.rules import rule

PREVIOUS = 3
"""KVM_MMU_NUM_PREV_ROOTS."""

T = TypeVar("T")


class Root(NamedTuple, Generic[T]):
    """A root: the guest's CR3 it was made for (PCID included), and its page."""

    pgd: int
    page: T


class Roots(Generic[T]):
    """The cache of one MMU.

    Args:
        free: Called with the page of each root that is dropped.

    Attributes:
        current: None where the next entry has to load one.
        previous: The most recent first.
    """

    __slots__ = ("_free", "_policy", "current", "previous")

    def __init__(self, policy: Policy, free: Callable[[T], None]) -> None:
        self._policy = policy
        self._free = free
        self.current: Root[T] | None = None
        self.previous: list[Root[T] | None] = [None] * PREVIOUS

    def switch(self, usable: Callable[[Root[T]], bool]) -> bool:
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

    def free_previous(self, which: Callable[[Root[T]], bool]) -> None:
        """Drop the previous roots that *which* names."""
        for place, root in enumerate(self.previous):
            if root is not None and which(root):
                self._free(root.page)
                self.previous[place] = None

    def free_all(self) -> None:
        """Drop all: kvm_mmu_unload."""
        self.free_current()
        self.free_previous(lambda _: True)

    def all(self) -> list[Root[T]]:
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
def switch_root(policy: Policy, roots: Roots[T], usable: Callable[[Root[T]], bool]) -> bool:
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


def _take(roots: Roots[T], usable: Callable[[Root[T]], bool]) -> bool:
    for place, root in enumerate(roots.previous):
        if root is not None and usable(root):
            roots.current = root
            roots.previous = [*roots.previous[:place], *roots.previous[place + 1 :], None]
            return True
    return False
