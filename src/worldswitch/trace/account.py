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
from worldswitch.trace import pairing
from worldswitch.trace.ahead import ahead
from worldswitch.trace.cr_writes import CrWrites, CrWriteTally
from worldswitch.trace.detect import Detection, Detectors
from worldswitch.trace.exits import EVENTS, Detail, ExitPairing, ExitRows
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
            number = rows.isa.astype(np.uint64) << np.uint64(32) | rows.reason
            keep &= np.isin(number, np.array([isa << 32 | reason for isa, reason in self.reasons], np.uint64))
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
) -> Account:
    """Read *source* to its end and account for its exits.

    Args:
        source: Where the events come from.
        only: Which exits to account; all if None.
        tables: Names of exit reasons.
        by: What rows of :attr:`Account.exits` are told apart by; some of :data:`BY`.
        hot: How many of each kind of hot place to list.
    """
    book = Bookkeeper(only, by)
    others = Summaries()
    for batch in ahead(source.batches(EVENTS | dict.fromkeys(TABLES))):
        book.add(book.pairs.feed(batch))
        others.add(batch)
    result = book.close(source.meta, tables, getattr(source, "reason_names", None), hot)
    result.tables = others.tables()
    return result


_KEY_BITS = 44
_LARGEST = (1 << _KEY_BITS) - 1
_GROUPS = 1 << (64 - _KEY_BITS)


