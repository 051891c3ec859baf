"""What a trace holds that a what-if judges: register writes and refaults by kind, with their durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
NEW_VCPU = "kvm_track_tsc"
"""Comes with each new vCPU. (A guest that writes its TSC brings it too: that its pages are taken for new ones then
loses findings and makes up none.)"""

SELECTION: Selection = {
    **EVENTS,
    "kvm_exit": (*(EVENTS["kvm_exit"] or ()), "intr_info"),
    UNMAP: (),
    NEW_VCPU: ("vcpu_id",),
}
"""The events looked at and the fields needed of each."""

_WRITE, _FIRST, _SILENT, _REFAULT, _FAULT = range(5)
_MOST_KINDS = 1 << 12
"""Kinds kept apart. Real guests make a few dozen; more would be a hostile trace."""
_NO_KIND = -1
_LIFE_SHIFT = np.uint64(56)
_UNTIMED = 64


@dataclass(frozen=True, slots=True)
class Deeds:
    """What decides which exits there are elsewhere: control-register writes and page faults that find nothing mapped.

    In the order in which their exits ended; all arrays of shape (n,).

    Attributes:
        index: Of its kind in ``keys``; -1 beyond the kinds that are kept apart.
        process: Id of its process; where the trace does not tell it, a number below -1 for a thread that is a VM's only
            one, else -1.
        life: How many vCPUs 0 the process had made before: a process can run one VM after another.
        thread: Number of the vCPU thread, in order of appearance.
        cr: Register written, -1 for faults.
        value: Value written, 0 where *told* is false.
        told: The trace has the value.
        faulted: The write raised #GP.
        nested: It came from a nested guest.
        page: 4 KiB frame of a fault, -1 for writes.
        unmapped: How often the host had unmapped memory before.
        ns: Exit to entry.
        keys: What is alike of each kind; shape (kinds, 3).
        vcpus: How many vCPU threads each process and life has in the trace, those that do nothing of this included.
    """

    index: NDArray[np.int32]
    process: NDArray[np.int64]
    life: NDArray[np.int32]
    thread: NDArray[np.int32]
    cr: NDArray[np.int64]
    value: NDArray[np.uint64]
    told: NDArray[np.bool_]
    faulted: NDArray[np.bool_]
    nested: NDArray[np.bool_]
    page: NDArray[np.int64]
    unmapped: NDArray[np.int32]
    ns: NDArray[np.int64]
    keys: NDArray[np.uint64]
    vcpus: Counter[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.index)


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
        self._births: dict[int, list[int]] = {}
        self._alive: set[tuple[int, int]] = set()
        self._deeds: list[_Part] = []
        self._marks: list[NDArray[np.uint8]] = []
        self._last_number = 0
        self._reasons = Tally(limit=_MOST_KINDS)
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
        if NEW_VCPU in batch.events:
            self._note_births(batch)
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
        unmapped, lives = self._unmapped(rows), self._lives(rows)
        codes = self._refaults.look(_by_life(rows, lives), unmapped)
        no_time = rows.is_open | ~rows.is_exit
        self._reasons.add(rows.number[~no_time] if no_time.any() else rows.number, None, None)
        self.exits += len(rows) - int(np.count_nonzero(no_time))
        self.total_ns += int(counted_ns(rows).sum())
        if codes.any():
            self.new_pages += int(np.count_nonzero(codes & refaults.NEW_PAGE))
            self.dubious += int(np.count_nonzero(codes & refaults.UNMAPPED))
        two_dimensional = (rows.isa == 1) & ((rows.reason & np.uint32(0xFFFF)) == 48)
        self.faults_without_address += int(np.count_nonzero(two_dimensional & (rows.detail_kind == 0)))
        where = rows.cr != NO_CR
        if rows.any(pairing.DETAILED):
            where |= refaults.is_fault(rows) & refaults.is_missing(rows)
        if where.all():
            at: NDArray[np.intp] | slice = slice(None)
        elif where.any():
            at = np.flatnonzero(where)
        else:
            return
        self._note(rows, at, codes, no_time)
        self._deeds.append(_part(rows, at, unmapped, lives))

    def _note(
        self, rows: ExitRows, at: NDArray[np.intp] | slice, codes: NDArray[np.int64], no_time: NDArray[np.bool_]
    ) -> None:
        """Remember the writes and faults *at* these rows."""
        codes, no_time, flags = codes[at], no_time[at], rows.flags[at]
        marks = codes & (refaults.NEW_PAGE | refaults.UNMAPPED) | no_time * _UNTIMED
        self._marks.append(marks.astype(np.uint8))
        codes[(codes & (refaults.NEW_PAGE | refaults.UNMAPPED)) != 0] = 0
        kind = _SILENT - 2 * ((flags & pairing.CR_KNOWN) != 0) - 1 * ((flags & pairing.CR_FIRST) != 0)
        cr = np.minimum(rows.cr[at], 15)
        what = cr | kind << 4 | (flags & (pairing.FAULTED | pairing.FROM_L2)).astype(np.int64) << 8
        is_refault = codes != 0
        is_fault = rows.cr[at] == NO_CR
        if is_fault.any():
            what = np.where(is_fault, _FAULT << 4 | (flags & pairing.FROM_L2).astype(np.int64) << 8, what)
        if is_refault.any():
            last = np.where(codes & refaults.AFTER_CR4, 4, 0)
            nested = (flags & pairing.FROM_L2).astype(np.int64)
            code = last | _REFAULT << 4 | nested << 8 | (codes & (refaults.BETWEEN | refaults.AGAIN)) << 24
            what = np.where(is_refault, code, what)
        changed = None
        if rows.any(pairing.CR_KNOWN):
            changed = np.where((kind == _WRITE) & ~is_fault, rows.cr_changed[at], 0)
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

    def _note_births(self, batch: Batch) -> None:
        """Remember when a process made its vCPU 0."""
        place = batch.events.index(NEW_VCPU)
        at = np.flatnonzero(batch.order == place)
        vcpu = batch.tables[place].get("vcpu_id")
        if vcpu is not None and len(vcpu) == len(at):
            at = at[vcpu == 0]
        for when, pid, tid in zip(batch.time[at].tolist(), batch.pid[at].tolist(), batch.tid[at].tolist(), strict=True):
            if pid in self._births or len(self._births) < _MOST_KINDS:
                self._births.setdefault(pid if pid >= 0 else -2 - tid, []).append(when)

    def _lives(self, rows: ExitRows) -> NDArray[np.int32] | None:
        """How often the process of each row had made a vCPU 0 before it; None if none ever did."""
        if not self._births:
            return None
        pids, tids = self.pairs.pids, self.pairs.tids
        process = np.where(pids >= 0, pids, -2 - tids)[rows.thread]
        lives = np.zeros(len(rows), np.int32)
        for key in np.unique(process).tolist():
            if key in self._births:
                mine = process == key
                lives[mine] = np.searchsorted(np.array(self._births[key]), rows.start[mine])
        pairs = np.unique(rows.thread << 32 | lives).tolist()
        self._alive.update((pair >> 32, pair & 0xFFFFFFFF) for pair in pairs)
        return lives

    def by_reason(self) -> dict[int, int]:
        """Exits by isa << 32 | reason; only those that have an entry."""
        return dict(zip(self._reasons.keys[:, 0].tolist(), self._reasons.counts.tolist(), strict=True))

    @property
    def decides(self) -> bool:
        """Whether a replay can tell more than the kinds do: values are in the trace, or pages faulted again."""
        return self._again() or any(part.value is not None for part in self._deeds)

    def _again(self) -> bool:
        """Whether a page faulted twice in one VM."""
        parts = [part for part in self._deeds if part.faults is not None]
        if not parts:
            return False
        thread = np.concatenate([part.thread[part.faults] for part in parts])
        life = np.concatenate([np.zeros(0) if part.life is None else part.life[part.faults] for part in parts])
        vm = self._processes()[thread]
        columns = [np.concatenate([part.pages for part in parts if part.pages is not None]), vm]
        if len(life) == len(vm):
            columns.append(life.astype(np.int64))
        return len(np.unique(np.stack(columns), axis=1).T) < len(vm)

    def _processes(self) -> NDArray[np.int64]:
        """The process of each thread, see :class:`Deeds`: threads that are all vCPU 0 are of as many VMs."""
        pids = self.pairs.pids
        unnamed = pids < 0
        alone = np.count_nonzero(unnamed) == 1 or bool((self.pairs.vcpus[unnamed] == 0).all())
        return np.where(unnamed, -2 - np.arange(len(pids)) if alone else -1, pids)

    def _vcpus(self) -> Counter[tuple[int, int]]:
        processes = self._processes().tolist()
        if not self._births:
            return Counter((process, 0) for process in processes)
        return Counter((processes[thread], life) for thread, life in self._alive)

    def deeds(self) -> Deeds:
        """The writes and faults one by one; call after :meth:`kinds`."""
        index = np.concatenate([np.empty(0, np.int32), *self._index])
        keys = self._kinds.keys
        what = np.append(keys[:, 0].astype(np.int64), _FAULT << 4)[index]
        kind, flags = what >> 4 & 0xF, what >> 8 & 0xFFFF
        is_fault = (kind == _FAULT) | (kind == _REFAULT)
        thread = np.concatenate([np.empty(0, np.int32), *(part.thread for part in self._deeds)])
        return Deeds(
            index=index,
            process=self._processes()[thread],
            life=self._column("life", np.int32, 0),
            thread=thread,
            cr=np.where(is_fault, -1, what & 0xF),
            value=self._column("value", np.uint64, 0),
            told=(kind == _WRITE) | (kind == _FIRST),
            faulted=(flags & pairing.FAULTED) != 0,
            nested=(flags & pairing.FROM_L2) != 0,
            page=self._of_faults("pages", np.int64, -1),
            unmapped=self._of_faults("unmapped", np.int32, 0),
            ns=np.concatenate([np.empty(0, np.int64), *self._ns]),
            keys=keys,
            vcpus=self._vcpus(),
        )

    def _column(self, name: str, kind: type, missing: int) -> NDArray[Any]:
        """A column of all parts, *missing* where a part has none."""
        parts = [(getattr(part, name), len(part.thread)) for part in self._deeds]
        return np.concatenate(
            [np.empty(0, kind), *(np.full(n, missing, kind) if values is None else values for values, n in parts)]
        )

    def _of_faults(self, name: str, kind: type, missing: int) -> NDArray[Any]:
        """A column that only faults have."""
        column: NDArray[Any] = np.full(sum(len(part.thread) for part in self._deeds), missing, kind)
        start = 0
        for part in self._deeds:
            values = getattr(part, name)
            if part.faults is not None and values is not None:
                column[start + part.faults] = values
            start += len(part.thread)
        return column

    def first_kinds(self, kinds: list[Kind]) -> dict[int, Kind]:
        """The kinds of first writes by their places in :meth:`deeds`, what was inferred of them included."""
        by_number = {kind.number: kind for kind in kinds}
        positions = [position for part in self._firsts for position in part.position.tolist()]
        return {place: by_number[number] for place in positions if (number := int(self._numbers[place])) in by_number}

    def raw_kind(self, index: int, changed: int | None = None, inferred: bool = False) -> Kind:
        """What is alike of the entries of *index* in :meth:`deeds`, without number and sums."""
        kind = _kind(0, self._keys()[index], 0, 0, 0, changed)
        return replace(kind, changed=changed, inferred=inferred)

    def _keys(self) -> list[list[int]]:
        keys: list[list[int]] = self._kinds.keys.tolist()
        return keys

    def without(self, kinds: list[Kind], taken: NDArray[np.bool_]) -> list[Kind]:
        """The kinds as they are without the entries *taken* (a mask over :meth:`deeds`), which belong to none then."""
        marks = np.concatenate(self._marks)[taken]
        self.new_pages -= int(np.count_nonzero(marks & refaults.NEW_PAGE))
        self.dubious -= int(np.count_nonzero(marks & refaults.UNMAPPED))
        touched = np.unique(self._numbers[taken]).tolist()
        self._numbers[taken] = _NO_KIND
        result = []
        for kind in kinds:
            if kind.number not in touched:
                result.append(kind)
            elif (left := np.flatnonzero(self._numbers == kind.number)).size:
                result.append(self.regrouped(kind, left))
        return result

    def regrouped(self, kind: Kind, entries: NDArray[np.intp]) -> Kind:
        """*kind*, which from now on is these entries, by a number of its own."""
        self._last_number = max(self._last_number, int(self._numbers.max(initial=0))) + 1
        self._numbers[entries] = self._last_number
        untimed = int(np.count_nonzero(np.concatenate(self._marks)[entries] & _UNTIMED))
        total = int(np.concatenate(self._ns)[entries].sum())
        return replace(kind, number=self._last_number, count=len(entries), total_ns=total, untimed=untimed)

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
            if key[0] >> 4 & 0xF not in (_FIRST, _FAULT):
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
class _Part:
    """A batch's share of :class:`Deeds`; None for columns that say nothing.

    Attributes:
        thread, life, value: As there.
        faults: Which are faults.
        pages, unmapped: Of these alone.
    """

    thread: NDArray[np.int32]
    life: NDArray[np.int32] | None
    value: NDArray[np.uint64] | None
    faults: NDArray[np.intp] | None
    pages: NDArray[np.int64] | None
    unmapped: NDArray[np.int32] | None


def _part(
    rows: ExitRows,
    at: NDArray[np.intp] | slice,
    unmapped: NDArray[np.int64] | None,
    lives: NDArray[np.int32] | None,
) -> _Part:
    faults = np.flatnonzero(rows.cr[at] == NO_CR)
    some = len(faults) > 0
    told = rows.any(pairing.CR_KNOWN | pairing.CR_FIRST)
    return _Part(
        thread=rows.thread[at].astype(np.int32),
        life=None if lives is None else lives[at],
        value=rows.cr_value[at].copy() if told else None,
        faults=faults if some else None,
        pages=(rows.detail[at][faults] >> np.uint64(refaults.PAGE_SHIFT)).astype(np.int64) if some else None,
        unmapped=unmapped[at][faults].astype(np.int32) if some and unmapped is not None else None,
    )


def _by_life(rows: ExitRows, lives: NDArray[np.int32] | None) -> ExitRows:
    """The rows, with other addresses for each life of a process: its VMs share no memory."""
    if lives is None or not lives.any():
        return rows
    return replace(rows, detail=rows.detail ^ lives.astype(np.uint64) << _LIFE_SHIFT)


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
