"""The host a trace was recorded on, as far as trace and user tell, and the host asked about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from worldswitch.errors import NotTold, UsageError
from worldswitch.kvm.distributions import kernel_named, kernel_of
from worldswitch.kvm.facts import Kernel
from worldswitch.kvm.policy import Mmu, Policy

if TYPE_CHECKING:
    from worldswitch.record.trace import Batch, Meta
    from worldswitch.trace.exits import ExitRows

_VMX, _SVM = 1, 2
_ADDRESS = 4  # exits.Detail.ADDRESS
_EXCEPTION_NMI, _EPT_VIOLATION, _EPT_MISCONFIG = 0, 48, 49
_PF_EXCEPTION, _NPF = 0x4E, 0x400
_PAGE_FAULT, _VALID = np.uint64(14), np.uint64(1 << 31)  # VM-exit interruption information: SDM table 25-19
_PAGING = {"intel": "kvm_intel.ept", "amd": "kvm_amd.npt"}


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """The kernel a trace was recorded on.

    ``assumed`` is what the user stated, None where the trace itself tells; ``how`` says how it was told.
    """

    kernel: Kernel
    assumed: str | None
    how: str


def source_kernel(meta: Meta, stated: str | None) -> SourceKernel:
    """The kernel of a trace: as stated, or as its file says.

    Raises:
        NotTold: Neither says it.
        UnknownNameError: The kernel is outside the facts.
    """
    told = kernel_of(meta.kernel) if meta.kernel else None
    if stated is not None:
        chosen, how = kernel_named(stated)
        how = f"as stated by --from ({how})" if how else "as stated by --from"
        if told is not None and told.version is not None and chosen.facts != told.kernel().facts:
            how += f", although the file says {told.version} ({told.how})"
        return SourceKernel(chosen, stated, how)
    if told is None:
        raise NotTold(
            f"{meta.source} ({meta.format}) does not say which kernel it was recorded on; state it, as in --from 5.10"
        )
    return SourceKernel(told.kernel(), None, f"{meta.kernel}: {told.how}")


@dataclass(slots=True)
class Seen:
    """Which page-fault exits a trace holds, and of which vendor."""

    isas: set[int] = field(default_factory=set)
    two_dimensional: int = 0
    """EPT violations and misconfigurations, or nested page faults."""
    shadow: int = 0
    """Guest page faults that exit, as they do under shadow paging only."""
    exceptions: int = 0
    """EXCEPTION_NMI exits of which the trace does not say which exception."""

    def look(self, batch: Batch) -> None:
        """Look at the exits of *batch*: which exceptions they were."""
        if "kvm_exit" not in batch.events:
            return
        table = batch.tables[batch.events.index("kvm_exit")]
        if not {"isa", "exit_reason"} <= table.keys():
            return
        exceptions = (table["exit_reason"] & 0xFFFF == _EXCEPTION_NMI) & (table["isa"] == _VMX)
        if not exceptions.any():
            return
        # Up to 5.9 the event had no intr_info of its own; vmx_get_exit_info() gave it as info2.
        info = np.zeros(np.count_nonzero(exceptions), np.uint64)
        for name in ("info2", "intr_info"):
            if name in table:
                column = table[name][exceptions].astype(np.uint64)
                info = np.where(column & _VALID, column, info)
        told = info & _VALID != 0
        self.shadow += int(np.count_nonzero(told & (info & np.uint64(0xFF) == _PAGE_FAULT)))
        self.exceptions += int(np.count_nonzero(~told))

    def add(self, rows: ExitRows) -> None:
        """Look at *rows*."""
        if not len(rows):
            return
        first = int(rows.isa[0])
        self.isas |= {first} if (rows.isa == first).all() else set(np.unique(rows.isa).tolist())
        basic = rows.reason & np.uint32(0xFFFF)
        vmx, svm = rows.isa == _VMX, rows.isa == _SVM
        nested = (vmx & ((basic == _EPT_VIOLATION) | (basic == _EPT_MISCONFIG))) | (svm & (rows.reason == _NPF))
        # An EXCEPTION_NMI exit can have other causes; with a fault address in it, it was a page fault.
        faulted = vmx & (basic == _EXCEPTION_NMI) & (rows.detail_kind == _ADDRESS)
        self.two_dimensional += int(np.count_nonzero(nested))
        self.shadow += int(np.count_nonzero(faulted | (svm & (rows.reason == _PF_EXCEPTION))))

    def vendor(self, meta: Meta) -> str:
        """``intel`` or ``amd``.

        Raises:
            UsageError: There are no exits, or they are neither VMX's nor SVM's, or both.
        """
        known = {_VMX: "intel", _SVM: "amd"}
        vendors = {known[isa] for isa in self.isas if isa in known}
        if len(vendors) == 1:
            return vendors.pop()
        if not vendors and meta.vendor in known.values():
            return str(meta.vendor)
        if not self.isas:
            raise UsageError(
                f"{meta.source} ({meta.format}) holds no VM-exits (kvm_exit events), and those are what is judged; "
                "`wsw record` records them"
            )
        what = "both VMX and SVM exits" if vendors else "neither VMX nor SVM exits"
        raise UsageError(f"{meta.source} holds {what}, so the rules of no one processor apply")

    @property
    def paging(self) -> str | None:
        """``"shadow"``, ``"two-dimensional"``, or None where no page fault tells."""
        if self.two_dimensional:
            return "two-dimensional"
        return "shadow" if self.shadow or self.exceptions else None


class Churn(NamedTuple):
    """How often a trace's pages come back: register writes, and refaults of pages that had one before."""

    writes: int
    again: int


