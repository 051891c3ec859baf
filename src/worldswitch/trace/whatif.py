"""What another kernel or setting would have saved in a trace.

Two policies, the host the trace was recorded on and the host asked about, are put the same question for every
control-register write in the trace: does it exit, and what becomes of the MMU roots? The rules that answer are those of
:mod:`worldswitch.kvm`; nothing here knows a kernel version. What the trace does not hold is said, not guessed.

Where the trace allows, its writes and page faults are played again under both policies, in
:mod:`worldswitch.trace.replay`; elsewhere each is judged by itself, by facts: whether it exits, and whether writes like
it lose page tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from worldswitch.kvm.control_registers import Outcome, change, write
from worldswitch.kvm.distributions import kernel_named
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.stats import bootstrap
from worldswitch.trace import explain
from worldswitch.trace.ahead import ahead
from worldswitch.trace.evidence import SELECTION, Evidence, Kind
from worldswitch.trace.explain import LOSES, Loss, bits_of, loss_of, many
from worldswitch.trace.host import Churn, SourceKernel, hosts, source_kernel
from worldswitch.trace.replay import POSSIBLE, Faults, Replay, RootWork, VmMethod, replay
from worldswitch.units import format_ns
from worldswitch.x86.exits import reason_name
from worldswitch.x86.registers import CR0, CR4, bit_names, register_name

if TYPE_CHECKING:
    from worldswitch.record.trace import EventSource, Meta
    from worldswitch.trace.evidence import Deeds

_JUDGED = (CR0, CR4)
_ENOUGH = 20
"""Exits of each sort that a comparison of times needs."""
_MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class Exits:
    """Exits of one kind and what becomes of them.

    Attributes:
        reason: Exit reason.
        register: ``"CR0"``, ``"CR4"``, ...: the register whose write this is or follows.
        changed: Names of the bits the write changed; None where the trace does not tell.
        refault: True for page faults that follow such a write, False for the write itself.
        count: Exits.
        total_ns: What they took in this trace.
        known: False if what is said of them is inferred, or rests on bits the trace does not tell.
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


@dataclass(frozen=True, slots=True)
class Reloads:
    """What unloading and loading MMU roots takes, as far as exits of one reason tell that do it and that do not.

    Attributes:
        reason: Exit reason.
        unloading, other: Exits with and without, among those whose values the trace has.
        unloading_ns, other_ns: Their median times.
    """

    reason: str
    unloading: int
    unloading_ns: float
    other: int
    other_ns: float


@dataclass(slots=True)
class WhatIf:
    """The answer.

    ``saving_ns`` is the time the removed exits took in this trace, from exit to entry, with a 95 % bootstrap interval
    over blocks of consecutive exits; the processor's own share of a world switch comes on top. ``exits`` and
    ``total_ns`` are those of the whole trace. ``inferred``, ``cannot_tell`` and ``notes`` are sentences: what the
    answer rests on besides the trace, what it does not say, and what to know about the hosts.

    ``method`` is ``"replay"`` if every VM that writes control registers was replayed, ``"facts"`` if none was, else
    ``"replay and facts"``; ``method_why`` says why facts had to do, and is empty if they had not. ``vms`` has it for
    each VM. ``by_reason`` has the exits of each reason, here and as predicted there; exits that only the other host
    has are in it as far as a replay shows them, which is never more than the trace can. ``roots`` is the work on MMU
    roots in the VMs replayed, here and there; ``reloads`` what the trace shows of its time.
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
    inferred: list[str] = field(default_factory=list)
    cannot_tell: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    method: str = "facts"
    method_why: str = ""
    vms: list[VmMethod] = field(default_factory=list)
    by_reason: dict[str, tuple[int, int]] = field(default_factory=dict)
    roots: tuple[RootWork, RootWork] | None = None
    reloads: list[Reloads] = field(default_factory=list)

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
        to: The other kernel, as :func:`worldswitch.kvm.distributions.kernel_named` takes it; the same kernel if None.
        from_: The kernel of the trace, for sources that do not name it (or not well enough).
        settings: ``NAME=VALUE`` of the other host; see :meth:`worldswitch.kvm.policy.Policy.of`. What they say of EPT
            or nested paging is taken for the trace's host too where the trace does not show it.

    Raises:
        NotTold: The trace's kernel is neither in the file nor stated.
        UnknownNameError: A kernel, fact or setting nobody knows.
        UsageError: Settings that contradict each other, or exits of no one vendor.
    """
    wanted = tuple(settings)
    # Fail before a long read.
    if from_ is not None or source.meta.kernel is not None:
        source_kernel(source.meta, from_)
    target = kernel_named(to)[0] if to is not None else None
    evidence = Evidence()
    for number, batch in enumerate(ahead(source.batches(SELECTION))):
        if not number:
            source_kernel(source.meta, from_)  # a stream names its kernel before its first event
        evidence.feed(batch)
    evidence.finish()
    trace_kernel = source_kernel(source.meta, from_)
    kinds = evidence.kinds()
    churn = Churn(
        sum(kind.count for kind in kinds if not kind.is_refault and kind.cr in _JUDGED),
        sum(kind.count for kind in kinds if kind.is_refault and kind.again),
    )
    vendor = evidence.seen.vendor(source.meta)
    found = hosts(trace_kernel.kernel, target or trace_kernel.kernel, wanted, vendor, evidence.seen, churn)
    result = WhatIf(
        source.meta,
        trace_kernel,
        found.before,
        found.after,
        exits=evidence.exits,
        total_ns=evidence.total_ns,
        inferred=found.inferred,
        notes=[*found.notes, *filter(None, [explain.no_cet(found.before, found.after)])],
    )
    judge = _Judge(result, evidence, kinds)
    judge.replay()
    judge.judge()
    gone: dict[str, int] = {}
    for exits in result.removed:
        gone[exits.reason] = gone.get(exits.reason, 0) + exits.count
    for number, count in evidence.by_reason().items():
        reason = reason_name(number >> 32, number & 0xFFFFFFFF)
        result.by_reason[reason] = (count, max(0, count - gone.get(reason, 0) + judge.untimed.get(reason, 0)))
    return result


