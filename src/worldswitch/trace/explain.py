"""The sentences of a what-if: why an exit would stay or go, and what cannot be told."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from worldswitch.kvm.control_registers import MmuWork, Outcome, Roots
from worldswitch.kvm.ownership import owned, reserved_cr4
from worldswitch.kvm.policy import Mmu, Policy, Vendor
from worldswitch.x86.registers import CR0, CR4, bit_mask, bit_names, register_name

if TYPE_CHECKING:
    from worldswitch.record.trace import Meta
    from worldswitch.trace.evidence import Evidence

_TOGGLED = ((CR0, bit_mask(CR0, "WP")), (CR4, bit_mask(CR4, "CET")))

_UNTRACEABLE = {
    "kvm.nx_huge_pages": "which page faults split a huge page for an instruction fetch is not told by these events",
    "kvm.nx_huge_pages_recovery_ratio": "recovery shows in kvmmmu events over hours, not in exits",
    "kvm.nx_huge_pages_recovery_period_ms": "recovery shows in kvmmmu events over hours, not in exits",
    "favordynmods": "it shortens KVM_CREATE_VM, which no exit belongs to; see the ioctl times of strace -T",
    "cgroup": "it concerns KVM_CREATE_VM, which no exit belongs to; see the ioctl times of strace -T",
}


class Loss(IntEnum):
    """How a write makes mapped pages fault again."""

    NEVER = 0
    ONCE = 1  # there is a second set of page tables, which is filled once
    ALWAYS = 2  # the page tables are freed


LOSES = {
    Loss.NEVER: "keeps its page tables",
    Loss.ONCE: "goes over to other page tables once",
    Loss.ALWAYS: "frees its page tables each time",
}
"""What a kernel does, as the end of a sentence."""


def loss_of(outcome: Outcome) -> Loss:
    """What the write of *outcome* does to pages mapped before it."""
    if not outcome.exits:
        return Loss.NEVER
    if outcome.roots is Roots.REBUILT:
        return Loss.ALWAYS
    return Loss.ONCE if outcome.other_tables else Loss.NEVER


def many(n: int, noun: str) -> str:
    """``1 exit``, ``2 exits``, ``3,000 exits``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def bits_of(register: int, mask: int) -> str:
    """``CR0.WP``, ``CR4.SMEP+SMAP``."""
    return f"{register_name(register)}.{'+'.join(bit_names(register, mask))}"


def mmu_of(policy: Policy) -> str:
    """``TDP MMU``, ``legacy MMU`` or ``shadow MMU``."""
    return f"{'TDP' if policy.mmu is Mmu.TDP else policy.mmu} MMU"


def name_of(policy: Policy, other: Policy) -> str:
    """The kernel, and what else tells *policy* from *other*."""
    if policy.tdp != other.tdp:
        paging = "EPT" if policy.vendor is Vendor.INTEL else "nested paging"
        return f"{policy.kernel} with {paging if policy.tdp else 'shadow paging'}"
    if policy.kernel == other.kernel and policy.mmu is not other.mmu:
        return f"{policy.kernel} with the {mmu_of(policy)}"
    return str(policy.kernel)


def why_it_stays(before: Policy, after: Policy, what: str) -> str:
    """Why a write of *what* exits under *after* too."""
    if after.vendor is Vendor.AMD:
        return f"SVM has no mask of guest-owned bits: such {what} writes exit on every kernel"
    if after.mmu is Mmu.SHADOW and "WP" in what:
        return "with shadow paging CR0.WP is part of a page table's identity, so KVM must see it change"
    return f"{name_of(after, before)} intercepts {what} too"


def why_it_goes(before: Policy, after: Policy, what: str, faulted: bool) -> str:
    """Why a write of *what* does not exit under *after*."""
    owns = f"{name_of(after, before)} lets the guest own {what}"
    return f"{owns}, and the processor itself raises the #GP" if faulted else owns


def why_kept(before: Policy, after: Policy, was: Outcome, would: Outcome) -> str:
    """Why pages that *was* made fault again would not under *would*."""
    here, there = name_of(before, after), name_of(after, before)
    rebuilt = was.roots is Roots.REBUILT
    lost = f"{here} frees its page tables" if rebuilt else f"{here} goes over to other page tables"
    if not would.exits:
        return f"{there} does not see the write and keeps its page tables, where {lost}"
    if would.mmu in (MmuWork.NOTHING, MmuWork.INIT_ONLY):
        return f"{there} keeps its MMU roots, where {lost}"
    return f"{there} finds its page tables again, where {lost}"


