"""What a report needs of a trace: its account, its exits in bins, and what other kernels would have saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from worldswitch.errors import NotTold, UsageError
from worldswitch.report.timebins import SHARED, Cells, DurationBins, TimeBins

if TYPE_CHECKING:
    from worldswitch.record.trace import EventSource
    from worldswitch.trace.account import Account
    from worldswitch.trace.exits import ExitPairing, ExitRows
    from worldswitch.trace.whatif import WhatIf
    from worldswitch.x86.exits import ExitTables

MOST_BINS = 8192
"""Bins in which a report holds a trace; its picture has fewer, and these when zoomed in."""
MOST_LANES = 12
"""vCPUs with a lane of their own in the timeline; the others share one."""
MOST_CELLS = 60_000
"""Bins that hold something, over all vCPUs and reasons: some 600 KB of the page."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask of a trace: which kernels and settings to compare with, and how many hot places to list."""

    to: Sequence[str] = ()
    """Kernels, each a what-if of its own; empty: the newest released one."""
    from_: str | None = None
    settings: Sequence[str] = ()
    hot: int = 20
    tables: ExitTables | None = None
    """Names of exit reasons beside the built-in ones."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A vCPU as its exits know it."""

    vm: int
    tid: int
    vcpu: int | None
    comm: str | None


@dataclass
class Study:
    """One trace, studied.

    Attributes:
        path: As it was named.
        account: See :func:`worldswitch.trace.account.account`.
        cells, durations: Its exits in bins; *sharing* is how many vCPUs have none of their own.
        threads: The vCPU of each ``who`` in *cells* that is one.
        names: Name of each ``number`` in *cells*.
        answers: What other kernels would have saved, in the order asked.
        refused: What was asked and why it cannot be told.
        settings: Of the host asked about.
    """

    path: str
    account: Account
    cells: Cells
    durations: DurationBins
    sharing: int
    threads: dict[int, Thread]
    names: dict[int, str]
    answers: list[WhatIf] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    settings: Sequence[str] = ()

    @cached_property
    def numbers(self) -> dict[str, list[int]]:
        """Reason -> its numbers."""
        found: dict[str, list[int]] = {}
        for number, name in self.names.items():
            found.setdefault(name, []).append(number)
        return found


def study(path: str, opened: Callable[[], EventSource], question: Question) -> Study:
    """Read the trace *path* as often as *question* needs.

    Args:
        path: Its name, for the report.
        opened: Gives it from its beginning, each time it is called.
        question: What to ask.

    Raises:
        TraceFormatError, MissingError: It cannot be read.
        UnknownNameError: A kernel or setting nobody knows.
    """
    from worldswitch.trace.account import account, identities
    from worldswitch.x86.exits import reason_name

    targets = list(question.to) or ([] if question.settings else [newest()])
    _check(targets, question)
    source = opened()
    over_time, durations = TimeBins(), DurationBins()
    seen: list[ExitPairing] = []

    def watch(pairs: ExitPairing, rows: ExitRows) -> None:
        seen[:] = [pairs]
        over_time.add(rows)
        durations.add(rows)

    result = account(source, None, question.tables, by=("reason",), hot=question.hot, watch=watch)
    cells = over_time.cells(MOST_LANES, MOST_BINS, MOST_CELLS)
    own = getattr(source, "reason_names", None) or {}
    names = {
        number: own.get((number >> 32, number & 0xFFFFFFFF))
        or reason_name(number >> 32, number & 0xFFFFFFFF, question.tables)
        for number in set(cells.number.tolist())
    }
    threads = {}
    if seen:
        vms, tids = identities(seen[0]).tolist(), seen[0].tids.tolist()
        for who in set(cells.who.tolist()) - {SHARED}:
            tid, vcpu = tids[who >> 32], who & 0xFFFFFFFF
            threads[who] = Thread(vms[who >> 32], tid, vcpu - 1 if vcpu else None, result.meta.comms.get(tid))
    found = Study(path, result, cells, durations, over_time.sharing, threads, names, settings=question.settings)
    if result.count:
        _ask(found, opened, targets or [None], question)
    return found


def newest() -> str:
    """The newest kernel line with facts that is released."""
    from worldswitch.kvm.facts import lines

    return [line for line, stands_for in lines().items() if "-rc" not in stands_for][-1]


def _check(targets: Sequence[str], question: Question) -> None:
    """Refuse unknown kernels before a long read."""
    from worldswitch.kvm.distributions import kernel_named

    for name in (*targets, *filter(None, (question.from_,))):
        kernel_named(name)


def _ask(found: Study, opened: Callable[[], EventSource], targets: Sequence[str | None], question: Question) -> None:
    from worldswitch.trace.whatif import whatif

    for target in targets:
        try:
            found.answers.append(whatif(opened(), target, question.from_, question.settings))
        except (NotTold, UsageError) as error:
            if question.to or question.settings:
                raise
            found.refused.append((target or "", str(error)))
