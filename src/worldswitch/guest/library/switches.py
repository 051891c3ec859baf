"""Programs that switch address spaces, and what a hardened kernel adds to each switch."""

from __future__ import annotations

from typing import Any

from worldswitch.guest.library.registry import limited, shipped
from worldswitch.guest.operations import (
    Load,
    Nop,
    Operation,
    ReadDr,
    SingleStep,
    SwitchSpace,
    User,
    WriteCr,
    WriteDr,
)
from worldswitch.guest.program import Handler, Pages, Space, State, Vcpu
from worldswitch.x86.registers import CR4, bit_mask

_VA, _PA = 0x400000, 0x200000
_DR6 = 0xFFFF0FF0


@shipped("context-switch")
def context_switch(
    *, spaces: int = 2, pcid: bool = False, noflush: bool = False, touch: bool = False
) -> dict[str, Any]:
    """Loads CR3 with one address space after the other, with PCIDs or without, flushing or not; with touch, reads in
    each.

    Expect: 0 exits with EPT or NPT; with shadow paging one per switch, and a miss in the cache of 3 previous roots
    from 5 on.

    Source: Intel SDM volume 3, section 4.10.4 "Invalidation of TLBs and Paging-Structure Caches"; fast_pgd_switch() in
    arch/x86/kvm/mmu/mmu.c.
    """
    limited("spaces", spaces, 1, 32)
    found = tuple(Space(f"space{i}", (Pages(_VA, _PA),)) for i in range(spaces))
    body: list[Operation] = []
    # The last one first, so that the first pass switches too: the program is entered in the first.
    for i in (*range(1, spaces), 0):
        body.append(SwitchSpace(found[i].name, pcid=i + 1 if pcid else 0, noflush=noflush))
        body += [Load(_VA)] * touch
    bits = ("PAE", "PCIDE") if pcid or noflush else ("PAE",)
    unit = f"round of {spaces} switches"
    return {"unit": unit, "spaces": found, "state": State(cr4=bit_mask(CR4, *bits)), "vcpus": (Vcpu(body=tuple(body)),)}


def _open(cet: bool) -> tuple[Operation, ...]:
    """WP off, after CET, which needs it."""
    return (WriteCr(4, clear=("CET",)), WriteCr(0, clear=("WP",))) if cet else (WriteCr(0, clear=("WP",)),)


def _close(cet: bool) -> tuple[Operation, ...]:
    return (WriteCr(0, set=("WP",)), WriteCr(4, set=("CET",))) if cet else (WriteCr(0, set=("WP",)),)


@shipped("kernexec")
def kernexec(*, cet: bool = False) -> dict[str, Any]:
    """Opens and closes a KERNEXEC kernel once: WP off and on, with CET around it where the kernel uses it.

    Expect: as cr0-wp, or with cet as cr0-wp+cet.

    Source: pax_open_kernel() and pax_close_kernel() of the public grsecurity port to 4.9,
    arch/x86/include/asm/pgtable.h.
    """
    bits = ("PAE", "CET") if cet else ("PAE",)
    body = (*_open(cet), *_close(cet))
    return {"unit": "pair", "state": State(cr4=bit_mask(CR4, *bits)), "vcpus": (Vcpu(body=body),)}


@shipped("ssdd")
def ssdd(
    *, pairs: int = 1, steps: int = 1000, pcid: bool = False, cet: bool = False, extra_pairs: int = 0, vcpus: int = 1
) -> dict[str, Any]:
    """Makes steps of rt-tests' ssdd on a KERNEXEC kernel, which opens and closes around each switch of tracer and
    tracee: one of each of the pairs a pass, and as many passes as steps says unless -n says otherwise. The pairs are
    dealt to the vCPUs, and tracer and tracee stay on theirs.

    Expect: per step 3 system calls and 1 #DB, 2 context switches, 8 (pcid) or 16 writes that change CR0.WP, with cet
    as many of CR4.CET; where the guest owns those bits, about 2 exits remain: #DB and MOV DR.

    Source: rt-tests, src/ssdd/ssdd.c, traced step by step; the public grsecurity port to 4.9: __switch_to() opens for
    the GDT and switch_mm() for the top-level page table, without PCID the entry code clears WP on each way to CPL 3
    and sets it on each way back.
    """
    limited("pairs", pairs, 1, 10)
    limited("extra_pairs", extra_pairs, 0, 64)
    limited("vcpus (each has at least one of the pairs)", vcpus, 1, pairs)
    kernel = _Kernel(pcid, cet, extra_pairs)
    bits = ["PAE"] + ["PCIDE"] * pcid + ["CET"] * cet
    return {
        "unit": "step" if pairs == 1 else f"{pairs} steps",
        "state": State(cr4=bit_mask(CR4, *bits)),
        "spaces": tuple(Space(f"{task}{pair}") for pair in range(pairs) for task in ("tracer", "tracee")),
        "vcpus": tuple(kernel.vcpu(range(first, pairs, vcpus)) for first in range(vcpus)),
        "default_n": limited("steps", steps, 0, 10**9),
    }


class _Kernel:
    """What a KERNEXEC kernel with UDEREF does at the places ssdd passes."""

    def __init__(self, pcid: bool, cet: bool, extra_pairs: int) -> None:
        self.pcid, self.cet, self.extra_pairs = pcid, cet, extra_pairs

    def vcpu(self, pairs: range) -> Vcpu:
        """A vCPU on which the steps of *pairs* are made, one of each a pass."""
        body = [operation for pair in pairs for operation in self.step(f"tracer{pair}", f"tracee{pair}")]
        return Vcpu(body=tuple(body), handlers=(Handler(1, fix=self.debug_handler()),))

    def step(self, tracer: str, tracee: str) -> tuple[Operation, ...]:
        """From the tracer's ptrace() to the end of its signal handler."""
        return (
            *self.system_call(tracer),  # ptrace(PTRACE_SINGLESTEP)
            *self.system_call(tracer),  # wait4, which sleeps
            *self.switch(tracee),
            *self.leave(tracee),
            SingleStep(user=True),
            *self.back(tracee),
            *self.switch(tracer),
            *self.system_call(tracer),  # rt_sigreturn, out of the handler of SIGCHLD
        )

    def system_call(self, space: str) -> tuple[Operation, ...]:
        """To CPL 3 and back by a system call."""
        return (*self.leave(space), User((Nop(),)), *self.enter(space))

    def leave(self, space: str) -> tuple[Operation, ...]:
        """To user mode: with PCIDs another one is loaded, without them WP is cleared."""
        return (SwitchSpace(space, pcid=2, noflush=True),) if self.pcid else _open(self.cet)

    def enter(self, space: str) -> tuple[Operation, ...]:
        """From user mode."""
        return (SwitchSpace(space, pcid=1, noflush=True),) if self.pcid else _close(self.cet)

    def debug_handler(self) -> tuple[Operation, ...]:
        """What the handler of #DB does: close the kernel as every entry does, then look at DR6 and reset it."""
        return (*(() if self.pcid else _close(self.cet)), ReadDr(6), WriteDr(6, _DR6))

    def back(self, space: str) -> tuple[Operation, ...]:
        """What is left of the entry after #DB: the handler cannot know the space, the rest it did."""
        return self.enter(space) if self.pcid else ()

    def switch(self, space: str) -> tuple[Operation, ...]:
        """__switch_to() opens the kernel for the GDT, switch_mm() for the top-level page table."""
        pair = (*_open(self.cet), *_close(self.cet))
        return (*pair * (2 + self.extra_pairs), SwitchSpace(space, pcid=1 if self.pcid else 0))
