"""Recovery of split huge pages: which pages a VM's recovery thread takes in one pass.

A huge page that was split since it was executed is queued, and counted. Once in every
:func:`~worldswitch.kvm.nx.recovery_period` the thread takes the oldest of the queue, so many that a pass each takes
one in ``ratio``, and zaps them: the next access may map the page huge again, the next execution splits it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from worldswitch.kvm.rules import rule

Has = Callable[[str], bool]
Mmu = Literal["shadow", "tdp"]

COUNTER = (1 << 64) - 1
"""Counters and their arithmetic have 64 bits, and wrap."""


class Split(NamedTuple):
    """A huge page that is split.

    Attributes:
        gfn: Its first 4 KiB frame.
        mmu: Whose table is in its place: the TDP MMU's, or the shadow MMU's, as which the legacy one counts.
        logged: It lies in a slot with dirty logging.
    """

    gfn: int
    mmu: Mmu = "tdp"
    logged: bool = False


class Queue(NamedTuple):
    """The split pages of one VM, the oldest first, and what KVM believes their number to be.

    Attributes:
        splits: All of them, of both MMUs.
        shadow: Counter of those of the shadow MMU.
        tdp: Counter of those of the TDP MMU.
    """

    splits: tuple[Split, ...] = ()
    shadow: int = 0
    tdp: int = 0

    @property
    def lpage_splits(self) -> int:
        """The statistic nx_lpage_splits (nx_largepages_splitted in 5.10): how many there are now, not ever were."""
        return len(self.splits)

    def add(self, split: Split) -> Queue:
        """The queue after a page has been split."""
        return self._replace(splits=(*self.splits, split))._counted(split.mmu, 1)

    def remove(self, split: Split) -> Queue:
        """The queue after a page has been unmapped by something else, such as a memslot that went away."""
        return self._without(split)._counted(split.mmu, -1)

    def _without(self, split: Split) -> Queue:
        return self._replace(splits=tuple(one for one in self.splits if one != split))

    def _counted(self, mmu: Mmu, change: int) -> Queue:
        if mmu == "tdp":
            return self._replace(tdp=self.tdp + change & COUNTER)
        return self._replace(shadow=self.shadow + change & COUNTER)


class Pass(NamedTuple):
    """What one pass did.

    Attributes:
        queue: What is left.
        zapped: The pages unmapped, in order.
        dropped: Those left split and tracked no longer.
    """

    queue: Queue
    zapped: tuple[Split, ...]
    dropped: tuple[Split, ...]


@rule(
    id="nx-recovery-quota",
    sentence="One recovery pass takes the counted split pages divided by the ratio, rounded up; none with ratio 0.",
    depends=("nx-recovery-thread",),
    tested="tests/kvm/test_nx_recovery.py::test_the_quota_is_one_in_ratio_rounded_up",
)
def quota(counted: int, ratio: int) -> int:
    """How many pages a pass may take (DIV_ROUND_UP in 64 bits: a counter a little below zero gives 0).

    *counted* may be an array of numpy's of unsigned 64-bit numbers, and then so is the answer.
    """
    if not ratio:
        return counted * 0
    return (counted + (ratio - 1) & COUNTER) // ratio


@rule(
    id="nx-recovery-order",
    sentence="Recovery takes the oldest pages first: of both MMUs in one pass with one quota, or, where they are "
    "tracked apart, of the shadow MMU and then of the TDP MMU, each with a quota of its own.",
    depends=("nx-recovery-two-lists", "nx-recovery-thread"),
    tested="tests/kvm/test_nx_recovery.py::test_the_oldest_go_first_of_one_list_or_of_two",
)
def rounds(has: Has) -> tuple[tuple[Mmu, ...], ...]:
    """The lists that a pass goes through, one after the other: the MMUs whose pages are in each."""
    return (("shadow",), ("tdp",)) if has("nx-recovery-two-lists") else (("shadow", "tdp"),)


@rule(
    id="nx-recovery-lock",
    sentence="Recovery holds mmu_lock for writing, so that no vCPU's fault goes on, but for the TDP MMU's pages for "
    "reading where it can.",
    depends=("nx-recovery-read-lock", "nx-recovery-thread"),
    tested="tests/kvm/test_nx_recovery.py::test_only_the_tdp_mmus_list_is_taken_under_the_read_lock",
)
def stops_faults(has: Has, mmu: Mmu) -> bool:
    """Whether faults of the VM wait while pages of *mmu* are recovered."""
    return mmu != "tdp" or not has("nx-recovery-read-lock")


@rule(
    id="nx-recovery-counter",
    sentence="Where the MMUs' pages are tracked apart, recovery subtracts each page from the shadow MMU's counter: the "
    "TDP MMU's only grows, so that later passes take more than their share, and the shadow MMU's wraps below zero.",
    depends=("nx-recovery-counts-amiss", "nx-recovery-thread"),
    tested="tests/kvm/test_nx_recovery.py::test_recovery_of_tdp_pages_is_subtracted_from_the_shadow_counter",
)
def subtracted_from(has: Has, mmu: Mmu) -> Mmu:
    """Whose counter gets less when recovery takes a page of *mmu* (mmu.c, unaccount_nx_huge_page)."""
    return "shadow" if has("nx-recovery-counts-amiss") else mmu


@rule(
    id="nx-recovery-logged",
    sentence="Recovery leaves a page split, and tracks it no longer, if its slot has dirty logging.",
    depends=("nx-recovery-spares-logged", "nx-recovery-thread"),
    tested="tests/kvm/test_nx_recovery.py::test_pages_with_dirty_logging_are_spared",
)
def spares(has: Has, split: Split) -> bool:
    """Whether recovery leaves *split* mapped as it is."""
    return split.logged and has("nx-recovery-spares-logged")


def counted(has: Has, queue: Queue, mmus: tuple[Mmu, ...]) -> int:
    """What the quota of a round over *mmus* is taken of: the statistic, or since there are two lists a counter."""
    if not has("nx-recovery-two-lists"):
        return queue.lpage_splits
    return queue.tdp if mmus == ("tdp",) else queue.shadow


def recover(has: Has, queue: Queue, ratio: int) -> Pass:
    """One pass of the recovery thread (mmu.c, kvm_recover_nx_huge_pages)."""
    zapped: list[Split] = []
    dropped: list[Split] = []
    for mmus in rounds(has):
        mine = [split for split in queue.splits if split.mmu in mmus]
        for split in mine[: quota(counted(has, queue, mmus), ratio)]:
            (dropped if spares(has, split) else zapped).append(split)
            queue = queue._without(split)._counted(subtracted_from(has, split.mmu), -1)
    return Pass(queue, tuple(zapped), tuple(dropped))
