"""What was run or recorded, as metrics that Prometheus and others collect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from worldswitch.record.openmetrics import Family, Sample, escaped, label_name
from worldswitch.record.result import BY_REASON, flat_counts

if TYPE_CHECKING:
    from worldswitch.record.result import Cell, Result
    from worldswitch.trace.account import Account, ExitStatistics

_NS = 1e9
_WORDS = {True: "1", False: "0"}


def of_result(result: Result) -> Iterator[Family]:
    """The cells of *result*: counts for each unit, the time of one, whether they were steady."""
    cells = list(zip(result.cells, _labels(result), strict=True))
    yield Family(
        "wsw_run_exits",
        "Exits for each unit of the program.",
        [Sample(n, labels) for cell, labels in cells for n in _numbers(cell, "exits")],
    )
    yield Family(
        "wsw_run_exits_by_reason",
        "Exits for each unit, by reason.",
        [Sample(n, {**labels, "reason": name}) for cell, labels in cells for name, n in _reasons(cell.per_op).items()],
    )
    yield Family(
        "wsw_run_events",
        "Other counts for each unit, by KVM's or the model's name.",
        [
            Sample(n, {**labels, "counter": name})
            for cell, labels in cells
            for name, n in flat_counts(cell.per_op).items()
            if name != "exits" and not name.startswith(f"{BY_REASON}.")
        ],
    )
    yield Family(
        "wsw_run_time_seconds",
        "Time of one unit: the middle, and the limits of its interval.",
        [
            Sample(value / _NS, {**labels, "bound": bound})
            for cell, labels in cells
            if cell.time_ns is not None
            for bound, value in cell.time_ns._asdict().items()
        ],
        unit="seconds",
    )
    yield Family(
        "wsw_run_steady", "1 if counts repeated and times settled.", [Sample(cell.steady, at) for cell, at in cells]
    )
    yield Family("wsw_run_units", "Units of a timed run.", [Sample(cell.n, at) for cell, at in cells])


def _numbers(cell: Cell, name: str) -> Iterator[float]:
    value = cell.per_op.get(name)
    if isinstance(value, int | float):
        yield value


def _reasons(counts: Mapping[str, Any]) -> Mapping[str, float]:
    found = counts.get(BY_REASON)
    return found if isinstance(found, Mapping) else {}


def _labels(result: Result) -> Iterator[dict[str, object]]:
    """The dimensions of each cell; cells that have the same ones are numbered."""
    seen: dict[str, int] = {}
    for cell in result.cells:
        labels: dict[str, object] = {}
        for name, value in cell.flat_dimensions().items():
            if value is not None:
                labels.setdefault(label_name(name), _WORDS[value] if isinstance(value, bool) else value)
        key = repr([(name, escaped(str(value))) for name, value in labels.items()])
        times = seen[key] = seen.get(key, 0) + 1
        yield labels if times == 1 else {**labels, "again": times}


def of_account(account: Account) -> Iterator[Family]:
    """The exits of a trace by VM, vCPU and reason: how many, how long in all, and how long one takes."""
    meta = account.meta
    about = {"source": meta.source, "kernel": meta.kernel, "vendor": meta.vendor, "clock": meta.clock}
    yield Family("wsw_trace_info", "What was recorded.", [Sample(1, about)])
    yield Family("wsw_trace_complete", "1 if the recording is whole.", [Sample(meta.complete)])
    yield Family("wsw_trace_lost_events", "Events the recording lost.", [Sample(meta.lost)])
    yield Family("wsw_trace_events", "Events by name.", [Sample(n, {"event": name}) for name, n in meta.events.items()])
    rows = [({"vm": row.vm, "vcpu": row.vcpu, "isa": row.isa_name, "reason": row.reason}, row) for row in account.exits]
    yield Family("wsw_trace_exits", "Exits that an entry followed.", [Sample(row.count, at) for at, row in rows])
    yield Family("wsw_trace_open_exits", "Exits without an entry.", [Sample(row.open, at) for at, row in rows])
    yield Family(
        "wsw_trace_exit_time_seconds",
        "Time from these exits to their entries, in all.",
        [Sample(row.total_ns / _NS, at) for at, row in rows],
        unit="seconds",
    )
    yield Family(
        "wsw_trace_exit_duration_seconds",
        "Time of one exit: the share of exits that took no longer.",
        [
            Sample(value / _NS, {**at, "share": share})
            for at, row in rows
            for share, value in (("0.5", row.p50_ns), ("0.95", row.p95_ns), ("0.99", row.p99_ns), ("1", row.max_ns))
            if value is not None
        ],
        unit="seconds",
    )


def _events(counts: Mapping[str, int]) -> Iterator[Sample]:
    # A damaged file may name two events that look the same once what cannot be shown is escaped.
    summed: dict[str, int] = {}
    for name, n in counts.items():
        summed[escaped(name)] = summed.get(escaped(name), 0) + n
    names = {escaped(name): name for name in counts}
    return (Sample(n, {"event": names[name]}) for name, n in summed.items())


def _rows(account: Account) -> Iterator[tuple[dict[str, object], ExitStatistics]]:
    """The labels of each row; rows that would have the same (reasons named alike) are numbered."""
    seen: dict[tuple[object, ...], int] = {}
    for row in account.exits:
        key = (row.vm, row.vcpu, row.isa_name, escaped(str(row.reason)))
        times = seen[key] = seen.get(key, 0) + 1
        labels: dict[str, object] = {"vm": row.vm, "vcpu": row.vcpu, "isa": row.isa_name, "reason": row.reason}
        yield labels if times == 1 else {**labels, "again": times}, row
