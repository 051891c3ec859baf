"""How long KVM_CREATE_VM takes: with idle VMs already there, one at a time or in bursts, in a control group or not.

Kernels that make the NX huge page recovery thread in KVM_CREATE_VM attach it to the creator's control groups, which may
wait for an RCU grace period (Linux 5.10 and 6.1: kvm_vm_create_worker_thread, virt/kvm/kvm_main.c). Since Linux commit
931656b9e2ff ("kvm: defer huge page recovery vhost task to later") (v6.14), the first KVM_RUN makes it. Before that,
KVM_CREATE_VM does. ``first_run`` measures that too.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from worldswitch.errors import MissingError, UsageError
from worldswitch.live import cgroups, ioctl
from worldswitch.live.device import Kvm, Vcpu, Vm
from worldswitch.live.errors import cannot_create
from worldswitch.live.module import vendor_module
from worldswitch.live.timed_call import CLOSE, IOCTL, SCHED_SETAFFINITY, At, Call, Crew, Timed
from worldswitch.live.workers import Workers

THREADS, PROCESSES = "threads", "processes"
_SETTLE = 0.001
"""Seconds between the last worker's coming and the opening of the gate: then all of them sleep."""
_REST = 0.001
"""Seconds after the opening in which nobody looks: looking takes from the core that is measured on."""
_PATIENCE = 120.0
_SPARE_FILES = 32
_MOST_VMS, _MOST_BURST = 1_000_000, 10_000


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        vms: Idle VMs that are there all the time. Where *first_run* is set, each has a vCPU that ran once.
        burst: VMs created at the same moment.
        rounds: How often; *warmups* rounds before do not count.
        workers: Who creates them: ``"processes"``, one each as VMMs are, or ``"threads"`` of one process.
        pause_s: Between rounds. Shortly after a wait for a grace period the next one is cheap (kernel/rcu/sync.c), so
            VMs in quick succession hide what a single one waits for.
        first_run: Measure the first KVM_RUN of each VM too: one page, ``hlt``.
        cgroup: Control group all workers are moved to, by path or name; None leaves them in the caller's.
        make_cgroup: Make it if it does not exist, and remove it at the end.
        cpus: CPUs the workers are pinned to, used in turn; none leaves them where they are.

    Raises:
        UsageError: A number is out of its range, or a CPU is not ours to run on.
    """

    vms: int = 0
    burst: int = 1
    rounds: int = 30
    warmups: int = 3
    workers: str = PROCESSES
    pause_s: float = 0.05
    first_run: bool = False
    cgroup: str | None = None
    make_cgroup: bool = False
    cpus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        limits = {
            "vms": (self.vms, 0, _MOST_VMS),
            "burst": (self.burst, 1, _MOST_BURST),
            "rounds": (self.rounds, 1, _MOST_VMS),
            "warmups": (self.warmups, 0, _MOST_VMS),
            "pause_s": (self.pause_s, 0, 3600),
        }
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise UsageError(f"create-vm: {name} is {value}; it must be from {low} to {high:,}")
        if self.workers not in (THREADS, PROCESSES):
            raise UsageError(f"create-vm: workers is {self.workers!r}; it must be {PROCESSES} or {THREADS}")
        if self.make_cgroup and self.cgroup is None:
            raise UsageError("create-vm: make_cgroup needs the name of a control group in cgroup")
        allowed = os.sched_getaffinity(0)
        for cpu in self.cpus:
            if cpu not in allowed:
                listed = ", ".join(map(str, sorted(allowed)[:16]))
                raise UsageError(f"create-vm: CPU {cpu} is not among those this process may use ({listed})")


class Creation(NamedTuple):
    """One VM that was created and closed again.

    Attributes:
        round: From 0; warm-ups are not counted.
        start_ns: When the call began, CLOCK_MONOTONIC.
        create_ns: What KVM_CREATE_VM took; *eintr*: how often it was interrupted (EINTR) and made again.
        first_run_ns: What the first KVM_RUN took; None where it was not asked for.
        close_ns: What closing the last file descriptor took, which destroys the VM.
    """

    round: int
    worker: int
    start_ns: int
    create_ns: int
    eintr: int
    first_run_ns: int | None
    close_ns: int


@dataclass(frozen=True)
class Creations:
    """What was measured.

    Attributes:
        creations: Round by round, all workers of a round together.
        warmups: Those of the rounds that do not count.
        rounds: Finished rounds.
        stopped: Why there are fewer rounds than planned; None if there are not. ``"interrupted"`` is Ctrl-C.
        favordynmods: Whether the v2 hierarchy is mounted so; None if there is none.
    """

    plan: Plan
    creations: tuple[Creation, ...]
    warmups: tuple[Creation, ...]
    rounds: int
    stopped: str | None
    favordynmods: bool | None

    @property
    def create_ns(self) -> tuple[int, ...]:
        """All latencies of KVM_CREATE_VM, in the order of rounds."""
        return tuple(one.create_ns for one in self.creations)

    @property
    def eintr(self) -> int:
        """How often KVM_CREATE_VM was interrupted and made again."""
        return sum(one.eintr for one in self.creations)


INTERRUPTED = "interrupted"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is, and how much there is."""


