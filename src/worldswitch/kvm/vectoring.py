"""Emulation that KVM refuses since it takes the exit for one that came while an event was delivered."""

from __future__ import annotations

from worldswitch.kvm.guest_walk import Walk, Walker, walk
from worldswitch.kvm.host import Host
from worldswitch.kvm.permissions import P, W
from worldswitch.kvm.policy import Mmu, Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.kvm.shadow import Shadow
from worldswitch.x86.memory import Memory

DELIVERY = 3
"""KVM_INTERNAL_ERROR_DELIVERY_EV."""


class Ended(Exception):
    """KVM ends the guest: KVM_EXIT_INTERNAL_ERROR.

    Attributes:
        suberror, address: What of, and the address of the access.
    """

    def __init__(self, suberror: int, address: int) -> None:
        super().__init__(f"internal error {suberror} at {address:#x}")
        self.suberror, self.address = suberror, address


@rule(
    id="svm-vectoring-by-type",
    sentence="Under SVM KVM looks at the type of the event in EXITINTINFO, not at its valid bit, before it emulates "
    "for a page fault: where a processor leaves the type of an event that was delivered, a write to a shadowed table "
    "has its shadow pages zapped and is tried again, or ends the guest if it is to a table of its own translation.",
    depends=("svm-vectoring-checked",),
    tested="tests/kvm/test_vectoring.py::test_a_write_after_a_delivered_event_is_tried_again",
)
def taken_for_vectoring(policy: Policy, host: Host) -> bool:
    """Whether an exit after an event was delivered counts as one while it is (svm.c, svm_check_emulate_instruction)."""
    stays = policy.vendor is Vendor.AMD and not host.exitintinfo_cleared
    return stays and policy.mmu is Mmu.SHADOW and policy.has("svm-vectoring-checked")


class Retries:
    """What KVM tries again under shadow paging instead of emulating it (x86.c, kvm_unprotect_and_retry_on_failure).

    Attributes:
        store_at: Where the instruction lies that stores in the operation under way: its last.
        interrupted: Numbers of exits before which interrupts of the host's led to others.
    """

    __slots__ = ("_last", "_memory", "_shadow", "interrupted", "store_at")

    def __init__(self, shadow: Shadow, memory: Memory) -> None:
        self._shadow, self._memory = shadow, memory
        self._last: tuple[int, int] | None = None
        self.store_at = 0
        self.interrupted: frozenset[int] = frozenset()

    def own_table(self, walker: Walker, va: int, code: int) -> bool:
        """Whether a write that faults is to a table below the root that translates it, and KVM finds that out.

        It does where it maps the page anew, and not where an upper table is there already (paging_tmpl.h,
        FNAME(fetch); mmu.c, page_fault_handle_page_track).
        """
        found = walk(self._memory, walker, va, code)
        if not isinstance(found, Walk) or (code & P and code & W and self._shadow.pages.tracked(found.gfn)):
            return False
        return found.gfn in [table for level, table in found.tables.items() if level < walker.levels]

    def again(self, rip: int, va: int, gfn: int, own: bool, vectoring: bool) -> bool:
        """Whether the write at *rip* to a protected frame is tried again; else it is emulated.

        Args:
            own: See :meth:`own_table`.
            vectoring: KVM takes the exit for one that came while an event was delivered.

        Raises:
            Ended: It can neither be emulated nor tried again.
        """
        before, self._last = self._last, None
        if before == (rip, va):
            self._last = before
        if not vectoring:
            return False
        if own or before == (rip, va):
            raise Ended(DELIVERY, va)
        self._last = (rip, va)
        for page in self._shadow.pages.of(gfn):
            self._shadow.pages.zap(page)
        return True

    def state(self) -> object:
        """What decides about the next write."""
        return self._last
