"""What another kernel or setting would have saved in a trace: counterfactual by facts.

Two policies, the host the trace was recorded on and the host asked about, are put the same question for every
control-register write in the trace: does it exit, and what becomes of the MMU roots? The rules that answer are those of
:mod:`worldswitch.kvm`; nothing here knows a kernel version. What the trace does not hold is said, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from worldswitch.kvm.control_registers import MmuWork, Outcome, Roots, change
from worldswitch.kvm.policy import Mmu, Policy, Vendor
from worldswitch.stats import bootstrap
from worldswitch.trace import pairing
from worldswitch.trace.ahead import ahead
from worldswitch.trace.cr_writes import CrWriteTally, Inference, counted_ns, writer
from worldswitch.trace.exits import EVENTS, NO_CR, ExitPairing, ExitRows
from worldswitch.trace.host import Seen, SourceKernel, source_kernel
from worldswitch.trace.refaults import NOT_A_REFAULT, RefaultFinder
from worldswitch.trace.tally import Tally
from worldswitch.x86.exits import reason_name
from worldswitch.x86.registers import CR0, CR4, bit_mask, bit_names, register_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.record.trace import EventSource, Meta

_WP = bit_mask(CR0, "WP")
_JUDGED = (CR0, CR4)


@dataclass(frozen=True, slots=True)
class Exits:
    """Exits of one kind and what becomes of them.

    Attributes:
        reason: Exit reason.
        register: ``"CR0"`` or ``"CR4"``: the register whose write this is or follows.
        changed: Names of the bits the write changed; None where the trace does not tell.
        refault: True for page faults that follow such a write, False for the write itself.
        count: Exits.
        total_ns: What they took in this trace.
        known: False if which bits changed is inferred or not told.
        why: One sentence.
    """

    reason: str
    register: str
    changed: tuple[str, ...] | None
    refault: bool
    count: int
    total_ns: int
    known: bool
    why: str


@dataclass(slots=True)
class WhatIf:
    """The answer.

    ``saving_ns`` is the time the removed exits took in this trace, from exit to entry, with a 95 % bootstrap interval
    over blocks of consecutive exits; the processor's own share of a world switch comes on top.
    """

    meta: Meta
    source: SourceKernel
    before: Policy
    after: Policy
    removed: list[Exits] = field(default_factory=list)
    stays: list[Exits] = field(default_factory=list)
    saving_ns: bootstrap.Interval = field(default_factory=lambda: bootstrap.Interval(0, 0, 0))
    exits: int = 0
    total_ns: int = 0
    cannot_tell: list[str] = field(default_factory=list)
    inferred: list[str] = field(default_factory=list)

    @property
    def assumed_from(self) -> str | None:
        """The kernel the user stated for the trace; None where the file tells."""
        return self.source.assumed


def whatif(
    source: EventSource,
    to: str | None = None,
    from_: str | None = None,
    settings: Iterable[str] = (),
) -> WhatIf:
    """What a trace's exits would have been elsewhere.

    Args:
        source: The trace.
        to: The other kernel, as :func:`worldswitch.kvm.facts.kernel` takes it; the same kernel if None.
        from_: The kernel of the trace, for sources that do not name it (or not well enough).
        settings: ``NAME=VALUE`` of the other host; see :meth:`worldswitch.kvm.policy.Policy.of`.

    Raises:
        NotTold: The trace's kernel is neither in the file nor stated.
        UnknownNameError: A kernel, fact or setting nobody knows.
        UsageError: Settings that contradict each other or what the trace shows.
    """
    wanted = tuple(settings)
    ledger = _Ledger()
    if source.meta.kernel is None or from_ is not None:
        source_kernel(source.meta, from_)  # fail before a long read
    for batch in ahead(source.batches(EVENTS)):
        ledger.add(ledger.pairs.feed(batch))
    ledger.add(ledger.pairs.finish())
    return _Judge(source.meta, ledger, source_kernel(source.meta, from_), to, wanted).answer()


_WRITE, _FIRST, _SILENT, _REFAULT = range(4)


class _Ledger:
    """Collects from the exits what is judged: register writes and refaults, with their durations in time order."""

    def __init__(self) -> None:
        self.pairs = ExitPairing()
        self.seen = Seen()
        self.crs = CrWriteTally()
        self.kinds = Tally(limit=1 << 20)
        self.first: list[tuple[int, int, int, int, int]] = []
        self.exits = 0
        self.total_ns = 0
        self.faults_without_address = 0
        self._refaults = RefaultFinder()
        self._entries: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []

    def add(self, rows: ExitRows) -> None:
        """Take *rows*."""
        if not len(rows):
            return
        self.seen.add(rows)
        self.crs.add(rows)
        refault_of = self._refaults.feed(rows)
        counted = ~rows.is_open & rows.is_exit
        self.exits += int(np.count_nonzero(counted))
        self.total_ns += int(rows.duration[counted].sum())
        two_dimensional = (rows.isa == 1) & ((rows.reason & np.uint32(0xFFFF)) == 48)
        self.faults_without_address += int(np.count_nonzero(two_dimensional & (rows.detail_kind == 0)))
        where = (rows.cr != NO_CR) | (refault_of != NOT_A_REFAULT)
        if not where.any():
            return
        rows, refault_of = rows.take(where), refault_of[where]
        is_refault = refault_of != NOT_A_REFAULT
        kind = np.full(len(rows), _SILENT, np.int64)
        kind[(rows.flags & pairing.CR_KNOWN) != 0] = _WRITE
        kind[(rows.flags & pairing.CR_FIRST) != 0] = _FIRST
        kind[is_refault] = _REFAULT
        cr = np.where(is_refault, refault_of, rows.cr)
        changed = np.where(kind == _WRITE, rows.cr_changed, 0)
        number = rows.isa.astype(np.uint64) << np.uint64(32) | rows.reason
        index = self.kinds.add(cr << 8 | kind, changed, number, counted_ns(rows))
        self._entries.append((index.astype(np.int32), counted_ns(rows)))
        for row in np.flatnonzero(kind == _FIRST).tolist():
            part = rows.take(slice(row, row + 1))
            self.first.append(
                (
                    int(writer(part)[0]),
                    int(rows.rip[row]),
                    int(cr[row]),
                    int(number[row]),
                    int(counted_ns(part)[0]),
                )
            )

    def durations(self, kinds: set[int]) -> NDArray[np.int64]:
        """Durations of the entries whose kind is in *kinds*, in time order."""
        if not kinds or not self._entries:
            return np.empty(0, np.int64)
        index = np.concatenate([part[0] for part in self._entries])
        return np.concatenate([part[1] for part in self._entries])[np.isin(index, sorted(kinds))]


class _Judge:
    """Asks the rules about what the ledger holds."""

    def __init__(
        self, meta: Meta, ledger: _Ledger, source: SourceKernel, to: str | None, settings: tuple[str, ...]
    ) -> None:
        self.ledger = ledger
        vendor = ledger.seen.vendor(meta)
        self.masks = self._masks()
        before, after, notes = _policies(ledger, source, to, settings, vendor, self._writes(CR0))
        self.result = WhatIf(meta, source, before, after, exits=ledger.exits, total_ns=ledger.total_ns)
        self.result.inferred += notes
        self.gone: set[int] = set()

    def answer(self) -> WhatIf:
        """The answer."""
        result = self.result
        firsts = self._firsts()
        for index, (key, changed, number) in enumerate(self.ledger.kinds.keys.tolist()):
            cr, kind = key >> 8, key & 0xFF
            count, total = int(self.ledger.kinds.counts[index]), int(self.ledger.kinds.totals[index])
            reason = reason_name(number >> 32, number & 0xFFFFFFFF)
            if kind == _REFAULT:
                self._refault(index, cr, reason, count, total)
            elif kind == _FIRST:
                for mask, (n, ns) in sorted(firsts.get((cr, number), {}).items(), key=str):
                    self._write(index, cr, mask, reason, n, ns, known=False)
            else:
                self._write(index, cr, changed if kind == _WRITE else None, reason, count, total, known=True)
        self._say_what_cannot_be_told()
        result.saving_ns = bootstrap.total(self.ledger.durations(self.gone))
        for part in (result.removed, result.stays):
            part.sort(key=lambda e: (-e.total_ns, e.register, e.changed or ()))
        return result

    def _firsts(self) -> dict[tuple[int, int], dict[int | None, tuple[int, int]]]:
        """First writes by register and reason: inferred bits -> count and time."""
        infer: Inference = self.ledger.crs.inference()
        sums: dict[tuple[int, int], dict[int | None, tuple[int, int]]] = {}
        for key, rip, cr, number, ns in self.ledger.first:
            mask = infer.first_write(key, rip)
            row = sums.setdefault((cr, number), {})
            n, total = row.get(mask, (0, 0))
            row[mask] = n + 1, total + ns
        return sums

    def _masks(self) -> dict[int, set[int]]:
        """The bits that known writes of each register changed."""
        masks: dict[int, set[int]] = {}
        for key, changed, _ in self.ledger.kinds.keys.tolist():
            if key & 0xFF == _WRITE:
                masks.setdefault(key >> 8, set()).add(changed)
        return masks

    def _writes(self, cr: int) -> tuple[int, int]:
        """Writes of *cr*, and refaults after them."""
        writes = refaults = 0
        for (key, _, _), n in zip(self.ledger.kinds.keys.tolist(), self.ledger.kinds.counts.tolist(), strict=True):
            if key >> 8 == cr:
                if key & 0xFF == _REFAULT:
                    refaults += n
                else:
                    writes += n
        return writes, refaults

    def _write(self, index: int, cr: int, mask: int | None, reason: str, count: int, total: int, known: bool) -> None:
        """Judge writes of *cr* that changed *mask*."""
        result = self.result
        if cr not in _JUDGED:
            return
        name, bits = register_name(cr), None if mask is None else bit_names(cr, mask)

        def exits(why: str, known: bool = known) -> Exits:
            return Exits(reason, name, bits, False, count, total, known, why)

        amd = result.after.vendor is Vendor.AMD
        if mask is None:
            if amd:
                result.stays.append(
                    exits(f"SVM has no mask of guest-owned bits: {name} writes exit on every kernel", True)
                )
            else:
                result.stays.append(exits("which bits changed is not in the trace", False))
                self._cannot(
                    f"which bits {count} {name} writes changed is not in the trace; record kvm:kvm_cr too, and "
                    "start before the guest's first write"
                )
            return
        before, after = change(result.before, cr, mask), change(result.after, cr, mask)
        what = f"{name}.{'+'.join(bits)}" if bits else f"{name} (no bit changed)"
        if not before.exits:
            result.stays.append(
                exits(f"{result.before.kernel} lets the guest own {what}, so these exits have another cause")
            )
            self._cannot(
                f"{count} writes of {what} exit here although {result.before.kernel} lets the guest own it (SDM "
                f"25.1.3: "
                "an operand that differs in a host-owned bit exits too); is the kernel right?"
            )
        elif not after.exits:
            result.removed.append(exits(f"{result.after.kernel} lets the guest own {what}"))
            self.gone.add(index)
        else:
            result.stays.append(exits(_why_it_stays(result.after, what)))
            self._cheaper(count, what, before, after)

    def _cheaper(self, count: int, what: str, before: Outcome, after: Outcome) -> None:
        """Say where an exit that stays does less work, by an amount only a measurement could tell."""
        order = list(MmuWork)
        if order.index(after.mmu) < order.index(before.mmu):
            self._cannot(
                f"how much shorter the {count} {what} exits get: {self.result.before.kernel} does a "
                f"{before.mmu.value} in "
                f"each, {self.result.after.kernel} {_a(after.mmu)}; the trace times the exit as a whole"
            )

    def _refault(self, index: int, cr: int, reason: str, count: int, total: int) -> None:
        """Judge page faults of pages mapped before a write of *cr*."""
        result = self.result
        masks = self.masks.get(cr, set())
        known = bool(masks)
        candidates = masks or _possible(cr)
        causes = {mask for mask in candidates if _loses_tables(change(result.before, cr, mask))}
        name = register_name(cr)
        only = next(iter(causes)) if len(causes) == 1 else None
        bits = bit_names(cr, only) if only is not None else None

        def exits(why: str, known: bool = known) -> Exits:
            return Exits(reason, name, bits, True, count, total, known, why)

        if not causes:
            result.stays.append(exits("no rule of the trace's kernel explains them"))
            self._cannot(
                f"why {count} pages fault again after {name} writes: {result.before.kernel} with the "
                f"{result.before.mmu} "
                "MMU should keep them"
            )
            return
        if not known:
            result.inferred.append(
                f"that the {count} page faults after {name} writes come from changes of "
                f"{' or '.join(sorted('+'.join(bit_names(cr, mask)) for mask in causes))}: the bits are not in "
                f"the trace, "
                f"but {result.before.kernel} drops its page tables for no other change of {name} in 64-bit mode"
            )
        if any(_loses_tables(change(result.after, cr, mask)) for mask in causes):
            result.stays.append(exits(f"{result.after.kernel} drops the page tables too"))
            return
        example = change(result.after, cr, next(iter(causes)))
        result.removed.append(exits(_why_kept(result.before, result.after, example)))
        self.gone.add(index)

    def _say_what_cannot_be_told(self) -> None:
        result, seen = self.result, self.ledger.seen
        owned = _owned_toggles(result.before)
        shown = {mask for masks in self.masks.values() for mask in masks}
        if owned and not any(mask & shown_mask for _, mask in owned for shown_mask in shown):
            names = ", ".join(f"{register_name(cr)}.{'+'.join(bit_names(cr, mask))}" for cr, mask in owned)
            self._cannot(
                f"how often the guest toggles {names}: {result.before.kernel} lets the guest own it, so a trace "
                f"of that "
                "kernel cannot show its toggles"
            )
        if result.after.vendor is Vendor.AMD and any(e.register == "CR0" for e in result.stays):
            self._cannot(
                "anything about the exits of CR0 and CR4 writes themselves: SVM has no per-bit intercept, so only what "
                "follows them (root unload, refaults) can be saved"
            )
        if self.ledger.faults_without_address and not self._writes(CR0)[1] and self._writes(CR0)[0]:
            self._cannot(
                f"which of {self.ledger.faults_without_address} EPT violations are refaults: their addresses "
                f"are not in the "
                "trace; record kvm:kvm_page_fault too"
            )
        if seen.paging == "shadow" and self._writes(CR0)[0]:
            result.inferred.append(
                "shadow paging: guest page faults exit as "
                f"{'PF excp' if result.before.vendor is Vendor.AMD else 'EXCEPTION_NMI'}, none as "
                f"{'npf' if result.before.vendor is Vendor.AMD else 'EPT_VIOLATION'}"
            )
        for setting, why in _untraceable(result.after):
            self._cannot(f"what {setting} changes: {why}")
        added = _would_add(result.before, result.after)
        if added:
            self._cannot(
                f"what {result.after.kernel} would add: it intercepts {added}, which {result.before.kernel} "
                f"does not, and the "
                "trace cannot show how often the guest writes it"
            )
        if result.meta.lost:
            self._cannot(f"what the {result.meta.lost} lost events were")
        if not result.meta.complete:
            self._cannot("what was in the damaged part of the file")

    def _cannot(self, why: str) -> None:
        if why not in self.result.cannot_tell:
            self.result.cannot_tell.append(why)


def _policies(
    ledger: _Ledger,
    source: SourceKernel,
    to: str | None,
    settings: tuple[str, ...],
    vendor: str,
    churn: tuple[int, int],
) -> tuple[Policy, Policy, list[str]]:
    """The policy of the trace's host and of the one asked about, and what was inferred about them."""
    from worldswitch.kvm.facts import kernel

    notes: list[str] = []
    paging = ledger.seen.paging
    module = "kvm_intel.ept" if vendor == "intel" else "kvm_amd.npt"
    target = kernel(to) if to is not None else source.kernel
    after = Policy.of(target, vendor, "shadow" if paging == "shadow" else "default", settings)
    mmu = "default"
    if paging == "shadow":
        mmu = "shadow"
    elif paging is None and after.mmu is Mmu.SHADOW:
        mmu = "shadow"
        notes.append(
            f"that the trace was recorded with shadow paging too: as stated by {module}=0, nothing in it says otherwise"
        )
    elif paging is None:
        notes.append(
            f"that {module} was on: the trace holds no page faults to tell; --set {module}=0 states the opposite"
        )
    before = Policy.of(source.kernel, vendor, mmu)
    writes, refaults = churn
    if before.mmu is Mmu.LEGACY and writes and refaults >= writes and source.kernel.has("tdp-mmu"):
        before = Policy.of(source.kernel, vendor, "tdp")
        notes.append(
            f"that the trace's host ran with tdp_mmu=1, not {source.kernel}'s default: {refaults} page faults "
            f"follow {writes} "
            "CR0 writes, and the legacy MMU finds its page tables again"
        )
    return before, after, notes


