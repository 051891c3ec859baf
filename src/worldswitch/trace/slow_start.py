"""Why VMs start slowly: what the times of KVM_CREATE_VM in a trace say of the cause, and what would remove it.

The calls come from strace (``-T``, and ``-f`` for several threads), or from a trace that has the events
``sys_enter_ioctl`` and ``sys_exit_ioctl``. Causes are told by how long a call takes, and whom it waits with: a wait
for a grace period of RCU is far longer than all else (:mod:`worldswitch.kvm.vmcreate`), and who comes meanwhile ends
after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from worldswitch.units import format_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.kvm.facts import Kernel
    from worldswitch.record.trace import Batch, Columns, Meta

ENTER, EXIT = "sys_enter_ioctl", "sys_exit_ioctl"
_STRACE = "ioctl"
EVENTS = {ENTER: ("cmd",), EXIT: ("ret",)}
"""The events looked at besides the reader of strace's, and their fields."""

_CREATE, _RUN = "KVM_CREATE_VM", "KVM_RUN"
_CREATE_NUMBER = 0xAE01
"""_IO(0xAE, 0x01): include/uapi/linux/kvm.h."""
_EINTR = 4
WAIT_NS = 3_700_000
"""A call that takes this long waits: 0.52 ms is the longest published without (kvmtool, June 2023), 3.77 ms the
shortest wait recorded (tests/simulation/recorded/moves.json)."""
LONG_NS = 1_000_000
"""A call that takes this long and does not wait does something else than usual: twice that 0.52 ms."""
_TOGETHER_NS = 5_000_000
"""Calls that end so soon after the first of those waiting are let in by it, one after the other."""
SLOW_HOST_NS = 500_000
"""Where half of KVM's other ioctls take this long, all is slow, as in an emulator, and waits cannot be told."""
_MOST_CALLS = 1 << 20


class Call(NamedTuple):
    """One KVM_CREATE_VM: thread, begin, duration in ns (-1 if not known), and whether a signal interrupted it."""

    tid: int
    begin: int
    ns: int
    interrupted: bool

    @property
    def end(self) -> int:
        """When it returned."""
        return self.begin + max(self.ns, 0)


class Cause(NamedTuple):
    """A likely cause: a few words, how many calls show it, and the sentences."""

    name: str
    calls: int
    detail: str


