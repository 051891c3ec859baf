"""Findings of a trace in words: what costs most, why, and what would remove it.

The numbers and the reasons are those of :func:`worldswitch.trace.account.account` and
:func:`worldswitch.trace.whatif.whatif`; here they become sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldswitch.report.document import Bar, Finding, Step
from worldswitch.report.words import GLOSSES, many, reason, sentence, share
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from worldswitch.report.study import Study
    from worldswitch.trace.whatif import Exits, WhatIf

_IDLE = frozenset(("hlt", "HLT", "MWAIT_INSTRUCTION", "mwait"))
_SERIOUS = frozenset(("lost-events", "incomplete"))
_FIRST, _WARNED, _COSTLY, _NOTED = 100.0, 70.0, 50.0, 20.0
_TELLING = 0.02
"""Share of the time from which a what-if's saving is the first thing to say."""
_SHOWN = 4
_STOPS = "Each exit stops the guest while KVM works on the host."


def findings(study: Study, part: str) -> list[Finding]:
    """What to say of a trace first; *part* is the id that links point into."""
    found = []
    told: set[str] = set()
    answers = [answer for answer in study.answers if answer.removed]
    if answers:
        best = max(answers, key=lambda answer: answer.saving_ns.mid)
        story = _Story.of(best)
        found.append(_removed(study, best, story, part))
        if found[0].weight >= _FIRST:
            told = {exits.reason for exits in (*story.refaults, *story.writes, *story.kept)}
    found += [_stays(study, answer, part) for answer in study.answers if not answer.removed and _differ(answer)]
    found += _costliest(study, told, part)
    found += _detected(study, part, churn_told=bool(answers))
    return found


@dataclass(frozen=True, slots=True)
class _Story:
    """The removed exits that weigh most, and the writes they follow.

    Attributes:
        what: The register and bits, ``CR0.WP``.
        refaults, writes: Exits of *what* that the other kernel does not have.
        kept: Writes of *what* that exit there too.
    """

    what: str
    refaults: Sequence[Exits]
    writes: Sequence[Exits]
    kept: Sequence[Exits]

    @classmethod
    def of(cls, answer: WhatIf) -> _Story:
        totals: dict[str, int] = {}
        for exits in answer.removed:
            totals[_what(exits)] = totals.get(_what(exits), 0) + exits.total_ns
        what = max(totals, key=lambda name: totals[name])
        register = what.partition(".")[0]
        return cls(
            what,
            [exits for exits in answer.removed if exits.refault and _what(exits) == what],
            [exits for exits in answer.removed if not exits.refault and _what(exits) == what],
            [e for e in answer.stays if not e.refault and (_what(e) == what or _what(e) == register)],
        )

    @property
    def is_churn(self) -> bool:
        """Whether it is what follows the writes that costs, not they themselves."""
        return _ns(self.refaults) > _ns(self.writes)

    @property
    def all_writes(self) -> int:
        return _count(self.writes) + _count(self.kept)


def _what(exits: Exits) -> str:
    bits = "" if not exits.changed else "." + "+".join(exits.changed)
    return f"{exits.register}{bits}"


def _removed(study: Study, answer: WhatIf, story: _Story, part: str) -> Finding:
    """The saving, as a story."""
    gone = sum(exits.count for exits in answer.removed)
    saved = share(answer.saving_ns.mid, answer.total_ns)
    low, mid, high = (format_ns(value) for value in answer.saving_ns)
    there = str(answer.after.kernel)
    causes = (*story.refaults, *story.writes) if story.is_churn else (*story.writes, *story.refaults)
    remedy = [sentence(why) for why in dict.fromkeys(exits.why for exits in causes)]
    remedy.append(
        f"There {gone:,} of these {answer.exits:,} exits would not have happened: {mid} less (95 %: {low} to {high}), "
        f"{saved} of the time outside the guest."
    )
    for other in study.answers:
        if other is not answer and other.removed:
            remedy.append(f"{other.after.kernel} would save {format_ns(other.saving_ns.mid)}.")
    if story.kept:
        why = story.kept[0].why
        remedy.append(
            f"What stays: the {many(_count(story.kept), 'write')} of {story.what} themselves "
            f"({format_ns(_ns(story.kept))}). {sentence(why)}"
        )
    weight = _FIRST if answer.saving_ns.mid >= _TELLING * _busy(study) else _NOTED
    return Finding(
        "cost",
        _headline(answer, story),
        gloss=" ".join(filter(None, (GLOSSES.get(story.what, ""), _STOPS))),
        why=_why(study, answer, story),
        remedy=remedy,
        rests_on=[
            *(f"Inferred: {sentence(text)}" for text in answer.inferred),
            *(f"Cannot be told: {sentence(text)}" for text in answer.cannot_tell),
        ],
        numbers=_numbers(answer, story, gone, saved),
        steps_title=f"What happens, {story.all_writes:,} times" if story.is_churn and story.all_writes else "",
        steps=_steps(answer, story) if story.is_churn else (),
        bars=_bars(answer, story, there),
        about=study.path,
        link=f"{part}-whatif",
        # Of several traces the one whose exits took longer comes first.
        weight=weight + math.log10(max(1.0, answer.saving_ns.mid)),
        ids=("root-churn", "whatif") if story.refaults else ("whatif",),
    )