def _possible(cr: int) -> set[int]:
    """The single-bit changes a 64-bit guest can make while it runs."""
    if cr == CR0:
        return {
            _WP,
            bit_mask(CR0, "TS"),
            bit_mask(CR0, "AM"),
            bit_mask(CR0, "MP"),
            bit_mask(CR0, "EM"),
            bit_mask(CR0, "NE"),
        }
    return {
        bit_mask(CR4, name)
        for name in ("PGE", "SMEP", "SMAP", "PKE", "TSD", "DE", "PCE", "UMIP", "FSGSBASE", "OSXSAVE")
    }


def _loses_tables(outcome: Outcome) -> bool:
    """Whether pages fault in again after it."""
    return outcome.exits and (outcome.roots is Roots.REBUILT or outcome.other_tables)


def _a(work: MmuWork) -> str:
    return {MmuWork.NOTHING: "nothing", MmuWork.INIT_ONLY: "only recomputes the MMU's role"}.get(
        work, f"a {work.value}"
    )


def _why_it_stays(policy: Policy, what: str) -> str:
    if policy.vendor is Vendor.AMD:
        return f"SVM has no mask of guest-owned bits: {what} writes exit on every kernel"
    if policy.mmu is Mmu.SHADOW and what == "CR0.WP":
        return "with shadow paging CR0.WP is part of a page table's identity, so KVM must see it change"
    return f"{policy.kernel} intercepts {what} too"


