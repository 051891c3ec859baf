"""A trace's register writes and page faults played again under the rules of two hosts.

Each VM's writes and faults go, in their order, through what :mod:`worldswitch.kvm` says of the host the trace was
recorded on: which tables a vCPU runs on after each write, when their last user frees them, which page a fault maps in
them. That must give the trace's own exits: every write recorded exits, every fault is at a page not mapped then, and a
guest whose tables were freed faults before it does anything else. Only then the same deeds are played under the other
host, and what is mapped there at a fault is a fault that would not have happened.

A write whose value the trace lacks is tried as each single bit a running guest changes; the answer counts if all that
give the trace's own exits agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from worldswitch.kvm.control_registers import MmuWork, Outcome, Roots, write
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.trace.tally import Tally
from worldswitch.x86.registers import CR0, CR4, bit_mask, register_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.trace.evidence import Deeds, Kind

POSSIBLE = {
    CR0: tuple(bit_mask(CR0, name) for name in ("WP", "TS", "AM", "MP", "EM", "NE")),
    CR4: tuple(
        bit_mask(CR4, name)
        for name in ("PGE", "SMEP", "SMAP", "PKE", "CET", "TSD", "DE", "PCE", "UMIP", "FSGSBASE", "OSXSAVE")
    ),
}
"""The single-bit changes a 64-bit guest makes while it runs: what a write of unknown value may have changed."""

_RUNNING = {CR0: bit_mask(CR0, "PE", "MP", "ET", "NE", "WP", "AM", "PG"), CR4: bit_mask(CR4, "PAE", "PGE")}
"""What a 64-bit guest's registers hold where the trace does not tell."""
_IDENTITY = {CR0: bit_mask(CR0, "WP", "PG"), CR4: bit_mask(CR4, "PAE", "SMEP", "SMAP")}
"""Bits that can tell one set of page tables from another; whether they do, each write's outcome says."""
_SHIFT = {CR0: 0, CR4: 32}
_WP = bit_mask(CR0, "WP")

MOST_TRANSITIONS = 1 << 12
MOST_PLAYS = 2000
"""How often VMs are played in all: each takes some ms. What is beyond is judged by facts."""


@dataclass(frozen=True, slots=True)
class VmMethod:
    """How one VM of the trace was judged.

    Attributes:
        process: Its process, None where the trace does not tell.
        life: Which of the VMs that the process ran one after another, from 0.
        threads: Its vCPU threads in the trace.
        why: Why it was not replayed; empty if it was.
    """

    process: int | None
    life: int
    threads: int
    why: str

    @property
    def method(self) -> str:
        """``"replay"`` or ``"facts"``."""
        return "facts" if self.why else "replay"


class Cause(NamedTuple):
    """The write that lost a page's tables: register, old and new value; *told*: as the trace has them."""

    register: int
    old: int
    new: int
    told: bool


class Writes(NamedTuple):
    """Writes alike: the kind they were of, the bits they changed, and which entries they are."""

    kind: int
    changed: int
    inferred: bool
    entries: NDArray[np.intp]


class Faults(NamedTuple):
    """Refaults alike: their kind, what lost their tables, whether the other host has none, and their entries."""

    kind: int
    cause: Cause
    gone: bool
    entries: NDArray[np.intp]


@dataclass(slots=True)
class RootWork:
    """What writes cost in MMU roots on one host: *unloads* (each loads again), and how many of them *freed* tables."""

    unloads: int = 0
    freed: int = 0


