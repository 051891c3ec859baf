"""Page faults on pages that had been mapped before a control-register write: the after-cost of losing the MMU roots.

KVM that frees or changes its roots on a CR0 or CR4 write makes the guest fault its pages in again. Such a fault

- is at the page of an earlier one of the same vCPU, with a control-register write of that vCPU between the two;
- finds nothing mapped: a fault on a present page is a write to a read-only one, dirty logging, or MMIO;
- has no ``kvm_unmap_hva_range`` before it since the last one, or the host may have taken the page away.

What counts is the 4 KiB page, as huge pages are not told by an exit: of a lost huge page that is touched elsewhere
first, the fault looks like one of a new page. So what is found is rather too little than too much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import NDArray

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

import numpy as np

from worldswitch.purepython import views
from worldswitch.trace import pairing
from worldswitch.trace.exits import NO_CR, Detail, ExitRows
from worldswitch.trace.tally import Tally

PAGE_SHIFT = 12
_LIMIT = 1 << 22

NOT_A_REFAULT = -1

CR0_BETWEEN, CR4_BETWEEN, AGAIN, UNMAPPED, AFTER_CR4, NEW_PAGE = 1, 2, 4, 8, 16, 32
"""What :meth:`RefaultFinder.look` says of a fault: that CR0 or CR4 was written since the page's last fault; that the
page had a refault before; that the host unmapped something since; that CR4 was the last register written; or (alone)
that it is a page not seen before, and its vCPU has written a register."""
BETWEEN = CR0_BETWEEN | CR4_BETWEEN

_EPT_VIOLATION, _NPF, _PF_EXCEPTION = 48, 0x400, 0x4E


class RefaultFinder:
    """Finds refaults in a sequence of exit rows."""

    def __init__(self) -> None:
        self._seen = Tally(limit=_LIMIT)
        self._pages = np.zeros((1 << 10, 4), np.int64)
        self._writes = np.zeros((1 << 8, 3), np.int64)

    def feed(self, rows: ExitRows) -> NDArray[np.int64]:
        """For each row the register whose write came last before this fault, and after the last one of the same page.

        :data:`NOT_A_REFAULT` for rows that are no refaults. Shape (n,).
        """
        codes = self.look(rows)
        return np.where(codes & BETWEEN, np.where(codes & AFTER_CR4, 4, 0), NOT_A_REFAULT)

    def look(self, rows: ExitRows, unmapped: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """What each row is, as the sum of the constants above; 0 for what is no such fault. Shape (n,).

        Args:
            rows: The next exits.
            unmapped: How often the host had unmapped memory before each row; shape (n,).
        """
        codes = np.zeros(len(rows), np.int64)
        if not rows.any(pairing.DETAILED):
            self.count_writes(rows)
            return codes
        faults = is_fault(rows)
        if rows.any(pairing.FROM_L2):
            faults &= (rows.flags & pairing.FROM_L2) == 0  # a nested guest's addresses are not the guest's
        where = np.flatnonzero(faults)
        pages = np.full(len(rows), -1, np.int64)
        pages[where] = self._seen.add(rows.thread[where], rows.detail[where] >> np.uint64(PAGE_SHIFT), None, None)
        self._grow(rows)
        epoch = np.zeros(len(rows), np.int64) if unmapped is None else np.ascontiguousarray(unmapped)
        thread, cr = np.ascontiguousarray(rows.thread), np.ascontiguousarray(_effective(rows))
        missing = is_missing(rows).view(np.uint8)
        find(*views(thread, cr, pages, missing, epoch, self._writes, self._pages, codes))
        return codes

    def count_writes(self, rows: ExitRows) -> None:
        """Take rows of which none is a fault: their writes come before later faults."""
        self._grow(rows)
        note_writes(*views(np.ascontiguousarray(rows.thread), np.ascontiguousarray(rows.marks), self._writes))

    def _grow(self, rows: ExitRows) -> None:
        if int(rows.thread.max(initial=0)) >= len(self._writes):
            more = np.zeros((2 * (int(rows.thread.max()) + 1), 3), np.int64)
            self._writes = np.concatenate([self._writes, more])
        if len(self._seen) > len(self._pages):
            self._pages = np.concatenate([self._pages, np.zeros((2 * len(self._seen), 4), np.int64)])


def _effective(rows: ExitRows) -> NDArray[np.int64]:
    """The register each row writes; a write that raised #GP writes none."""
    return np.where(rows.flags & pairing.FAULTED, NO_CR, rows.cr) if rows.any(pairing.FAULTED) else rows.cr


def is_fault(rows: ExitRows) -> NDArray[np.bool_]:
    """Exits for a page fault whose address the trace holds."""
    faults: NDArray[np.bool_] = (rows.detail_kind == Detail.ADDRESS) & (rows.cr == NO_CR)
    return faults


def is_missing(rows: ExitRows) -> NDArray[np.bool_]:
    """Faults that found nothing mapped, and those of which the trace does not say; other rows are not told apart.

    An EPT violation's qualification has the rights of the entry in bits 5:3 (SDM 28.2.1, table 28-7), a nested page
    fault's and a page fault's error code P in bit 0 (APM 15.25.6, 8.4.2).
    """
    vmx = (rows.isa == 1) & ((rows.reason & np.uint32(0xFFFF)) == _EPT_VIOLATION)
    svm = (rows.isa == 2) & ((rows.reason == _NPF) | (rows.reason == _PF_EXCEPTION))
    mapped = np.where(vmx, rows.info1 & np.uint64(0x38), np.where(svm, rows.info1 & np.uint64(1), np.uint64(0)))
    missing: NDArray[np.bool_] = mapped == 0
    return missing


def note_writes(thread, marks, writes):  # type: ignore[no-untyped-def]
    """The loop of :meth:`RefaultFinder.count_writes`; a write that raised #GP (pairing.FAULTED) writes nothing."""
    n = len(thread)
    with cython.nogil:
        for i in range(n):
            cr = marks[i] >> 32
            if (cr == 1 or cr == 5) and not marks[i] & 256:  # noqa: PLR1714 - in C, two comparisons
                who = thread[i]
                writes[who, 0 if cr == 1 else 1] += 1
                writes[who, 2] = cr - 1


def find(thread, cr, page, missing, epoch, writes, pages, out):  # type: ignore[no-untyped-def]
    """The loop of :meth:`RefaultFinder.look`.

    *writes* holds each vCPU's CR0 writes, CR4 writes and last register; *pages* of each page, at its last fault, 1 +
    the CR0 writes and the CR4 writes, then its refaults so far and the epoch.
    """
    n = len(thread)
    with cython.nogil:
        for i in range(n):
            who = thread[i]
            at = page[i]
            if cr[i] == 0:
                writes[who, 0] += 1
                writes[who, 2] = 0
            elif cr[i] == 4:
                writes[who, 1] += 1
                writes[who, 2] = 4
            elif at >= 0:
                code = 0
                if pages[at, 0] == 0:
                    if missing[i] and writes[who, 0] + writes[who, 1] > 0:
                        code = 32
                elif missing[i]:
                    if pages[at, 0] <= writes[who, 0]:
                        code = 1
                    if pages[at, 1] < writes[who, 1]:
                        code += 2
                    if code:
                        if pages[at, 2]:
                            code += 4
                        pages[at, 2] += 1
                        if pages[at, 3] != epoch[i]:
                            code += 8
                        if writes[who, 2] == 4:
                            code += 16
                out[i] = code
                pages[at, 0] = writes[who, 0] + 1
                pages[at, 1] = writes[who, 1]
                pages[at, 3] = epoch[i]
