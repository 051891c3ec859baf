"""What KVM has counted of every VM of this host, sampled: debugfs, statistics a VMM holds open, exits by reason."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from worldswitch.live import vms
from worldswitch.live.folders import Folders, Lack, Reading, process_of
from worldswitch.live.held import Held, HeldStatistics
from worldswitch.live.histogram import ExitHistogram, Key
from worldswitch.live.permissions import ROOT

_LOOK_AGAIN_NS = 10 * 10**9
"""How often processes are looked through for files that were opened later."""

SHOWN = frozenset((
    "exits", "pf_taken", "io_exits", "mmio_exits", "halt_exits", "irq_exits", "irq_injections", "irq_window_exits",
    "nmi_window_exits", "hypercalls", "insn_emulation", "insn_emulation_fail", "tlb_flush", "remote_tlb_flush",
    "halt_attempted_poll", "halt_successful_poll", "halt_poll_success_ns", "halt_poll_fail_ns", "pages_4k", "pages_2m",
    "pages_1g", "nx_lpage_splits",
))  # fmt: skip
"""The statistics that are read of every VM; all others only of those looked at closely."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All VMs at one moment.

    Attributes:
        at_ns: CLOCK_MONOTONIC.
        vms: In the order of their names.
        lacks: What is missing, why, and the remedy.
        traced: Exits by reason are of trace events.
    """

    at_ns: int
    vms: tuple[Reading, ...] = ()
    lacks: tuple[Lack, ...] = field(default=())
    traced: bool = False

    def only(self, names: Collection[str]) -> Sample:
        """The sample with the VMs of these names, process ids or process names; all where none is given."""
        if not names:
            return self
        wanted = set(names)
        return replace(self, vms=tuple(one for one in self.vms if {one.name, str(one.pid), one.process} & wanted))


class Source(Protocol):
    """Where samples come from."""

    def sample(self, whole: Collection[str] = ()) -> Sample:
        """All VMs now; every statistic of those named in *whole*, else those of :data:`SHOWN`."""

    def trace(self, on: bool) -> None:
        """Begin or end to count exits by reason, which costs every exit a little.

        Raises:
            MissingError: They cannot be counted here; the message says why.
        """

    def close(self) -> None:
        """Let go of everything."""


class Host:
    """This host, or one whose tree of files was copied to *root*."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._folders = Folders(root)
        self._held = HeldStatistics(root)
        self._histogram: ExitHistogram | None = None
        self._looked: dict[int, int] = {}
        self._by_proc: list[vms.Vm] = []
        self._by_proc_at = -_LOOK_AGAIN_NS

    def sample(self, whole: Collection[str] = ()) -> Sample:
        """See :class:`Source`."""
        at_ns = time.monotonic_ns()
        self._held.sweep()
        found = self._folders.read(SHOWN, whole)
        lacks = list(self._folders.lacks)
        if not found and lacks:
            found = self._processes(at_ns)
        watched = {reading.pid for reading in found if reading.name in whole}
        held = self._read_held({reading.pid for reading in found}, watched, at_ns)
        readings = [_joined(reading, held.get(reading.pid)) for reading in found]
        if readings and all("exits" in reading.counters for reading in readings):
            lacks = []
        if self._held.refused:
            lacks.append(_refused(self._held.refused))
        if self._held.several:
            lacks.append(_several(self._held.several))
        if self._histogram is not None:
            readings, more = _with_reasons(readings, self._histogram, self._root)
            lacks += more
        return Sample(at_ns, tuple(readings), tuple(lacks), self._histogram is not None)

    def trace(self, on: bool) -> None:
        """See :class:`Source`."""
        if on and self._histogram is None:
            self._histogram = ExitHistogram(self._root)
        elif not on and self._histogram is not None:
            self._histogram.close()
            self._histogram = None

    def close(self) -> None:
        """See :class:`Source`."""
        self.trace(False)
        self._held.close()
        self._folders.close()

    def _processes(self, now: int) -> list[Reading]:
        """The processes with a VM, where debugfs does not tell the VMs."""
        if now - self._by_proc_at >= _LOOK_AGAIN_NS:
            self._by_proc_at = now
            self._by_proc = vms.running(self._root) if self._root == ROOT else []
        return [Reading(str(vm.pid), 0, vm.pid, vm.name, now, {}, {}, vm.vcpus) for vm in self._by_proc]

    def _read_held(self, pids: set[int], whole: set[int], now: int) -> dict[int, Held]:
        self._held.keep_only(pids)
        self._looked = {pid: at for pid, at in self._looked.items() if pid in pids}
        found = {}
        for pid in pids:
            held = self._held.read(pid, None if pid in whole else SHOWN)
            if held is None and now - self._looked.get(pid, -_LOOK_AGAIN_NS) >= _LOOK_AGAIN_NS:
                self._looked[pid] = now
                self._held.look(pid)
                held = self._held.read(pid, None if pid in whole else SHOWN)
            if held is not None:
                found[pid] = held
        return found


