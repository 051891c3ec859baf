"""A VM: what its vCPUs share, and whose turn it is.

KVM keeps guest memory, the tables that map it and the statistics of the VM once; registers, translations, loaded roots
and requests belong to each vCPU (:class:`~worldswitch.kvm.switch.Switch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldswitch.kvm.backing import Backing
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.shadow_events import ShadowTrace
from worldswitch.kvm.shadow_pages import Pages
from worldswitch.kvm.tdp import Trees
from worldswitch.x86.memory import Memory

if TYPE_CHECKING:
    from worldswitch.kvm.switch import Switch


class Vm:
    """A VM without vCPUs; each that is made for it adds itself.

    Args:
        record: Keep a row for each event.
        paging: The guest has paging on, and never turns it off; or else it never turns it on.

    Attributes:
        vcpus: By their numbers.
        acting: The one whose turn it is.
        events: Rows (event, fields) in order, None if they are not kept.
        turns: Where in *events* the rows of another vCPU begin, and which it is.
        trees: Tables of two-dimensional paging, or of a guest without paging; else empty.
        pages: Shadow pages; None where there are such tables.
    """

    __slots__ = (
        "acting", "backing", "events", "host", "memory", "pages", "paging", "policy", "trees", "turns", "vcpus",
    )  # fmt: skip

    def __init__(
        self, policy: Policy, host: Host, memory: Memory, backing: Backing, record: bool = False, paging: bool = True
    ) -> None:
        self.policy, self.host, self.memory, self.backing, self.paging = policy, host, memory, backing, paging
        self.events: list[tuple[str, dict[str, Any]]] | None = [] if record else None
        self.turns: list[tuple[int, int]] = []
        self.vcpus: list[Switch] = []
        self.acting: Switch | None = None
        self.trees = Trees(policy)
        self.pages = (
            None
            if policy.tdp or not paging
            else Pages(
                policy,
                memory,
                lambda: self._now().controls,
                lambda: self._now().flush_all(),
                self.request,
                None if self.events is None else ShadowTrace(policy, self.events),
            )
        )

    def add(self, vcpu: Switch) -> int:
        """Take up a vCPU; its number. The first has the first turn."""
        self.vcpus.append(vcpu)
        if self.acting is None:
            self.acting = vcpu
        return len(self.vcpus) - 1

    def act(self, vcpu: Switch) -> None:
        """Let *vcpu* have the next turn; what the others asked of it is done first.

        Of a vCPU that runs, KVM demands that at once, by an interrupt; an exit by an interrupt is no exit here.
        """
        if vcpu is self.acting:
            return
        self.acting = vcpu
        if self.events is not None:
            self.turns.append((len(self.events), vcpu.number))
        vcpu.kicked()

    def request(self, what: str) -> None:
        """Have something done: roots that are gone are given up by every vCPU, all else concerns the acting one."""
        for one in self.vcpus if what == "reload" else [self._now()]:
            one.request(what)

    def _now(self) -> Switch:
        assert self.acting is not None
        return self.acting

    # ---- what there is

    def counters(self) -> dict[str, int]:
        """The VM's statistics by KVM's names: of pages and tables."""
        found: dict[str, int] = {}
        if self.pages is None:
            found["pages_4k"], found["pages_2m"], found["nx_lpage_splits"] = self.trees.pages()
            found["mmu_cache_miss"] = self.trees.made()
        else:
            found.update(self.pages.counts)
            found["pages_4k"], found["pages_2m"] = self.pages.leaves()
            found["nx_lpage_splits"] = self.pages.splits()
        return found

    def state(self) -> tuple[object, ...]:
        """All that decides what happens next and is no vCPU's own."""
        mmu = self.trees.state() if self.pages is None else self.pages.state()
        return mmu, self.memory.state(), self.backing.count()
