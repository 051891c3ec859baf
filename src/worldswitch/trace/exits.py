"""Exits as rows: each VM-exit with its duration and what KVM did in it, from any event source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.purepython import views
from worldswitch.record.trace import Batch, EventSource
from worldswitch.trace import pairing
from worldswitch.trace.tally import Tally
from worldswitch.x86.instructions import cr_write

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVENTS: dict[str, tuple[str, ...] | None] = {
    "kvm_exit": ("exit_reason", "guest_rip", "isa", "info1", "info2", "vcpu_id"),
    "kvm_entry": ("vcpu_id",),
    "kvm_userspace_exit": (),
    "kvm_fpu": ("load",),
    "kvm_cr": ("rw", "cr", "val"),
    "kvm_inj_exception": ("exception",),
    "kvm_nested_vmexit": (),
    "kvm_emulate_insn": ("len", "insn"),
    "kvm_msr": ("write", "ecx"),
    "kvm_cpuid": ("function",),
    "kvm_pio": ("rw", "port"),
    "kvm_page_fault": ("fault_address",),
    "kvm_mmio": ("gpa",),
    "kvm_fast_mmio": ("gpa",),
    "kvm_hypercall": ("nr",),
}
"""The events the pairing uses and the fields it needs of each: a :data:`~worldswitch.record.trace.Selection`."""

_ROLES = {
    "kvm_exit": pairing.EXIT,
    "kvm_entry": pairing.ENTRY,
    "kvm_userspace_exit": pairing.USERSPACE_EXIT,
    "kvm_fpu": pairing.FPU,
    "kvm_cr": pairing.CR,
    "kvm_inj_exception": pairing.EXCEPTION,
    "kvm_nested_vmexit": pairing.NESTED,
    "kvm_emulate_insn": pairing.EMULATE,
}


class Detail(IntEnum):
    """What the ``detail`` of an exit is."""

    NONE = 0
    MSR = 1
    """ecx | write << 32"""
    CPUID = 2
    """function"""
    PORT = 3
    """port | out << 32"""
    ADDRESS = 4
    """The fault's address: a GPA with two-dimensional paging, a GVA with shadow paging."""
    MMIO = 5
    HYPERCALL = 6


_DETAILS: dict[str, tuple[Detail, str, str | None]] = {
    "kvm_msr": (Detail.MSR, "ecx", "write"),
    "kvm_cpuid": (Detail.CPUID, "function", None),
    "kvm_pio": (Detail.PORT, "port", "rw"),
    "kvm_page_fault": (Detail.ADDRESS, "fault_address", None),
    "kvm_mmio": (Detail.MMIO, "gpa", None),
    "kvm_fast_mmio": (Detail.MMIO, "gpa", None),
    "kvm_hypercall": (Detail.HYPERCALL, "nr", None),
}

UNCOUNTED = pairing.OPEN | pairing.NO_EXIT
"""Flags of rows that are no whole exit, and count for nothing."""
NO_CR = -1
_NOBODY = 0xFF
_INSN_BYTES = 15
_LAST_CR = 15


@dataclass(frozen=True, slots=True)
class ExitRows:
    """Exits in the order in which they ended; all arrays of shape (n,).

    Attributes:
        thread: Index into :attr:`ExitPairing.threads`.
        vcpu: vCPU id, -1 where the trace does not say.
        isa, reason: As in kvm_exit.
        start: Time of the exit, ns.
        duration: To the thread's next entry, ns; for open exits to what ended them.
        user: The part of it spent in userspace, ns.
        guest: Time in the guest before the exit, ns; 0 where not known.
        rip, info1, info2: As in kvm_exit.
        detail_kind, detail: See :class:`Detail`.
        cr: Control register written, or :data:`NO_CR`.
        cr_value: Value written, where there was a kvm_cr event.
        cr_changed: Bits that differ from the previous value, where ``flags & CR_KNOWN``.
        flags: See :mod:`worldswitch.trace.pairing`.
        number: isa << 32 | reason.
        who: thread << 32 | vcpu + 1.
        marks: cr + 1 << 32 | flags.
    """

    thread: NDArray[np.int64]
    vcpu: NDArray[np.int64]
    isa: NDArray[np.uint32]
    reason: NDArray[np.uint32]
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    user: NDArray[np.int64]
    guest: NDArray[np.int64]
    rip: NDArray[np.uint64]
    info1: NDArray[np.uint64]
    info2: NDArray[np.uint64]
    detail_kind: NDArray[np.uint32]
    detail: NDArray[np.uint64]
    cr: NDArray[np.int64]
    cr_value: NDArray[np.uint64]
    cr_changed: NDArray[np.uint64]
    flags: NDArray[np.uint32]
    number: NDArray[np.uint64]
    who: NDArray[np.uint64]
    marks: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.start)

    def any(self, flags: int) -> bool:
        """Whether some row has one of *flags*."""
        return bool(np.bitwise_or.reduce(self.flags) & np.uint32(flags))

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """Exits without an entry, which ``perf kvm stat`` does not count."""
        mask: NDArray[np.bool_] = (self.flags & pairing.OPEN) != 0
        return mask

    @property
    def is_exit(self) -> NDArray[np.bool_]:
        """False for CR writes whose exit the trace does not hold."""
        mask: NDArray[np.bool_] = (self.flags & pairing.NO_EXIT) == 0
        return mask

    def take(self, where: NDArray[Any] | slice) -> ExitRows:
        """The rows that *where* (a mask or indices) selects."""
        return ExitRows(*(getattr(self, name)[where] for name in self.__slots__))


