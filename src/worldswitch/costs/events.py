"""From what KVM counts to what has a cost: exits by kind, roots reloaded by MMU, violations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worldswitch.record.trace import EventSource

_KINDS = {
    "CR_ACCESS": "cr",
    "EXCEPTION_NMI": "exception",
    "DR_ACCESS": "dr",
    "EPT_VIOLATION": "violation",
    "npf": "violation",
    "CPUID": "cpuid",
    "cpuid": "cpuid",
    "VMCALL": "hypercall",
    "hypercall": "hypercall",
    "HLT": "hlt",
    "hlt": "hlt",
    "IO_INSTRUCTION": "io",
    "io": "io",
    "MSR_READ": "msr",
    "MSR_WRITE": "msr",
    "msr": "msr",
    "INVLPG": "invlpg",
    "invlpg": "invlpg",
    "cr0_sel_write": "cr",
}
_PREFIXES = (("write_cr", "cr"), ("read_cr", "cr"), ("read_dr", "dr"), ("write_dr", "dr"))
OTHER = "exit.other"
"""An exit of no kind that is told apart here."""


def exit_kind(reason: str) -> str:
    """The kind of an exit, the same for both vendors: ``exit.cr``, ``exit.violation`` ... or :data:`OTHER`.

    Args:
        reason: As kvm_exit prints it.
    """
    kind = _KINDS.get(reason) or next((kind for prefix, kind in _PREFIXES if reason.startswith(prefix)), None)
    if kind is None and reason.endswith(" excp"):
        kind = "exception"
    return f"exit.{kind}" if kind else OTHER


def events(counters: Mapping[str, float], exits_by_reason: Mapping[str, float], mmu: str) -> dict[str, float]:
    """How often each event happened, by the names that cost atoms have; those that did not are absent.

    ``exit.KIND`` is an exit with all KVM does for it but root loads; ``root_reload.MMU`` what unloading the roots and
    loading them again adds, for ``shadow`` each load of a root, whatever it follows from.

    Args:
        counters: By KVM's names; those used are ``root_unloads`` and ``root_loads``.
        mmu: ``tdp``, ``legacy`` or ``shadow``.
    """
    found: dict[str, float] = {}
    for reason, count in exits_by_reason.items():
        kind = exit_kind(reason)
        found[kind] = found.get(kind, 0) + count
    found[f"root_reload.{mmu}"] = counters.get("root_loads" if mmu == "shadow" else "root_unloads", 0)
    return {name: count for name, count in found.items() if count}


def trace_events(source: EventSource) -> dict[str, float]:
    """How often each kind of exit is in a trace.

    Reloads of roots are no events of KVM's, so they are in no trace, and not in the price of one.
    """
    import numpy as np

    from worldswitch.x86.exits import ISA_SVM, ISA_VMX, reason_name

    found: dict[str, float] = {}
    for batch in source.batches({"kvm_exit": ("exit_reason", "isa")}):
        table = batch.table("kvm_exit")
        if not table:
            continue
        reasons = table["exit_reason"].astype(np.int64)
        silent = ISA_SVM if source.meta.vendor == "amd" else ISA_VMX
        isas = table["isa"].astype(np.int64) if "isa" in table else np.full(len(reasons), silent)
        pairs, counts = np.unique(np.stack([isas, reasons]), axis=1, return_counts=True)
        for isa, reason, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            kind = exit_kind(reason_name(isa, reason))
            found[kind] = found.get(kind, 0) + count
    return found