def _why_kept(before: Policy, after: Policy, outcome: Outcome) -> str:
    if not outcome.exits:
        return f"{after.kernel} does not see the write, and keeps its page tables"
    if outcome.mmu in (MmuWork.NOTHING, MmuWork.INIT_ONLY):
        return f"{after.kernel} keeps its MMU roots, where {before.kernel} frees or changes them"
    return f"{after.kernel} keeps the page tables until they are invalidated, where {before.kernel} frees them"


def _owned_toggles(policy: Policy) -> list[tuple[int, int]]:
    """Bits hardened guests toggle that the guest owns under *policy*."""
    from worldswitch.kvm.ownership import owned

    mine = owned(policy)
    toggles = ((CR0, mine.cr0 & _WP), (CR4, mine.cr4 & bit_mask(CR4, "CET")))
    return [(cr, mask) for cr, mask in toggles if mask]


def _would_add(before: Policy, after: Policy) -> str:
    """Names of bits that *after* intercepts and *before* does not."""
    from worldswitch.kvm.ownership import owned

    mine, theirs = owned(before), owned(after)
    lost = ((CR0, mine.cr0 & ~theirs.cr0), (CR4, mine.cr4 & ~theirs.cr4))
    return ", ".join(f"{register_name(cr)}.{name}" for cr, mask in lost for name in bit_names(cr, mask))


_UNTRACEABLE = {
    "kvm.nx_huge_pages": "which page faults split a huge page for an instruction fetch is not told by these events",
    "kvm.nx_huge_pages_recovery_ratio": "recovery shows in kvmmmu events over hours, not in exits",
    "kvm.nx_huge_pages_recovery_period_ms": "recovery shows in kvmmmu events over hours, not in exits",
    "favordynmods": "it shortens KVM_CREATE_VM, which no exit belongs to; see the ioctl times of strace -T",
    "cgroup": "it concerns KVM_CREATE_VM, which no exit belongs to; see the ioctl times of strace -T",
}


def _untraceable(after: Policy) -> list[tuple[str, str]]:
    return [(f"{name}={value}", _UNTRACEABLE[name]) for name, value in after.settings if name in _UNTRACEABLE]
