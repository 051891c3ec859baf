"""What stands beside the slices of a timeline: counters by the second, and the register writes behind page faults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.record.trace import Batch

EVERY = 10_000_000
"""ns of one value of a counter."""
_EXITS, _PAGES = "exits per second", "pages per second"
_OF_PAGES = {
    "kvm_page_fault": "faults",
    "kvm_mmu_get_page": "tables got",
    "kvm_mmu_prepare_zap_page": "tables zapped",
    "kvm_mmu_set_spte": "entries set",
    "kvm_tdp_mmu_spte_changed": "entries changed",
    "fast_page_fault": "fast faults",
}


class Counters:
    """Counts per VM, and lets them be drawn."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], dict[int, int]] = {}
        """VM, track and series (as JSON) -> interval -> count."""

    def add(self, batch: Batch, reasons: Sequence[str], vms: NDArray[np.int64]) -> None:
        """Count the events of *batch*; *reasons* are those of its exits as JSON, *vms* the VM of each event."""
        place = batch.time // EVERY
        for index, name in enumerate(batch.events):
            if name == "kvm_exit" or name in _OF_PAGES:
                mine = batch.order == index
                if not mine.any():
                    continue
                if name == "kvm_exit":
                    kinds = {reason: number for number, reason in enumerate(dict.fromkeys(reasons))}
                    number = np.array([kinds[reason] for reason in reasons], np.int64)
                    self._count(_EXITS, list(kinds), number, vms[mine], place[mine])
                else:
                    of = np.zeros(int(np.count_nonzero(mine)), np.int64)
                    self._count(_PAGES, [json.dumps(_OF_PAGES[name])], of, vms[mine], place[mine])

    def _count(
        self,
        track: str,
        names: list[str],
        number: NDArray[np.int64],
        vms: NDArray[np.int64],
        place: NDArray[np.int64],
    ) -> None:
        several, vm = np.unique(vms, return_inverse=True) if (vms != vms[0]).any() else (vms[:1], np.zeros_like(vms))
        first = int(place[0])
        wide = int(place[-1]) - first + 1
        rows, counts = np.unique((vm * len(names) + number) * wide + (place - first), return_counts=True)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            kind, at = divmod(row, wide)
            which, name = divmod(kind, len(names))
            series = self._counts.setdefault((int(several[which]), track, names[name]), {})
            series[at + first] = series.get(at + first, 0) + count

    def lines(self) -> Iterator[str]:
        """A counter event where the counts of a VM change: all series of a track together, 0 after the last."""
        tracks: dict[tuple[int, str], dict[str, dict[int, int]]] = {}
        for (vm, track, name), counts in self._counts.items():
            tracks.setdefault((vm, track), {})[name] = counts
        for (vm, track), series in tracks.items():
            places = {at for counts in series.values() for at in counts}
            for at in sorted(places | {at + 1 for at in places}):
                each = 1_000_000_000 // EVERY
                values = ",".join(f"{name}:{counts.get(at, 0) * each}" for name, counts in series.items())
                yield f'{{"ph":"C","name":"{track}","pid":{vm},"ts":{at * (EVERY // 1000)},"args":{{{values}}}}}'


class Refaults:
    """Tells faults on pages that one vCPU had mapped before its last write of CR0 or CR4 from first ones."""

    __slots__ = ("_cause", "_mapped", "_writes")

    def __init__(self) -> None:
        self._cause = 0
        self._writes = 0
        self._mapped: dict[int, int] = {}
        """Page -> how many writes there had been when it was last mapped."""

    def written(self, time: int) -> None:
        """A register was written by the exit at *time*."""
        if not self._writes or time != self._cause:
            self._writes += 1
            self._cause = time

    def faulted(self, address: int | None) -> int | None:
        """The time of the write that a fault at *address* is due to; None if it is a first one."""
        if address is None:
            return None
        page = address >> 12
        before = self._mapped.get(page)
        self._mapped[page] = self._writes
        return self._cause if before is not None and before < self._writes else None