def work(policy: Policy, other: Policy, outcome: Outcome) -> str:
    """What KVM does in the exit of a write, as a clause."""
    who = name_of(policy, other)
    if outcome.mmu is MmuWork.NOTHING:
        return f"{who} leaves the MMU alone"
    if outcome.mmu is MmuWork.INIT_ONLY:
        return f"{who} only recomputes the MMU's role"
    roots = {
        Roots.REBUILT: "frees the page tables and starts new ones",
        Roots.FOUND: "unloads the MMU roots and looks them up again",
        Roots.REFERENCED: "unloads the MMU roots and takes them again",
        Roots.KEPT: "resets the MMU",
    }
    return f"{who} {roots[outcome.roots]}"


def dearness(outcome: Outcome) -> tuple[int, int]:
    """Sorts outcomes by the work KVM does in the exit."""
    roots = (Roots.KEPT, Roots.REFERENCED, Roots.FOUND, Roots.REBUILT)
    # What is looked up and what is referenced differ too little to say which is dearer.
    rank = min(roots.index(outcome.roots), 1) + (outcome.roots is Roots.REBUILT)
    return list(MmuWork).index(outcome.mmu), rank


def other_work(
    before: Policy, after: Policy, count: int, what: str, condition: str, was: Outcome, would: Outcome
) -> str:
    """That exits which stay do more or less work, by an amount only a measurement could tell; empty if they do not."""
    if not was.exits or not would.exits or dearness(was) == dearness(would):
        return ""
    way = "shorter" if dearness(would) < dearness(was) else "longer"
    exits = f"{what} exit gets" if count == 1 else f"{count:,} {what} exits get"
    return (
        f"how much {way} the {exits}{condition}: in {'it' if count == 1 else 'each'} {work(before, after, was)}, while "
        f"{work(after, before, would)}; the trace times an exit as a whole"
    )


def puzzling(before: Policy, count: int, what: str) -> str:
    """That writes exit of which the kernel's rules say they do not."""
    exit_ = "exits" if count == 1 else "exit"
    return (
        f"why {many(count, 'write')} of {what} {exit_} although {before.kernel} lets the guest own it: is the kernel "
        "right? (Operands that differ in a bit the host owns, such as ET, exit too.)"
    )


def unexplained(before: Policy, count: int, names: str, again: bool) -> str:
    """That pages fault again for no reason known."""
    hint = ""
    if again and before.mmu is Mmu.LEGACY and before.has("tdp-mmu"):
        hint = f"; had the host tdp_mmu=1? --from {before.kernel}+tdp-mmu-default says so"
    faults = "1 page fault comes" if count == 1 else f"{count:,} page faults come"
    return (
        f"why {faults} again after {names} writes: {before.kernel} with the {mmu_of(before)} should keep the pages "
        f"(the host may have taken them away){hint}"
    )


def difference(was: Outcome, would: Outcome) -> tuple[bool, tuple[int, int]]:
    """Sorts pairs of outcomes by how much the work in the exit differs."""
    return dearness(was) != dearness(would), max(dearness(was), dearness(would))


def invisible_toggles(before: Policy, after: Policy, shown: dict[int, int]) -> str:
    """That a kernel which lets the guest own a bit shows no toggles of it; *shown*: bits the trace shows changing."""
    mine, theirs = owned(before), owned(after)
    hidden = [
        (cr, mask)
        for cr, mask in _TOGGLED
        if (mine.cr0 if cr == CR0 else mine.cr4) & mask and not shown.get(cr, 0) & mask
    ]
    if not hidden:
        return ""
    names = " and ".join(bits_of(cr, mask) for cr, mask in hidden)
    it = "it" if len(hidden) == 1 else "them"
    also = all((theirs.cr0 if cr == CR0 else theirs.cr4) & mask for cr, mask in hidden)
    same = after.kernel == before.kernel
    nothing = f"; {after.kernel} does too, so nothing is to be saved there" if also and not same else ""
    return (
        f"how often the guest toggles {names}: {before.kernel} lets the guest own {it}, so a trace of that kernel "
        f"cannot show {'its' if len(hidden) == 1 else 'their'} toggles{nothing}"
    )