class Bookkeeper:
    """Adds up exits as they come; see :func:`account`."""

    def __init__(self, only: Filter | None = None, by: Sequence[str] = BY) -> None:
        self.pairs = ExitPairing()
        self._only = only
        self._by = frozenset(by)
        self._detectors = Detectors()
        self._groups = Tally(limit=1 << 31)
        self._open = Tally(limit=1 << 31)
        self._user = Tally(limit=1 << 31)
        self._nested = Tally(limit=1 << 31)
        self._vcpus = Tally(limit=1 << 31)
        self._host = Tally(limit=1 << 31)
        self._in_user = Tally(limit=1 << 31)
        self._rips = Tally()
        self._details = Tally()
        self._crs = CrWriteTally()
        self._durations: list[NDArray[np.uint64]] = []
        self._odd: list[tuple[Array, Array]] = []

    def add(self, rows: ExitRows) -> None:
        """Account for *rows*."""
        if self._only is not None:
            rows = self._only.apply(rows, self.pairs)
        if not len(rows):
            return
        self._crs.add(rows)
        self._detectors.add(rows)
        if rows.any(pairing.NO_EXIT):
            rows = rows.take(rows.is_exit)
        if rows.any(pairing.OPEN):
            is_open = rows.is_open
            dangling, rows = rows.take(is_open), rows.take(~is_open)
            self._open.add(*self._key(dangling), dangling.duration)
            self._vcpus.add(dangling.thread, dangling.vcpu + 1, None, dangling.guest)
        if len(rows):
            self._count(rows)

    def _count(self, rows: ExitRows) -> None:
        """Add up exits that all count."""
        number, vm, vcpu = self._key(rows)
        vcpu_id = rows.vcpu + 1 if vcpu is None else vcpu
        self._keep_durations(self._groups.add(number, vm, vcpu, rows.duration), rows.duration)
        self._vcpus.add(rows.thread, vcpu_id, None, rows.guest)
        self._host.add(rows.thread, vcpu_id, None, rows.duration)
        self._rips.add(rows.rip, number if "reason" in self._by else _number(rows), None, rows.duration)
        for flag, tally, amounts in (
            (pairing.TO_USERSPACE, self._user, rows.user),
            (pairing.FROM_L2, self._nested, rows.duration),
        ):
            if rows.any(flag):
                where = (rows.flags & flag) != 0
                rest = [None if part is None else part[where] for part in (vm, vcpu)]
                tally.add(number[where], rest[0], rest[1], amounts[where])
        if rows.any(pairing.TO_USERSPACE):
            where = rows.user > 0
            self._in_user.add(rows.thread[where], vcpu_id[where], None, rows.user[where])
        if rows.any(pairing.DETAILED):
            where = rows.detail_kind != Detail.NONE
            self._details.add(rows.detail_kind[where], rows.detail[where], None, rows.duration[where])

    def _keep_durations(self, group: Array, duration: Array) -> None:
        """Remember each duration with its group: one u64 where both fit, which sorts fast."""
        if int(duration.max()) > _LARGEST or len(self._groups) > _GROUPS:
            fits = (duration <= _LARGEST) & (group < _GROUPS)
            self._odd.append((group[~fits], duration[~fits]))
            group, duration = group[fits], duration[fits]
        self._durations.append((group << _KEY_BITS | duration).view(np.uint64))

    def _key(self, rows: ExitRows) -> tuple[NDArray[np.uint64], Array | None, Array | None]:
        """Reason, VM and vCPU of each row, each 0 where it does not matter; VM and vCPU ids count from 1."""
        vm = identities(self.pairs)[rows.thread] + 1 if "vm" in self._by else None
        number = _number(rows) if "reason" in self._by else rows.isa.astype(np.uint64) << np.uint64(32)
        return number, vm, rows.vcpu + 1 if "vcpu" in self._by else None

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

        result.exits = self._statistics(name, tables)
        result.vcpus = self._times()
        result.cr_writes = self._crs.rows()
        result.hot = list(self._hottest(name, hot))
        unknown: dict[str, int] = {}
        for tally in (self._groups, self._open) if "reason" in self._by else ():
            for (number, _, _), n in zip(tally.keys.tolist(), tally.counts.tolist(), strict=True):
                if not is_known(number):
                    unknown[name(number)] = unknown.get(name(number), 0) + n
        result.detections = self._detectors.report(meta, unknown)
        return result

    def _statistics(self, name: Callable[[int], str], tables: ExitTables | None) -> list[ExitStatistics]:
        begins, duration = self._sorted_durations()
        counts, totals = self._groups.counts, self._groups.totals
        open_counts, user, nested = (_by_key(t) for t in (self._open, self._user, self._nested))
        rows = []
        for index, key in enumerate(map(tuple, self._groups.keys.tolist())):
            n, first, total = int(counts[index]), int(begins[index]), int(totals[index])
            p50, p95, p99 = (duration(first + max(0, -(-n * p // 100) - 1)) for p in (50, 95, 99))
            rows.append(
                ExitStatistics(
                    *self._labels(key, name, tables),
                    count=n,
                    total_ns=total,
                    min_ns=duration(first),
                    mean_ns=total / n,
                    p50_ns=p50,
                    p95_ns=p95,
                    p99_ns=p99,
                    max_ns=duration(first + n - 1),
                    open=open_counts.pop(key, (0, 0))[0],
                    user_ns=user.get(key, (0, 0))[1],
                    nested=nested.get(key, (0, 0))[0],
                )
            )
        for key, (n, _) in open_counts.items():
            rows.append(ExitStatistics(*self._labels(key, name, tables), open=n))
        rows.sort(key=lambda r: (-r.total_ns, -r.count, -r.open, r.vm or 0, r.vcpu or 0, r.reason or ""))
        return rows

    def _labels(
        self, key: tuple[int, ...], name: Callable[[int], str], tables: ExitTables | None
    ) -> tuple[int | None, int | None, int, str, str | None]:
        number, vm, vcpu = key
        isa = number >> 32
        return (
            vm - 1 if "vm" in self._by else None,
            vcpu - 1 if vcpu else None,
            isa,
            isa_name(isa, tables),
            name(number) if "reason" in self._by else None,
        )

    def _sorted_durations(self) -> tuple[Array, Callable[[int], int]]:
        """Where each group begins among all durations sorted by group and size, and the duration at a place."""
        joined = np.concatenate(self._durations) if self._durations else np.empty(0, np.uint64)
        self._durations.clear()
        joined.sort()
        groups = np.arange(len(self._groups), dtype=np.uint64)
        if not self._odd:
            return np.searchsorted(joined, groups << np.uint64(_KEY_BITS)), lambda at: int(joined[at]) & _LARGEST
        group = np.concatenate([(joined >> np.uint64(_KEY_BITS)).view(np.int64), *(part[0] for part in self._odd)])
        size = np.concatenate([(joined & np.uint64(_LARGEST)).view(np.int64), *(part[1] for part in self._odd)])
        order = np.lexsort((size, group))
        group, size = group[order], size[order]
        return np.searchsorted(group, groups.view(np.int64)), lambda at: int(size[at])

    def _times(self) -> list[VcpuTime]:
        """Guest, host and userspace time of each vCPU thread."""
        vms, tids = identities(self.pairs), self.pairs.tids
        host, user = _by_key(self._host), _by_key(self._in_user)
        times = []
        for key, (n, guest) in _by_key(self._vcpus).items():
            thread, vcpu, _ = key
            in_user = user.get(key, (0, 0))[1]
            in_host = host.get(key, (0, 0))[1] - in_user
            identity = int(vms[thread]), int(tids[thread]), vcpu - 1 if vcpu else None
            times.append(VcpuTime(*identity, n, guest, in_host, in_user))
        return sorted(times, key=lambda v: (-v.host_ns - v.user_ns, v.vm, v.tid))

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


def _number(rows: ExitRows) -> NDArray[np.uint64]:
    """isa and reason in one number."""
    return rows.isa.astype(np.uint64) << np.uint64(32) | rows.reason


def _by_key(tally: Tally) -> dict[tuple[int, ...], tuple[int, int]]:
    sums = zip(tally.counts.tolist(), tally.totals.tolist(), strict=True)
    return {tuple(key): pair for key, pair in zip(tally.keys.tolist(), sums, strict=True)}


def _top(tally: Tally, most: int, among: Array | None = None) -> Array:
    """Indices (into *among* if given) of the rows with the greatest totals."""
    totals = tally.totals if among is None else tally.totals[among]
    counts = tally.counts if among is None else tally.counts[among]
    return np.lexsort((-counts, -totals))[:most]