class ExitPairing:
    """Pairs exits with entries, batch by batch."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << 10, np.int64)
        self._state = np.zeros((1 << 8, pairing.STATE), np.uint64)
        self._used = np.zeros(2, np.int64)
        self._instructions = _Instructions()
        self._end = 0

    @property
    def threads(self) -> int:
        """How many threads have been seen."""
        return int(self._used[0])

    @property
    def tids(self) -> NDArray[np.int64]:
        """Thread id of each thread, shape (threads,)."""
        return self._state[: self.threads, 0].astype(np.uint32).view(np.int32).astype(np.int64)

    @property
    def pids(self) -> NDArray[np.int64]:
        """Process id of each thread, -1 where unknown; shape (threads,)."""
        return self._state[: self.threads, 1].astype(np.uint32).view(np.int32).astype(np.int64)

    @property
    def vcpus(self) -> NDArray[np.int64]:
        """vCPU id of each thread, -1 where unknown; shape (threads,)."""
        return self._state[: self.threads, 2].astype(np.int64) - 1

    def feed(self, batch: Batch) -> ExitRows:
        """The exits that end in *batch*."""
        n = len(batch)
        if not n:
            return _rows(np.empty((pairing.ROW_64, 0), np.uint64), np.empty((pairing.ROW_32, 0), np.uint32))
        columns = _Columns(batch, self._instructions)
        tid, pid = (np.ascontiguousarray(c, np.int32).view(np.uint32) for c in (batch.tid, batch.pid))
        arrays = (
            np.ascontiguousarray(batch.order),
            # No trace's clock runs before 0; such a time is damage.
            np.ascontiguousarray(batch.time if batch.time.min() >= 0 else np.maximum(batch.time, 0)),
            tid,
            pid,
            *columns.arrays,
        )
        batch_views = views(*arrays)
        parts = []
        begin = 0
        while begin < n:
            rows_64 = np.empty((pairing.ROW_64, n - begin), np.uint64)
            rows_32 = np.empty((pairing.ROW_32, n - begin), np.uint32)
            tables = (self._table, self._state, self._used, rows_64, rows_32)
            count = pairing.pair(*[*batch_views, *views(*tables), begin])
            parts.append(_rows(rows_64[:, :count], rows_32[:, :count]))
            begin = int(self._used[1])
            if begin < n:
                self._grow()
        self._end = max(0, int(batch.time[-1]))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def finish(self) -> ExitRows:
        """The exits still open when the trace ends."""
        threads = max(1, self.threads)
        rows_64 = np.empty((pairing.ROW_64, threads), np.uint64)
        rows_32 = np.empty((pairing.ROW_32, threads), np.uint32)
        state, *tables = views(self._state, rows_64, rows_32)
        count = pairing.unfinished(state, self.threads, self._end, *tables)
        return _rows(rows_64[:, :count], rows_32[:, :count])

    def _grow(self) -> None:
        """Room for twice as many threads."""
        slots = 2 * len(self._state)
        state = np.zeros((slots, pairing.STATE), np.uint64)
        state[: self.threads] = self._state[: self.threads]
        self._state = state
        self._table = np.zeros(4 * slots, np.int64)
        pairing.rehash(*[*views(self._table, self._state), self.threads])


def pair_exits(source: EventSource) -> Iterator[tuple[ExitPairing, ExitRows]]:
    """Read *source* to its end and give its exits, the open ones last."""
    pairs = ExitPairing()
    for batch in source.batches(EVENTS):
        yield pairs, pairs.feed(batch)
    yield pairs, pairs.finish()


class _Columns:
    """A batch's events as the plain arrays the pairing loop takes."""

    def __init__(self, batch: Batch, instructions: _Instructions) -> None:
        self._instructions = instructions
        count = len(batch.events)
        lengths = np.bincount(batch.order, minlength=count)
        bases = np.zeros(count, np.int64)
        bases[1:] = np.cumsum(lengths)[:-1]
        total = int(lengths.sum())
        self.wide = np.zeros(total + 1, np.uint64)
        self.narrow = np.zeros(total + 1, np.uint32)
        self.extra = np.zeros(total + 1, np.uint32)
        roles = np.zeros(count + 1, np.uint8)
        kinds = np.zeros(count + 1, np.uint32)
        exits: list[NDArray[Any]] = [np.zeros(1, np.uint32), np.zeros(1, np.uint64), np.zeros(1, np.uint64)]
        for index, event in enumerate(batch.events):
            if not lengths[index]:
                continue
            rows = slice(int(bases[index]), int(bases[index] + lengths[index]))
            table = _numbers(batch.tables[index])
            roles[index] = _ROLES.get(event, pairing.DETAIL if event in _DETAILS else pairing.NOTHING)
            if event in _DETAILS:
                kinds[index] = _DETAILS[event][0]
            self._fill(event, rows, table)
            if event == "kvm_exit":
                exits = [_or_zeros(table, name, lengths[index], kind) for name, kind in _EXIT_COLUMNS]
                exits[0] += np.uint32("vcpu_id" in table)
        cursors = np.zeros(count + 1, np.int64)
        self.arrays = (
            roles, kinds, np.append(bases, 0), cursors, self.wide, self.narrow, self.extra, *exits,
        )  # fmt: skip

    def _fill(self, event: str, rows: slice, table: dict[str, NDArray[Any]]) -> None:
        def put(target: NDArray[Any], name: str) -> None:
            if name in table:
                target[rows] = table[name]

        if event == "kvm_exit":
            put(self.wide, "guest_rip")
            put(self.narrow, "exit_reason")
            put(self.extra, "isa")
        elif event == "kvm_entry":
            put(self.narrow, "vcpu_id")
            self.narrow[rows] += 1 if "vcpu_id" in table else 0
        elif event == "kvm_cr":
            put(self.wide, "val")
            put(self.narrow, "cr")
            put(self.extra, "rw")
            # No processor has such a register; the row would stand for nothing.
            self.extra[rows][self.narrow[rows] > _LAST_CR] = 0
        elif event == "kvm_inj_exception":
            put(self.narrow, "exception")
        elif event == "kvm_fpu":
            put(self.narrow, "load")
        elif event == "kvm_emulate_insn":
            self.narrow[rows] = self._instructions.written(table, rows.stop - rows.start)
        elif event in _DETAILS:
            _, value, flag = _DETAILS[event]
            put(self.wide, value)
            if flag is not None and flag in table:
                self.wide[rows] |= (table[flag] != 0).astype(np.uint64) << np.uint64(32)