def _headline(answer: WhatIf, story: _Story) -> str:
    if not story.is_churn:
        return (
            f"{many(story.all_writes, 'write')} of {story.what} left the guest, one exit each; under Linux "
            f"{answer.after.kernel} {'none' if not story.kept else 'fewer'} would."
        )
    faults = _count(story.refaults)
    if _frees(answer):
        return (
            f"{many(story.all_writes, 'write')} of {story.what} cost {faults:,} page faults, "
            "because KVM throws its page tables away at each."
        )
    return (
        f"After {many(story.all_writes, 'write')} of {story.what} the guest faulted {faults:,} times on pages it had."
    )


def _why(study: Study, answer: WhatIf, story: _Story) -> list[str]:
    host = _host(answer)
    if not story.is_churn:
        each = _ns(story.writes) / max(1, _count(story.writes))
        return [
            f"On this host ({host}) KVM keeps {story.what} to itself: each write stops the guest, for "
            f"{format_ns(each)} in the mean, so that KVM can do it for the guest."
        ]
    faulted, reason_name = _count(story.refaults), story.refaults[0].reason
    of_all = next((row.count for row in study.account.exits if row.reason == reason_name), faulted)
    each = faulted / max(1, story.all_writes)
    said = [
        f"{faulted:,} of the trace's {of_all:,} page faults ({reason_name}) are on pages that KVM had filled in "
        "before: "
        f"{each:.2g} for each write."
    ]
    if _frees(answer):
        said.append(
            f"Nothing the guest did made them needful. On this host ({host}) a write that changes {story.what} "
            "drops the "
            "root of the page tables that KVM keeps for the guest, and with it all tables below; the guest's memory is "
            "where it was, but KVM has forgotten where, and finds out again page by page."
        )
    else:
        said.append(f"On this host ({host}) KVM goes over to another set of page tables, which is filled page by page.")
    return said


def _steps(answer: WhatIf, story: _Story) -> list[Step]:
    writes = [*story.kept, *story.writes]
    mean = _ns(writes) / max(1, _count(writes))
    faults = _count(story.refaults)
    roots = answer.roots
    work = f"{roots[0].freed:,} of {roots[0].unloads:,} unloads freed the tables" if roots and roots[0].freed else ""
    return [
        Step(
            f"The guest writes {story.what}",
            f"The write stops the guest ({writes[0].reason if writes else 'an exit'}), and KVM looks at what changed.",
            f"1 exit, {format_ns(mean)}",
        ),
        Step(
            "KVM drops the root of its page tables" if _frees(answer) else "KVM changes to other page tables",
            f"{_host(answer)} does so at each such write.",
            work,
        ),
        Step(
            "The guest touches its memory again",
            f"Each page is missing: one page fault ({story.refaults[0].reason}) a page, and KVM fills it in anew.",
            f"{faults / max(1, story.all_writes):.2g} exits, {format_ns(_ns(story.refaults) / max(1, faults))} each",
        ),
    ]


def _numbers(answer: WhatIf, story: _Story, gone: int, saved: str) -> list[tuple[str, str]]:
    found = [(f"{story.all_writes:,}", f"writes of {story.what}")]
    if story.refaults:
        found.append((f"{_count(story.refaults):,}", "page faults that need not be"))
    found.append((f"{gone:,} of {answer.exits:,}", f"exits gone under {answer.after.kernel}"))
    found.append((saved, "of the time outside the guest saved"))
    return found


