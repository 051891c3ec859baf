"""Several vCPUs at once: one thread each, all stopped when one fails, at the deadline, and on Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from worldswitch.live import alarm, ioctl
from worldswitch.live.device import Vcpu
from worldswitch.live.errors import GuestError, GuestHungError
from worldswitch.live.pinning import pinned
from worldswitch.live.runloop import Ran, Running, run_vcpu

_POLL = 0.02
_PATIENCE = 10.0


class _Worker(threading.Thread):
    """The thread of one vCPU.

    It says itself when it is done: until Python 3.12, a join() that Ctrl-C interrupts takes a running thread for
    stopped (bpo-45274).
    """

    def __init__(self, vcpu: Vcpu, running: Running, cpus: Sequence[int], together: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.vcpu, self.running, self.together = vcpu, running, together
        self.cpus = [cpus[vcpu.number % len(cpus)]] if cpus else []
        self.ran = Ran()
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.start_ns = self.end_ns = 0

    def run(self) -> None:
        try:
            with alarm.kicks(), pinned(self.cpus):
                self.together.wait()
                self.start_ns = time.perf_counter_ns()
                run_vcpu(self.vcpu, self.running.image.entries[self.vcpu.number], self.running, self.ran)
                self.end_ns = time.perf_counter_ns()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self.error = error
            self.running.stop.set()
            self.together.abort()
        finally:
            self.done.set()

    def kick(self, number: int) -> None:
        if not self.done.is_set() and self.native_id is not None:
            alarm.kick(number, self.native_id)


def run_threads(vcpus: Sequence[Vcpu], running: Running, cpus: Sequence[int], number: int) -> tuple[list[Ran], int]:
    """Run all *vcpus* to their ends; how each ran, and the nanoseconds from the first start to the last end.

    Args:
        cpus: Host CPUs to pin them to, in turn.
        number: The signal of :func:`worldswitch.live.alarm.kicks`, which must be entered.

    Raises:
        GuestError: The first error of a vCPU; all have left the guest.
    """
    together = threading.Barrier(len(vcpus) + 1)
    workers = [_Worker(vcpu, running, cpus, together) for vcpu in vcpus]
    started: list[_Worker] = []
    try:
        running.deadline = time.monotonic() + running.seconds
        for worker in workers:
            started.append(worker)
            worker.start()
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()
        while not running.stop.is_set() and (left := _left(started)):
            if time.monotonic() >= running.deadline:
                # Each finds out and says where it was.
                left[0].kick(number)
            left[0].done.wait(_POLL)
    finally:
        running.stop.set()
        together.abort()
        _stop(started, number)
    errors = [worker.error for worker in workers if worker.error is not None]
    if errors:
        raise _first(errors)
    return [worker.ran for worker in workers], max(w.end_ns for w in workers) - min(w.start_ns for w in workers)


def _left(workers: Sequence[_Worker]) -> list[_Worker]:
    return [worker for worker in workers if not worker.done.is_set() and worker.ident is not None]


def _stop(workers: Sequence[_Worker], number: int) -> None:
    """Make every thread leave its vCPU, and wait until it has."""
    end = time.monotonic() + _PATIENCE
    for worker in workers:
        worker.vcpu.run[ioctl.IMMEDIATE_EXIT] = 1
    while (left := _left(workers)) and time.monotonic() < end:
        for worker in left:
            worker.kick(number)
        left[0].done.wait(_POLL)


def _first(errors: Sequence[BaseException]) -> BaseException:
    """The error that tells most: a guest's own before another's deadline."""
    for error in errors:
        if isinstance(error, GuestError) and not isinstance(error, GuestHungError):
            return error
    return errors[0]