class SlowStarts:
    """Collects the calls as batches come."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._begun: dict[int, int] = {}
        self._failed_runs: dict[str, int] = {}
        self._others: list[NDArray[np.int64]] = []

    def add(self, batch: Batch) -> None:
        """Keep what *batch* holds of them."""
        if len(self._calls) >= _MOST_CALLS:
            return
        if _STRACE in batch.events:
            self._strace(batch.table(_STRACE))
        if ENTER in batch.events or (EXIT in batch.events and self._begun):
            self._system_calls(batch)

    def causes(self, meta: Meta) -> list[Cause]:
        """The likely causes of slow calls, the gravest first; none where nothing is slow."""
        found = [*_interrupted(self._calls), *_failed(self._failed_runs)]
        if self._all_is_slow():
            return found
        timed = sorted((call for call in self._calls if call.ns >= 0 and not call.interrupted), key=lambda c: c.begin)
        waiting = [call for call in timed if call.ns >= WAIT_NS]
        first, queued = _told_apart(waiting)
        here = _kernel(meta)
        found += [*_waits(first, queued, timed, here), *_longer(timed)]
        return sorted(found, key=lambda cause: _GRAVEST.index(cause.name))

    def _all_is_slow(self) -> bool:
        durations = np.concatenate([np.empty(0, np.int64), *self._others])
        return len(durations) > 0 and float(np.median(durations)) >= SLOW_HOST_NS

    def _strace(self, table: Columns) -> None:
        if not {"request", "duration_ns", "errno"} <= table.keys():
            return
        other = (table["request"] != _CREATE) & (table["request"] != _RUN) & (table["duration_ns"] >= 0)
        self._others.append(table["duration_ns"][other])
        mine = np.flatnonzero((table["request"] == _CREATE) | ((table["request"] == _RUN) & (table["errno"] != "")))
        for place in mine.tolist():
            errno = str(table["errno"][place])
            if table["request"][place] == _RUN:
                if errno == "ENOMEM":
                    self._failed_runs[errno] = self._failed_runs.get(errno, 0) + 1
            elif errno in ("", "EINTR"):
                time, ns = int(table["time"][place]), int(table["duration_ns"][place])
                self._calls.append(Call(int(table["tid"][place]), time, ns, bool(errno)))

    def _system_calls(self, batch: Batch) -> None:
        """Pair each KVM_CREATE_VM with the next return of its thread."""
        enters, exits = batch.table(ENTER), batch.table(EXIT)
        marks: list[tuple[int, int, int]] = []
        if "cmd" in enters:
            mine = enters["cmd"].astype(np.int64) & 0xFFFFFFFF == _CREATE_NUMBER
            marks += [(time, tid, -1) for time, tid in zip(*_lists(enters, mine), strict=True)]
        threads = {tid for _, tid, _ in marks} | self._begun.keys()
        if "ret" in exits and threads:
            mine = np.isin(exits["tid"], np.array(sorted(threads)))
            returned = (exits["ret"][mine].astype(np.int64) == -_EINTR).tolist()
            marks += list(zip(*_lists(exits, mine), returned, strict=True))
        for time, tid, returned in sorted(marks):
            if returned == -1:
                self._begun[tid] = time
            elif tid in self._begun:
                begin = self._begun.pop(tid)
                self._calls.append(Call(tid, begin, time - begin, bool(returned)))


def _lists(table: Columns, mine: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
    """Times and threads of some rows."""
    return table["time"][mine].tolist(), table["tid"][mine].tolist()


GRACE_PERIOD, CONVOY, THREAD, INTERRUPTED, LATE_THREAD = (
    "grace period", "convoy", "thread creation", "EINTR retries", "first KVM_RUN",
)  # fmt: skip
_GRAVEST = (GRACE_PERIOD, CONVOY, INTERRUPTED, LATE_THREAD, THREAD)


def _told_apart(waiting: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Calls that waited for a grace period of their own, and those that queued behind one of them."""
    first: list[Call] = []
    queued: list[Call] = []
    for call in sorted(waiting, key=lambda one: (one.end, one.begin)):
        leader = first[-1] if first else None
        behind = leader is not None and call.begin < leader.end and leader.begin <= call.begin + _TOGETHER_NS
        (queued if behind else first).append(call)
    return first, queued


def _waits(first: list[Call], queued: list[Call], timed: list[Call], here: Kernel | None) -> Iterator[Cause]:
    if not first:
        return
    quick = [call.ns for call in timed if call.ns < WAIT_NS]
    times = _span([call.ns for call in first])
    one = "one KVM_CREATE_VM" if len(first) == 1 else f"{len(first)} KVM_CREATE_VM"
    beside = f", {len(quick)} others {_span(quick)}" if quick else ""
    after = _soon_after(first, timed)
    evidence = f"{one} took {times}{beside}" + (f"; {after}" if after else "")
    yield Cause(
        GRACE_PERIOD,
        len(first),
        f"{evidence}. Only a wait for a grace period of RCU takes that long: the recovery thread of the new VM "
        f"write-locks what guards control groups. {_where(here)}",
    )
    if queued:
        last = max(call.ns for call in queued)
        yield Cause(
            CONVOY,
            len(queued),
            f"{len(queued)} KVM_CREATE_VM began while another waited so, and ended after it, the longest after "
            f"{format_ns(last)}: they queue for cgroup_mutex, which the first holds meanwhile. What removes its wait "
            "removes theirs; one VM made just before the burst leaves the lock ready for the others.",
        )


def _soon_after(first: list[Call], timed: list[Call]) -> str:
    """That a call right after a slow one was quick, which only a shared grace period explains."""
    for call in first:
        for other in timed:
            gap = other.begin - call.end
            if 0 <= gap < call.ns / 4 and other.ns < LONG_NS:
                return f"the next one, {format_ns(gap)} after it, took only {format_ns(other.ns)}"
    return ""