class Hosts(NamedTuple):
    """The trace's host, the one asked about, and the sentences that say what was inferred and what to note."""

    before: Policy
    after: Policy
    inferred: list[str]
    notes: list[str]


def hosts(source: Kernel, target: Kernel, settings: tuple[str, ...], vendor: str, seen: Seen, churn: Churn) -> Hosts:
    """Both hosts. *settings* are the other host's; what they say of paging is taken for both where the trace is silent.

    Raises:
        UnknownNameError: A setting nobody knows.
        UsageError: Settings that contradict each other.
    """
    module = _PAGING[vendor]
    after = Policy.of(target, vendor, settings=settings)
    stated = module in dict(after.settings)
    paging, inferred = seen.paging, []
    shadow = paging == "shadow" and not (stated and after.tdp and not seen.shadow)
    if shadow and not stated:
        after = Policy.of(target, vendor, "shadow", settings)
    if shadow and (churn.writes or after.tdp):
        inferred.append(_shadow_told(vendor, seen))
    if paging is None and after.mmu is Mmu.SHADOW:
        shadow = True
        inferred.append(
            f"that the trace was recorded with shadow paging too: as stated by {module}=0, nothing in it says otherwise"
        )
    elif paging is None:
        state = "" if stated else f"; --set {module}=0 states the opposite"
        inferred.append(f"that {module} was on: the trace holds no page faults to tell{state}")
    before = Policy.of(source, vendor, "shadow" if shadow else "default")
    if before.mmu is Mmu.LEGACY and source.has("tdp-mmu") and churn.again >= max(1, churn.writes // 2):
        before = Policy.of(source, vendor, "tdp")
        inferred.append(
            f"that the trace's host ran with tdp_mmu=1, not {source}'s default: pages fault again and again "
            f"({churn.again} times, with {churn.writes} register writes between), and the legacy MMU would find them"
        )
        if after.mmu is Mmu.LEGACY and target.has("tdp-mmu") and "kvm.tdp_mmu" not in dict(after.settings):
            after = Policy.of(target, vendor, "tdp", settings)
            inferred.append(f"that {target} would run with tdp_mmu=1 as well; --set tdp_mmu=0 states the opposite")
    notes = [*after.notes, *(note for kernel in dict.fromkeys((source, target)) for note in _notes(kernel))]
    return Hosts(before, after, inferred, notes)


def _notes(kernel: Kernel) -> list[str]:
    return [f"{kernel}: {note}" for note in kernel.notes]


def _shadow_told(vendor: str, seen: Seen) -> str:
    if vendor == "amd":
        return "shadow paging: guest page faults exit as PF excp, and nothing as npf"
    if seen.shadow:
        return "shadow paging: guest page faults exit as EXCEPTION_NMI, and nothing as EPT_VIOLATION"
    return (
        "shadow paging: there are EXCEPTION_NMI exits, taken for guest page faults, and nothing exits as "
        "EPT_VIOLATION; --set kvm_intel.ept=1 states the opposite"
    )
