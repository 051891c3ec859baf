"""Exits in bins: over time for each vCPU and reason, and by duration for each reason.

Every exit counted is in a bin; what grows with the trace is the width of the bins, not what is left out. An exit and
all its time are in the bin in which it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.trace.exits import UNCOUNTED
from worldswitch.trace.tally import Tally

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.trace.exits import ExitRows

_FIRST_SHIFT, _WIDEST = 10, 62
"""Bins begin 1.024 µs wide, and never end wider than a trace can be."""
_MOST_CELLS = 1 << 19
"""Bins held, over all vCPUs and reasons; beyond, they become twice as wide."""
_PIECE = 1 << 17
_FEW_BINS = 512
"""Before bins become fewer than this, the vCPUs with least time share theirs."""
OWN = 256
"""vCPUs that never do."""
SHARED = (1 << 64) - 1
"""Stands in :attr:`Cells.who` for all vCPUs that have no bins of their own."""
_OCTAVE = 3
"""Bits of the mantissa that tell bins of durations apart: 2^3 bins from a power of two to the next."""
_MANTISSA = 52


class TimeBins:
    """Counts and time of exits by vCPU thread, reason and bin.

    Attributes:
        shift: A bin is ``1 << shift`` ns wide, and begins at a multiple of it.
    """

    def __init__(self, most: int = _MOST_CELLS) -> None:
        self.shift = _FIRST_SHIFT
        self._most = most
        self._cells = Tally(limit=2 * most + _PIECE)
        self._sharing: NDArray[np.uint64] = np.empty(0, np.uint64)

    @property
    def sharing(self) -> int:
        """How many vCPUs have no bins of their own."""
        return len(self._sharing)

    def add(self, rows: ExitRows) -> None:
        """Add the exits among *rows* that count."""
        rows = counted(rows)
        for begin in range(0, len(rows), _PIECE):
            piece = slice(begin, begin + _PIECE)
            start = np.maximum(rows.start[piece], 0) >> self.shift
            self._add(rows.who[piece], rows.number[piece], start, np.ones(len(start), np.int64), rows.duration[piece])
            while len(self._cells) > self._most and self.shift < _WIDEST:
                self._fold()

    def _add(self, who: NDArray[np.uint64], number: Any, slot: Any, count: Any, ns: Any) -> None:
        if self.sharing:
            who = np.where(np.isin(who, self._sharing), np.uint64(SHARED), who)
        self._cells.add(who, number, slot, count, ns)

    def _fold(self) -> None:
        """Make bins twice as wide; where they would get too few, let more vCPUs share theirs instead."""
        slots = self._cells.keys[:, 2]
        if int(slots.max() - slots.min()) >= 2 * _FEW_BINS or not self._share(OWN):
            self._widen()

    def _share(self, own: int) -> bool:
        """Let all vCPUs but the *own* with most time share one; whether there were any more."""
        whos, place = np.unique(self._cells.keys[:, 0], return_inverse=True)
        totals = np.bincount(place, self._cells.sums[:, 2])
        order = whos[np.argsort(-totals, kind="stable")]
        order = order[order != np.uint64(SHARED)]
        if len(order) <= own:
            return False
        self._sharing = np.union1d(self._sharing, order[own:])
        self._rebuild(0)
        return True

    def _widen(self) -> None:
        self.shift += 1
        self._rebuild(1)

    def _rebuild(self, shift: int) -> None:
        old = self._cells
        self._cells = Tally(limit=2 * self._most + _PIECE)
        self._add(old.keys[:, 0], old.keys[:, 1], old.keys[:, 2] >> np.uint64(shift), old.sums[:, 1], old.sums[:, 2])

    def cells(self, own: int, most_bins: int, most_cells: int) -> Cells:
        """What was added, in at most *most_bins* bins and about *most_cells* cells that are not empty.

        The *own* vCPUs with most time have bins of their own, and all others share theirs.
        """
        self._share(own)
        while len(self._cells):
            slots = self._cells.keys[:, 2]
            fits = int(slots.max() - slots.min()) < most_bins
            if fits and (len(slots) <= most_cells or self.shift >= _WIDEST):
                break
            self._widen()
        keys, sums = self._cells.keys, self._cells.sums
        numbers = keys[:, 2].astype(np.int64)
        base = int(numbers.min()) if len(numbers) else 0
        return Cells(
            base << self.shift,
            1 << self.shift,
            int(numbers.max()) - base + 1 if len(numbers) else 0,
            keys[:, 0].copy(),
            keys[:, 1].copy(),
            numbers - base,
            sums[:, 1].copy(),
            sums[:, 2].copy(),
        )


@dataclass(frozen=True, slots=True)
class Cells:
    """Bins that hold something; all arrays of one length.

    Attributes:
        first_ns: Where the first bin begins; *width_ns* is each bin's, *bins* how many there are.
        who, number: As in :class:`~worldswitch.trace.exits.ExitRows`; *who* may be :data:`SHARED`.
        slot: Number of the bin.
        count, ns: Exits that start in it, and their time.
    """

    first_ns: int
    width_ns: int
    bins: int
    who: NDArray[np.uint64]
    number: NDArray[np.uint64]
    slot: NDArray[np.int64]
    count: NDArray[np.int64]
    ns: NDArray[np.int64]


class DurationBins:
    """Exits by reason and duration, eight bins to each doubling."""

    def __init__(self) -> None:
        self._cells = Tally()

    def add(self, rows: ExitRows) -> None:
        """Add the exits among *rows* that count."""
        rows = counted(rows)
        if len(rows):
            bits = np.maximum(rows.duration, 1).astype(np.float64).view(np.int64)
            self._cells.add(rows.number, bits >> (_MANTISSA - _OCTAVE), None)

    def of(self, number: int) -> list[tuple[float, float, int]]:
        """``(from ns, to ns, exits)`` of each bin of a reason that holds something, the shortest first."""
        mine = self._cells.keys[:, 0] == np.uint64(number)
        buckets = self._cells.keys[mine, 1].view(np.int64)
        order = np.argsort(buckets)
        counts = self._cells.counts[mine][order].tolist()
        low, high = (edge(buckets[order] + more).tolist() for more in (0, 1))
        return list(zip(low, high, counts, strict=True))


def edge(bucket: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where bins of durations begin, ns."""
    return (bucket << (_MANTISSA - _OCTAVE)).view(np.float64)


def counted(rows: ExitRows) -> ExitRows:
    """The exits that ``count`` counts: those with an entry."""
    return rows.take((rows.flags & UNCOUNTED) == 0) if rows.any(UNCOUNTED) else rows
