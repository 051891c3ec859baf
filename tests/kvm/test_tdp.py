"""Two-dimensional paging. Expected: the selftest x86/nx_huge_pages_test, __direct_pte_prefetch of 5.10.223 and 6.1.190,
kvm_tdp_mmu_map of 6.1.190 and 6.12.117."""

from __future__ import annotations

import pytest

from worldswitch.kvm.backing import Backing, Slot
from worldswitch.kvm.host import Host, nx_active
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.tdp import Tdp, direct_prefetch

FIRST = 1 << 20  # 4 GiB in 4 KiB frames, as the selftest has it
ROLE = (True, True)


def _tdp(policy: Policy, host: Host | None = None, huge: bool = True, loaded: tuple[int, ...] = ()) -> Tdp:
    tdp = Tdp(policy, host or Host(), Backing([Slot(FIRST, FIRST + 3 * 512, huge)], loaded))
    tdp.load(ROLE)
    return tdp


def _reach(tdp: Tdp, gfn: int, fetch: bool) -> int:
    """Access a frame; how many violations that takes."""
    taken = 0
    assert tdp.tree is not None
    while not tdp.tree.allows(gfn, fetch):
        tdp.map(gfn, fetch)
        taken += 1
    return taken


# Page read or called, then pages_2m and nx_lpage_splits with the mitigation and without.
STEPS = [
    (1, False, (1, 0), (1, 0)),
    (2, False, (2, 0), (2, 0)),
    (1, True, (1, 1), (2, 0)),
    (3, True, (1, 2), (3, 0)),
    (1, False, (1, 2), (3, 0)),
]


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12", "7.2"])
@pytest.mark.parametrize("mmu", ["legacy", "tdp"])
@pytest.mark.parametrize("on", [True, False])
def test_the_steps_of_the_selftest(kernel: str, mmu: str, on: bool) -> None:
    """Rule nx-split-in-place."""
    tdp = _tdp(Policy.of(kernel, mmu=mmu, settings={"nx_huge_pages": "force" if on else "off"}))
    for page, fetch, with_it, without in STEPS:
        _reach(tdp, FIRST + 512 * (page - 1), fetch)
        assert tdp.pages()[1:] == (with_it if on else without), (page, fetch)


@pytest.mark.parametrize(
    ("kernel", "mmu", "mapped", "again"),
    [("6.1", "tdp", 1, 1), ("6.12", "tdp", 512, 0), ("7.2", "tdp", 512, 0), ("6.12", "legacy", 1, 1)],
)
def test_what_a_split_leaves_mapped(kernel: str, mmu: str, mapped: int, again: int) -> None:
    tdp = _tdp(Policy.of(kernel, mmu=mmu, settings={"nx_huge_pages": "force"}), Host(accessed_bits=False))
    assert _reach(tdp, FIRST + 100, False) == 1
    assert _reach(tdp, FIRST + 100, True) == 1
    assert tdp.pages() == (mapped, 0, 1)
    assert _reach(tdp, FIRST + 400, False) == again


def test_where_huge_pages_are_not_executable() -> None:
    """Rule nx-huge-pages-active."""

    def active(cpu: str, value: str, host: Host | None = None) -> bool:
        return nx_active(Policy.of("6.12", cpu, settings={"nx_huge_pages": value}), host or Host())

    assert active("intel", "auto") and not active("amd", "auto")
    assert not active("intel", "auto", Host(itlb_multihit=False))
    assert active("intel", "force", Host(itlb_multihit=False)) and active("amd", "force")
    assert not active("intel", "off") and not active("intel", "never")


GROUP = range(8)


@pytest.mark.parametrize(
    ("kernel", "present", "resident", "expected"),
    [
        # The recordings: frame 0 was never touched, so nothing before frame 2 is mapped, though 1 is there.
        ("5.10", {2}, {1, 2, 3, 4}, []),
        ("5.10", {2}, {0, 1, 2, 3, 4}, [0, 1]),
        ("5.10", {2}, {0, 2, 3}, [0]),
        ("6.1", {2}, {0, 1, 2, 3, 4}, [0, 1, 3, 4]),
        ("6.1", {2}, {1, 2, 3, 4}, []),
        ("6.1", {0}, {0, 1, 2, 3, 4}, [1, 2, 3, 4]),
        ("5.10", {0, 4}, {0, 1, 2, 3, 4}, [1, 2, 3]),
        ("5.10", {0, 4}, {0, 1, 3, 4}, [1]),
        ("6.12", set(range(8)), set(range(8)), []),
    ],
)
def test_neighbours_are_mapped_run_by_run(
    kernel: str, present: set[int], resident: set[int], expected: list[int]
) -> None:
    """Rule direct-prefetch."""
    backing = Backing([Slot(0, 512, False)], resident)
    assert direct_prefetch(Policy.of(kernel), GROUP, present, backing) == expected


def test_no_neighbours_without_accessed_bits_nor_with_the_tdp_mmu() -> None:
    loaded = tuple(range(FIRST, FIRST + 8))
    for mmu, host, mapped in (("legacy", Host(), 8), ("legacy", Host(accessed_bits=False), 1), ("tdp", Host(), 1)):
        tdp = _tdp(Policy.of("6.1", mmu=mmu), host, huge=False, loaded=loaded)
        tdp.map(FIRST, False)
        assert tdp.pages()[0] == mapped, (mmu, host)


@pytest.mark.parametrize(
    ("kernel", "mmu", "left"), [("5.10", "legacy", 1), ("5.10", "tdp", 0), ("6.1", "tdp", 1), ("6.1", "legacy", 1)]
)
def test_what_a_reload_finds(kernel: str, mmu: str, left: int) -> None:
    tdp = _tdp(Policy.of(kernel, mmu=mmu), huge=False)
    tdp.map(FIRST, False)
    tdp.unload()
    tdp.load(ROLE)
    assert tdp.pages()[0] == left


@pytest.mark.parametrize(
    ("kernel", "role", "left"),
    [
        # Up to 5.18 there is a set of tables for each value of CR0.WP; the others are in the one for WP set.
        ("5.10", (True, True), 1),
        ("5.10", (False, True), 0),
        # From 5.19 on there is one, and the last reference to it counts; 6.2 does not keep roots.
        ("6.2.10", (), 1),
    ],
)
def test_a_root_that_another_vcpu_has_loaded_stays(kernel: str, role: tuple[bool, ...], left: int) -> None:
    def left_with(host: Host) -> int:
        tdp = _tdp(Policy.of(kernel, mmu="tdp"), host, huge=False)
        tdp.load(role)
        tdp.map(FIRST, False)
        tdp.unload()
        tdp.load(role)
        return tdp.pages()[0]

    assert left_with(Host(other_vcpus=True)) == left
    assert left_with(Host()) == 0


def test_a_fetch_from_a_page_of_its_own_size_is_no_split() -> None:
    tdp = _tdp(Policy.of("6.12", settings={"nx_huge_pages": "force"}), huge=False)
    assert _reach(tdp, FIRST, True) == 1
    assert tdp.pages() == (1, 0, 0)