def _joined(reading: Reading, held: Held | None) -> Reading:
    """A VM's reading with what its vCPUs' own files say; where both say something, debugfs is of all vCPUs."""
    if held is None:
        return reading
    sums: dict[str, int] = dict(held.vm)
    # Some of the vCPUs are no sum of all.
    if reading.vcpu_count is None or len(held.vcpus) >= reading.vcpu_count:
        for values in held.vcpus.values():
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value
    return reading._replace(counters={**sums, **reading.counters}, vcpus=held.vcpus)


def _with_reasons(readings: list[Reading], histogram: ExitHistogram, root: Path) -> tuple[list[Reading], list[Lack]]:
    """The readings with their exits by reason."""
    try:
        counts = histogram.read()
    except OSError as error:
        return readings, [Lack("exits by reason", f"the histogram cannot be read ({error.strerror})", "press t twice")]
    single, several = _owners(readings)
    by_vm: dict[int, dict[tuple[int | None, str], int]] = {}
    process: dict[int, int] = {}
    for key, count in counts.items():
        pid = process.get(key.thread)
        if pid is None:
            pid = process[key.thread] = _pid(key, single, root)
        reasons = by_vm.setdefault(pid, {})
        place = (key.vcpu, key.reason)
        reasons[place] = reasons.get(place, 0) + count
    lacks = []
    if several:
        lacks.append(
            Lack(
                f"exits by reason of process {_listed(several)}",
                "it has several VMs, and a thread does not say whose it is",
                "wsw record and wsw analyze tell them by the order of events",
            )
        )
    if histogram.dropped:
        lacks.append(Lack(f"{histogram.dropped:,} exits by reason", "the kernel's histogram is full", "press t twice"))
    exits = sum(reading.counters.get("exits", 0) for reading in readings)
    if histogram.began is None:
        histogram.began = exits
    if not counts and exits > histogram.began:
        lacks.append(Lack("exits by reason", "no kvm_exit event has come", "a software KVM emits none"))
    return [
        reading if reading.pid in several else reading._replace(reasons=by_vm.get(reading.pid, {}))
        for reading in readings
    ], lacks


def _owners(readings: list[Reading]) -> tuple[set[int], set[int]]:
    """Processes with one VM, and those with several."""
    seen: dict[int, int] = {}
    for reading in readings:
        seen[reading.pid] = seen.get(reading.pid, 0) + 1
    return {pid for pid, times in seen.items() if times == 1}, {pid for pid, times in seen.items() if times > 1}


def _pid(key: Key, known: set[int], root: Path) -> int:
    return key.thread if key.thread in known else process_of(key.thread, root)


def _listed(pids: Collection[int]) -> str:
    return ", ".join(map(str, sorted(pids)[:4])) + (" ..." if len(pids) > 4 else "")


def _several(pids: Collection[int]) -> Lack:
    return Lack(
        f"vCPUs one by one of process {_listed(pids)}",
        "it has several VMs, and the statistics files it holds open do not say of which they are",
        "the sums of each VM are in debugfs (root)",
    )


def _refused(pids: Collection[int]) -> Lack:
    return Lack(
        f"vCPUs one by one of process {_listed(pids)}",
        "this user may not duplicate the statistics files it holds open",
        "run as root, or set kernel.yama.ptrace_scope to 0 for processes of one's own",
    )