def added_exits(before: Policy, after: Policy) -> str:
    """That *after* intercepts bits which *before* does not."""
    mine, theirs = owned(before), owned(after)
    lost = ((CR0, mine.cr0 & ~theirs.cr0), (CR4, mine.cr4 & ~theirs.cr4 & ~reserved_cr4(after)))
    names = [f"{register_name(cr)}.{name}" for cr, mask in lost for name in bit_names(cr, mask)]
    if not names:
        return ""
    here, there = name_of(before, after), name_of(after, before)
    return (
        f"how many exits {there} would add: it intercepts {_listed(names)}, which {here} lets the guest "
        "own, and the trace cannot show how often the guest writes "
        f"{'it' if len(names) == 1 else 'them'}"
    )


def added_faults(before: Policy, after: Policy, writes: str, there: str, here: str) -> str:
    """That *writes* cost page tables under *after* more often; *there* and *here* are the ends of two sentences."""
    return (
        f"how many page faults {after.kernel} with the {mmu_of(after)} would add at the {writes}: it "
        f"{there}, while {before.kernel} with the {mmu_of(before)} {here}"
    )


def nested(count: int) -> str:
    """That *count* exits of nested guests are not judged."""
    if not count:
        return ""
    return (
        f"what becomes of {many(count, 'exit')} of nested guests: which bits they own, and which page tables they run "
        "on, is decided by their hypervisor too"
    )


def missing_refaults(before: Policy, writes: str) -> str:
    """That *writes* should have made pages fault again, and did not."""
    return (
        f"why no page faults follow the {writes}: {before.kernel} with the {mmu_of(before)} frees its page tables each "
        "time, unless another vCPU holds them; or had the host tdp_mmu=0, or another kernel?"
    )


def no_cet(before: Policy, after: Policy) -> str:
    """That *after* offers no CR4.CET, which guests have under *before*."""
    return f"{after.kernel} offers its guests no CR4.CET" if before.cet and not after.cet else ""


def other_paging(before: Policy, after: Policy) -> str:
    """That under the other kind of paging other exits come."""
    if before.tdp == after.tdp:
        return ""
    two = "EPT" if before.vendor is Vendor.INTEL else "nested paging"
    fault = "EPT violations" if before.vendor is Vendor.INTEL else "nested page faults"
    if before.tdp:
        return (
            "what shadow paging would add: under it the guest's page faults, CR3 writes and INVLPG exit, and the "
            f"trace, recorded with {two}, does not show how often they happen"
        )
    return (
        f"what {two} would save and add besides: the guest's own page faults, CR3 writes and INVLPG no longer exit, "
        f"and {fault} come instead, of which a trace recorded with shadow paging shows nothing"
    )


def untraceable(after: Policy) -> list[str]:
    """Settings of *after* whose effect no exit shows."""
    return [
        f"what {name}={value} changes: {_UNTRACEABLE[name]}" for name, value in after.settings if name in _UNTRACEABLE
    ]


def gaps(evidence: Evidence, meta: Meta, writes: bool, losing: bool, refaults: int, untimed: int) -> list[str]:
    """What the trace does not hold.

    Args:
        evidence: What it holds.
        meta: The trace's.
        writes: It has writes of CR0 or CR4.
        losing: Some of them cost page tables which the host asked about keeps.
        refaults: How many refaults are among the removed exits.
        untimed: How many removed exits have no duration.
    """
    found = []
    if evidence.faults_without_address and writes:
        n = evidence.faults_without_address
        which = (
            "whether the EPT violation is a refault" if n == 1 else f"which of the {n:,} EPT violations are refaults"
        )
        found.append(
            f"{which}, on pages mapped before a register write: the addresses are not in the trace; record "
            "kvm:kvm_page_fault too"
        )
    if evidence.dubious:
        found.append(
            f"whether {many(evidence.dubious, 'more page fault')} would go: the host itself took memory away "
            "(kvm_unmap_hva_range) since the page was last seen"
        )
    if losing and evidence.new_pages > refaults / 10:
        found.append(
            f"whether {many(evidence.new_pages, 'page fault')} on pages not seen before would go as well: what was "
            "mapped before the trace began, and other parts of a huge page that was lost, look the same"
        )
    if untimed:
        it = "it" if untimed == 1 else "them"
        found.append(f"what {many(untimed, 'removed exit')} took: the trace has no entry that ends {it}")
    if evidence.dropped:
        found.append(f"what becomes of {many(evidence.dropped, 'exit')} of more kinds than are kept apart")
    if meta.lost:
        found.append(f"what {many(meta.lost, 'lost event')} would show")
    if not meta.complete:
        damage = "; ".join(meta.damage) or "it is not whole"
        found.append(f"what was in the part of the trace that is missing: {damage}")
    return found


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
