"""How long KVM_CREATE_VM takes: with idle VMs already there, one at a time or in bursts, in a control group or not.

Kernels that make the NX huge page recovery thread in KVM_CREATE_VM attach it to the creator's control groups, which may
wait for an RCU grace period (Linux 5.10 and 6.1: kvm_vm_create_worker_thread, virt/kvm/kvm_main.c). Since Linux commit
931656b9e2ff ("kvm: defer huge page recovery vhost task to later") (v6.14), the first KVM_RUN makes it. Before that,
KVM_CREATE_VM does. ``first_run`` measures that too.
"""

from __future__ import annotations

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
from worldswitch.live.timed_call import CLOSE, IOCTL, Call, Gate, Timed
from worldswitch.live.workers import Workers

THREADS, PROCESSES = "threads", "processes"
_CREATE, _RUN, _CLOSE = range(_KINDS := 3)
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
        machine_code: See :class:`worldswitch.live.timed_call.Gate`.

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
    machine_code: bool = True

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
        exact: The calls were made from machine code; else the interpreter's time is in the figures.
        stopped: Why there are fewer rounds than planned; None if there are not. ``"interrupted"`` is Ctrl-C.
        favordynmods: Whether the v2 hierarchy is mounted so; None if there is none.
    """

    plan: Plan
    creations: tuple[Creation, ...]
    warmups: tuple[Creation, ...]
    rounds: int
    exact: bool
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
        gate = Gate(plan.burst, _KINDS, plan.machine_code)
        rounds: list[list[Creation]] = []
        stopped = None
        try:
            with Workers() as workers:
                _start(plan, kvm, gate, group, workers)
                _idle(plan, kvm, group, workers, report)
                try:
                    for number in range(-plan.warmups, plan.rounds):
                        rounds.append(_round(plan, gate, workers, number))
                        report("rounds", len(rounds), plan.warmups + plan.rounds)
                except (KeyboardInterrupt, MissingError) as error:
                    if len(rounds) <= plan.warmups:
                        raise
                    stopped = INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error)
        finally:
            gate.close()
    kept = rounds[plan.warmups :]
    return Creations(
        plan,
        tuple(one for creations in kept for one in creations),
        tuple(one for creations in rounds[: plan.warmups] for one in creations),
        len(kept),
        gate.exact,
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


def _start(plan: Plan, kvm: Kvm, gate: Gate, group: Path | None, workers: Workers) -> None:
    """Fork those who will create VMs. They come first, so that none inherits an idle VM."""

    def alone(number: int) -> None:
        _prepare(plan, group)
        _create_and_close(plan, kvm, gate, number)

    def together() -> None:
        import threading

        _prepare(plan, group)
        failed: list[BaseException] = []

        def one(number: int) -> None:
            try:
                _create_and_close(plan, kvm, gate, number)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(plan.burst)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failed:
            time.sleep(0.002)
        if failed:
            raise failed[0]

    if plan.workers == THREADS:
        workers.start(together)
    else:
        for number in range(plan.burst):
            workers.start(lambda number=number: alone(number))  # type: ignore[misc]


def _prepare(plan: Plan, group: Path | None) -> None:
    _allow_files(plan)
    if group is not None:
        cgroups.join(group)


def _create_and_close(plan: Plan, kvm: Kvm, gate: Gate, number: int) -> None:
    """What one worker does, round after round."""
    if plan.cpus:
        os.sched_setaffinity(0, {plan.cpus[number % len(plan.cpus)]})
    passed = 0

    def fire(kind: int, call: Call) -> Timed:
        nonlocal passed
        made = gate.fire(number, kind, passed, call)
        passed += 1
        if made.result < 0:
            raise cannot_create(-made.result, "a VM" if kind == _CREATE else "the first run of a VM")
        return made

    for _ in range(plan.warmups + plan.rounds):
        fd = fire(_CREATE, Call(IOCTL, kvm.fd, ioctl.CREATE_VM)).result
        if plan.first_run:
            guest = _Halting(Vm(kvm, fd))
            fire(_RUN, Call(IOCTL, guest.vcpu.fd, ioctl.RUN))
            guest.check()
            guest.close()
        fire(_CLOSE, Call(CLOSE, fd))
    signal.pause()  # until it is ended, with the others


class _Halting:
    """A vCPU with one page of memory, about to execute HLT in real mode."""

    def __init__(self, vm: Vm) -> None:
        import ctypes

        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._page[0:1] = b"\xf4"
        vm.reserve_for_real_mode()
        vm.set_memory(0, 0, mmap.PAGESIZE, ctypes.addressof(ctypes.c_char.from_buffer(self._page)))
        self.vcpu: Vcpu = vm.create_vcpu()
        special = self.vcpu.special_registers()
        ioctl.SEGMENT.pack_into(special, ioctl.SEGMENTS["cs"], 0, 0xFFFF, 0, 0xB, 1, 0, 0, 1, 0, 0, 0, 0, 0)
        self.vcpu.set_special_registers(special)
        self.vcpu.set_registers({"rip": 0})

    def check(self) -> None:
        """Raise MissingError unless it halted."""
        reason = int.from_bytes(self.vcpu.run[ioctl.EXIT_REASON : ioctl.EXIT_REASON + 4], "little")
        if reason != ioctl.EXIT_NUMBERS["HLT"]:
            name = ioctl.EXITS.get(reason, str(reason))
            raise MissingError(f"a guest of one HLT ended with KVM_EXIT_{name}; this KVM does not run real mode")

    def close(self) -> None:
        """Leave only the VM."""
        self.vcpu.close()
        self._page.close()


def _idle(plan: Plan, kvm: Kvm, group: Path | None, workers: Workers, report: Progress) -> None:
    """Have the idle VMs made, by a process of their own, which holds them until it is ended."""
    if not plan.vms:
        return
    made = mmap.mmap(-1, mmap.PAGESIZE)

    def hold() -> None:
        _prepare(plan, group)
        guests = []
        for count in range(1, plan.vms + 1):
            try:
                vm = kvm.create_vm()
            except MissingError as error:
                raise MissingError(f"after {count - 1} idle VMs: {error}") from None
            guests.append(vm)
            if plan.first_run:
                guest = _Halting(vm)
                guest.vcpu.enter()
                guest.check()
                guests.append(guest)  # type: ignore[arg-type]
            made[0:4] = count.to_bytes(4, "little")
        signal.pause()

    def count() -> int:
        return int.from_bytes(made[0:4], "little")

    workers.start(hold)
    try:
        while (before := count()) < plan.vms:
            report("idle VMs", before, plan.vms)
            # Patience is for each hundredth, not for all of them.
            goal = min(plan.vms, before + max(1, plan.vms // 100))
            workers.wait(lambda goal=goal: count() >= goal, "KVM_CREATE_VM", _PATIENCE)  # type: ignore[misc]
    finally:
        made.close()
    report("idle VMs", plan.vms, plan.vms)


def _round(plan: Plan, gate: Gate, workers: Workers, number: int) -> list[Creation]:
    """One burst, from coming to closing."""
    if plan.pause_s:
        time.sleep(plan.pause_s)
    created: list[Timed] = []
    ran: list[Timed] = []
    for kind in (_CREATE, *((_RUN,) if plan.first_run else ()), _CLOSE):
        workers.wait(lambda kind=kind: gate.ready(kind), "getting ready", _PATIENCE)  # type: ignore[misc]
        time.sleep(_SETTLE)
        gate.open()
        time.sleep(_REST)
        workers.wait(lambda kind=kind: gate.done(kind), "KVM_CREATE_VM", _PATIENCE)  # type: ignore[misc]
        timed = [gate.timed(worker, kind) for worker in range(plan.burst)]
        if kind == _CREATE:
            created = timed
        elif kind == _RUN:
            ran = timed
    return [
        Creation(number, worker, made.start_ns, made.ns, made.eintr, ran[worker].ns if ran else None, gone.ns)
        for worker, (made, gone) in enumerate(zip(created, timed))  # noqa: B905 (Python 3.9)
    ]
