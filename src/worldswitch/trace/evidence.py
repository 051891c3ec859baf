"""What a trace holds that a what-if judges: register writes and refaults by kind, with their durations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from worldswitch.trace import pairing, refaults
from worldswitch.trace.cr_writes import CrWriteTally, counted_ns, writer
from worldswitch.trace.exits import EVENTS, NO_CR, ExitPairing, ExitRows
from worldswitch.trace.host import Seen
from worldswitch.trace.tally import Tally

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.record.trace import Batch, Selection

UNMAP = "kvm_unmap_hva_range"

SELECTION: Selection = {
    **EVENTS,
    "kvm_exit": (*(EVENTS["kvm_exit"] or ()), "intr_info"),
    UNMAP: (),
}
"""The events looked at and the fields needed of each."""

_WRITE, _FIRST, _SILENT, _REFAULT = range(4)
_MOST_KINDS = 1 << 12
"""Kinds kept apart. Real guests make a few dozen; more would be a hostile trace."""
_NO_KIND = -1


@dataclass(frozen=True, slots=True)
class Kind:
    """Exits that are judged alike.

    Attributes:
        number: What :meth:`Evidence.durations` knows them by.
        isa, reason: As in kvm_exit.
        cr: Register written; of refaults, the register written last before.
        changed: Bits that changed, as a mask; None where the trace does not tell. Of no meaning for refaults.
        inferred: *changed* was inferred from later writes.
        faulted: The write raised #GP; *changed* is what it would have changed.
        nested: It came from a nested guest.
        between: Of refaults, the registers written since the page's last fault; empty for writes.
        again: Of refaults, that the page had one before.
        count: How many.
        total_ns: What they took, exit to entry; what has no such time counts 0.
        untimed: How many of *count* have no such time.
    """

    number: int
    isa: int
    reason: int
    cr: int
    changed: int | None
    inferred: bool
    faulted: bool
    nested: bool
    between: tuple[int, ...]
    again: bool
    count: int
    total_ns: int
    untimed: int

    @property
    def is_refault(self) -> bool:
        """A page fault that follows a write, not a write."""
        return bool(self.between)


class Evidence:
    """Collects it, batch by batch.

    Attributes:
        pairs: Makes exits of events.
        seen: What the exits show of the host.
        exits, total_ns: Exits that have an entry, and what they took.
        faults_without_address: EPT violations of which the trace has no address.
        dubious: Faults that would be refaults, had the host not unmapped something since the page's last one.
        new_pages: Faults on pages not seen before, after a register write.
    """

    def __init__(self) -> None:
        self.pairs = ExitPairing()
        self.seen = Seen()
        self.exits = 0
        self.total_ns = 0
        self.faults_without_address = 0
        self.dubious = 0
        self.new_pages = 0
        self._crs = CrWriteTally()
        self._kinds = Tally(limit=_MOST_KINDS)
        self._untimed = Tally(limit=_MOST_KINDS)
        self._refaults = refaults.RefaultFinder()
        self._unmaps: list[NDArray[np.int64]] = []
        self._index: list[NDArray[np.int32]] = []
        self._ns: list[NDArray[np.int64]] = []
        self._firsts: list[_Firsts] = []
        self._dropped_firsts = 0
        self._entries = 0
        self._numbers: NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def dropped(self) -> int:
        """Writes and refaults of more kinds than are kept apart."""
        return self._kinds.dropped + self._dropped_firsts

    def feed(self, batch: Batch) -> None:
        """Take the next batch of events."""
        if UNMAP in batch.events:
            times = batch.time[batch.order == batch.events.index(UNMAP)]
            if len(times):
                self._unmaps.append(times)
        self.seen.look(batch)
        self._add(self.pairs.feed(batch))

    def finish(self) -> None:
        """Take what is open when the trace ends."""
        self._add(self.pairs.finish())

    def _add(self, rows: ExitRows) -> None:
        if not len(rows):
            return
        self.seen.add(rows)
        if rows.any(pairing.CR_KNOWN):
            self._crs.add(rows)
        codes = self._refaults.look(rows, self._unmapped(rows))
        no_time = rows.is_open | ~rows.is_exit
        self.exits += len(rows) - int(np.count_nonzero(no_time))
        self.total_ns += int(counted_ns(rows).sum())
        if codes.any():
            self.new_pages += int(np.count_nonzero(codes & refaults.NEW_PAGE))
            self.dubious += int(np.count_nonzero(codes & refaults.UNMAPPED))
            codes[(codes & (refaults.NEW_PAGE | refaults.UNMAPPED)) != 0] = 0
        two_dimensional = (rows.isa == 1) & ((rows.reason & np.uint32(0xFFFF)) == 48)
        self.faults_without_address += int(np.count_nonzero(two_dimensional & (rows.detail_kind == 0)))
        where = rows.cr != NO_CR
        if codes.any():
            where |= codes != 0
        if where.all():
            self._note(rows, slice(None), codes, no_time)
        elif where.any():
            self._note(rows, np.flatnonzero(where), codes, no_time)

    def _note(
        self, rows: ExitRows, at: NDArray[np.intp] | slice, codes: NDArray[np.int64], no_time: NDArray[np.bool_]
    ) -> None:
        """Remember the writes and refaults *at* these rows."""
        codes, no_time, flags = codes[at], no_time[at], rows.flags[at]
        kind = _SILENT - 2 * ((flags & pairing.CR_KNOWN) != 0) - 1 * ((flags & pairing.CR_FIRST) != 0)
        cr = np.minimum(rows.cr[at], 15)
        what = cr | kind << 4 | (flags & (pairing.FAULTED | pairing.FROM_L2)).astype(np.int64) << 8
        is_refault = codes != 0
        if is_refault.any():
            last = np.where(codes & refaults.AFTER_CR4, 4, 0)
            nested = (flags & pairing.FROM_L2).astype(np.int64)
            code = last | _REFAULT << 4 | nested << 8 | (codes & (refaults.BETWEEN | refaults.AGAIN)) << 24
            what = np.where(is_refault, code, what)
        changed = None
        if rows.any(pairing.CR_KNOWN):
            changed = np.where((kind == _WRITE) & ~is_refault, rows.cr_changed[at], 0)
        number = rows.isa[at].astype(np.uint64) << np.uint64(32) | rows.reason[at]
        ns = counted_ns(rows)[at]
        index = self._kinds.add(what, changed, number, ns)
        if no_time.any():
            self._untimed.add(index[no_time & (index >= 0)], None, None, None)
        if rows.any(pairing.CR_FIRST):
            self._note_firsts(rows, at, index, ns, no_time)
        self._index.append(index.astype(np.int32))
        self._ns.append(ns)
        self._entries += len(index)

    def _note_firsts(
        self,
        rows: ExitRows,
        at: NDArray[np.intp] | slice,
        index: NDArray[np.int64],
        ns: NDArray[np.int64],
        no_time: NDArray[np.bool_],
    ) -> None:
        first = np.flatnonzero(((rows.flags[at] & pairing.CR_FIRST) != 0) & (index >= 0))
        key, rip = writer(rows)[at][first], rows.rip[at][first]
        self._firsts.append(_Firsts(key, rip, index[first], ns[first], no_time[first], self._entries + first))

    def _unmapped(self, rows: ExitRows) -> NDArray[np.int64] | None:
        if not self._unmaps:
            return None
        self._unmaps = [np.concatenate(self._unmaps)]
        return np.searchsorted(self._unmaps[0], rows.start)

    def kinds(self) -> list[Kind]:
        """Everything seen, by kind; call once, at the end. What a first write changed is inferred here."""
        self._numbers = np.concatenate([np.empty(0, np.int32), *self._index])
        untimed = dict(zip(self._untimed.keys[:, 0].tolist(), self._untimed.counts.tolist(), strict=True))
        result = []
        sums = zip(self._kinds.keys.tolist(), self._kinds.counts.tolist(), self._kinds.totals.tolist(), strict=True)
        for index, (key, count, total) in enumerate(sums):
            if key[0] >> 4 & 0xF != _FIRST:
                result.append(_kind(index, key, count, total, untimed.get(index, 0)))
        result += self._first_writes()
        return result

    def _first_writes(self) -> Iterator[Kind]:
        """First writes, by what they changed as far as that can be inferred."""
        infer = self._crs.inference()
        groups: dict[tuple[int, int | None], list[int]] = {}
        for part in self._firsts:
            for key, rip, index, ns, no_time, position in part.rows():
                mask = None if key & pairing.FAULTED else infer.first_write(key, rip)
                if (index, mask) not in groups and len(groups) == _MOST_KINDS:
                    self._dropped_firsts += 1
                    self._numbers[position] = _NO_KIND
                    continue
                group = groups.setdefault((index, mask), [len(self._kinds) + len(groups), 0, 0, 0])
                self._numbers[position] = group[0]
                group[1] += 1
                group[2] += ns
                group[3] += no_time
        keys = self._kinds.keys.tolist()
        for (index, mask), (number, count, total, untimed) in groups.items():
            yield _kind(number, keys[index], count, total, untimed, mask)

    def durations(self, numbers: set[int]) -> NDArray[np.int64]:
        """Exit-to-entry times of the kinds *numbers*, in time order; to be called after :meth:`kinds`."""
        if not numbers:
            return np.empty(0, np.int64)
        wanted = np.zeros(1 + max(int(self._numbers.max(initial=0)), *numbers), np.bool_)
        wanted[sorted(numbers)] = True
        # Index -1, of what came after the limit of the tally, is never wanted.
        times: NDArray[np.int64] = np.concatenate(self._ns)[wanted[self._numbers] & (self._numbers != _NO_KIND)]
        return times


@dataclass(frozen=True, slots=True)
class _Firsts:
    """First writes; arrays of one length."""

    key: NDArray[np.int64]
    rip: NDArray[np.uint64]
    index: NDArray[np.int64]
    ns: NDArray[np.int64]
    no_time: NDArray[np.bool_]
    position: NDArray[np.int64]

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        columns = (getattr(self, name).tolist() for name in self.__slots__)
        return zip(*columns, strict=True)


def _kind(number: int, key: list[int], count: int, total: int, untimed: int, first: int | None = None) -> Kind:
    what, changed, reason = key
    kind, flags, codes = what >> 4 & 0xF, what >> 8 & 0xFFFF, what >> 24
    pairs = ((refaults.CR0_BETWEEN, 0), (refaults.CR4_BETWEEN, 4))
    return Kind(
        number=number,
        isa=reason >> 32,
        reason=reason & 0xFFFFFFFF,
        cr=what & 0xF,
        changed=changed if kind == _WRITE else first,
        inferred=kind == _FIRST and first is not None,
        faulted=bool(flags & pairing.FAULTED),
        nested=bool(flags & pairing.FROM_L2),
        between=tuple(cr for bit, cr in pairs if codes & bit),
        again=bool(codes & refaults.AGAIN),
        count=count,
        total_ns=total,
        untimed=untimed,
    )
