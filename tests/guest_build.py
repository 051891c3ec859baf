"""Traces of made-up guests: exits with what KVM did in them, each of the length asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from worldswitch.record.trace import Batch, Meta, Trace

VMX, SVM = 1, 2
CR_ACCESS, EPT_VIOLATION, HLT, EXCEPTION_NMI = 28, 48, 12, 0
CR0_SEL_WRITE, WRITE_CR4, NPF = 0x65, 0x14, 0x400

PE_PG, WP, TS, CD = 0x80000033, 1 << 16, 1 << 3, 1 << 30
SMEP, CET = 1 << 20, 1 << 23

_FIELDS: dict[str, dict[str, Any]] = {
    "kvm_exit": {
        "exit_reason": np.uint32, "guest_rip": np.uint64, "isa": np.uint32, "info1": np.uint64, "info2": np.uint64,
        "intr_info": np.uint32, "vcpu_id": np.uint32,
    },
    "kvm_entry": {"vcpu_id": np.uint32},
    "kvm_cr": {"rw": np.uint32, "cr": np.uint32, "val": np.uint64},
    "kvm_page_fault": {"fault_address": np.uint64},
    "kvm_inj_exception": {"exception": np.uint8},
    "kvm_nested_vmexit": {},
    "kvm_unmap_hva_range": {},
    "kvm_track_tsc": {"vcpu_id": np.uint32},
}  # fmt: skip


@dataclass
class Guest:
    """Collects the events of a trace; each call is an exit of vCPU thread *tid*, 1 µs in the guest before it.

    Attributes:
        isa: VMX or SVM.
        without: Events that were not recorded.
    """

    isa: int = VMX
    kernel: str | None = None
    without: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    now: int = 1_000_000
    events: list[tuple[str, int, int, dict[str, int]]] = field(default_factory=list)
    entered: set[int] = field(default_factory=set)

    def add(self, name: str, tid: int = 1, **values: int) -> Guest:
        """One event, now."""
        if name not in self.without:
            self.events.append((name, self.now, tid, values))
        return self

    def exit(self, reason: int, tid: int = 1, ns: int = 1000, within: tuple[Any, ...] = (), **values: int) -> Guest:
        """An exit of *ns* with the events *within*, each a name and its fields."""
        if tid not in self.entered:
            self.add("kvm_entry", tid)
            self.entered.add(tid)
        self.now += 1000
        self.add("kvm_exit", tid, exit_reason=reason, isa=self.isa, **values)
        for name, fields in within:
            self.add(name, tid, **fields)
        self.now += ns
        return self.add("kvm_entry", tid)

    def write(
        self, cr: int, value: int, tid: int = 1, ns: int = 1000, rip: int = 0, also: tuple[Any, ...] = ()
    ) -> Guest:
        """A write of *value* to a control register, of which the trace has the value."""
        told = ("kvm_cr", {"rw": 1, "cr": cr, "val": value})
        reason, info1 = (CR_ACCESS, cr) if self.isa == VMX else (WRITE_CR4 if cr == 4 else CR0_SEL_WRITE, 0)
        return self.exit(reason, tid, ns, (told, *also), info1=info1, guest_rip=rip)

    def toggle(self, cr: int, base: int, bit: int, times: int = 1, tid: int = 1, ns: int = 1000) -> Guest:
        """*times* pairs of writes that clear and set *bit*."""
        for _ in range(times):
            self.write(cr, base & ~bit, tid, ns).write(cr, base | bit, tid, ns)
        return self

    def fault(self, address: int, tid: int = 1, ns: int = 1000, present: bool = False) -> Guest:
        """A page fault under two-dimensional paging."""
        told = ("kvm_page_fault", {"fault_address": address})
        if self.isa == VMX:
            return self.exit(EPT_VIOLATION, tid, ns, (told,), info1=0x82 | (0x38 if present else 0))
        return self.exit(NPF, tid, ns, (told,), info1=6 | present, info2=address)

    def trace(self) -> Trace:
        """The trace."""
        names = tuple(_FIELDS)
        order = np.array([names.index(name) for name, *_ in self.events], np.uint16)
        time = np.array([now for _, now, _, _ in self.events], np.int64)
        tid = np.array([who for _, _, who, _ in self.events], np.int32)
        tables = tuple(
            {
                column: np.array([values.get(column, 0) for event, _, _, values in self.events if event == name], kind)
                for column, kind in fields.items()
            }
            for name, fields in _FIELDS.items()
        )
        batch = Batch(names, order, time, np.zeros(len(order), np.int32), tid, np.full(len(order), 1, np.int32), tables)
        return Trace([batch], Meta(source="made", format="made", kernel=self.kernel, **self.meta))
