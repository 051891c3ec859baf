"""Which events of a trace lie in a time, on a vCPU, in a VM or a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from worldswitch.record.trace import UNKNOWN_PID, Batch, EventSource, Meta, Selection, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

VCPU_EVENTS: Selection = {"kvm_exit": ("vcpu_id",), "kvm_entry": ("vcpu_id",)}
"""All that :func:`threads_of_vcpu` needs decoded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an event must match; each is open where None.

    Attributes:
        first: First nanosecond.
        last: Last nanosecond, included.
        threads: Threads, such as those that run a vCPU.
        vm: Process id, or thread id where the source knows no process.
        tid: Thread id.
    """

    first: int | None = None
    last: int | None = None
    threads: frozenset[int] | None = None
    vm: int | None = None
    tid: int | None = None

    def rows(self, batch: Batch) -> NDArray[np.intp]:
        """Positions of the matching events."""
        wanted = np.ones(len(batch), bool)
        if self.first is not None:
            wanted &= batch.time >= self.first
        if self.last is not None:
            wanted &= batch.time <= self.last
        if self.threads is not None:
            wanted &= np.isin(batch.tid, [tid for tid in self.threads if -(1 << 31) <= tid < 1 << 31])
        if self.vm is not None:
            wanted &= np.where(batch.pid == UNKNOWN_PID, batch.tid, batch.pid) == self.vm
        if self.tid is not None:
            wanted &= batch.tid == self.tid
        return np.flatnonzero(wanted)


def threads_of_vcpu(batches: Iterable[Batch], vcpu: int) -> frozenset[int]:
    """The threads whose exits or entries name this ``vcpu_id``."""
    threads: set[int] = set()
    for batch in batches:
        for event in VCPU_EVENTS:
            table = batch.table(event)
            if "vcpu_id" in table:
                threads.update(np.unique(table["tid"][table["vcpu_id"] == vcpu]).tolist())
    return frozenset(threads)


def matching(
    trace: Trace, time: tuple[int | None, int | None], vcpu: int | None, vm: int | None, tid: int | None
) -> Iterator[tuple[Batch, NDArray[np.intp]]]:
    """Each batch of *trace* with the positions of its matching events (see :meth:`.Trace.slice`)."""
    threads = None if vcpu is None else threads_of_vcpu(trace.batches(), vcpu)
    limits = Limits(*time, threads, vm, tid)
    for batch in trace.batches():
        yield batch, limits.rows(batch)


class Sliced:
    """The matching part of a source, batch by batch; an :class:`EventSource`."""

    def __init__(self, source: EventSource, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self._final: Meta | None = None
        self.formats = source.formats

    @property
    def meta(self) -> Meta:
        """The source's; once all events are given, with the counts and times of those."""
        return self._final or self._source.meta

    @meta.setter
    def meta(self, meta: Meta) -> None:
        self._final = meta

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """The matching events in time order."""
        counts: Counter[str] = Counter()
        first = last = None
        for batch in self._source.batches(selection):
            rows = self._limits.rows(batch)
            if not len(rows):
                continue
            part = batch if len(rows) == len(batch) else batch.take(rows)
            first = int(part.time[0]) if first is None else first
            last = int(part.time[-1])
            for name, count in zip(part.events, np.bincount(part.order, minlength=len(part.events)), strict=True):
                counts[name] += int(count)
            yield part
        events = {name: count for name, count in counts.items() if count}
        self._final = replace(self._source.meta, events=events, first_ns=first, last_ns=last)