def measure(plan: Plan, kvm: Kvm, progress: Progress | None = None) -> Creations:
    """Measure as *plan* says. Nothing is left behind, whatever happens: no VM, no process, no control group.

    Ctrl-C, or an error after the first measured round, ends it early; what is finished is returned and
    :attr:`Creations.stopped` says why.

    Raises:
        MissingError: Something needed is missing before the first round was finished.
        KeyboardInterrupt: Ctrl-C before that.
    """
    _demand_files(plan)
    report = progress or _silent
    with _control_group(plan) as group:
        course = _Course(plan, kvm)
        rounds: list[list[Creation]] = []
        stopped = None
        try:
            with Workers() as workers:
                _start(plan, course.crew, group, workers)
                _idle(plan, kvm, group, workers, report)
                try:
                    for number in range(-plan.warmups, plan.rounds):
                        rounds.append(_round(plan, course, workers, number))
                        report("rounds", len(rounds), plan.warmups + plan.rounds)
                except (KeyboardInterrupt, MissingError) as error:
                    if len(rounds) <= plan.warmups:
                        raise
                    stopped = INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error)
        finally:
            course.crew.close()
    kept = rounds[plan.warmups :]
    return Creations(
        plan,
        tuple(one for creations in kept for one in creations),
        tuple(one for creations in rounds[: plan.warmups] for one in creations),
        len(kept),
        stopped,
        cgroups.favordynmods(),
    )


