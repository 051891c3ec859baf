"""What the steps of creating a VM take, by host: sets of costs, each with its origin, and the published latencies.

The names of costs are those of :mod:`worldswitch.kvm.vmcreate`; times are in ns. Standard library, Python 3.9, but for
reading ``create_vm.toml``: where there is no tomllib, the same document lies beside this module as ``create_vm.json``.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.kvm.vmcreate import (
    CREATE,
    FIRST_RUN,
    FORK,
    MOVE,
    Cgroup,
    create_vm_steps,
    first_run_steps,
    grace_period,
    move_steps,
)
from worldswitch.record.result import Spread
from worldswitch.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from worldswitch.kvm.vmcreate import Host, Step

DEFAULT = "published"
UNKNOWN = "has no cost"
_US = 1e3
_CALLS: Mapping[str, Callable[[Host, Cgroup], tuple[Step, ...]]] = {
    CREATE: create_vm_steps,
    FIRST_RUN: lambda host, _: first_run_steps(host),
    MOVE: lambda host, _: move_steps(host),
}


class Cost(NamedTuple):
    """What one step takes, in ns, and where that is from."""

    time: Spread
    origin: str


class CostSet(NamedTuple):
    """The costs of one host; *name* is what ``--costs`` takes, or a file's."""

    name: str
    title: str
    costs: Mapping[str, Cost]


class Row(NamedTuple):
    """One published latency, in ns.

    Attributes:
        set: The costs of its host.
        kernel, settings: As :meth:`worldswitch.kvm.policy.Policy.of` takes them.
        call: ``create-vm``, or ``move`` for a write to cgroup.procs.
        cgroup: ``root`` or ``own``.
        fit: Costs of the set were taken from it, so it proves nothing.
    """

    what: str
    set: str
    kernel: str
    ns: float
    source: str
    settings: tuple[str, ...] = ()
    call: str = "create-vm"
    cgroup: str = "root"
    fit: bool = False


class Unexplained(NamedTuple):
    """Something that neither a rule nor a cost tells, and why."""

    what: str
    why: str


class Published(NamedTuple):
    """All that ships."""

    sets: Mapping[str, CostSet]
    rows: tuple[Row, ...]
    unexplained: tuple[Unexplained, ...]


class Price(NamedTuple):
    """What steps take, in ns, if they meet nobody.

    Attributes:
        time: None while a step has no cost.
        used: Costs that went into it, by name.
        missing: Steps without one.
    """

    time: Spread | None
    used: Mapping[str, Cost]
    missing: tuple[str, ...]


@cache
def published() -> Published:
    """The sets, rows and gaps that ship."""
    return read(shipped(__package__, "create_vm"))


def read(document: Mapping[str, Any]) -> Published:
    """The same from a document of the form of ``create_vm.toml``."""
    sets = {name: _set(name, entry) for name, entry in document["sets"].items()}
    rows = tuple(_row(entry) for entry in document.get("rows", ()))
    return Published(sets, rows, tuple(Unexplained(**entry) for entry in document.get("unexplained", ())))


def cost_set(name: str) -> CostSet:
    """The set *name*, in which a cost that its host lacks is the default set's, which its origin says.

    Raises:
        UnknownNameError: There is none; names the nearest.
    """
    known = published().sets
    if name not in known:
        raise UnknownNameError("set of costs", name, known, f"There are {', '.join(known)}, and files")
    return with_defaults(known[name])


def with_defaults(own: CostSet) -> CostSet:
    """*own* with the default set's costs where it has none."""
    usual = published().sets[DEFAULT].costs
    lent = {
        name: Cost(cost.time, f"{cost.origin}; lent by the set {DEFAULT}, not of this host")
        for name, cost in usual.items()
        if name not in own.costs
    }
    return own if own.name == DEFAULT else CostSet(own.name, own.title, {**lent, **own.costs})


def price(steps: Iterable[Step], costs: Mapping[str, Cost]) -> Price:
    """What *steps* take one after the other: mid the sum of all mids, low and high those of all limits at once."""
    names = [step.cost for step in steps]
    missing = tuple(dict.fromkeys(name for name in names if name not in costs))
    used = {name: costs[name] for name in dict.fromkeys(names) if name in costs}
    if missing:
        return Price(None, used, missing)
    low, mid, high = (sum(getattr(costs[name].time, end) for name in names) for end in Spread._fields)
    return Price(Spread(low, mid, high), used, ())