_EXIT_COLUMNS = (("vcpu_id", np.uint32), ("info1", np.uint64), ("info2", np.uint64))


def _or_zeros(table: dict[str, NDArray[Any]], name: str, n: int, kind: Any) -> NDArray[Any]:
    """A fresh contiguous column of that kind; zeros where an older kernel's event lacks the field."""
    return np.array(table[name], kind) if name in table else np.zeros(n, kind)


def _numbers(table: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns of one integer per row, and the instruction bytes: a file may declare any field to be anything."""
    return {
        name: column
        for name, column in table.items()
        if column.dtype.kind in "biu" and column.ndim == (2 if name == "insn" else 1)
    }


class _Instructions:
    """The control register that emulated instructions write; each different one is decoded once."""

    def __init__(self) -> None:
        self._seen = Tally(limit=1 << 16)
        self._written = np.zeros(0, np.uint32)

    def written(self, table: dict[str, NDArray[Any]], n: int) -> NDArray[np.uint32]:
        """For each of the *n* rows of kvm_emulate_insn the register, or 0xFF."""
        insn = table.get("insn")
        if insn is None or insn.dtype != np.uint8 or insn.shape[1:] != (_INSN_BYTES,):
            return np.full(n, _NOBODY, np.uint32)
        length = np.array(table["len"], np.uint32) if "len" in table else np.zeros(n, np.uint32)
        length[length == 0] = _INSN_BYTES
        low, high = np.empty(n, np.uint64), np.empty(n, np.uint64)
        pairing.pack_instructions(*views(np.ascontiguousarray(insn), length, low, high))
        index = self._seen.add(low, high, None)
        for a, b, _ in self._seen.keys[len(self._written) :].tolist():
            code = a.to_bytes(8, "little") + (b & ~(0xFF << 56)).to_bytes(8, "little")
            number = cr_write(code[: b >> 56])
            self._written = np.append(self._written, np.uint32(_NOBODY if number is None else number))
        found = self._written[index]
        found[index < 0] = _NOBODY
        return found


def _rows(rows_64: NDArray[np.uint64], rows_32: NDArray[np.uint32]) -> ExitRows:
    signed = rows_64.view(np.int64)
    return ExitRows(
        thread=rows_32[0].astype(np.int64),
        vcpu=rows_32[1].astype(np.int64) - 1,
        isa=rows_32[3],
        reason=rows_32[2],
        start=signed[0],
        duration=signed[1],
        user=signed[2],
        guest=signed[3],
        rip=rows_64[4],
        info1=rows_64[5],
        info2=rows_64[6],
        detail_kind=rows_32[5],
        detail=rows_64[7],
        cr=rows_32[6].astype(np.int64) - 1,
        cr_value=rows_64[8],
        cr_changed=rows_64[9],
        flags=rows_32[4],
        number=rows_64[10],
        who=rows_64[11],
        marks=rows_64[12],
    )


def _joined(parts: list[ExitRows]) -> ExitRows:
    return ExitRows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ExitRows.__slots__))