class _Judge:
    """Asks the rules about what the trace holds, and writes the answers into a :class:`WhatIf`."""

    def __init__(self, result: WhatIf, evidence: Evidence, kinds: list[Kind]) -> None:
        self.result = result
        self.evidence = evidence
        self.kinds = kinds
        self.gone: set[int] = set()
        self.gone_untimed = 0
        self.untimed: dict[str, int] = {}
        self.replayed: Replay | None = None
        self.faults: list[tuple[Kind, Faults]] = []
        self.puzzling: dict[str, int] = {}
        self.other_work: dict[tuple[str, Outcome, Outcome], int] = {}
        self.writes = [kind for kind in kinds if not kind.is_refault and not kind.nested]

    def replay(self) -> None:
        """Replay what can be, and take it out of what is judged by facts."""
        result, evidence = self.result, self.evidence
        why = self._why_no_replay()
        if not why:
            deeds = evidence.deeds()
            played = replay(deeds, evidence.first_kinds(self.kinds), result.before, result.after)
            result.vms = played.vms
            if any(not vm.why for vm in played.vms):
                self._take(played, deeds)
            reasons = Counter(vm.why for vm in played.vms if vm.why)
            why = "; ".join(
                reason if len(played.vms) == 1 else f"{many(count, 'VM')}: {reason}"
                for reason, count in reasons.most_common(_MOST_REASONS)
            )
            result.method = "facts" if self.replayed is None else "replay and facts" if why else "replay"
        result.method_why = why

    def _why_no_replay(self) -> str:
        """Why nothing of the trace can be replayed; empty if something may."""
        before, after, meta, evidence = self.result.before, self.result.after, self.result.meta, self.evidence
        if not any(kind.cr in _JUDGED for kind in self.writes):
            return "the trace has no CR0 or CR4 writes to replay"
        if before.tdp != after.tdp:
            return "what faults under the other kind of paging is not in the trace"
        if meta.lost or not meta.complete:
            return "parts of the trace are missing"
        if evidence.faults_without_address:
            return "the addresses of page faults are not in the trace"
        if not evidence.decides:
            return "the trace has no values of CR0 and CR4 writes, and no page in it faults twice"
        return ""

    def _take(self, played: Replay, deeds: Deeds) -> None:
        """Judge by *played* what it took."""
        evidence = self.evidence
        self.replayed = played
        self._measure(played, deeds)
        kinds = evidence.without(self.kinds, played.taken)
        for writes in played.writes:
            kind = evidence.raw_kind(writes.kind, writes.changed, writes.inferred)
            kinds.append(evidence.regrouped(kind, writes.entries))
        self.faults = [
            (evidence.regrouped(evidence.raw_kind(faults.kind), faults.entries), faults) for faults in played.faults
        ]
        evidence.dubious += played.dubious
        evidence.new_pages += played.new_pages
        self.kinds = kinds
        self.writes = [kind for kind in kinds if not kind.is_refault and not kind.nested]
        self.result.roots = (played.here, played.there)
        for register, (mask, count) in played.assumed.items():
            self._infer(
                f"that {many(count, f'{register_name(register)} write')} changed {bits_of(register, mask)}: the bits "
                f"are not in the trace, but of the changes a 64-bit guest makes only this gives the page faults of the "
                f"trace, replayed by the rules of {self.result.before.kernel}"
            )

    def _measure(self, played: Replay, deeds: Deeds) -> None:
        """How long exits of one reason took that unload roots, and those that do not."""
        reasons = deeds.keys[:, 2]
        told = played.taken & (deeds.cr >= 0) & (deeds.ns > 0)
        number = np.append(reasons, np.uint64(0))[deeds.index]
        for reason in np.unique(number[told]).tolist():
            mine = told & (number == reason)
            unloading, other = deeds.ns[mine & played.unloading], deeds.ns[mine & ~played.unloading]
            if min(len(unloading), len(other)) >= _ENOUGH:
                name = reason_name(reason >> 32, reason & 0xFFFFFFFF)
                medians = float(np.median(unloading)), float(np.median(other))
                self.result.reloads.append(Reloads(name, len(unloading), medians[0], len(other), medians[1]))

    def judge(self) -> None:
        """Judge everything."""
        for kind, faults in self.faults:
            self._replayed(kind, faults)
        for kind in self.kinds:
            if kind.nested:
                self._stay(kind, kind.changed, False, "a nested guest's: what exits is its hypervisor's choice too")
            elif kind.is_refault:
                self._refault(kind)
            elif kind.cr not in _JUDGED:
                why = f"nothing is known here of what decides whether {register_name(kind.cr)} writes exit"
                self._stay(kind, None, False, why)
            elif kind.changed is not None:
                self._write(kind, kind.changed)
        for register in _JUDGED:
            self._writes_of_unknown_bits(register)
        self._cannot(explain.nested(sum(kind.count for kind in self.kinds if kind.nested)))
        before, after = self.result.before, self.result.after
        for what, count in self.puzzling.items():
            self._cannot(explain.puzzling(before, count, what))
        for (what, was, would), count in self.other_work.items():
            self._cannot(explain.other_work(before, after, count, what, "", was, would))
        self._say_what_would_be_added()
        self._say_what_the_trace_lacks()
        result = self.result
        result.saving_ns = bootstrap.total(self.evidence.durations(self.gone))
        result.removed, result.stays = _merged(result.removed), _merged(result.stays)

    def _remove(self, kind: Kind, mask: int | None, known: bool, why: str, register: int | None = None) -> None:
        self.result.removed.append(_exits(kind, mask, known, why, register))
        self.gone.add(kind.number)
        self.gone_untimed += kind.untimed
        reason = reason_name(kind.isa, kind.reason)
        self.untimed[reason] = self.untimed.get(reason, 0) + kind.untimed

    def _stay(self, kind: Kind, mask: int | None, known: bool, why: str, register: int | None = None) -> None:
        self.result.stays.append(_exits(kind, mask, known, why, register))

    def _cannot(self, why: str) -> None:
        if why and why not in self.result.cannot_tell:
            self.result.cannot_tell.append(why)

    def _infer(self, what: str) -> None:
        if what not in self.result.inferred:
            self.result.inferred.append(what)

    def _write(self, kind: Kind, mask: int) -> None:
        """Judge writes that changed *mask*."""
        before, after = self.result.before, self.result.after
        was, would = change(before, kind.cr, mask), change(after, kind.cr, mask)
        known = not kind.inferred
        if not mask:
            self._stay(kind, mask, known, "no bit differs from the write before it, so why it exits is not told")
            return
        what = bits_of(kind.cr, mask)
        if after.vendor is Vendor.INTEL and not was.exits:
            self._stay(kind, mask, known, f"{before.kernel} lets the guest own {what}: these exits have another cause")
            self.puzzling[what] = self.puzzling.get(what, 0) + kind.count
        elif would.exits or after.vendor is Vendor.AMD:
            # Under SVM a write that changes TS or MP only exits while hardware and guest CR0 differ; they go on to.
            self._stay(kind, mask, known, explain.why_it_stays(before, after, what))
            if not kind.faulted:
                work = (what, was, would)
                self.other_work[work] = self.other_work.get(work, 0) + kind.count
        else:
            self._remove(kind, mask, known, explain.why_it_goes(before, after, what, kind.faulted))

    def _writes_of_unknown_bits(self, register: int) -> None:
        """Judge the writes of *register* of which the trace does not say what they changed."""
        kinds = [kind for kind in self.writes if kind.cr == register and kind.changed is None]
        if not kinds:
            return
        before, after, name = self.result.before, self.result.after, register_name(register)
        count = sum(kind.count for kind in kinds)
        writes = many(count, f"{name} write")
        outcomes = {
            mask: (change(before, register, mask), change(after, register, mask)) for mask in POSSIBLE[register]
        }
        if after.vendor is Vendor.AMD:
            for kind in kinds:
                self._stay(kind, None, True, explain.why_it_stays(before, after, name))
            self._cannot(
                f"which bits the {writes} changed: the trace does not hold the values written; but SVM has no mask of "
                "guest-owned bits, so they exit on every kernel, and only what KVM does after them can be saved"
            )
            most = max(outcomes, key=lambda mask: explain.difference(*outcomes[mask]))
            condition = f", if {'it changes' if count == 1 else 'they change'} {'+'.join(bit_names(register, most))}"
            self._cannot(explain.other_work(before, after, count, name, condition, *outcomes[most]))
            return
        for kind in kinds:
            self._stay(kind, None, False, "which bits changed is not in the trace")
        savable = [mask for mask, (was, would) in outcomes.items() if was.exits and not would.exits]
        up_to = ""
        if savable:
            bits = " or ".join("+".join(bit_names(register, mask)) for mask in savable)
            it = "it changes" if count == 1 else "all of them change"
            total = sum(kind.total_ns for kind in kinds)
            up_to = f". If {it} only {bits}, {after.kernel} saves {format_ns(total)} more"
        self._cannot(
            f"which bits {writes} changed: the trace does not say; record kvm:kvm_cr too, and start before the guest's "
            f"first write{up_to}"
        )

    def _masks(self, register: int) -> tuple[dict[int, int], bool]:
        """The bits that writes of *register* changed, with how often; and whether the trace tells them."""
        known: dict[int, int] = {}
        untold = 0
        for kind in self.writes:
            if kind.cr == register and not kind.faulted:
                if kind.changed is None:
                    untold += kind.count
                else:
                    known[kind.changed] = known.get(kind.changed, 0) + kind.count
        if known:
            return known, True
        return dict.fromkeys(POSSIBLE[register], untold) if untold else {}, False

    def _refault(self, kind: Kind) -> None:
        """Judge page faults on pages that had been mapped before a write."""
        before, after = self.result.before, self.result.after
        least = Loss.ALWAYS if kind.again else Loss.ONCE
        causes: list[tuple[int, int]] = []
        told = True
        for register in kind.between:
            masks, known = self._masks(register)
            mine = [(register, mask) for mask in masks if loss_of(change(before, register, mask)) >= least]
            told = told and (known or not mine)
            causes += mine
        if not causes:
            self._unexplained(kind)
            return
        register = causes[0][0]
        mask = causes[0][1] if len(causes) == 1 else None
        if not told:
            bits = " or ".join(bits_of(*cause) for cause in causes)
            names = " and ".join(register_name(number) for number in kind.between)
            self._infer(
                f"that page faults on pages mapped before a {names} write come from changes of {bits}: the bits are "
                f"not in the trace, but {before.kernel} loses its page tables at no other change of {names} a 64-bit "
                "guest makes"
            )
        if before.tdp != after.tdp:
            why = "which pages fault with the other kind of paging is not in the trace"
            self._stay(kind, None, False, why, register)
        elif (loss := max(loss_of(change(after, *cause)) for cause in causes)) >= least:
            why = "frees its page tables" if loss is Loss.ALWAYS else "goes over to other page tables"
            self._stay(kind, mask, told, f"{explain.name_of(after, before)} {why} too", register)
        else:
            was, would = change(before, *causes[0]), change(after, *causes[0])
            self._remove(kind, mask, told, explain.why_kept(before, after, was, would), register)

    def _replayed(self, kind: Kind, faults: Faults) -> None:
        """Say what became of refaults that were replayed."""
        before, after, cause = self.result.before, self.result.after, faults.cause
        register, mask = cause.register, cause.old ^ cause.new
        was, would = write(before, register, cause.old, cause.new), write(after, register, cause.old, cause.new)
        if faults.gone:
            self._remove(kind, mask, cause.told, explain.why_kept(before, after, was, would), register)
            return
        loss = loss_of(would)
        does = {
            Loss.ALWAYS: "frees its page tables too",
            Loss.ONCE: "goes over to other page tables too",
            Loss.NEVER: "has not mapped the page by then either",
        }
        self._stay(kind, mask, cause.told, f"{explain.name_of(after, before)} {does[loss]}", register)

    def _unexplained(self, kind: Kind) -> None:
        before = self.result.before
        self._stay(kind, None, False, "no rule of the trace's kernel explains them", kind.cr)
        names = " and ".join(register_name(number) for number in kind.between)
        self._cannot(explain.unexplained(before, kind.count, names, kind.again))

    def _say_what_would_be_added(self) -> None:
        before, after = self.result.before, self.result.after
        for setting in explain.untraceable(after):
            self._cannot(setting)
        self._cannot(explain.added_exits(before, after))
        self._cannot(explain.other_paging(before, after))
        if before.tdp != after.tdp:
            return
        faulted = bool(self.faults) or any(kind.is_refault for kind in self.kinds)
        refaults = faulted or self.evidence.faults_without_address
        for register in _JUDGED:
            for (was, would, writes), bits in self._losses(register).items():
                changing = "it changes" if writes.startswith("1 ") else "they change"
                what = f"{writes}, if {changing} {' or '.join(bits)}" if bits else writes
                if was is Loss.ALWAYS and not refaults:
                    self._cannot(explain.missing_refaults(before, what))
                if would > was:
                    self._cannot(explain.added_faults(before, after, what, LOSES[would], LOSES[was]))

    def _losses(self, register: int) -> dict[tuple[Loss, Loss, str], list[str]]:
        """Writes of *register* by what they lose here and there; with the bits they may have changed, if not told."""
        before, after = self.result.before, self.result.after
        masks, known = self._masks(register)
        groups: dict[tuple[Loss, Loss, str], list[str]] = {}
        for mask, count in masks.items():
            was, would = loss_of(change(before, register, mask)), loss_of(change(after, register, mask))
            writes = many(count, f"{bits_of(register, mask) if known else register_name(register)} write")
            bits = groups.setdefault((was, would, writes), [])
            if not known:
                bits += bit_names(register, mask)
        return groups

    def _losing(self) -> bool:
        """Whether writes cost page tables that the host asked about keeps."""
        return any(was > would for register in _JUDGED for was, would, _ in self._losses(register))

    def _say_what_the_trace_lacks(self) -> None:
        shown: dict[int, int] = {}
        for kind in self.writes:
            shown[kind.cr] = shown.get(kind.cr, 0) | (kind.changed or 0)
        self._cannot(explain.invisible_toggles(self.result.before, self.result.after, shown))
        refaults = sum(exits.count for exits in self.result.removed if exits.refault)
        writes = any(kind.cr in _JUDGED for kind in self.writes)
        for gap in explain.gaps(self.evidence, self.result.meta, writes, self._losing(), refaults, self.gone_untimed):
            self._cannot(gap)


def _exits(kind: Kind, mask: int | None, known: bool, why: str, register: int | None) -> Exits:
    number = kind.cr if register is None else register
    bits = None if mask is None else bit_names(number, mask)
    reason, refault = reason_name(kind.isa, kind.reason), register is not None
    return Exits(reason, register_name(number), bits, refault, kind.count, kind.total_ns, known, why)


def _merged(parts: list[Exits]) -> list[Exits]:
    """One row for what differs in count and time only; the costliest first."""
    sums: dict[tuple[object, ...], list[int]] = {}
    for part in parts:
        key = (part.reason, part.register, part.changed, part.refault, part.known, part.why)
        row = sums.setdefault(key, [0, 0])
        row[0] += part.count
        row[1] += part.total_ns
    merged = [
        Exits(reason, register, changed, refault, count, total, known, why)  # type: ignore[arg-type]
        for (reason, register, changed, refault, known, why), (count, total) in sums.items()
    ]
    return sorted(merged, key=lambda exits: (-exits.total_ns, exits.register, exits.changed or (), exits.known))
