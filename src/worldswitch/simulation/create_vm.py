"""VMs created at the same time, by the rules of :mod:`worldswitch.kvm.vmcreate`: how long each KVM_CREATE_VM takes.

A discrete-event simulation: CPUs that take turns, kthreadd that makes one thread after the other, cgroup_mutex that
writers queue for, the two per-CPU locks with their shared grace periods. It is run three times, with all costs at their
low, mid and high limits, and is otherwise deterministic.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from worldswitch.errors import UsageError
from worldswitch.kvm import rcu_sync
from worldswitch.kvm.vmcreate import (
    ATTACH,
    CREATE,
    FORK,
    GRACE_PERIOD,
    KTHREAD,
    VHOST_TASK,
    Cgroup,
    Dynmods,
    Lock,
    attach_waits,
    create_vm,
    create_vm_steps,
    end_attaches,
    first_run_steps,
    first_vm_interrupts,
    forks_pay,
    remounted,
)
from worldswitch.record.result import Spread

if TYPE_CHECKING:
    import simpy

    from worldswitch.costs.create_vm import Cost
    from worldswitch.kvm.policy import Policy

Steps = Generator["simpy.Event", Any, None]
BURST, RATE, POISSON = "burst", "rate", "poisson"
ARRIVALS = (BURST, RATE, POISSON)
_MOST = 1_000_000
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who creates VMs, where and when.

    Attributes:
        vms: Idle VMs that are there already. No rule makes a new one depend on them; they count as having started.
        burst: VMs created at the same moment, *rounds* times with *pause_s* after the last one returned.
        arrival: ``burst``; or ``rate`` and ``poisson``, where burst × rounds VMs come *per_s* each second, evenly or
            at random (*seed*).
        cpus: CPUs; 0 is one for each VM of a burst.
        hz: CONFIG_HZ, the pace at which those who share a CPU take turns.
        cgroup: Where the creators are.
        late: favordynmods is turned on by a remount at the very moment of the first burst.
        first_run: Each VM is run, too, as soon as it is there.
        interrupted: How often a signal makes each KVM_CREATE_VM fail with EINTR, to be called again.
    """

    vms: int = 0
    burst: int = 1
    rounds: int = 1
    pause_s: float = 0.05
    arrival: str = BURST
    per_s: float = 0.0
    seed: int = 1
    cpus: int = 0
    hz: int = 250
    cgroup: Cgroup = Cgroup.ROOT
    late: bool = False
    first_run: bool = False
    interrupted: int = 0

    def __post_init__(self) -> None:
        limits = {
            "vms": (self.vms, 0, _MOST), "burst": (self.burst, 1, _MOST), "rounds": (self.rounds, 1, _MOST),
            "burst × rounds": (self.burst * self.rounds, 1, _MOST), "pause_s": (self.pause_s, 0, 3600),
            "cpus": (self.cpus, 0, 1 << 16), "hz": (self.hz, 24, 10_000), "interrupted": (self.interrupted, 0, 1000),
        }  # fmt: skip
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise UsageError(f"create-vm on the model: {name} is {value}; it must be from {low} to {high:,}")
        if self.arrival not in ARRIVALS:
            raise UsageError(f"create-vm on the model: arrival is {self.arrival!r}; it must be {', '.join(ARRIVALS)}")
        if (self.arrival != BURST) != (self.per_s > 0):
            raise UsageError("create-vm on the model: arrival rate and poisson need VMs per second; burst has none")