def _silent(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def files_needed(plan: Plan) -> int:
    """How many files one process will hold open at most, those it inherits included."""
    each = 2 if plan.first_run else 1
    own = sum(1 for _ in Path("/proc/self/fd").iterdir()) + _SPARE_FILES
    return own + each * max(plan.vms, plan.burst if plan.workers == THREADS else 1)


def _demand_files(plan: Plan) -> None:
    needed = files_needed(plan)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise MissingError(
            f"create-vm needs {needed} open files in one process, and the limit here is {hard}; raise it: ulimit -n "
            f"{needed} as root, or LimitNOFILE={needed} of the service"
        )


def _allow_files(plan: Plan) -> None:
    """Raise the soft limit. Only in workers, so that it need not be put back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files_needed(plan):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_needed(plan), hard))


@contextmanager
def _control_group(plan: Plan) -> Iterator[Path | None]:
    if plan.cgroup is None:
        yield None
        return
    try:
        place, made = cgroups.find(plan.cgroup), False
    except MissingError:
        if not plan.make_cgroup:
            raise
        place, made = cgroups.find(plan.cgroup, make=True), True
    try:
        yield place
    finally:
        if made:
            cgroups.remove(place)


class _Course:
    """What each worker does round after round, as a list of calls; *create*, *run* and *close* are places in it.

    A guest is one page with HLT where a processor begins after reset: SDM volume 3, section 10.1.4, "First Instruction
    Executed", FFFFFFF0H. So its vCPU need not be set up, and its exit is known: :func:`_idle` has seen it halt.
    """

    def __init__(self, plan: Plan, kvm: Kvm) -> None:
        create = Call(IOCTL, (kvm.fd, ioctl.CREATE_VM), gated=True)
        calls = [create, Call(CLOSE, gated=True)]
        self.create, self.run = 0, None
        if plan.first_run:
            extra = (Call(IOCTL, (0, ioctl.SET_TSS_ADDR, _TSS)),) if vendor_module() == "kvm_intel" else ()
            calls[1:1] = [
                *extra,
                Call(IOCTL, (0, ioctl.SET_USER_MEMORY_REGION, At(_REGION_AT))),
                Call(IOCTL, (0, ioctl.CREATE_VCPU), gives=((len(extra) + 3, 0), (len(extra) + 4, 0))),
                Call(IOCTL, (0, ioctl.RUN), gated=True),
                Call(CLOSE),
            ]
            self.run = len(extra) + 3
        self.close = len(calls) - 1
        on_vm = [place for place in range(1, len(calls)) if place not in (self.run, self.close - 1) or not self.run]
        calls[0] = create._replace(gives=tuple((place, 0) for place in on_vm))
        once = (Call(SCHED_SETAFFINITY, (0, _MASK_SIZE, At(_MASK_AT))),) if plan.cpus else ()
        self.crew = Crew(plan.burst, calls, _DATA_SIZE, once)
        for worker in range(plan.burst):
            self._write_data(plan, worker)

    def _write_data(self, plan: Plan, worker: int) -> None:
        self.crew.write(worker, _RESET_AT, b"\xf4")
        page = self.crew.address(worker)
        region = ioctl.REGION.pack(0, 0, _RESET_PAGE, mmap.PAGESIZE, page)
        self.crew.write(worker, _REGION_AT, region)
        if plan.cpus:
            mask = 1 << plan.cpus[worker % len(plan.cpus)]
            self.crew.write(worker, _MASK_AT, mask.to_bytes(_MASK_SIZE, "little"))

    def check(self) -> None:
        """Raise MissingError if a worker has failed."""
        failed = self.crew.failed()
        if failed is None:
            return
        if failed.place is None:
            raise MissingError(f"no further thread can be made: {os.strerror(failed.number)}; raise ulimit -u")
        raise cannot_create(failed.number, "a VM" if failed.place == self.create else "a vCPU that runs")


_TSS = 0xFFFBD000
"""Three pages below the firmware's, as VMMs put it: api.rst, 4.20."""
_RESET_PAGE, _RESET_AT = 0xFFFFF000, 0xFF0
_MASK_SIZE = 1024
"""Bytes of a CPU mask: 8192 CPUs, as many as Linux can have."""
_REGION_AT = mmap.PAGESIZE
_MASK_AT = _REGION_AT + 64
_DATA_SIZE = _MASK_AT + _MASK_SIZE


def _start(plan: Plan, crew: Crew, group: Path | None, workers: Workers) -> None:
    """Fork those who will create VMs. They come first, so that none inherits an idle VM."""
    threads = plan.burst if plan.workers == THREADS else 1

    def work(number: int) -> None:
        _prepare(plan, group)
        crew.enter(number, threads)

    for number in range(0, plan.burst, threads):
        workers.start(lambda number=number: work(number))  # type: ignore[misc]


def _prepare(plan: Plan, group: Path | None) -> None:
    _allow_files(plan)
    if group is not None:
        cgroups.join(group)


class _Halting:
    """A vCPU of one page of memory, about to execute HLT."""

    def __init__(self, vm: Vm) -> None:
        import ctypes

        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._page[_RESET_AT : _RESET_AT + 1] = b"\xf4"
        if vendor_module() == "kvm_intel":
            vm.reserve_for_real_mode()
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        vm.set_memory(0, _RESET_PAGE, mmap.PAGESIZE, address)
        self.vcpu: Vcpu = vm.create_vcpu()

    def run(self) -> None:
        """Run it, and raise MissingError unless it halted."""
        error = self.vcpu.enter()
        if error == -errno.EINTR:
            return self.run()
        if error:
            raise cannot_create(-error, "a vCPU that runs")
        reason = int.from_bytes(self.vcpu.run[ioctl.EXIT_REASON : ioctl.EXIT_REASON + 4], "little")
        if reason != ioctl.EXIT_NUMBERS["HLT"]:
            name = ioctl.EXITS.get(reason, str(reason))
            raise MissingError(f"a guest of one HLT ended with KVM_EXIT_{name}; this KVM does not run real mode")
        return None


def _idle(plan: Plan, kvm: Kvm, group: Path | None, workers: Workers, report: Progress) -> None:
    """Have the idle VMs made, by a process of their own, which holds them until it is ended.

    Where first runs are measured it sees one guest halt even if there are to be no idle VMs.
    """
    total = max(plan.vms, 1 if plan.first_run else 0)
    if not total:
        return
    made = mmap.mmap(-1, mmap.PAGESIZE)

    def hold() -> None:
        _prepare(plan, group)
        guests: list[object] = []
        for count in range(1, total + 1):
            try:
                vm = kvm.create_vm()
            except MissingError as error:
                raise MissingError(f"after {count - 1} idle VMs: {error}") from None
            guests.append(vm)
            if plan.first_run:
                guest = _Halting(vm)
                guest.run()
                guests.append(guest)
            made[0:4] = count.to_bytes(4, "little")
        if plan.vms:
            signal.pause()

    def count() -> int:
        return int.from_bytes(made[0:4], "little")

    workers.start(hold)
    try:
        while (before := count()) < total:
            report("idle VMs", before, plan.vms)
            # Patience is for each hundredth, not for all of them.
            goal = min(total, before + max(1, plan.vms // 100))
            workers.wait(lambda goal=goal: count() >= goal, "KVM_CREATE_VM", _PATIENCE)  # type: ignore[misc]
    finally:
        made.close()
    report("idle VMs", plan.vms, plan.vms)


def _round(plan: Plan, course: _Course, workers: Workers, number: int) -> list[Creation]:
    """One burst, from coming to closing."""
    if plan.pause_s:
        time.sleep(plan.pause_s)
    crew = course.crew
    timed: dict[int, list[Timed]] = {}
    for place in (course.create, *((course.run,) if course.run else ()), course.close):

        def reached(all_have: Callable[[int], bool], place: int = place) -> bool:
            course.check()
            return all_have(place)

        workers.wait(lambda reached=reached: reached(crew.ready), "getting ready", _PATIENCE)  # type: ignore[misc]
        time.sleep(_SETTLE)
        crew.open()
        time.sleep(_REST)
        workers.wait(lambda reached=reached: reached(crew.done), "KVM_CREATE_VM", _PATIENCE)  # type: ignore[misc]
        timed[place] = [crew.timed(worker, place) for worker in range(plan.burst)]
    made, ran, gone = timed[course.create], timed.get(course.run or -1), timed[course.close]
    return [
        Creation(number, worker, one.start_ns, one.ns, one.eintr, ran[worker].ns if ran else None, gone[worker].ns)
        for worker, one in enumerate(made)
    ]