def _longer(timed: list[Call]) -> Iterator[Cause]:
    long = [call for call in timed if LONG_NS <= call.ns < WAIT_NS]
    if not long:
        return
    together = sum(any(a is not b and a.begin < b.end and b.begin < a.end for b in timed) for a in long[:1000])
    shared = f"; {together} of them overlapped with others, so CPUs and kthreadd were shared" if together else ""
    yield Cause(
        THREAD,
        len(long),
        f"{len(long)} KVM_CREATE_VM took {_span([call.ns for call in long])}{shared}. That is too short for a grace "
        f"period, and longer than making the VM: until {_version('nx-recovery-lazy')} the call also makes the recovery "
        "thread, and before that was a vhost_task waits until it runs. Removed by kvm.nx_huge_pages=never where the "
        "kernel knows it, or a kernel that makes the thread in the first KVM_RUN.",
    )


def _interrupted(calls: list[Call]) -> Iterator[Cause]:
    again = [call for call in calls if call.interrupted]
    if not again:
        return
    lost = sum(max(call.ns, 0) for call in again)
    took = f", {format_ns(lost)} in all" if lost else ""
    yield Cause(
        INTERRUPTED,
        len(again),
        f"{len(again)} KVM_CREATE_VM returned EINTR{took}, and had to be made again: a signal was pending while KVM "
        "took all locks of the process's address space (mm_take_all_locks), on any kernel. Removed by blocking "
        "signals, such as those of timers and profilers, around the call; VMMs have to call again in any case.",
    )


def _failed(runs: dict[str, int]) -> Iterator[Cause]:
    for errno, count in runs.items():
        yield Cause(
            LATE_THREAD,
            count,
            f"{count} KVM_RUN failed with {errno}: a signal came while the first one made the recovery thread. Kernels "
            f"from {_version('nx-recovery-lazy')} on make it there, and until {_version('nx-recovery-retry')} did not "
            "try again (firecracker#5179). Removed by such a kernel, or kvm.nx_huge_pages=never.",
        )


def _where(here: Kernel | None) -> str:
    """The kernels that wait so, and what removes it."""
    from worldswitch.kvm.facts import facts

    shared, cpuset = facts()["cgroup-favordynmods"], facts()["cgroup-cpuset-rwsem"]
    in_all = (
        f"Kernels from {shared.since} on wait in every control group, until {_version('nx-recovery-vhost-task')}: "
        f"removed by kvm.nx_huge_pages=never ({_version('nx-never')}), by mounting cgroup2 with favordynmods, which "
        "makes forks dearer, or by a later kernel."
    )
    in_cpuset = (
        f"Kernels from {cpuset.since} on wait if the VMM is in a cpuset of its own, until {cpuset.until} "
        f"({', '.join(cpuset.removed.values())}): removed by a later kernel, or by leaving the cpuset to the root; "
        "favordynmods does not help."
    )
    if here is None:
        return f"{in_all} {in_cpuset}"
    kthread = not here.has("nx-recovery-vhost-task")
    parts = [in_all] if kthread and here.has(shared.id) else []
    parts += [in_cpuset] if kthread and here.has(cpuset.id) else []
    no_rule = f"The trace's kernel, {here}, has no such wait by the rules known here, so look elsewhere."
    return f"The trace's kernel is {here}. {' '.join(parts)}" if parts else no_rule


def _version(fact: str) -> str:
    """The releases a fact begins with: ``6.14 (6.12.14)``."""
    from worldswitch.kvm.facts import facts

    known = facts()[fact]
    stable = f" ({', '.join(known.backports.values())})" if known.backports else ""
    return f"{known.since}{stable}"


def _kernel(meta: Meta) -> Kernel | None:
    from worldswitch.errors import WorldswitchError
    from worldswitch.kvm.distributions import kernel_named

    if not meta.kernel:
        return None
    try:
        return kernel_named(meta.kernel)[0]
    except WorldswitchError:
        return None


def _span(values: Sequence[int]) -> str:
    low, high = format_ns(min(values)), format_ns(max(values))
    return low if low == high else f"{low} to {high}"
