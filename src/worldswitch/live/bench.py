"""Measure a guest program on this host: exact counts per pass, and times per pass with their spread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worldswitch.errors import MissingError, UsageError
from worldswitch.guest.image import Fault, Image
from worldswitch.live import reasons as by_reason
from worldswitch.live.counting import COUNT_INTERRUPTS, Counted, Counter, carried_on, per_pass
from worldswitch.live.device import Kvm
from worldswitch.live.machine import Outcome, run_image
from worldswitch.live.module import Environment, environment
from worldswitch.live.pinning import choose, pinned
from worldswitch.stats.median import Median, median

MOST_COUNTED, MOST_UNDISTURBED = 1000, 64
"""Passes of a run that is counted, at most; the second where KVM does not count interrupts, so that a run must not meet
any."""
_FEWER, _FEWEST = 4, 2
"""Where the host interrupts every run, so many times fewer passes are tried, but not fewer than the second."""
REPEAT = 6
"""Timed runs: the fewest whose smallest and largest hold the true median with 95 % (1 - 2 / 2^6)."""
_BASELINES = 3
_SILENT = "kvm_exit events do not come here, were lost, or did not agree"


@dataclass(frozen=True)
class Times:
    """Nanoseconds per pass.

    Attributes:
        tsc: By the guest's time stamps around the body; None for a bare program, or if the frequency is not known.
        wall: By this host's clock around the run.
        tsc_values, wall_values: One per run, in the order measured; *warmups* are wall times of the runs before.
        cycles: TSC cycles per pass, one per run; empty as *tsc* is None.
    """

    tsc: Median | None
    wall: Median
    tsc_values: tuple[float, ...]
    wall_values: tuple[float, ...]
    cycles: tuple[float, ...]
    warmups: tuple[float, ...]

    @property
    def best(self) -> Median:
        """The time stamps', where there are any."""
        return self.tsc or self.wall


@dataclass(frozen=True)
class Measurement:
    """What was measured of one program.

    Attributes:
        n: Passes of a timed run; *count_n* those of a counted one, *exits_n* those of the run exits were counted in.
            Those of more passes follow where every other counter shows that each pass did the same.
        counters: Statistics of a run of *count_n* passes, ``exits`` without those by interrupts; empty where the kernel
            has none (statistics_from is None).
        per_op: (counters of count_n passes - counters of none) / count_n.
        exits_by_reason, reasons_per_op: The exits among them by reason.
        reasons_from: :data:`~worldswitch.live.reasons.TRACED` or :data:`~worldswitch.live.reasons.COUNTED`.
        reasons_why: Why they are not traced, None if they are.
        unsteady: Counters no two runs agreed on.
        proven: The runs that agree met no interrupt at all; else KVM counted the interrupts, or two runs just agree.
        interrupts: Exits by interrupts and other doings of the host in all counting runs, which are left out.
        times: None where n is 0 or no run was to be timed.
        faults: Those logged in a counted run; *faults_total* says how many there were.
        values: Path of each operation that keeps a value -> the value.
        userspace_exits: KVM_EXIT name -> how often in a counted run.
        eintr: Calls that signals interrupted, all runs.
        cpus: Host CPUs used.
    """

    name: str
    unit: str
    n: int
    count_n: int
    exits_n: int
    counters: Mapping[str, int]
    per_op: Mapping[str, float]
    exits_by_reason: Mapping[str, int]
    reasons_per_op: Mapping[str, float]
    reasons_from: str
    reasons_why: str | None
    statistics_from: str | None
    unsteady: tuple[str, ...]
    proven: bool
    interrupts: int
    times: Times | None
    faults: tuple[Fault, ...]
    faults_total: int
    retries: int
    values: Mapping[str, int]
    userspace_exits: Mapping[str, int]
    eintr: int
    tsc_khz: int | None
    cpus: tuple[int, ...]
    environment: Environment

    @property
    def steady(self) -> bool:
        """Whether every count was the same at least twice."""
        return not self.unsteady


