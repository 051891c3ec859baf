"""Write the JSON trace-event format that ui.perfetto.dev and chrome://tracing open.

One process per VM, one track per thread. From each exit to the next entry of its thread stands a slice
named by the exit reason; everything else is an instant. Counters say how many exits a second there were by reason,
and what happened to pages; arrows lead from a write of CR0 or CR4 to the page faults on pages that were mapped before
it, which shows whose fault they are. 64-bit values are hexadecimal strings, since
JavaScript's numbers end at 2^53. Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from worldswitch.errors import printable
from worldswitch.record.trace import UNKNOWN_PID, Batch, Columns, EventSource
from worldswitch.report.perfetto_tracks import Counters, Refaults
from worldswitch.trace.writers.catalog import Written
from worldswitch.x86.exits import ExitTables, reason_name
from worldswitch.x86.registers import bit_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEX = frozenset(("rip", "guest_rip", "info1", "info2", "intr_info", "error_code", "gpa", "gfn", "val", "data"))
_TOLD_OTHERWISE = frozenset(("isa", "exit_reason", "vcpu_id"))
_SAFE = 1 << 53
_SPECIAL = ("kvm_exit", "kvm_entry", "kvm_cr", "kvm_page_fault")
_WRITE_EXITS = frozenset(f'"{name}"' for name in ("cr0_sel_write", "write_cr0", "write_cr4"))
"""Exits (as JSON) that are writes of CR0 or CR4 without an event that says so: SVM emits none."""


def write_perfetto(source: EventSource, stream: IO[str], tables: ExitTables | None = None) -> Written:
    """Write all events of *source* as JSON, batch by batch.

    Args:
        source: The events.
        stream: Where to.
        tables: Names of exit reasons beside the built-in ones.
    """
    writer = _Writer(source, tables)
    separator = '{"displayTimeUnit":"ns","traceEvents":[\n'
    for batch in source.batches():
        lines = writer.batch(batch)
        if lines:
            stream.write(separator + ",\n".join(lines))
            separator = ",\n"
    lines = list(writer.rest())
    if lines or separator[0] == "{":
        stream.write(separator + ",\n".join(lines))
    meta = source.meta
    about = {"source": meta.source, "kernel": meta.kernel, "clock": meta.clock, "lost": meta.lost}
    stream.write('\n],"otherData":' + json.dumps(about | {"complete": meta.complete}) + "}\n")
    return writer.written


@dataclass(slots=True)
class _Exit:
    """An exit whose entry has not come yet."""

    time: int
    name: str
    args: str
    stamp: str


@dataclass(slots=True)
class _Thread:
    """What is known of one thread; *where* is ``"pid":..,"tid":..`` as it stands in every event."""

    where: str
    tid: int
    vm: int
    vcpu: int | None = None
    open: _Exit | None = None
    registers: dict[int, int] = field(default_factory=dict)
    refaults: Refaults = field(default_factory=Refaults)
    instants: dict[int, str] = field(default_factory=dict)
    """Index of an event in the batch -> its line up to the time."""


class _Writer:
    def __init__(self, source: EventSource, tables: ExitTables | None) -> None:
        self._meta = source.meta
        self._tables = tables
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._vms: set[int] = set()
        self._counters = Counters()
        self._arrows = 0
        self.written = Written()

    def batch(self, batch: Batch) -> list[str]:
        """The JSON objects of a batch."""
        self.written.events += len(batch)
        labels = [json.dumps(printable(name)) for name in batch.events]
        counts = np.bincount(batch.order, minlength=len(batch.events)).tolist()
        args = [iter(_args(table, n)) for table, n in zip(batch.tables, counts, strict=True)]
        found = self._exits(batch)
        self._counters.add(batch, [name for name, _ in found], self._vm_of(batch))
        exits, writes, faults = iter(found), _writes(batch), _addresses(batch)
        special = {batch.events.index(name): name for name in _SPECIAL if name in batch.events}
        for known in self._threads.values():
            known.instants.clear()
        lines: list[str] = []
        order, times, tids, pids = (c.tolist() for c in (batch.order, batch.time, batch.tid, batch.pid))
        for index, time, stamp, tid, pid in zip(order, times, _stamps(batch.time), tids, pids, strict=True):
            thread = self._threads.get((tid, pid))
            if thread is None:
                vm = _vm(tid, pid)
                thread = self._threads[tid, pid] = _Thread(f'"pid":{vm},"tid":{tid}', tid, vm)
                lines.extend(self._new_thread(thread, vm))
            shown = next(args[index])
            name = special.get(index)
            if name == "kvm_exit":
                reason, vcpu = next(exits)
                if vcpu is not None and vcpu != thread.vcpu:
                    thread.vcpu = vcpu
                    lines.append(self._thread_name(thread))
                if thread.open:
                    lines.append(_unanswered(thread, thread.open))
                thread.open = _Exit(time, reason, shown, stamp)
                if reason in _WRITE_EXITS:
                    thread.refaults.written(time)
            elif name == "kvm_entry" and thread.open:
                done, thread.open = thread.open, None
                dur = time - done.time if time > done.time else 0
                lines.append(
                    f'{{"ph":"X","cat":"exit","name":{done.name},{thread.where},"ts":{done.stamp}'
                    f',"dur":{dur // 1000}.{dur % 1000:03},"args":{{{done.args}}}}}'
                )
            else:
                if name == "kvm_cr":
                    write = next(writes)
                    shown = _with_changes(thread, write, shown)
                    if write is not None and write[0] and write[1] in (0, 4) and thread.open:
                        thread.refaults.written(thread.open.time)
                elif name == "kvm_page_fault":
                    cause = thread.refaults.faulted(next(faults))
                    if cause is not None and thread.open:
                        lines.extend(self._arrow(thread, cause, thread.open))
                begin = thread.instants.get(index)
                if begin is None:
                    begin = f'{{"ph":"i","s":"t","name":{labels[index]},{thread.where},"ts":'
                    thread.instants[index] = begin
                lines.append(f'{begin}{stamp},"args":{{{shown}}}}}')
        return lines

    def rest(self) -> Iterator[str]:
        """Exits that no entry followed, and the counters."""
        for thread in self._threads.values():
            if thread.open:
                yield _unanswered(thread, thread.open)
        yield from self._counters.lines()

    def _arrow(self, thread: _Thread, cause: int, fault: _Exit) -> Iterator[str]:
        """From the exit of a register write to the exit of a page fault."""
        self._arrows += 1
        head = f'"cat":"cause","name":"refault after CR write","id":{self._arrows},{thread.where}'
        yield f'{{"ph":"s",{head},"ts":{_us(cause)}}}'
        yield f'{{"ph":"f","bp":"e",{head},"ts":{fault.stamp}}}'

    @staticmethod
    def _vm_of(batch: Batch) -> NDArray[np.int64]:
        return np.where(batch.pid == UNKNOWN_PID, batch.tid, batch.pid).astype(np.int64)

    def _new_thread(self, thread: _Thread, vm: int) -> Iterator[str]:
        if vm not in self._vms:
            self._vms.add(vm)
            label = f"VM {vm} {printable(self._meta.comms.get(vm, ''))}".rstrip()
            yield _metadata(thread, "process_name", label)
        yield self._thread_name(thread)

    def _thread_name(self, thread: _Thread) -> str:
        comm = printable(self._meta.comms.get(thread.tid, "")) or f"thread {thread.tid}"
        label = comm if thread.vcpu is None else f"vCPU {thread.vcpu} ({comm})"
        return _metadata(thread, "thread_name", label)

    def _exits(self, batch: Batch) -> list[tuple[str, int | None]]:
        """Name (as JSON) and vCPU of each kvm_exit of the batch."""
        if "kvm_exit" not in batch.events:
            return []
        index = batch.events.index("kvm_exit")
        table = batch.tables[index]
        n = int(np.count_nonzero(batch.order == index))
        isas, reasons = (_integers(table, name) or [0] * n for name in ("isa", "exit_reason"))
        vcpus: Sequence[int | None] = _integers(table, "vcpu_id") or [None] * n
        keys = list(zip(isas, reasons, strict=True))
        names = {key: json.dumps(reason_name(*key, self._tables)) for key in set(keys)}
        return [(names[key], vcpu) for key, vcpu in zip(keys, vcpus, strict=True)]


def _stamps(times: NDArray[np.int64]) -> list[str]:
    """Nanoseconds as microseconds with three decimals."""
    if len(times) and int(times.min()) < 0:
        return [_us(time) for time in times.tolist()]
    whole, rest = np.divmod(times, 1000)
    return [f"{us}.{ns:03}" for us, ns in zip(whole.tolist(), rest.tolist(), strict=True)]


def _addresses(batch: Batch) -> Iterator[int | None]:
    """The address of each kvm_page_fault of the batch; None where the source does not say."""
    if "kvm_page_fault" not in batch.events:
        return iter(())
    index = batch.events.index("kvm_page_fault")
    found: Sequence[int | None] | None = _integers(batch.tables[index], "fault_address")
    return iter(found or [None] * int(np.count_nonzero(batch.order == index)))


def _integers(table: Columns, name: str) -> list[int] | None:
    """A column's values, if there is such a column and its values are numbers."""
    column = table.get(name)
    if column is None or column.ndim != 1 or column.dtype.kind not in "iub":
        return None
    values: list[int] = column.astype(np.int64 if column.dtype.kind == "b" else column.dtype).tolist()
    return values


