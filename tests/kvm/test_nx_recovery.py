"""Recovery of split huge pages. Expected: kvm_recover_nx_lpages of 5.10.223 and 6.1.192, kvm_recover_nx_huge_pages of
6.12.117 and 7.2.13; the selftest x86/nx_huge_pages_test."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetched import needs_kernel
from worldswitch.kvm import nx
from worldswitch.kvm.backing import Backing, Slot
from worldswitch.kvm.facts import kernel
from worldswitch.kvm.host import Host
from worldswitch.kvm.nx_recovery import COUNTER, Queue, Split, quota, recover, rounds, stops_faults, subtracted_from
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.tdp import Tdp

HERE = Path(__file__).parent
LAB = tomllib.loads((HERE / "nx_lab.toml").read_text(encoding="utf-8"))
KERNELS = ("5.10", "6.1", "6.12", "7.2")
BALANCED = kernel("7.2-nx-recovery-counts-amiss").has
"""A 7.2 that subtracts from the right counter."""


def queue(*splits: Split) -> Queue:
    result = Queue()
    for split in splits:
        result = result.add(split)
    return result


def tdp(count: int) -> Queue:
    return queue(*(Split(512 * n) for n in range(count)))


def passes(version: str, start: Queue, ratio: int, count: int) -> list[int]:
    """How many pages each pass zaps."""
    zapped = []
    for _ in range(count):
        done = recover(kernel(version).has, start, ratio)
        start = done.queue
        zapped.append(len(done.zapped))
    return zapped


@pytest.mark.parametrize(
    ("counted", "ratio", "pages"),
    [(0, 60, 0), (1, 60, 1), (60, 60, 1), (61, 60, 2), (1000, 60, 17), (5, 1, 5), (5, 0, 0), (3, 2**32 - 1, 1)],
)
def test_the_quota_is_one_in_ratio_rounded_up(counted: int, ratio: int, pages: int) -> None:
    """Of the rule nx-recovery-quota: DIV_ROUND_UP(n, ratio)."""
    assert quota(counted, ratio) == pages


@pytest.mark.parametrize(("below", "pages"), [(1, 0), (59, 0), (60, (2**64 - 1) // 60)])
def test_a_counter_below_zero_asks_for_nothing_or_for_everything(below: int, pages: int) -> None:
    """(2**64 - 59) + 59 is 0 in 64 bits; one less is nearly 2**64."""
    assert quota(2**64 - below, 60) == pages


def test_the_oldest_go_first_of_one_list_or_of_two() -> None:
    """Of the rule nx-recovery-order: list_first_entry of possible_nx_huge_pages, in 7.2 per MMU."""
    mixed = queue(Split(0), Split(1, "shadow"), Split(2), Split(3, "shadow"), Split(4))
    taken = {version: [one.gfn for one in recover(kernel(version).has, mixed, 4).zapped] for version in KERNELS}
    assert taken == {"5.10": [0, 1], "6.1": [0, 1], "6.12": [0, 1], "7.2": [1, 0]}
    assert rounds(kernel("7.2").has) == (("shadow",), ("tdp",))


def test_only_the_tdp_mmus_list_is_taken_under_the_read_lock() -> None:
    """Of the rule nx-recovery-lock: write_lock, in 7.2 read_lock for KVM_TDP_MMU."""
    assert [stops_faults(kernel(version).has, "tdp") for version in KERNELS] == [True, True, True, False]
    assert all(stops_faults(kernel(version).has, "shadow") for version in KERNELS)


def test_recovery_of_tdp_pages_is_subtracted_from_the_shadow_counter() -> None:
    """Of the rule nx-recovery-counter: unaccount_nx_huge_page of 7.2.13 untracks with KVM_SHADOW_MMU."""
    done = recover(kernel("7.2").has, tdp(16), 2)
    assert (done.queue.tdp, done.queue.shadow, done.queue.lpage_splits) == (16, COUNTER + 1 - 8, 8)
    assert subtracted_from(kernel("7.2").has, "tdp") == "shadow"
    assert subtracted_from(kernel("6.12").has, "tdp") == "tdp"


def test_where_the_counter_only_grows_later_passes_take_more_than_their_share() -> None:
    assert passes("6.12", tdp(16), 2, 6) == [8, 4, 2, 1, 1, 0]
    assert passes("7.2", tdp(16), 2, 6) == [8, 8, 0, 0, 0, 0]
    assert passes("7.2-nx-recovery-counts-amiss", tdp(16), 2, 6) == [8, 4, 2, 1, 1, 0]


def test_shadow_tables_go_all_at_once_after_the_counter_has_wrapped() -> None:
    """Of 240 TDP pages 60 were recovered: the counter of three new shadow tables is 3 - 60."""
    start = recover(kernel("7.2").has, tdp(240), 4).queue
    for gfn in range(3):
        start = start.add(Split(gfn, "shadow"))
    zapped = recover(kernel("7.2").has, start, 4).zapped
    assert [one.gfn for one in zapped if one.mmu == "shadow"] == [0, 1, 2]


def test_unmapping_by_others_counts_right() -> None:
    assert tdp(2).remove(Split(0)) == Queue((Split(512),), tdp=1)


def test_pages_with_dirty_logging_are_spared() -> None:
    """Of the rule nx-recovery-logged: kvm_slot_dirty_track_enabled in 6.12.117; 5.10 and 6.1 zap."""
    logged = queue(Split(0, logged=True), Split(1))
    done = {version: recover(kernel(version).has, logged, 1) for version in KERNELS}
    assert {version: [one.gfn for one in each.dropped] for version, each in done.items()} == {
        "5.10": [],
        "6.1": [],
        "6.12": [0],
        "7.2": [0],
    }
    assert all(not each.queue.splits for each in done.values())


FIRST = 1 << 20


# Page read or called; 0 stands for five recovery passes. A step before the first does nothing.
STEPS = ((1, False), (2, False), (1, True), (3, True), (1, False), (0, False), (3, False))


class Vm:
    """Three huge pages as the model maps them, and their recovery."""

    def __init__(self, version: str, mmu: str, opted_out: bool = False) -> None:
        # For its own pages a VM that opted out is as if the mitigation were off.
        on = nx.splits(nx.Parameters(True), opted_out)
        self.policy = Policy.of(version, mmu=mmu, settings={"nx_huge_pages": "force" if on else "off"})
        self.tdp = Tdp(self.policy, Host(), Backing([Slot(FIRST, FIRST + 20 * 512, True)], ()))
        self.tdp.load(())
        self.waiting = Queue()

    def reach(self, page: int, fetch: bool) -> None:
        gfn, tree = FIRST + 512 * (page - 1), self.tdp.tree
        assert tree is not None
        before = set(tree.split)
        while not tree.allows(gfn, fetch):
            self.tdp.map(gfn, fetch)
        for large in tree.split - before:
            self.waiting = self.waiting.add(Split(large << 9, "tdp" if self.policy.mmu == "tdp" else "shadow"))

    def recover(self, ratio: int) -> None:
        done = recover(self.policy.has, self.waiting, ratio)
        self.waiting = done.queue
        tree = self.tdp.tree
        assert tree is not None
        for large in (split.gfn >> 9 for split in done.zapped):
            # The parent's entry goes, and with it the table and all it maps.
            tree.split.discard(large)
            tree.tables.discard((1, large))
            tree.small.difference_update(range(large << 9, large + 1 << 9))

    def selftest(self) -> list[list[int]]:
        """pages_2m and nx_lpage_splits before and after each step."""
        seen = [list(self.tdp.pages()[1:])]
        for page, fetch in STEPS:
            if page:
                self.reach(page, fetch)
            else:
                for _ in range(5):
                    self.recover(1)
            seen.append(list(self.tdp.pages()[1:]))
            assert self.waiting.lpage_splits == seen[-1][1]
        return seen

    def recovery(self) -> list[int]:
        """nx_lpage_splits after 16 more pages were called, and after each pass with ratio 2."""
        for page in range(4, 20):
            self.reach(page, True)
        seen = [self.waiting.lpage_splits]
        while seen[-1]:
            self.recover(2)
            seen.append(self.tdp.pages()[2])
        return seen


@pytest.mark.parametrize("version", KERNELS)
@pytest.mark.parametrize("mmu", ["legacy", "tdp"])
def test_the_steps_of_the_selftest_with_recovery(version: str, mmu: str) -> None:
    """nx_huge_pages_test: after five passes with ratio 1 nothing is split, and a read maps page 3 huge again."""
    steps = [[0, 0], [1, 0], [2, 0], [1, 1], [1, 2], [1, 2], [1, 0], [2, 0]]
    assert Vm(version, mmu).selftest() == steps


@pytest.mark.parametrize("real", LAB["pages"], ids=lambda real: real["kernel"])
def test_pages_split_and_recover_as_in_the_lab(real: dict[str, Any]) -> None:
    vm = Vm(real["kernel"], "tdp")
    assert vm.selftest() == real["selftest"]
    assert vm.recovery() == real["recovery"]
    assert Vm(real["kernel"], "tdp", opted_out=True).selftest() == real["opted_out"]


@pytest.mark.parametrize("real", LAB["pages"], ids=lambda real: real["kernel"])
def test_opting_out_fails_as_in_the_lab(real: dict[str, Any]) -> None:
    has = kernel(real["kernel"]).has
    errors = [
        nx.opt_out(has, flags=1, cap_sys_boot=False),
        nx.opt_out(has, cap_sys_boot=False, argument=1, vcpus=1),
        nx.opt_out(has, cap_sys_boot=False),
        nx.opt_out(has, argument=1),
        nx.opt_out(has, vcpus=1),
        nx.opt_out(has),
    ]
    assert errors == real["opt_out"]


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize("real", LAB["pages"], ids=lambda real: real["kernel"])
def test_the_labs_pages_are_what_was_recorded(real: dict[str, Any]) -> None:
    needs_kernel(real["kernel"].rpartition(".")[0])
    wsw = str(Path(sys.executable).with_name("wsw"))
    line = real["kernel"].rpartition(".")[0]
    command = [
        wsw,
        "lab",
        "exec",
        "--kernel",
        line,
        "--copy",
        str(HERE / "nx_pages.py"),
        "--",
        "python3",
        "nx_pages.py",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: value for name, value in real.items() if name != "kernel"}


SPLITS = st.lists(
    st.builds(Split, st.integers(0, 99), st.sampled_from(["tdp", "shadow"]), st.booleans()), unique_by=lambda s: s.gfn
)


@given(SPLITS, st.integers(0, 70), st.sampled_from(KERNELS))
def test_a_pass_takes_each_page_once_and_keeps_the_order(splits: list[Split], ratio: int, version: str) -> None:
    done = recover(kernel(version).has, queue(*splits), ratio)
    taken = (*done.zapped, *done.dropped)
    assert sorted((*taken, *done.queue.splits)) == sorted(splits)
    assert list(done.queue.splits) == [split for split in splits if split not in taken]


@given(SPLITS, st.integers(1, 70))
def test_with_right_counters_enough_passes_empty_the_queue(splits: list[Split], ratio: int) -> None:
    waiting = queue(*splits)
    for _ in range(len(splits)):
        waiting = recover(BALANCED, waiting, ratio).queue
    assert waiting == Queue()