@dataclass(slots=True)
class Replay:
    """What came of it.

    Attributes:
        vms: How each VM was judged; those that make no control-register writes are left out.
        taken: Which entries are judged here; shape (n,).
        writes, faults: Their judgements, but for faults that come on both hosts since they are a page's first.
        dubious: Faults that would go, had the host not unmapped something since.
        new_pages: First faults of pages after a write that lost tables, in which they may have been mapped.
        here, there: Work on roots in the VMs replayed.
        unloading: Which entries unload roots here, shape (n,).
        assumed: Bits that writes without a value must have changed, by register; and how many writes.
    """

    vms: list[VmMethod]
    taken: NDArray[np.bool_]
    unloading: NDArray[np.bool_]
    writes: list[Writes] = field(default_factory=list)
    faults: list[Faults] = field(default_factory=list)
    dubious: int = 0
    new_pages: int = 0
    here: RootWork = field(default_factory=RootWork)
    there: RootWork = field(default_factory=RootWork)
    assumed: dict[int, tuple[int, int]] = field(default_factory=dict)


class NotReplayed(Exception):
    """Why a VM cannot be replayed."""


def replay(deeds: Deeds, kinds: dict[int, Kind], before: Policy, after: Policy) -> Replay:
    """Play every VM's deeds under both hosts.

    Args:
        deeds: All writes and faults.
        kinds: Of first writes, by their place in *deeds*: the kind, which has what was inferred of them.
        before: The trace's host.
        after: The other one, with the same kind of paging.
    """
    result = Replay([], np.zeros(len(deeds), np.bool_), np.zeros(len(deeds), np.bool_))
    writes: dict[tuple[int, int, bool], list[NDArray[np.intp]]] = {}
    faults: dict[tuple[int, Cause, bool], list[NDArray[np.intp]]] = {}
    plays = MOST_PLAYS
    for entries in _by_vm(deeds):
        first = entries[0]
        process = int(deeds.process[first])
        why = ""
        if not ((deeds.cr[entries] == CR0) | (deeds.cr[entries] == CR4)).any():
            continue
        try:
            if process == -1:
                raise NotReplayed("the trace does not tell which vCPUs are one VM's")
            vm = _Vm(deeds, entries, kinds, before, after)
            answer = vm.answer(plays)
            plays -= answer.plays
            _add(result, vm, answer, writes, faults)
        except NotReplayed as reason:
            why = str(reason)
        threads = deeds.vcpus[process, int(deeds.life[first])]
        result.vms.append(VmMethod(process if process >= 0 else None, int(deeds.life[first]), threads, why))
    result.writes = [Writes(*key, np.concatenate(parts)) for key, parts in writes.items()]
    result.faults = [Faults(*key, np.sort(np.concatenate(parts))) for key, parts in faults.items()]
    return result


def _by_vm(deeds: Deeds) -> Iterator[NDArray[np.intp]]:
    """The entries of each VM, in time order."""
    if not len(deeds):
        return
    owner = deeds.process
    if (owner == owner[0]).all() and not deeds.life.any():
        yield np.arange(len(deeds))
        return
    order = np.lexsort((deeds.life, owner))
    edges = np.flatnonzero((np.diff(owner[order]) != 0) | (np.diff(deeds.life[order]) != 0)) + 1
    yield from np.split(order, edges)


def _add(
    result: Replay,
    vm: _Vm,
    answer: _Answer,
    writes: dict[tuple[int, int, bool], list[NDArray[np.intp]]],
    faults: dict[tuple[int, Cause, bool], list[NDArray[np.intp]]],
) -> None:
    """Add one VM's answer to the whole."""
    for key, where in answer.writes:
        writes.setdefault(key, []).append(vm.entries[where])
        result.taken[vm.entries[where]] = True
    for cause_key, where in answer.faults:
        faults.setdefault(cause_key, []).append(vm.entries[where])
    result.taken[vm.entries[vm.faults]] = True
    result.unloading[vm.entries[answer.here.unloads]] = True
    result.dubious += answer.dubious
    result.new_pages += answer.new_pages
    for work, played in ((result.here, answer.here), (result.there, answer.there)):
        work.unloads += int(np.count_nonzero(played.unloads))
        work.freed += int(np.count_nonzero(played.lost))
    for register, mask in answer.assumed.items():
        bits, count = result.assumed.get(register, (0, 0))
        result.assumed[register] = (bits | mask, count + int(np.count_nonzero(vm.silent & (vm.cr == register))))


