"""Page faults on pages that had been mapped before a control-register write: the after-cost of losing the MMU roots.

KVM that frees or changes its roots on a CR0 or CR4 write makes the guest fault its pages in again. Such a fault has the
address of an earlier one of the same vCPU, and a control-register write between the two.
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


class RefaultFinder:
    """Finds refaults in a sequence of exit rows."""

    def __init__(self) -> None:
        self._pages = Tally(limit=_LIMIT)
        self._last_fault = np.zeros(1 << 10, np.int64)
        self._writes = np.zeros(1 << 8, np.int64)
        self._register = np.zeros(1 << 8, np.int64)

    def feed(self, rows: ExitRows) -> NDArray[np.int64]:
        """For each row the register whose write came between this fault and the last one of the same page.

        :data:`NOT_A_REFAULT` for rows that are no refaults. Shape (n,).
        """
        result = np.full(len(rows), NOT_A_REFAULT, np.int64)
        if not rows.any(pairing.DETAILED):
            # Writes still count: they come before later faults.
            self._count_writes(rows)
            return result
        faults = is_fault(rows)
        pages = np.zeros(len(rows), np.int64) - 1
        where = np.flatnonzero(faults)
        nothing = np.zeros(len(where))
        pages[where] = self._pages.add(
            rows.thread[where], rows.detail[where] >> np.uint64(PAGE_SHIFT), nothing, nothing
        )
        self._grow(rows)
        thread, cr = np.ascontiguousarray(rows.thread), np.ascontiguousarray(rows.cr)
        find(*views(thread, cr, pages, self._writes, self._register, self._last_fault, result))
        return result

    def _count_writes(self, rows: ExitRows) -> None:
        self._grow(rows)
        if not rows.any(pairing.CR_WRITE):
            return
        writes = (rows.cr == 0) | (rows.cr == 4)
        thread = rows.thread[writes]
        self._writes[: int(thread.max(initial=-1)) + 1] += np.bincount(thread)
        self._register[thread] = rows.cr[writes]

    def _grow(self, rows: ExitRows) -> None:
        threads = int(rows.thread.max(initial=0)) + 1
        if threads > len(self._writes):
            for name in ("_writes", "_register"):
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(2 * threads, np.int64)]))
        if len(self._pages) > len(self._last_fault):
            self._last_fault = np.concatenate([self._last_fault, np.zeros(2 * len(self._pages), np.int64)])


def is_fault(rows: ExitRows) -> NDArray[np.bool_]:
    """Exits for a page fault whose address the trace holds."""
    faults: NDArray[np.bool_] = (rows.detail_kind == Detail.ADDRESS) & (rows.cr == NO_CR)
    return faults


def find(thread, cr, page, writes, registers, last_fault, out):  # type: ignore[no-untyped-def]
    """The loop of :meth:`RefaultFinder.feed`; *last_fault* holds 1 + the vCPU's writes at a page's last fault."""
    n = len(thread)
    with cython.nogil:
        for i in range(n):
            who = thread[i]
            if cr[i] == 0 or cr[i] == 4:
                writes[who] += 1
                registers[who] = cr[i]
            elif page[i] >= 0:
                if last_fault[page[i]] and last_fault[page[i]] <= writes[who]:
                    out[i] = registers[who]
                last_fault[page[i]] = writes[who] + 1