@dataclass(frozen=True, slots=True)
class Latencies:
    """What each VM's call took, in ns, in the order the VMs came: with all costs low, mid and high."""

    low: tuple[float, ...]
    mid: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, percent: int) -> Spread:
        """A percentile, by nearest rank."""
        from worldswitch.stats.percentile import nearest_rank

        place = nearest_rank(len(self.mid), percent)
        return Spread(*(sorted(values)[place] for values in (self.low, self.mid, self.high)))


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of a scenario.

    Attributes:
        create: KVM_CREATE_VM; None while a step of it has no cost.
        first_run: The first KVM_RUN; None where it was not asked for, or a step of it has no cost.
        used: The costs that went into it, by name.
        missing: Steps without a cost, by name.
        grace_periods: Grace periods that a creator waited for, with the mid costs.
        queue: Creators that waited for cgroup_mutex at once at most, with the mid costs.
    """

    create: Latencies | None
    first_run: Latencies | None
    used: Mapping[str, Cost]
    missing: tuple[str, ...]
    grace_periods: int
    queue: int


def simulate(policy: Policy, scenario: Scenario, costs: Mapping[str, Cost]) -> Simulated:
    """Run *scenario* on the host *policy* describes.

    Raises:
        UsageError: favordynmods is turned on late on a kernel that has no such option.
    """
    if scenario.late:
        if not policy.has("cgroup-favordynmods"):
            raise UsageError(f"favordynmods=late: {policy.kernel} has no such option, and needs none")
        policy = replace(policy, favordynmods=False)
    wanted = [step.cost for step in create_vm_steps(policy, scenario.cgroup)]
    running = [step.cost for step in first_run_steps(policy)] if scenario.first_run else []
    missing = tuple(dict.fromkeys(name for name in (*wanted, *running) if name not in costs))
    used = {name: costs[name] for name in dict.fromkeys((*wanted, *running)) if name in costs}
    if any(name in missing for name in wanted):
        return Simulated(None, None, used, missing, 0, 0)
    runs = scenario.first_run and not missing
    once = replace(scenario, first_run=runs)
    values = [{name: getattr(cost.time, end) for name, cost in used.items()} for end in Spread._fields]
    low, mid, high = (_Run(policy, once, ns) for ns in values)
    create = Latencies(*(tuple(one.create) for one in (low, mid, high)))
    first = Latencies(*(tuple(one.first) for one in (low, mid, high))) if runs else None
    return Simulated(create, first, used, missing, mid.grace_periods, mid.queue)


def caveats(policy: Policy, scenario: Scenario, costs: Mapping[str, Cost]) -> Iterator[str]:
    """What a reader of such latencies should know: what comes beside them, and what they leave out."""
    if scenario.vms:
        yield "no rule makes a new VM slower for the idle ones that are there; they only count as having started"
    waits = create_vm(policy, scenario.cgroup).locks
    if waits:
        names = " and ".join(lock.value for lock in waits)
        yield (
            f"{policy.kernel}: the first of a burst waits for a grace period of RCU to write-lock {names}, and the "
            "others queue behind it for cgroup_mutex"
        )
    if end_attaches(policy):
        yield f"{policy.kernel}: destroying a VM takes the same locks again, as its recovery kthread moves back"
    if policy.has("cgroup-favordynmods") and remounted(policy, Dynmods(), policy.favordynmods or scenario.late).favored:
        fork = costs.get(FORK)
        figure = "an amount that is not known" if fork is None else f"{_span(fork.time)} ({fork.origin})"
        yield f"with favordynmods each fork with its exit takes longer, by {figure}"
    elif forks_pay(policy):
        yield f"{policy.kernel}: forks and exits are on the slow path of that lock always, as with favordynmods"
    writes = first_vm_interrupts(policy, scenario.cpus or scenario.burst, x2apic=policy.vendor == "intel")
    if writes > 1 and not scenario.vms:
        yield f"{policy.kernel}: the first VM sends {writes} interrupts one by one, which no cost is known of"


def _span(time: Spread) -> str:
    return f"{time.low / 1e3:g} to {time.high / 1e3:g} µs"


class _Cpus:
    """CPUs that those who want to run take in turn, a tick each."""

    def __init__(self, env: simpy.Environment, count: int, tick: float) -> None:
        self._env, self._free, self._tick = env, count, tick
        self._waiting: deque[tuple[float, simpy.Event]] = deque()

    def run(self, ns: float) -> simpy.Event:
        """An event that comes when this much has been run."""
        if self._free and ns <= self._tick:
            self._free -= 1
            ran = self._env.timeout(ns, (0.0, None))
            _then(ran, self._ran)
            return ran
        done = self._env.event()
        self._waiting.append((ns, done))
        self._dispatch()
        return done

    def _dispatch(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            left, done = self._waiting.popleft()
            piece = min(left, self._tick)
            _then(self._env.timeout(piece, (left - piece, done)), self._ran)

    def _ran(self, event: simpy.Event) -> None:
        self._free += 1
        assert event.value is not None  # for the type checker; it is what dispatching gave
        left, done = event.value
        if left > 0:
            self._waiting.append((left, done))
        elif done is not None:
            done.succeed()
        self._dispatch()


class _Turns:
    """Something that one at a time has, in the order they came; less than a simpy.Resource, as there are many.

    Attributes:
        longest: How many waited for it at once at most.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._taken = env, False
        self._waiting: deque[simpy.Event] = deque()
        self.longest = 0

    def take(self) -> Steps:
        """Wait for one's turn."""
        if self._taken:
            turn = self._env.event()
            self._waiting.append(turn)
            self.longest = max(self.longest, len(self._waiting))
            yield turn
        self._taken = True

    def give(self) -> None:
        """Leave it to the next."""
        if self._waiting:
            self._waiting.popleft().succeed()
        else:
            self._taken = False