class _Steps(NamedTuple):
    """Old and new value of each write, shape (n,), and the bits assumed of those whose value is not told."""

    old: NDArray[np.uint64]
    new: NDArray[np.uint64]
    assumed: dict[int, int]


class _Played(NamedTuple):
    """A VM played under one host.

    Attributes:
        exits, unloads, lost, other: Of each entry: the write exits; it unloads the vCPU's roots; that frees tables; it
            goes over to other tables. Shape (n,).
        mapped: Faults at pages that were mapped by an earlier one in the same tables.
        unmapped: Of these, those with memory unmapped by the host in between.
    """

    exits: NDArray[np.bool_]
    unloads: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    other: NDArray[np.bool_]
    mapped: NDArray[np.bool_]
    unmapped: NDArray[np.bool_]


class _Answer(NamedTuple):
    """What playing one VM gave; arrays of places in the VM."""

    writes: list[tuple[tuple[int, int, bool], NDArray[np.intp]]]
    faults: list[tuple[tuple[int, Cause, bool], NDArray[np.intp]]]
    dubious: int
    new_pages: int
    here: _Played
    there: _Played
    assumed: dict[int, int]
    plays: int


class _Vm:
    """One VM's deeds."""

    def __init__(
        self, deeds: Deeds, entries: NDArray[np.intp], kinds: dict[int, Kind], before: Policy, after: Policy
    ) -> None:
        self.entries = entries
        self.before, self.after = before, after
        self.index, self.cr, self.value = deeds.index[entries], deeds.cr[entries], deeds.value[entries]
        self.page, self.epoch = deeds.page[entries], deeds.unmapped[entries]
        judged = (self.cr == CR0) | (self.cr == CR4)
        self.works = judged & ~deeds.faulted[entries]
        self.told = judged & deeds.told[entries]
        self.silent = judged & ~deeds.told[entries]
        self.faults = np.flatnonzero(self.cr == -1)
        _, self.thread = np.unique(deeds.thread[entries], return_inverse=True)
        self.threads = int(self.thread.max()) + 1
        vcpus = deeds.vcpus[int(deeds.process[entries[0]]), int(deeds.life[entries[0]])]
        self.idle = max(0, vcpus - self.threads)  # vCPUs that neither write nor fault hold tables, too
        if deeds.nested[entries].any():
            raise NotReplayed("it runs a guest of its own, whose page tables its hypervisor decides on too")
        if (self.index < 0).any():
            raise NotReplayed("it has exits of more kinds than are kept apart")
        self._order_threads()
        self._tell_silent()
        self._find_old(deeds, kinds)
        self.page_seen = self._earlier(self.page[self.faults])

    def _order_threads(self) -> None:
        n = len(self.entries)
        self.order = np.arange(n) if self.threads == 1 else np.argsort(self.thread, kind="stable")
        self.back = np.empty(n, np.intp)
        self.back[self.order] = np.arange(n)
        starts = np.searchsorted(self.thread[self.order], np.arange(self.threads))
        self.start = starts[self.thread[self.order]]

    def _tell_silent(self) -> None:
        for register in (CR0, CR4):
            mine = self.cr == register
            if not (self.silent & mine).any():
                continue
            name = register_name(register)
            if self.before.vendor is Vendor.INTEL:
                raise NotReplayed(f"the values of its {name} writes are not in the trace")
            if (self.told & mine).any():
                raise NotReplayed(f"the values of some of its {name} writes are not in the trace")

    def _last(self, where: NDArray[np.bool_], inclusive: bool) -> NDArray[np.intp]:
        """For each entry the last one *where*, of the same thread; itself too if *inclusive*; -1 if none."""
        n = len(where)
        alone = self.threads == 1
        last = np.maximum.accumulate(np.where(where if alone else where[self.order], np.arange(n), -1))
        if not inclusive:
            last = np.concatenate([[-1], last[:-1]])
        if alone:
            return last
        last = np.where(last >= self.start, last, -1)
        return np.where(last >= 0, self.order[last], -1)[self.back]

    def _find_old(self, deeds: Deeds, kinds: dict[int, Kind]) -> None:
        """The old value of each write whose value is told, as far as the trace tells it."""
        n = len(self.entries)
        self.old = np.zeros(n, np.uint64)
        self.sure = self.told.copy()
        self.inferred = np.zeros(n, np.bool_)
        for register in (CR0, CR4):
            mine = self.told & (self.cr == register)
            if not mine.any():
                continue
            last = self._last(mine & self.works, inclusive=False)
            known = mine & (last >= 0)
            self.old[known] = self.value[last[known]]
            for place in np.flatnonzero(mine & (last < 0)).tolist():
                self._first_write(
                    place, kinds.get(int(self.entries[place])), known & (self.thread == self.thread[place])
                )

    def _first_write(self, place: int, kind: Kind | None, later: NDArray[np.bool_]) -> None:
        """What a vCPU's first write changed: as was inferred, or as all its later ones."""
        mask = None if kind is None else kind.changed
        if mask is None and self.works[place]:
            changed = np.unique((self.old ^ self.value)[later & self.works])
            mask = int(changed[0]) if len(changed) == 1 else None
        self.inferred[place] = True
        self.sure[place] = mask is not None
        self.old[place] = self.value[place] ^ np.uint64(mask or 0)

    def _earlier(self, key: NDArray[np.int64], *more: NDArray[np.int64]) -> NDArray[np.intp]:
        """For each fault the one before it with the same key, -1 if there is none."""
        order = np.lexsort((key, *more))
        same = np.ones(max(0, len(key) - 1), np.bool_)
        for column in (key, *more):
            same &= column[order][1:] == column[order][:-1]
        before = np.full(len(key), -1, np.intp)
        before[order[1:][same]] = order[:-1][same]
        return before

    # The answer

    def answer(self, plays: int) -> _Answer:
        """Play it under both hosts.

        Raises:
            NotReplayed: It does not give the trace's own exits, or in ways that differ in what they say.
        """
        found: dict[bytes, tuple[_Steps, _Played, _Played]] = {}
        masks: dict[int, int] = {}
        why = ""
        count = 0
        for steps in self._hypotheses():
            count += 2
            if count > plays:
                raise NotReplayed("the trace has more VMs than are replayed")
            ids, table = self._transitions(steps)
            here = self._play(self.before, steps, ids, table)
            wrong = self._contradiction(here)
            if wrong:
                why = why or wrong
                continue
            there = self._play(self.after, steps, ids, table)
            for register, mask in steps.assumed.items():
                masks[register] = masks.get(register, 0) | mask
            found.setdefault(there.mapped.tobytes(), (steps, here, there))
        if not found:
            raise NotReplayed(why)
        if len(found) > 1:
            raise NotReplayed("what its writes changed is not in the trace, and what fits gives more than one answer")
        steps, here, there = next(iter(found.values()))
        return self._judged(steps, here, there, masks, count)

    def _hypotheses(self) -> Iterator[_Steps]:
        """What the writes may have been."""
        again = bool((self.page_seen >= 0).any())
        unsure = self.told & ~self.sure & (self.cr == CR0)
        firsts = (0, _WP) if again and unsure.any() else (0,)
        silent = [register for register in (CR0, CR4) if (self.silent & (self.cr == register)).any()]
        choices = [self._classes(register)[: None if again else 1] for register in silent]
        for first, masks in itertools.product(firsts, itertools.product(*choices)):
            for risen in itertools.product((False, True), repeat=len(silent) if again else 0):
                old, new = self.old.copy(), self.value.copy()
                old[unsure] ^= np.uint64(first)
                for register, mask, up in zip(silent, masks, risen or (False,) * len(silent), strict=True):
                    self._toggle(register, mask, up, old, new)
                assumed = dict(zip(silent, masks, strict=True)) if again else {}
                yield _Steps(old, new, assumed)

    def _classes(self, register: int) -> list[int]:
        """Changes of a single bit, one of each lot that does the same on both hosts."""
        base = _RUNNING[register]
        lots: dict[object, int] = {}
        for mask in POSSIBLE[register]:
            key = tuple(
                _effect(write(policy, register, old, old ^ mask))
                for policy in (self.before, self.after)
                for old in (base & ~mask, base | mask)
            )
            lots.setdefault(key, mask)
        return list(lots.values())

    def _toggle(self, register: int, mask: int, up: bool, old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
        """Take each silent write of *register* for a change of *mask*; the first of a vCPU sets it if *up*."""
        mine = self.silent & (self.cr == register)
        counted = np.cumsum((mine & self.works)[self.order])
        base = np.where(self.start > 0, counted[self.start - 1], 0)
        odd = ((counted - base)[self.back] - (mine & self.works)) % 2 == 1
        clear, raised = np.uint64(_RUNNING[register] & ~mask), np.uint64(_RUNNING[register] | mask)
        is_set = odd if up else ~odd
        old[mine] = np.where(is_set, raised, clear)[mine]
        new[mine] = np.where(is_set, clear, raised)[mine]

    def _transitions(self, steps: _Steps) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Each write's number among the different ones, -1 for what is none; and these: register, old, new."""
        tally = Tally(limit=MOST_TRANSITIONS)
        where = self.told | self.silent
        ids = np.full(len(where), -1, np.int64)
        ids[where] = tally.add(self.cr[where].astype(np.uint64), steps.old[where], steps.new[where])
        if tally.dropped:
            raise NotReplayed("its writes are too many different ones")
        return ids, tally.keys

    def _play(self, policy: Policy, steps: _Steps, ids: NDArray[np.int64], table: NDArray[np.uint64]) -> _Played:
        alone = [write(policy, *row) for row in table.tolist()]
        exits = _taken([outcome.exits for outcome in alone], ids)
        unloads = _taken([_unloads(outcome) for outcome in alone], ids) & self.works
        other = _taken([outcome.other_tables for outcome in alone], ids) & self.works
        frees = _taken([outcome.roots is Roots.REBUILT for outcome in alone], ids) & self.works
        role, after = self._roles(steps, other)
        lost = frees & self._sole(role, after) if frees.any() else frees
        number = np.zeros(len(role), np.int64)
        if lost.any():
            for which in np.unique(role).tolist():
                here = role == which
                number[here] = np.cumsum(lost & here)[here]
        faults = self.faults
        earlier = self._earlier(self.page[faults], role[faults], number[faults])
        mapped = earlier >= 0
        unmapped = mapped & (self.epoch[faults] != self.epoch[faults[earlier]]) if len(faults) else mapped
        return _Played(exits, unloads, lost, other, mapped, unmapped)

    def _roles(self, steps: _Steps, other: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which set of tables each entry's vCPU is on, before and after the entry."""
        n = len(other)
        if not other.any():
            return np.zeros(n, np.int64), np.zeros(n, np.int64)
        both = []
        for inclusive in (False, True):
            role = np.zeros(n, np.int64)
            for register, identity in _IDENTITY.items():
                mine = self.cr == register
                last = self._last(other & mine, inclusive)
                start = self._initial(steps, register, mine) & identity
                bits = np.where(last >= 0, steps.new[last].astype(np.int64) & identity, start)
                role += bits << _SHIFT[register]
            both.append(role)
        return both[0], both[1]

    def _initial(self, steps: _Steps, register: int, mine: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The register's value before the first write of each entry's thread."""
        initial = np.full(self.threads, _RUNNING[register], np.int64)
        writes = np.flatnonzero(mine)[::-1]
        initial[self.thread[writes]] = steps.old[writes].astype(np.int64)  # the first one is put last
        return initial[self.thread]

    def _sole(self, role: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each entry's vCPU is the only one on its tables, before the entry."""
        if self.threads + self.idle == 1:
            return np.ones(len(role), np.bool_)
        sole = np.zeros(len(role), np.bool_)
        running = _role(_RUNNING) if role.any() or after.any() else 0
        first = np.array([np.flatnonzero(self.thread == t)[0] for t in range(self.threads)])
        for which in np.unique(role).tolist():
            change = (after == which).astype(np.int64) - (role == which)
            users = np.count_nonzero(role[first] == which) + np.cumsum(change) - change
            users += self.idle if which == running else 0
            here = role == which
            sole[here] = users[here] == 1
        return sole

    def _contradiction(self, here: _Played) -> str:
        """What of the trace the rules of its host do not give; empty if they give all."""
        host = str(self.before.kernel)
        changes = self.sure & (self.old != self.value)
        if count := int(np.count_nonzero(changes & ~here.exits)):
            return f"{count:,} of its writes exit, and by the rules of {host} they do not"
        if count := int(np.count_nonzero(here.mapped & ~here.unmapped)):
            return f"{count:,} of its page faults are at pages that by the rules of {host} are mapped"
        # Whoever runs on empty tables faults at the next instruction.
        if self.threads + self.idle == 1 and here.lost.any():
            lost = np.flatnonzero(here.lost)[1:]
            follows = lost[lost + 1 < len(self.cr)] + 1
            if count := int(np.count_nonzero(self.cr[follows] != -1)):
                return f"no page fault follows {count:,} of its writes that by the rules of {host} free the page tables"
        return ""

    def _judged(self, steps: _Steps, here: _Played, there: _Played, masks: dict[int, int], plays: int) -> _Answer:
        tally = Tally(limit=MOST_TRANSITIONS)
        told = np.flatnonzero(self.sure)
        changed = (self.old ^ self.value)[told]
        group = tally.add(self.index[told], changed, self.inferred[told].astype(np.uint64))
        writes = []
        for number, (index, mask, inferred) in enumerate(tally.keys.tolist()):
            writes.append(((int(index), int(mask), bool(inferred)), told[group == number]))
        causes = self._last(here.lost | here.other, inclusive=False)[self.faults]
        listed = (self.page_seen >= 0) & (causes >= 0) & ~here.mapped
        dubious = listed & there.unmapped
        listed &= ~dubious
        faults: dict[tuple[int, Cause, bool], list[int]] = {}
        columns = (self.faults[listed], causes[listed], there.mapped[listed])
        for place, cause, gone in zip(*(column.tolist() for column in columns), strict=True):
            why = Cause(int(self.cr[cause]), int(steps.old[cause]), int(steps.new[cause]), bool(self.told[cause]))
            faults.setdefault((int(self.index[place]), why, gone), []).append(place)
        return _Answer(
            writes,
            [(key, np.array(places, np.intp)) for key, places in faults.items()],
            int(np.count_nonzero(dubious)) + int(np.count_nonzero(here.unmapped)),
            int(np.count_nonzero((self.page_seen < 0) & (causes >= 0))),
            here,
            there,
            masks,
            plays,
        )


def _role(registers: dict[int, int]) -> int:
    """Number of the tables of a vCPU with these values in its registers."""
    return sum((value & _IDENTITY[register]) << _SHIFT[register] for register, value in registers.items())


def _unloads(outcome: Outcome) -> bool:
    return outcome.mmu in (MmuWork.UNLOAD, MmuWork.FULL_RESET)


def _effect(outcome: Outcome) -> tuple[object, ...]:
    """What of an outcome a replay looks at."""
    return outcome.exits, _unloads(outcome), outcome.roots, outcome.other_tables


def _taken(values: list[bool], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The value of each entry's number; False for entries without one."""
    return np.append(np.array(values, np.bool_), False)[ids]
