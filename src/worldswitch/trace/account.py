"""What a trace's world switches cost: per VM, vCPU and reason, and per control-register bit.

``count`` and ``total_ns`` are what ``perf kvm stat`` counts: an exit with the next entry of its thread, userspace
included. What perf drops without a word stands beside as ``open``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from worldswitch.record.trace import UNKNOWN_PID, EventSource, Meta
from worldswitch.stats.percentile import nearest_rank
from worldswitch.trace import pairing, slow_start
from worldswitch.trace.ahead import ahead
from worldswitch.trace.cr_writes import CrWrites, CrWriteTally
from worldswitch.trace.detect import Detection, Detectors, slow_starts
from worldswitch.trace.exits import EVENTS, UNCOUNTED, Detail, ExitPairing, ExitRows
from worldswitch.trace.slow_start import SlowStarts
from worldswitch.trace.summaries import TABLES, Summaries
from worldswitch.trace.tally import Tally
from worldswitch.x86.exits import ExitTables, isa_name, known, reason_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which exits to account; every limit that is None lets all pass.

    Attributes:
        time: First and last nanosecond at which an exit may start, both included.
        vcpu, vm, tid: As in :meth:`worldswitch.record.trace.Trace.slice`.
        reasons: Exit reasons as (isa, reason).
        longer_than: Only exits that took longer, ns.
    """

    time: tuple[int | None, int | None] = (None, None)
    vcpu: int | None = None
    vm: int | None = None
    tid: int | None = None
    reasons: frozenset[tuple[int, int]] | None = None
    longer_than: int | None = None

    def apply(self, rows: ExitRows, pairs: ExitPairing) -> ExitRows:
        """The rows that pass."""
        keep = np.ones(len(rows), np.bool_)
        first, last = self.time
        if first is not None:
            keep &= rows.start >= first
        if last is not None:
            keep &= rows.start <= last
        if self.vcpu is not None:
            keep &= rows.vcpu == self.vcpu
        if self.tid is not None:
            keep &= pairs.tids[rows.thread] == self.tid
        if self.vm is not None:
            keep &= identities(pairs)[rows.thread] == self.vm
        if self.reasons is not None:
            keep &= np.isin(rows.number, np.array([isa << 32 | reason for isa, reason in self.reasons], np.uint64))
        if self.longer_than is not None:
            keep &= rows.duration > self.longer_than
        return rows if keep.all() else rows.take(keep)


def identities(pairs: ExitPairing) -> Array:
    """The VM of each thread: its process, or the thread itself where the process is not known."""
    pids = pairs.pids
    return np.where(pids == UNKNOWN_PID, pairs.tids, pids)


@dataclass(frozen=True, slots=True)
class ExitStatistics:
    """One row: the exits of one vCPU for one reason. Times in ns; None where ``count`` is 0.

    Percentiles are by nearest rank, so each is the duration of an exit in the trace.
    """

    vm: int | None
    """None where VMs are not told apart (``by`` without ``"vm"``); likewise ``vcpu`` and ``reason``."""
    vcpu: int | None
    isa: int
    isa_name: str
    reason: str | None
    count: int = 0
    total_ns: int = 0
    min_ns: int | None = None
    mean_ns: float | None = None
    p50_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    max_ns: int | None = None
    open: int = 0
    user_ns: int = 0
    nested: int = 0
    """Exits that came from a nested guest (L2)."""


@dataclass(frozen=True, slots=True)
class VcpuTime:
    """Where the time of one vCPU went, as far as the trace shows both ends of it. Times in ns."""

    vm: int
    tid: int
    vcpu: int | None
    exits: int
    guest_ns: int
    host_ns: int
    user_ns: int


@dataclass(frozen=True, slots=True)
class Hot:
    """One place or object that exits go to."""

    kind: str
    """``rip``, ``msr``, ``cpuid``, ``port``, ``address``, ``mmio`` or ``hypercall``."""
    value: int
    detail: str
    """The exit reason of a rip; ``read`` or ``write`` of an MSR or port; else empty."""
    count: int
    total_ns: int