def measure(
    image: Image,
    *,
    n: int | None = None,
    repeat: int = REPEAT,
    warmup: int = 1,
    count_n: int | None = None,
    cpu: int | None = None,
    hide: Sequence[str] = (),
    show: Sequence[str] = (),
    deadline_s: float = 10.0,
    reasons: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
    kvm: Kvm | None = None,
) -> Measurement:
    """Measure *image*.

    Args:
        n: Passes of a timed run; the program's own default if not given.
        repeat: Timed runs; 0 only counts. *warmup* more are run before and not used.
        count_n: Passes of a counted run; else n, but at most :data:`MOST_COUNTED`, and fewer where the host interrupts
            every run (see :func:`worldswitch.live.counting.carried_on`).
        cpu: Host CPU of vCPU 0; else the one this thread is on. Further vCPUs go to those after it.
        hide, show: CPUID features taken from, and added to, what KVM offers.
        deadline_s: Seconds one run may take.
        reasons: Try to trace exits by reason.
        on_progress: Called with the runs done and those foreseen.
        kvm: The device, if it is open already.

    Raises:
        GuestError, NoFeatureError, NoKvmError, MissingError, UsageError: See
            :func:`worldswitch.live.machine.run_image`.
    """
    passes = image.default_n if n is None else n
    if repeat < 0 or warmup < 0:
        raise UsageError("repeat and warmup are numbers of runs, 0 or more")
    if count_n is not None and count_n < 1:
        raise UsageError("count_n is a number of passes, 1 or more")
    cpus = choose(cpu, len(image.entries))
    with contextlib.ExitStack() as stack:
        if len(image.entries) == 1:
            stack.enter_context(pinned(cpus))
        device = kvm or stack.enter_context(Kvm())
        host = environment()
        bench = _Bench(device, image, cpus, hide, show, deadline_s, host.module, on_progress)
        timed = warmup + repeat + _BASELINES if repeat and passes else 0
        bench.foreseen = 6 + timed
        tracing = _Tracing(bench.counter, stack) if reasons else None
        times = bench.time(passes, repeat, warmup) if timed else None
        whole, none = bench.count(passes, count_n)
        traced = tracing.exits(whole.n, whole.counters.get("exits", 0)) if tracing else None
        why = tracing.why if tracing else "it was not asked for"
        bench.finished()
        return _measurement(image, passes, whole, none, times, traced, why, bench, host)


def _measurement(
    image: Image,
    n: int,
    whole: Counted,
    none: Counted,
    times: Times | None,
    traced: tuple[dict[str, int], dict[str, int]] | None,
    why: str | None,
    bench: _Bench,
    host: Environment,
) -> Measurement:
    per_op = per_pass(whole.counters, none.counters, whole.n)
    reports = [report for report in whole.outcome.reports if report is not None]
    named, unnamed = traced or (_by_statistics(whole), _by_statistics(none))
    each = per_pass(named, unnamed, whole.n)
    return Measurement(
        name=image.name,
        unit=image.unit,
        n=n,
        count_n=whole.n,
        exits_n=whole.exits_n,
        counters=whole.counters,
        per_op=per_op,
        exits_by_reason=named,
        reasons_per_op={name: value for name, value in each.items() if value},
        reasons_from=by_reason.TRACED if traced else by_reason.COUNTED,
        reasons_why=why,
        statistics_from=whole.outcome.source,
        unsteady=tuple(dict.fromkeys((*whole.unsteady, *none.unsteady))),
        proven=whole.proven and none.proven,
        interrupts=bench.interrupts,
        times=times,
        faults=tuple(fault for report in reports for fault in report.log),
        faults_total=sum(report.faults for report in reports),
        retries=sum(report.retries for report in reports),
        values={path: value for report in reports for path, value in report.values.items()},
        userspace_exits=whole.outcome.userspace_exits,
        eintr=bench.eintr,
        tsc_khz=whole.outcome.tsc_khz,
        cpus=tuple(bench.cpus),
        environment=host,
    )


