"""Traces written event by event, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from worldswitch.record.trace import Batch, Meta, Trace

VMX, SVM = 1, 2
CR_ACCESS, CPUID, HLT, MSR_WRITE, EPT_VIOLATION, IO = 28, 10, 12, 32, 48, 30
CR0_SEL_WRITE, NPF, WRITE_CR0 = 0x65, 0x400, 0x10
KINDS: dict[str, Any] = {
    **dict.fromkeys(("exit_reason", "vcpu_id", "isa", "rw", "cr", "exception", "ecx", "write", "function"), np.uint32),
    **dict.fromkeys(("port", "load", "len"), np.uint32),
    **dict.fromkeys(("guest_rip", "info1", "info2", "val", "fault_address", "gpa", "nr"), np.uint64),
}
Event = tuple[int, int, str, dict[str, Any]]
"""Time, thread, name, fields."""


def exit_(time: int, tid: int = 1, reason: int = HLT, isa: int = VMX, rip: int = 0x1000, **more: int) -> Event:
    fields = {"exit_reason": reason, "guest_rip": rip, "isa": isa, "info1": 0, "info2": 0, "vcpu_id": 0}
    return time, tid, "kvm_exit", fields | more


def entry(time: int, tid: int = 1, vcpu: int = 0) -> Event:
    return time, tid, "kvm_entry", {"vcpu_id": vcpu}


def event(time: int, name: str, tid: int = 1, **fields: Any) -> Event:
    return time, tid, name, fields


def cr_write(time: int, cr: int, value: int, tid: int = 1, rw: int = 1) -> Event:
    return event(time, "kvm_cr", tid, rw=rw, cr=cr, val=value)


def write_wp(time: int, value: int, tid: int = 1, rip: int = 0x1000) -> list[Event]:
    """An exit for MOV to CR0 and the entry 10 ns later."""
    return [exit_(time, tid, CR_ACCESS, rip=rip), cr_write(time + 2, 0, value, tid), entry(time + 10, tid)]


def emulated(time: int, code: bytes, tid: int = 1) -> Event:
    insn = np.zeros(15, np.uint8)
    insn[: len(code)] = list(code)
    return event(time, "kvm_emulate_insn", tid, len=len(code), insn=insn)


def batch(events: list[Event], pid: int | None = None, cpu: int = 0) -> Batch:
    """All *events* as one batch, in the order given."""
    names = tuple(dict.fromkeys(name for _, _, name, _ in events))
    order = np.array([names.index(name) for _, _, name, _ in events], np.uint16)
    tables = []
    for name in names:
        rows = [fields for _, _, other, fields in events if other == name]
        tables.append({key: np.array([row[key] for row in rows], KINDS.get(key)) for key in rows[0]})
    n = len(events)
    tids = np.array([tid for _, tid, _, _ in events], np.int32)
    pids = np.full(n, -1 if pid is None else pid, np.int32)
    return Batch(
        names,
        order,
        np.array([time for time, *_ in events], np.int64),
        np.full(n, cpu, np.int32),
        tids,
        pids,
        tuple(tables),
    )


def trace(*events: Event | list[Event], pid: int | None = None, split: int = 0) -> Trace:
    """A trace of *events*, in batches of *split* if given."""
    flat = [one for part in events for one in (part if isinstance(part, list) else [part])]
    size = split or len(flat)
    parts = [flat[at : at + size] for at in range(0, len(flat), size)]
    counts = {name: sum(e[2] == name for e in flat) for name in dict.fromkeys(e[2] for e in flat)}
    meta = Meta(source="made", events=counts, first_ns=flat[0][0], last_ns=flat[-1][0])
    return Trace([batch(part, pid) for part in parts], meta)