class Gain(NamedTuple):
    """What a change of host makes of one call that meets no other.

    Attributes:
        saving: In ns, each limit from the same limits of both; negative where it gets slower; None if a step has no
            cost.
        origins: Where the figures are from, a sentence for each cost that differs.
    """

    before: Price
    after: Price
    saving: Spread | None
    origins: tuple[str, ...]


def gain(
    before: Host,
    after: Host,
    call: str = CREATE,
    cgroup: Cgroup = Cgroup.ROOT,
    costs: Mapping[str, Cost] | None = None,
) -> Gain:
    """What going from the host *before* to the host *after* saves one call.

    A burst shares a grace period: what its first call saves, the others save too, but not in sum.

    Args:
        call: ``create-vm``, ``first-run``, or ``move`` for a write to cgroup.procs.
        costs: The default set's if None.

    Raises:
        UnknownNameError: No such call.
    """
    if call not in _CALLS:
        raise UnknownNameError("call", call, list(_CALLS), f"There are {', '.join(_CALLS)}")
    known = cost_set(DEFAULT).costs if costs is None else costs
    steps = [_CALLS[call](host, cgroup) for host in (before, after)]
    was, would = (price(some, known) for some in steps)
    names = [[step.cost for step in some] for some in steps]
    differing = [name for name in known if names[0].count(name) != names[1].count(name)]
    if was.missing or would.missing:
        saving = None
    else:
        counts = [(known[name].time, names[0].count(name) - names[1].count(name)) for name in differing]
        ends = [sum(getattr(time, end) * count for time, count in counts) for end in Spread._fields]
        saving = Spread(min(ends), ends[1], max(ends))
    return Gain(was, would, saving, tuple(f"{name}: {known[name].origin}" for name in differing))


LOADS = ("idle", "busy")
_RECORDED_HZ = 250
_RECORDED_MS = (3.77, 7.70, 15.83)


def grace_period_cost(hz: int, cpus: int, load: str) -> Cost:
    """What a wait for a grace period takes by the kernel's constants, where the host is known and its waits are not.

    Args:
        hz: CONFIG_HZ.
        cpus: CPUs that are possible.
        load: ``idle``: no CPU keeps a grace period open; ``busy``: one may stay in the kernel until it is urged.

    Raises:
        UnknownNameError: No such load.
    """
    if load not in LOADS:
        raise UnknownNameError("load", load, LOADS, f"say {' or '.join(LOADS)}")
    here, there = grace_period(hz, cpus), grace_period(_RECORDED_HZ, 2)
    low, mid, high = (ms * 1e6 * here.low / there.low for ms in _RECORDED_MS)
    origin = (
        f"idle CPUs are looked for after {here.low / 1e6:g} ms at {hz} Hz with {cpus} CPUs (kernel/rcu/tree.c); "
        f"waits of {', '.join(map(str, _RECORDED_MS))} ms recorded at {_RECORDED_HZ} Hz are scaled to that "
        "(tests/simulation/recorded/moves.json)"
    )
    if load == "idle":
        return Cost(Spread(low, mid, high), origin)
    high = here.high
    urged = f"{origin}; high: a CPU that stays in the kernel is urged, {high / 1e6:g} ms; mid: the geometric mean"
    return Cost(Spread(low, math.sqrt(low * high), high), urged)


def fork_price(costs: Mapping[str, Cost] | None = None) -> Cost | None:
    """What favordynmods adds to each fork with its exit, which readers of the lock pay; None if not known."""
    return (cost_set(DEFAULT).costs if costs is None else costs).get(FORK)


def _set(name: str, entry: Mapping[str, Any]) -> CostSet:
    return CostSet(name, str(entry["title"]), {key: _cost(key, one) for key, one in entry["costs"].items()})


def _cost(name: str, entry: Mapping[str, Any]) -> Cost:
    time = Spread(*(float(entry[end]) * _US for end in Spread._fields))
    return checked(name, Cost(time, str(entry.get("origin", ""))))


def checked(name: str, cost: Cost) -> Cost:
    """*cost*, if it is one.

    Raises:
        UsageError: It has no origin, or its limits are none.
    """
    if not cost.origin.strip():
        raise UsageError(f"cost of {printable(name)}: it has no origin, and a figure without one is no cost")
    if not 0 <= cost.time.low <= cost.time.mid <= cost.time.high < math.inf:
        raise UsageError(f"cost of {printable(name)}: 0 <= low <= mid <= high does not hold")
    return cost


def _row(entry: Mapping[str, Any]) -> Row:
    given = {**entry, "ns": entry["ms"] * 1e6, "settings": tuple(entry.get("settings", ()))}
    del given["ms"]
    return Row(**given)