def _bars(answer: WhatIf, story: _Story, there: str) -> list[Bar]:
    gone = _ns(answer.removed)
    writes, faults = _ns(story.writes) + _ns(story.kept), _ns(story.refaults)
    rest = max(0, answer.total_ns - writes - faults)
    other_gone = gone - _ns(story.writes) - faults
    names = f"writes of {story.what}", "page faults on pages filled in before", "all other exits"
    here = [("c0", names[0], writes), ("c1", names[1], faults), ("rest", names[2], rest)]
    after = [("c0", names[0], _ns(story.kept)), ("rest", names[2], max(0, rest - other_gone))]
    return [
        Bar(f"recorded, {answer.before.kernel}", [s for s in here if s[2]], format_ns(answer.total_ns)),
        Bar(f"with {there}", [s for s in after if s[2]], format_ns(max(0, answer.total_ns - gone))),
    ]


def _host(answer: WhatIf) -> str:
    from worldswitch.kvm.policy import Vendor
    from worldswitch.trace.explain import mmu_of

    vendor = "AMD" if answer.before.vendor is Vendor.AMD else "Intel"
    return f"Linux {answer.before.kernel}, {vendor}, {mmu_of(answer.before)}"


def _frees(answer: WhatIf) -> bool:
    return answer.roots is not None and answer.roots[0].freed > 0


def _differ(answer: WhatIf) -> bool:
    """Whether anything but the trace's own host is asked about."""
    return answer.before != answer.after


def _stays(study: Study, answer: WhatIf, part: str) -> Finding:
    here, there = answer.before.kernel, answer.after.kernel
    whys = list(dict.fromkeys(exits.why for exits in answer.stays))
    unknown = sum(exits.count for exits in answer.stays if not exits.known)
    return Finding(
        "notice",
        f"Whether Linux {there} would save {many(unknown, 'exit')} of {answer.exits:,} cannot be told from this trace."
        if unknown
        else f"Linux {there} would have had the same {answer.exits:,} exits as {here}, as far as the trace tells.",
        why=[sentence(why) for why in whys[:_SHOWN]],
        rests_on=[f"Cannot be told: {sentence(text)}" for text in answer.cannot_tell],
        about=study.path,
        link=f"{part}-whatif",
        weight=_NOTED,
        ids=("whatif",),
    )


def _costliest(study: Study, told: set[str], part: str) -> Iterator[Finding]:
    """The reason that takes most time, idling aside, unless it has been told."""
    account = study.account
    whole = _busy(study)
    idle = account.total_ns - whole
    busy = [row for row in account.exits if row.reason not in _IDLE and row.total_ns]
    if busy and busy[0].reason not in told:
        top = busy[0]
        gloss = reason(top.reason)
        yield Finding(
            "cost",
            f"{share(top.total_ns, whole)} of the time outside the guest goes to {top.reason}"
            f"{' (idling aside)' if idle else ''}.",
            why=[
                sentence(gloss) if gloss else "",
                f"{many(top.count, 'exit')}, {format_ns(top.total_ns)} in all; half take less than "
                f"{format_ns(top.p50_ns)}, "
                f"one in a hundred more than {format_ns(top.p99_ns)}, the longest {format_ns(top.max_ns)}.",
            ],
            numbers=[
                (f"{top.count:,}", f"{top.reason} exits"),
                (format_ns(top.total_ns), "in all"),
                (format_ns(top.mean_ns), "in the mean"),
            ],
            about=study.path,
            link=f"{part}-exits",
            weight=_COSTLY,
        )
    if idle > account.total_ns / 2:
        yield Finding(
            "ok",
            f"{share(idle, account.total_ns)} of the time outside the guest is idling: the guest had nothing to do.",
            about=study.path,
            link=f"{part}-exits",
            weight=_NOTED,
        )


def _detected(study: Study, part: str, churn_told: bool) -> Iterator[Finding]:
    from worldswitch.trace.detect import DETECTORS, ROOT_CHURN

    for seen in study.account.detections:
        if seen.id == ROOT_CHURN and churn_told:
            continue
        serious = seen.id in _SERIOUS
        yield Finding(
            "warning" if serious else "notice",
            sentence(DETECTORS[seen.id]),
            why=[sentence(seen.detail)],
            about=study.path,
            link=f"{part}-notes",
            weight=(_WARNED if serious else _COSTLY - 1 if seen.id == ROOT_CHURN else _NOTED) - 0.1,
            ids=(seen.id,),
        )


def _busy(study: Study) -> int:
    """Time of all exits but those in which the guest idled."""
    return sum(row.total_ns for row in study.account.exits if row.reason not in _IDLE)


def _count(some: Sequence[Exits]) -> int:
    return sum(exits.count for exits in some)


def _ns(some: Sequence[Exits]) -> int:
    return sum(exits.total_ns for exits in some)