def _vm(tid: int, pid: int) -> int:
    return tid if pid == UNKNOWN_PID else pid


def _args(table: Columns, n: int) -> list[str]:
    """The inside of the ``args`` object of each row; rows that repeat are made once."""
    shown = {name: column for name, column in table.items() if name not in _TOLD_OTHERWISE}
    if not shown:
        return [""] * n
    rows = list(zip(*(_values(column) for column in shown.values()), strict=True))
    labels = [json.dumps(printable(name)) for name in shown]
    made = {}
    for row in dict.fromkeys(rows):
        values = zip(shown, labels, row, strict=True)
        made[row] = ",".join([f"{label}:{_shown(name, value)}" for name, label, value in values])
    return [made[row] for row in rows]


def _values(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = [row.tobytes() for row in column] if column.ndim == 2 else column.tolist()
    return values


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f'"0x{value:x}"' if name in _HEX or not -_SAFE < value < _SAFE else str(value)
    return f'"{value.hex(" ")}"' if isinstance(value, bytes) else json.dumps(printable(str(value)))


def _writes(batch: Batch) -> Iterator[tuple[int, int, int] | None]:
    """``(rw, cr, val)`` of each kvm_cr of the batch; None where the source does not say."""
    if "kvm_cr" not in batch.events:
        return
    index = batch.events.index("kvm_cr")
    table = batch.tables[index]
    rw, cr, val = (_integers(table, name) for name in ("rw", "cr", "val"))
    if rw is not None and cr is not None and val is not None:
        yield from zip(rw, cr, val, strict=True)
    else:
        yield from [None] * int(np.count_nonzero(batch.order == index))


def _with_changes(thread: _Thread, write: tuple[int, int, int] | None, shown: str) -> str:
    """The arguments of a kvm_cr, with the bits that changed since the thread's write before; told to its
    exit too.
    """
    if write is None or not write[0]:
        return shown
    _, register, value = write
    before = thread.registers.get(register)
    thread.registers[register] = value
    if before is not None:
        shown += f',"changed":{json.dumps(" ".join(bit_names(register, before ^ value)))}'
    if thread.open:
        thread.open.args += f",{shown}" if thread.open.args else shown
    return shown


def _unanswered(thread: _Thread, left: _Exit) -> str:
    return _instant(thread, left.time, f'{left.name[:-1]} (no entry)"', left.args)


def _instant(thread: _Thread, time: int, label: str, args: str) -> str:
    return f'{{"ph":"i","s":"t","name":{label},{thread.where},"ts":{_us(time)},"args":{{{args}}}}}'


def _metadata(thread: _Thread, what: str, name: str) -> str:
    return f'{{"ph":"M","name":"{what}",{thread.where},"args":{{"name":{json.dumps(name)}}}}}'


def _us(time: int) -> str:
    """Nanoseconds as microseconds with three decimals."""
    if time < 0:
        return f"-{_us(-time)}"
    return f"{time // 1000}.{time % 1000:03}"
