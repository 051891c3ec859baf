"""The cache of roots. Expected: fast_pgd_switch of 5.10.223 and 6.1.190."""

from __future__ import annotations

import pytest

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roots import Root, Roots


def _switch(roots: Roots[str], pgd: int) -> bool:
    hit = roots.switch(lambda root: root.pgd == pgd)
    if not hit:
        roots.current = Root(pgd, f"page {pgd}")
    return hit


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "7.2"])
def test_the_three_roots_before_are_found_again(kernel: str) -> None:
    """Rule root-cache."""
    freed: list[str] = []
    roots: Roots[str] = Roots(Policy.of(kernel), freed.append)
    assert [_switch(roots, pgd) for pgd in (1, 2, 3, 4)] == [False] * 4
    assert [_switch(roots, pgd) for pgd in (1, 2, 3, 4, 4, 1)] == [True] * 6
    assert freed == []
    assert not _switch(roots, 5)
    assert freed == ["page 2"]  # the least recently used


@pytest.mark.parametrize(("kernel", "kept"), [("5.10", [2, 3, None]), ("6.1", [2, 3, None])])
def test_a_switch_without_a_current_root(kernel: str, kept: list[int | None]) -> None:
    roots: Roots[str] = Roots(Policy.of(kernel), lambda page: None)
    for pgd in (4, 3, 2, 1):
        _switch(roots, pgd)
    roots.free_current()
    assert roots.switch(lambda root: root.pgd == 4)
    left = [root.pgd if root else None for root in roots.previous]
    # 5.10 rotates the hole through the cache, 6.1 closes the gap.
    assert sorted(left, key=str) == sorted(kept, key=str)
    assert left == ([None, 2, 3] if kernel == "5.10" else [2, 3, None])


def test_freeing_all_frees_each_once() -> None:
    freed: list[str] = []
    roots: Roots[str] = Roots(Policy.of("6.1"), freed.append)
    for pgd in (1, 2, 3):
        _switch(roots, pgd)
    roots.free_previous(lambda root: root.pgd == 2)
    roots.free_all()
    roots.free_all()
    assert sorted(freed) == ["page 1", "page 2", "page 3"]
    assert roots.all() == []