@dataclass(slots=True)
class Account:
    """The account of one trace."""

    meta: Meta
    exits: list[ExitStatistics] = field(default_factory=list)
    cr_writes: list[CrWrites] = field(default_factory=list)
    vcpus: list[VcpuTime] = field(default_factory=list)
    hot: list[Hot] = field(default_factory=list)
    detections: list[Detection] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Tables that came ready-made or are no exits: ioctls of strace, rows of other tools."""

    @property
    def count(self) -> int:
        """Exits counted in all."""
        return sum(row.count for row in self.exits)

    @property
    def total_ns(self) -> int:
        """Time of all exits counted."""
        return sum(row.total_ns for row in self.exits)


BY = ("vm", "vcpu", "reason")
"""What exits can be told apart by."""


def account(
    source: EventSource,
    only: Filter | None = None,
    tables: ExitTables | None = None,
    by: Sequence[str] = BY,
    hot: int = 10,
    watch: Callable[[ExitPairing, ExitRows], object] | None = None,
) -> Account:
    """Read *source* to its end and account for its exits.

    Args:
        source: Where the events come from.
        only: Which exits to account; all if None.
        tables: Names of exit reasons.
        by: What rows of :attr:`Account.exits` are told apart by; some of :data:`BY`.
        hot: How many of each kind of hot place to list.
        watch: Called with the pairing and the exits of each batch, for those who want more of the same reading.
    """
    book = Bookkeeper(only, by)
    others = Summaries()
    starts = SlowStarts()
    for batch in ahead(source.batches(EVENTS | dict.fromkeys(TABLES) | slow_start.EVENTS)):
        rows = book.pairs.feed(batch)
        book.add(rows)
        if watch is not None:
            watch(book.pairs, rows)
        others.add(batch)
        starts.add(batch)
    result = book.close(source.meta, tables, getattr(source, "reason_names", None), hot)
    result.tables = others.tables()
    result.detections += slow_starts(starts, source.meta)
    return result


_KEY_BITS = 44
_LARGEST = (1 << _KEY_BITS) - 1
_KINDS = 1 << (63 - _KEY_BITS)
_PIECE = 1 << 14


@dataclass(slots=True)
class _Group:
    """What is added up for one row of :class:`ExitStatistics`."""

    id: int
    count: int = 0
    total: int = 0
    open: int = 0
    user: int = 0
    nested: int = 0


class Bookkeeper:
    """Adds up exits as they come; see :func:`account`.

    Exits are counted by *kind*: thread, vCPU, reason, register written and flags. There are few kinds, and everything
    but percentiles and hot places follows from their sums.
    """

    def __init__(self, only: Filter | None = None, by: Sequence[str] = BY) -> None:
        self.pairs = ExitPairing()
        self._only = only
        self._by = frozenset(by)
        self._detectors = Detectors()
        self._kinds = Tally(limit=1 << 31)
        self._rips = Tally()
        self._details = Tally()
        self._crs = CrWriteTally()
        self._groups: dict[tuple[int, int, int], _Group] = {}
        self._vcpus: dict[int, list[int]] = {}
        self._durations: list[NDArray[np.uint64]] = []
        self._odd: list[tuple[Array, Array]] = []

    def add(self, rows: ExitRows) -> None:
        """Account for *rows*."""
        if self._only is not None:
            rows = self._only.apply(rows, self.pairs)
        if not len(rows):
            return
        kind = self._kinds.add(rows.number, rows.who, rows.marks, rows.duration, rows.guest, rows.user)
        self._keep_durations(kind, rows.duration)
        self._crs.add(rows)
        self._detectors.add(rows)
        if rows.any(UNCOUNTED):
            rows = rows.take((rows.flags & UNCOUNTED) == 0)
        self._rips.add(rows.rip, rows.number, None, rows.duration)
        if rows.any(pairing.DETAILED):
            where = rows.detail_kind != Detail.NONE
            self._details.add(rows.detail_kind[where], rows.detail[where], None, rows.duration[where])

    def _keep_durations(self, kind: Array, duration: Array) -> None:
        """Remember each duration with its kind: one u64 where both fit, which sorts fast."""
        if int(duration.max()) > _LARGEST or len(self._kinds) > _KINDS:
            fits = (duration <= _LARGEST) & (kind < _KINDS)
            self._odd.append((kind[~fits], duration[~fits]))
            kind, duration = kind[fits], duration[fits]
        self._durations.append((kind << _KEY_BITS | duration).view(np.uint64))

    def _settle(self) -> Array:
        """Add the kinds up by row and by vCPU; the row's id of each kind, -1 for exits that do not count."""
        vms = identities(self.pairs).tolist()
        group_of = np.full(len(self._kinds), -1, np.int64)
        for kind, (number, who, marks), (count, total, guest, user) in _rows_of(self._kinds):
            flags, cr = marks & 0xFFFFFFFF, (marks >> 32) - 1
            counts = not flags & UNCOUNTED
            self._detectors.add_kind(cr, flags, count)
            if flags & pairing.CR_SILENT:
                self._crs.add_silent(cr, bool(flags & pairing.FAULTED), count, total if counts else 0)
            if flags & pairing.NO_EXIT:
                continue
            times = self._vcpus.setdefault(who, [0, 0, 0, 0])
            times[0] += count
            times[1] += guest
            key = self._key(number, vms[who >> 32], who & 0xFFFFFFFF)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(kind)
            if not counts:
                group.open += count
                continue
            times[2] += total - user
            times[3] += user
            if not group.count:
                group.id = kind
            group.count += count
            group.total += total
            group.user += user
            group.nested += count if flags & pairing.FROM_L2 else 0
            group_of[kind] = group.id
        return group_of

    def _key(self, number: int, vm: int, vcpu: int) -> tuple[int, int, int]:
        """Reason, VM and vCPU + 1, each 0 where it does not matter."""
        reason = number if "reason" in self._by else number >> 32 << 32
        return reason, vm if "vm" in self._by else 0, vcpu if "vcpu" in self._by else 0

    def close(
        self,
        meta: Meta,
        tables: ExitTables | None = None,
        names: dict[tuple[int, int], str] | None = None,
        hot: int = 10,
    ) -> Account:
        """Add the exits still open and give the account."""
        self.add(self.pairs.finish())
        result = Account(meta)

        def name(number: int) -> str:
            isa, reason = number >> 32, number & 0xFFFFFFFF
            return (names or {}).get((isa, reason)) or reason_name(isa, reason, tables)

        def is_known(number: int) -> bool:
            return known(number >> 32, number & 0xFFFFFFFF, tables)

        group_of = self._settle()
        result.exits = self._statistics(group_of, name, tables)
        result.vcpus = self._times()
        result.cr_writes = self._crs.rows()
        result.hot = list(self._hottest(name, hot))
        unknown: dict[str, int] = {}
        for (number, _, _), group in self._groups.items() if "reason" in self._by else ():
            if not is_known(number):
                unknown[name(number)] = unknown.get(name(number), 0) + group.count + group.open
        result.detections = self._detectors.report(meta, unknown)
        return result

    def _statistics(
        self, group_of: Array, name: Callable[[int], str], tables: ExitTables | None
    ) -> list[ExitStatistics]:
        begin_of, duration = self._sorted_durations(group_of)
        rows = []
        for key, group in self._groups.items():
            labels, n = self._labels(key, name, tables), group.count
            if not n:
                rows.append(ExitStatistics(*labels, open=group.open))
                continue
            first = begin_of(group.id)
            p50, p95, p99 = (duration(first + nearest_rank(n, p)) for p in (50, 95, 99))
            rows.append(
                ExitStatistics(
                    *labels,
                    count=n,
                    total_ns=group.total,
                    min_ns=duration(first),
                    mean_ns=group.total / n,
                    p50_ns=p50,
                    p95_ns=p95,
                    p99_ns=p99,
                    max_ns=duration(first + n - 1),
                    open=group.open,
                    user_ns=group.user,
                    nested=group.nested,
                )
            )
        rows.sort(key=lambda r: (-r.total_ns, -r.count, -r.open, r.vm or 0, r.vcpu or 0, r.reason or ""))
        return rows

    def _labels(
        self, key: tuple[int, ...], name: Callable[[int], str], tables: ExitTables | None
    ) -> tuple[int | None, int | None, int, str, str | None]:
        number, vm, vcpu = key
        isa = number >> 32
        return (
            vm if "vm" in self._by else None,
            vcpu - 1 if vcpu else None,
            isa,
            isa_name(isa, tables),
            name(number) if "reason" in self._by else None,
        )

    def _sorted_durations(self, group_of: Array) -> tuple[Callable[[int], int], Callable[[int], int]]:
        """Where a group's durations begin among all, sorted by group and size; and the duration at a place."""
        joined = np.concatenate(self._durations) if self._durations else np.empty(0, np.uint64)
        self._durations.clear()
        shift, mask = np.uint64(_KEY_BITS), np.uint64(_LARGEST)
        moved = (group_of >= 0) & (group_of != np.arange(len(group_of)))
        if moved.any() and not self._odd:
            joined = group_of.view(np.uint64)[joined >> shift] << shift | joined & mask
        if not self._odd:
            joined.sort()
            return (
                lambda group: int(np.searchsorted(joined, np.uint64(group << _KEY_BITS))),
                lambda at: int(joined[at]) & _LARGEST,
            )
        kind = np.concatenate([(joined >> shift).view(np.int64), *(part[0] for part in self._odd)])
        size = np.concatenate([(joined & mask).view(np.int64), *(part[1] for part in self._odd)])
        group = group_of[kind]
        order = np.lexsort((size, group))
        group, size = group[order], size[order]
        return lambda wanted: int(np.searchsorted(group, wanted)), lambda at: int(size[at])

    def _times(self) -> list[VcpuTime]:
        """Guest, host and userspace time of each vCPU thread."""
        vms, tids = identities(self.pairs).tolist(), self.pairs.tids.tolist()
        times = []
        while self._vcpus:
            # Taken out as they are read: of a million, two of each need not be held.
            who, (exits, guest, host, user) = self._vcpus.popitem()
            thread, vcpu = who >> 32, who & 0xFFFFFFFF
            times.append(VcpuTime(vms[thread], tids[thread], vcpu - 1 if vcpu else None, exits, guest, host, user))
        return sorted(times, key=lambda v: (-v.host_ns - v.user_ns, v.vm, v.tid, v.vcpu or 0))

    def _hottest(self, name: Callable[[int], str], most: int) -> Iterator[Hot]:
        for index in _top(self._rips, most):
            value, number, _ = self._rips.keys[index].tolist()
            yield Hot("rip", value, name(number), int(self._rips.counts[index]), int(self._rips.totals[index]))
        kinds = self._details.keys[:, 0]
        for kind in Detail:
            mine = np.flatnonzero(kinds == kind)
            for index in mine[_top(self._details, most, mine)]:
                value = int(self._details.keys[index, 1])
                flagged = kind in (Detail.MSR, Detail.PORT)
                detail = ("write" if value >> 32 else "read") if flagged else ""
                value = value & 0xFFFFFFFF if flagged else value
                counts = int(self._details.counts[index]), int(self._details.totals[index])
                yield Hot(kind.name.lower(), value, detail, *counts)


def _rows_of(tally: Tally) -> Iterator[tuple[int, list[int], list[int]]]:
    """Index, key and sums of each row as plain numbers, which take much room, piece by piece."""
    for begin in range(0, len(tally), _PIECE):
        piece = slice(begin, begin + _PIECE)
        rows = zip(tally.keys[piece].tolist(), tally.sums[piece].tolist(), strict=True)
        for index, (key, sums) in enumerate(rows, begin):
            yield index, key, sums


def _top(tally: Tally, most: int, among: Array | None = None) -> Array:
    """Indices (into *among* if given) of the rows with the greatest totals."""
    totals = tally.totals if among is None else tally.totals[among]
    counts = tally.counts if among is None else tally.counts[among]
    return np.lexsort((-counts, -totals))[:most]
