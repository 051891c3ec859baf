"""Detectors: what in a trace deserves a second look.

Each has an id that ``wsw analyze --fail-on`` takes, and reports how often it saw its thing and one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worldswitch.record.trace import Meta
from worldswitch.trace import pairing
from worldswitch.trace.exits import ExitRows
from worldswitch.trace.refaults import NOT_A_REFAULT, PAGE_SHIFT, RefaultFinder, is_fault
from worldswitch.trace.slow_start import SlowStarts
from worldswitch.trace.tally import Tally
from worldswitch.units import format_ns
from worldswitch.x86.registers import register_name

ROOT_CHURN = "root-churn"
SAME_ADDRESS = "same-address"
UNKNOWN_REASON = "unknown-reason"
LOST_EVENTS = "lost-events"
MID_FLIGHT = "mid-flight"
INCOMPLETE = "incomplete"
SLOW_START = "slow-start"

DETECTORS: dict[str, str] = {
    ROOT_CHURN: "pages fault in again after control-register writes: KVM dropped its MMU roots",
    SAME_ADDRESS: "one guest page faults again and again without a control-register write between",
    UNKNOWN_REASON: "exit reasons that are in no table; load your own with --exit-reasons",
    LOST_EVENTS: "the recorder or the kernel dropped events: counts are too low, durations may span several exits",
    MID_FLIGHT: "the trace starts while vCPUs run: exits before a thread's first entry are not counted",
    INCOMPLETE: "the file ends early or is damaged",
    SLOW_START: "making VMs takes long: a wait for RCU, a queue behind one, a thread to make, interrupted calls",
}
"""Detector id -> what it looks for."""

_AGAIN_AND_AGAIN = 16
"""Faults of one page without a control-register write between that make it suspicious; mapping a page takes one or
two."""


@dataclass(frozen=True, slots=True)
class Detection:
    """One thing a detector saw."""

    id: str
    count: int
    detail: str


def slow_starts(calls: SlowStarts, meta: Meta) -> list[Detection]:
    """The likely causes of slow calls of KVM_CREATE_VM, each a detection of its own."""
    return [Detection(SLOW_START, cause.calls, f"{cause.name}: {cause.detail}") for cause in calls.causes(meta)]


class Detectors:
    """Watches exits as they come."""

    def __init__(self) -> None:
        self._refaults = RefaultFinder()
        self._churn = np.zeros((16, 2), np.int64)
        self._writes = {0: 0, 4: 0}
        self._again = Tally()
        self._first = 0

    def add(self, rows: ExitRows) -> None:
        """Look at *rows*."""
        if not rows.any(pairing.DETAILED):
            self._refaults.count_writes(rows)
            return
        after = self._refaults.feed(rows)
        refault = after != NOT_A_REFAULT
        if refault.any():
            np.add.at(self._churn[:, 0], after[refault], 1)
            np.add.at(self._churn[:, 1], after[refault], rows.duration[refault])
        again = is_fault(rows) & ~refault
        pages = rows.detail[again] >> np.uint64(PAGE_SHIFT)
        self._again.add(rows.thread[again], pages, rows.rip[again], rows.duration[again])

    def add_kind(self, cr: int, flags: int, count: int) -> None:
        """Note *count* exits that wrote *cr* (:data:`~worldswitch.trace.exits.NO_CR`: none)."""
        if flags & pairing.FIRST:
            self._first += count
        if cr in self._writes:
            self._writes[cr] += count

    def report(self, meta: Meta, unknown: dict[str, int]) -> list[Detection]:
        """What was seen; *unknown* holds exits by unnamed reason."""
        seen = [*self._churned(), *self._repeated()]
        if unknown:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items())[:8])
            seen.append(Detection(UNKNOWN_REASON, sum(unknown.values()), f"no table names {names}"))
        if meta.lost:
            seen.append(
                Detection(
                    LOST_EVENTS,
                    meta.lost,
                    f"{meta.lost} events were lost; record fewer events or give more buffer",
                )
            )
        if self._first:
            seen.append(
                Detection(MID_FLIGHT, self._first, f"{self._first} exits came before their thread's first entry")
            )
        if not meta.complete:
            seen.append(
                Detection(INCOMPLETE, max(1, len(meta.damage)), "; ".join(meta.damage) or "the trace is not whole")
            )
        return seen

    def _churned(self) -> list[Detection]:
        found = []
        for cr in (0, 4):
            count, total = self._churn[cr].tolist()
            if count:
                each = count / max(1, int(self._writes[cr]))
                found.append(
                    Detection(
                        ROOT_CHURN,
                        count,
                        f"{count} page faults on pages mapped before, after {self._writes[cr]} "
                        f"{register_name(cr)} writes "
                        f"({each:.2g} per write, {format_ns(total)} in all)",
                    )
                )
        return found

    def _repeated(self) -> list[Detection]:
        counts = self._again.counts
        often = np.flatnonzero(counts >= _AGAIN_AND_AGAIN)
        if not len(often):
            return []
        worst = int(often[np.argmax(counts[often])])
        _, page, rip = self._again.keys[worst].tolist()
        return [
            Detection(
                SAME_ADDRESS,
                int(counts[often].sum()),
                f"{len(often)} pages fault again and again; {page << PAGE_SHIFT:#x} does {counts[worst]} times "
                f"from rip {rip:#x}",
            )
        ]
