"""The events of a run as a :class:`~worldswitch.record.trace.Trace`, as if they had been recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from worldswitch.record.trace import Batch, Columns, Meta, Trace
from worldswitch.x86.exits import builtin

THREAD = 1
"""The process, and the thread of its first vCPU; the other vCPUs' have the numbers after it."""
_TYPES = {
    "exit_reason": np.uint32, "isa": np.uint32, "vcpu_id": np.uint32, "rw": np.uint32, "cr": np.uint32,
    "error_code": np.uint64, "exception": np.uint8, "has_error": np.bool_, "reinjected": np.bool_, "failed": np.bool_,
    "flags": np.uint8, "csbase": np.uint32, "ecx": np.uint32, "write": np.uint32, "reason": np.uint32, "errno":
np.int32, }  # fmt: skip


def trace_of(rows: Sequence[tuple[str, Mapping[str, Any]]], turns: Sequence[tuple[int, int]] = ()) -> Trace:
    """The rows as one batch; event *i* has time *i*. *turns*: from which row on another vCPU acts, and which."""
    events = tuple(dict.fromkeys(name for name, _ in rows))
    numbers = {name: place for place, name in enumerate(events)}
    order = np.array([numbers[name] for name, _ in rows], np.uint16)
    tables = tuple(_columns([row for name, row in rows if name == event]) for event in events)
    count = len(rows)
    threads = np.full(count, THREAD, np.int32)
    for (first, vcpu), (end, _) in pairwise([*turns, (count, 0)]):
        threads[first:end] = THREAD + vcpu
    batch = Batch(
        events,
        order,
        np.arange(count, dtype=np.int64),
        np.zeros(count, np.int32),
        threads,
        np.full(count, THREAD, np.int32),
        tables,
    )
    counts = {name: int((order == place).sum()) for name, place in numbers.items()}
    meta = Meta(source="model", format="model", events=counts, vm_identity="tgid", cpus=1)
    if count:
        meta.first_ns, meta.last_ns = 0, count - 1
    return Trace([batch], meta)


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    names = rows[0] if rows else {}
    return {name: np.array([_plain(name, row[name]) for row in rows], _TYPES.get(name, np.uint64)) for name in names}


def _plain(name: str, value: Any) -> Any:
    """Userspace exits are named here and numbered there."""
    if name != "reason":
        return value
    return next(number for number, known in builtin().userspace.items() if known == f"KVM_EXIT_{value}")
