"""A trace: what happened, event by event, in time order.

A trace is a sequence of :class:`Batch`. Each batch holds the columns every event has (time, cpu, tid, pid) once,
in time order, and beside them one table per event type with the event's own fields. Account and conversion
work batch by batch and never need the whole; :class:`Trace` is all batches of one source, held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from worldswitch.errors import UnknownNameError
from worldswitch.record.formats import EventFormat

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray

Columns: TypeAlias = "dict[str, NDArray[Any]]"
"""Field name -> column; all of one length. Arrays of bytes have shape (n, count), texts dtype ``object``."""

Selection = Mapping[str, Sequence[str] | None]
"""Event name -> the fields wanted of it (None: all). Events not named are counted but not decoded."""

UNKNOWN_PID = -1
"""In the ``pid`` column: the source does not say which process a thread belongs to."""

COMMON = ("time", "cpu", "tid", "pid")


@dataclass(slots=True)
class Batch:
    """Consecutive events in time order.

    Attributes:
        events: Event names.
        order: Index into *events* of each event, shape (n,), uint16.
        time: Nanoseconds on the trace's clock, shape (n,), int64.
        cpu: Shape (n,), int32; -1 where the source does not say.
        tid: Thread, shape (n,), int32.
        pid: Process (thread group) of the thread, shape (n,), int32; :data:`UNKNOWN_PID` where the source is silent.
        tables: For each event name the event's own fields; row *k* belongs to the *k*-th place where *order* names it.
    """

    events: tuple[str, ...]
    order: NDArray[np.uint16]
    time: NDArray[np.int64]
    cpu: NDArray[np.int32]
    tid: NDArray[np.int32]
    pid: NDArray[np.int32]
    tables: tuple[Columns, ...]

    def __len__(self) -> int:
        return len(self.order)

    def table(self, event: str) -> Columns:
        """The rows of one event with the common columns; empty if the batch has none."""
        if event not in self.events:
            return {}
        index = self.events.index(event)
        rows = np.flatnonzero(self.order == index)
        return {name: getattr(self, name)[rows] for name in COMMON} | self.tables[index]

    def take(self, positions: NDArray[np.intp]) -> Batch:
        """The events at *positions* (of shape (m,), in the order given)."""
        order = self.order[positions]
        rank = np.empty(len(self.order), np.intp)
        tables = []
        for index, columns in enumerate(self.tables):
            mine = self.order == index
            rank[mine] = np.arange(np.count_nonzero(mine))
            rows = rank[positions[order == index]]
            tables.append({name: column[rows] for name, column in columns.items()})
        time, cpu, tid, pid = (getattr(self, name)[positions] for name in COMMON)
        return Batch(self.events, order, time, cpu, tid, pid, tuple(tables))

    def cut(self, at: int) -> tuple[Batch, Batch]:
        """The first *at* events and the rest, as views."""
        rows = np.bincount(self.order[:at], minlength=len(self.events)).tolist()
        return self._part(slice(None, at), [slice(None, row) for row in rows]), self._part(
            slice(at, None), [slice(row, None) for row in rows]
        )

    def _part(self, part: slice, rows: list[slice]) -> Batch:
        order, time, cpu, tid, pid = (getattr(self, name)[part] for name in ("order", *COMMON))
        tables = tuple(
            {name: column[mine] for name, column in columns.items()}
            for columns, mine in zip(self.tables, rows, strict=True)
        )
        return Batch(self.events, order, time, cpu, tid, pid, tables)


@dataclass(slots=True)
class Meta:
    """What is known about a trace besides its events.

    ``complete`` is false when the source ended early or was damaged; ``damage`` then says where and what was lost.
    ``vm_identity`` is ``"tgid"`` where the source names each thread's process, else ``"thread"``.
    """

    source: str = ""
    format: str = ""
    kernel: str | None = None
    """The kernel's full version string: ``5.10.0-32-cloud-amd64 ... Debian 5.10.223-1``."""
    host: str | None = None
    vendor: str | None = None
    """``intel`` or ``amd``, where the source says so."""
    cpu_model: str | None = None
    clock: str | None = None
    cpus: int | None = None
    command: str | None = None
    tool: str | None = None
    """What wrote the file."""
    lost: int = 0
    """Events the kernel or the recorder dropped."""
    out_of_order: int = 0
    malformed: int = 0
    """Records too short for their format, or of a type the file does not describe."""
    skipped_lines: int = 0
    """Lines of a text that are no events."""
    complete: bool = True
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    vm_identity: str = "thread"
    first_ns: int | None = None
    last_ns: int | None = None
    events: dict[str, int] = field(default_factory=dict)
    """Event name -> how many the source holds, decoded or not."""
    comms: dict[int, str] = field(default_factory=dict)
    """Thread -> name."""

    def as_json(self) -> dict[str, Any]:
        """Plain dict for JSON; thread ids become strings."""
        plain = asdict(self)
        plain["comms"] = {str(tid): comm for tid, comm in self.comms.items()}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Meta:
        """The inverse of :meth:`as_json`; unknown keys (of a newer version) are ignored."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in plain.items() if name in known}
        values["comms"] = {int(tid): comm for tid, comm in values.get("comms", {}).items()}
        return cls(**values)

    def damaged(self, sentence: str) -> None:
        """Note that the source is not whole."""
        self.complete = False
        if len(self.damage) < 20:
            self.damage.append(sentence)


class EventSource(Protocol):
    """Where events come from: a file, a text, a loaded trace, a run of the model."""

    meta: Meta
    formats: dict[str, EventFormat]
    """Event name -> format. Empty for texts; may grow while batches are read (pipe mode)."""

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """All events in time order; *selection* limits what is decoded. :attr:`meta` is final when it ends."""
        ...


class Trace:
    """All events of one source in memory; itself an :class:`EventSource`."""

    def __init__(
        self,
        batches: Sequence[Batch] = (),
        meta: Meta | None = None,
        formats: dict[str, EventFormat] | None = None,
    ) -> None:
        self.meta = meta or Meta()
        self.formats = formats or {}
        self._batches = [batch for batch in batches if len(batch)]

    @classmethod
    def read(cls, source: EventSource, selection: Selection | None = None) -> Trace:
        """Everything *source* holds."""
        return cls(list(source.batches(selection)), source.meta, source.formats)

    def __len__(self) -> int:
        return sum(map(len, self._batches))

    def __repr__(self) -> str:
        return f"<Trace {self.meta.source!r}: {len(self)} events, {len(self.events)} kinds>"

    @property
    def events(self) -> tuple[str, ...]:
        """Names of the events that have rows, most frequent first."""
        counts: dict[str, int] = {}
        for batch in self._batches:
            for index, n in enumerate(np.bincount(batch.order, minlength=len(batch.events))):
                if n:
                    counts[batch.events[index]] = counts.get(batch.events[index], 0) + int(n)
        return tuple(sorted(counts, key=lambda name: (-counts[name], name)))

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """The batches as read; with a *selection*, only its events (with all fields held)."""
        for batch in self._batches:
            if selection is None:
                yield batch
                continue
            wanted = np.isin(batch.order, [i for i, name in enumerate(batch.events) if name in selection])
            yield batch if wanted.all() else batch.take(np.flatnonzero(wanted))

    def table(self, event: str) -> Columns:
        """All rows of *event*: ``seq`` (place in the whole trace), the common columns and its own fields.

        Raises:
            UnknownNameError: The trace has no such event.
        """
        parts: list[Columns] = []
        first = 0
        for batch in self._batches:
            if event in batch.events:
                seq = np.flatnonzero(batch.order == batch.events.index(event))
                parts.append({"seq": (seq + first).astype(np.uint64)} | batch.table(event))
            first += len(batch)
        parts = [part for part in parts if len(part["time"])] or parts[:1]
        if not parts:
            raise UnknownNameError("event", event, self.events, "Trace.events lists what this trace holds.")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def frame(self, event: str) -> pl.DataFrame:
        """:meth:`table` as a Polars frame; byte arrays are ``Array(UInt8, n)``."""
        from worldswitch.record.parquet import frame

        return frame(self.table(event))

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Event name -> Polars frame, for every event with rows."""
        return {event: self.frame(event) for event in self.events}

    def slice(
        self,
        time: tuple[int | None, int | None] = (None, None),
        vcpu: int | None = None,
        vm: int | None = None,
        tid: int | None = None,
    ) -> Trace:
        """The part of the trace that matches all limits given.

        Args:
            time: First and last nanosecond, both included; None is open.
            vcpu: Only threads that run this vCPU (by the ``vcpu_id`` of their exits and entries).
            vm: Only threads of this VM: process id, or thread id where the source knows no process.
            tid: Only this thread.
        """
        from worldswitch.record.slicing import matching

        return Trace([batch.take(rows) for batch, rows in matching(self, time, vcpu, vm, tid)], self.meta, self.formats)

    def save(self, path: str | Path) -> None:
        """Write a folder: one Parquet file per event and ``meta.json``. :meth:`load` gives back an equal trace."""
        from worldswitch.record.parquet import save

        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what :meth:`save` wrote."""
        from worldswitch.record.parquet import load

        return load(path)