class _Bench:
    """The runs of one measurement."""

    def __init__(
        self,
        kvm: Kvm,
        image: Image,
        cpus: Sequence[int],
        hide: Sequence[str],
        show: Sequence[str],
        deadline_s: float,
        module: str | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        from worldswitch.live.cpuid import guest_cpuid

        self.kvm, self.image, self.cpus, self.deadline_s = kvm, image, cpus, deadline_s
        self.cpuid = guest_cpuid(kvm, image, hidden=hide, shown=show)
        self.on_progress = on_progress
        self.done = self.foreseen = self.eintr = self.interrupts = 0
        self.counter = Counter(self.run, cpus, module)
        self.timed: list[Outcome] = []

    def run(
        self, n: int, around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    ) -> Outcome:
        outcome = run_image(
            self.kvm,
            self.image,
            n,
            cpuid=self.cpuid,
            deadline_s=self.deadline_s,
            cpus=self.cpus if len(self.image.entries) > 1 else (),
            around=around,
        )
        self.eintr += outcome.eintr
        self.done += 1
        self.foreseen = max(self.foreseen, self.done)
        if self.on_progress:
            self.on_progress(self.done, self.foreseen)
        return outcome

    def finished(self) -> None:
        """Fewer runs may have done than were foreseen."""
        if self.on_progress and self.done < self.foreseen:
            self.on_progress(self.done, self.done)

    def count(self, n: int, count_n: int | None) -> tuple[Counted, Counted]:
        """The counts of some passes, and those of none."""
        none = self._note(self.counter.count(0))
        if count_n is not None:
            return self._note(self.counter.count(count_n)), none
        wanted = min(n, MOST_COUNTED)
        passes = wanted if self.counter.module in COUNT_INTERRUPTS else min(n, MOST_UNDISTURBED)
        whole = None
        while whole is None:
            # Several vCPUs' threads interrupt each other when they start, so there fewer passes are no quieter.
            fewer = max(_FEWEST, passes // _FEWER) if len(self.image.entries) == 1 else passes
            whole = self.counter.count(passes, give_up=fewer < passes)
            if whole is None:
                passes = fewer
        if 1 < passes < wanted and whole.proven:
            half = self.counter.count(passes // 2, give_up=True)
            far = self.counter.disturbed(wanted, self.timed if n == wanted else ())
            whole = (half and carried_on(half, whole, far)) or whole
        return self._note(whole), none

    def _note(self, counted: Counted | None) -> Counted:
        assert counted is not None
        self.interrupts += counted.interrupts
        return counted

    def time(self, n: int, repeat: int, warmup: int) -> Times:
        """Runs of *n* passes and of none, and what a pass takes."""
        none = [self.run(0) for _ in range(_BASELINES)]
        outcomes = self.timed = [self.run(n) for _ in range(warmup + repeat)]
        wall0 = median([outcome.wall_ns for outcome in none]).mid
        cycles0 = [taken for outcome in none if (taken := _cycles(outcome)) is not None]
        walls = [(outcome.wall_ns - wall0) / n for outcome in outcomes]
        khz = outcomes[0].tsc_khz
        cycles: list[float] = []
        if cycles0:
            first = median(cycles0).mid
            cycles = [((_cycles(outcome) or 0) - first) / n for outcome in outcomes[warmup:]]
        ns = [value * 1e6 / khz for value in cycles] if khz else []
        return Times(
            tsc=median(ns) if ns else None,
            wall=median(walls[warmup:]),
            tsc_values=tuple(ns),
            wall_values=tuple(walls[warmup:]),
            cycles=tuple(cycles),
            warmups=tuple(walls[:warmup]),
        )


class _Tracing:
    """Exits by reason from kvm_exit, where it tells them.

    The kernel takes some 40 ms of mere waiting to remove a tracing instance. That is done while other things are, and
    *stack* ends when it is gone.

    Attributes:
        why: Why there are none, if so.
    """

    def __init__(self, counter: Counter, stack: contextlib.ExitStack) -> None:
        self._counter, self._stack = counter, stack
        self._open = contextlib.ExitStack()
        self.why: str | None = None
        self._none: dict[str, int] | None = None
        try:
            self._tracer = self._open.enter_context(by_reason.tracer())
        except MissingError as missing:
            self.why = str(missing)
            return
        stack.callback(self._open.close)
        self._none = counter.by_reason(0, self._tracer)
        self._tracer.off()
        if self._none is None:
            self._end()

    def exits(self, n: int, expected: int) -> tuple[dict[str, int], dict[str, int]] | None:
        """Those of *n* passes, *expected* in all, and of none; None if :attr:`why` says why not."""
        if self._none is None:
            return None
        self._tracer.watch(expected)
        whole = self._counter.by_reason(n, self._tracer)
        self._tracer.off()
        self._end()
        if whole is None:
            return None
        self.why = None
        return whole, self._none

    def _end(self) -> None:
        self.why = _SILENT
        removal = threading.Thread(target=self._open.close)
        removal.start()
        self._stack.callback(removal.join)


def _by_statistics(counted: Counted) -> dict[str, int]:
    return by_reason.from_statistics(counted.counters, counted.outcome.userspace_exits)


def _cycles(outcome: Outcome) -> int | None:
    """TSC cycles of the slowest vCPU; None if none left a report."""
    return max((report.cycles for report in outcome.reports if report is not None), default=None)