class _Lock:
    """A per-CPU lock as its writers see it; one of them is inside at a time (cgroup_mutex sees to that)."""

    def __init__(self, env: simpy.Environment, grace_period: float, favored: bool) -> None:
        self._env, self._grace_period = env, grace_period
        self._sync = rcu_sync.FAVORED if favored else rcu_sync.RcuSync()
        self._passed: simpy.Event | None = None
        self.waits = 0

    def enter(self) -> Steps:
        self._sync, wait = rcu_sync.entered(self._sync)
        if wait is rcu_sync.Wait.GRACE_PERIOD:
            self.waits += 1
            self._passed = self._env.event()
            yield self._env.timeout(self._grace_period)
            self._sync, _ = rcu_sync.elapsed(self._sync)
            self._passed.succeed()
        elif wait is rcu_sync.Wait.ANOTHER:
            assert self._passed is not None
            yield self._passed

    def leave(self) -> None:
        self._sync, callback = rcu_sync.left(self._sync)
        if callback:
            self._call_back()

    def _call_back(self) -> None:
        _then(self._env.timeout(self._grace_period), self._elapsed)

    def _elapsed(self, _: simpy.Event) -> None:
        self._sync, again = rcu_sync.elapsed(self._sync)
        if again:
            self._call_back()


class _Run:
    """The scenario once, with one value for each cost; all is done when it is made."""

    def __init__(self, policy: Policy, scenario: Scenario, ns: Mapping[str, float]) -> None:
        import simpy

        self._env = env = simpy.Environment()
        self._scenario, self._ns = scenario, ns
        self._does = create_vm(policy, scenario.cgroup)
        self._steps = [step.cost for step in create_vm_steps(policy, scenario.cgroup)]
        self._run_steps = [step.cost for step in first_run_steps(policy)]
        grace_period = ns.get(GRACE_PERIOD, 0.0)
        self._cpus = _Cpus(env, scenario.cpus or scenario.burst, _NS / scenario.hz)
        self._mutex, self._kthreadd = _Turns(env), _Turns(env)
        self._locks = {
            Lock.THREADGROUP: _Lock(env, grace_period, not attach_waits(policy)),
            Lock.CPUSET: _Lock(env, grace_period, False),
        }
        count = scenario.burst * scenario.rounds
        self.create = [0.0] * count
        self.first = [0.0] * count if scenario.first_run else []
        if scenario.late:
            env.process(self._locks[Lock.THREADGROUP].enter())
        env.process(self._arrivals())
        env.run()
        self.queue = self._mutex.longest
        self.grace_periods = sum(lock.waits for lock in self._locks.values())

    def _arrivals(self) -> Steps:
        scenario, env = self._scenario, self._env
        if scenario.arrival == BURST:
            for number in range(scenario.rounds):
                first = number * scenario.burst
                yield env.all_of([env.process(self._vm(place)) for place in range(first, first + scenario.burst)])
                yield env.timeout(scenario.pause_s * _NS)
            return
        for place, gap in enumerate(_gaps(scenario)):
            yield env.timeout(gap)
            env.process(self._vm(place))

    def _vm(self, place: int) -> Steps:
        ns, began = self._ns, self._env.now
        for _ in range(self._scenario.interrupted):
            yield self._cpus.run(ns[CREATE])  # at most: the signal is seen while all locks are taken
        yield self._cpus.run(ns[CREATE])
        if KTHREAD in self._steps:
            yield from self._kthreadd.take()
            yield self._cpus.run(ns[KTHREAD])
            self._kthreadd.give()
            yield from self._attach()
        elif VHOST_TASK in self._steps:
            yield self._cpus.run(ns[VHOST_TASK])
        self.create[place] = self._env.now - began
        if self.first:
            began = self._env.now
            yield self._cpus.run(sum(ns[name] for name in self._run_steps))
            self.first[place] = self._env.now - began

    def _attach(self) -> Steps:
        yield from self._mutex.take()
        locks = [self._locks[lock] for lock in self._does.locks]
        for lock in locks:
            yield from lock.enter()
        yield self._cpus.run(self._ns[ATTACH])
        for lock in reversed(locks):
            lock.leave()
        self._mutex.give()


def _then(event: simpy.Event, call: Callable[[simpy.Event], None]) -> None:
    """Have *call* called when *event* comes: less than a process that waits for it."""
    assert event.callbacks is not None
    event.callbacks.append(call)


def _gaps(scenario: Scenario) -> Iterator[float]:
    mean, dice = _NS / scenario.per_s, random.Random(scenario.seed)
    for _ in range(scenario.burst * scenario.rounds):
        yield mean if scenario.arrival == RATE else dice.expovariate(1 / mean)
