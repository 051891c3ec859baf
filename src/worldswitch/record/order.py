"""Events of several sources (CPUs, ring-buffer rounds) into one time order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worldswitch.record.trace import Batch, Columns

_LATEST = int(np.iinfo(np.int64).max)


class TimeOrder:
    """Holds events back until nothing earlier can come, and gives them out sorted by time.

    Equal times keep the order of arrival. Batches that already are in order pass through untouched.
    """

    def __init__(self) -> None:
        self._pending: list[Batch] = []
        self._earliest = _LATEST
        self._given_until = np.iinfo(np.int64).min
        self.out_of_order = 0
        """Events that came later than the watermark promised; given out with the next batch."""

    def add(self, batch: Batch) -> None:
        """Take a batch whose events may be in any order."""
        if len(batch):
            self._pending.append(batch)
            self._earliest = min(self._earliest, int(batch.time.min()))

    def up_to(self, watermark: int) -> Iterator[Batch]:
        """Every held event with time <= *watermark* (ns), in order."""
        if not self._pending or self._earliest > watermark:
            return
        if self._in_order():
            held, self._pending = self._pending, []
            self._earliest = _LATEST
            for batch in held:
                if batch.time[-1] <= watermark:
                    yield self._given(batch)
                    continue
                ready, later = batch.cut(int(np.searchsorted(batch.time, watermark, side="right")))
                self.add(later)
                if len(ready):
                    yield self._given(ready)
            return
        whole = concatenate(self._pending)
        positions = np.argsort(whole.time, kind="stable")
        count = int(np.searchsorted(whole.time[positions], watermark, side="right"))
        self._pending, self._earliest = [], _LATEST
        self.add(whole.take(positions[count:]))
        if count:
            yield self._given(whole.take(positions[:count]))

    def rest(self) -> Iterator[Batch]:
        """Everything still held, in order."""
        yield from self.up_to(_LATEST)

    def _in_order(self) -> bool:
        last = np.iinfo(np.int64).min
        for batch in self._pending:
            if batch.time[0] < last or (batch.time[1:] < batch.time[:-1]).any():
                return False
            last = batch.time[-1]
        return True

    def _given(self, batch: Batch) -> Batch:
        if batch.time[0] < self._given_until:
            self.out_of_order += int(np.count_nonzero(batch.time < self._given_until))
        self._given_until = max(self._given_until, int(batch.time[-1]))
        return batch


def concatenate(batches: list[Batch]) -> Batch:
    """One batch of all *batches*, in their order; event lists may differ."""
    if len(batches) == 1:
        return batches[0]
    events: dict[str, int] = {}
    for batch in batches:
        for name in batch.events:
            events.setdefault(name, len(events))
    orders = [np.array([events[name] for name in b.events] or [0], np.uint16)[b.order] for b in batches]
    tables: list[Columns] = []
    for name in events:
        parts = [b.tables[b.events.index(name)] for b in batches if name in b.events]
        full = [part for part in parts if part and len(next(iter(part.values())))] or parts[:1]
        tables.append({column: np.concatenate([part[column] for part in full]) for column in full[0]})
    return Batch(
        tuple(events),
        np.concatenate(orders),
        np.concatenate([b.time for b in batches]),
        np.concatenate([b.cpu for b in batches]),
        np.concatenate([b.tid for b in batches]),
        np.concatenate([b.pid for b in batches]),
        tuple(tables),
    )
