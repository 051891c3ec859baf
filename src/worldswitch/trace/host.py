"""What a trace shows of the host it was recorded on: vendor, paging mode, kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from worldswitch.errors import NotTold, UsageError
from worldswitch.kvm.distributions import kernel_of
from worldswitch.kvm.facts import Kernel, kernel

if TYPE_CHECKING:
    from worldswitch.record.trace import Meta
    from worldswitch.trace.exits import ExitRows

_VMX, _SVM = 1, 2
_ADDRESS = 4  # exits.Detail.ADDRESS
_EXCEPTION_NMI, _EPT_VIOLATION, _EPT_MISCONFIG = 0, 48, 49
_PF_EXCEPTION, _NPF = 0x4E, 0x400


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
        how = "as stated by --from"
        if told is not None and told.version is not None and kernel(stated).facts != told.kernel().facts:
            how += f", although the file says {told.version} ({told.how})"
        return SourceKernel(kernel(stated), stated, how)
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
    """EXCEPTION_NMI exits of any kind."""

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
        self.exceptions += int(np.count_nonzero(vmx & (basic == _EXCEPTION_NMI)))

    def vendor(self, meta: Meta) -> str:
        """``intel`` or ``amd``.

        Raises:
            UsageError: The exits are neither VMX's nor SVM's, or both.
        """
        known = {_VMX: "intel", _SVM: "amd"}
        vendors = {known[isa] for isa in self.isas if isa in known}
        if len(vendors) == 1:
            return vendors.pop()
        if not vendors and meta.vendor in known.values():
            return str(meta.vendor)
        what = "both VMX and SVM exits" if vendors else "neither VMX nor SVM exits"
        raise UsageError(f"{meta.source} holds {what}, so the rules of no one processor apply")

    @property
    def paging(self) -> str | None:
        """``"shadow"``, ``"two-dimensional"``, or None where no page fault tells."""
        if self.two_dimensional:
            return "two-dimensional"
        return "shadow" if self.shadow or self.exceptions else None
