"""What ``wsw top --once`` prints: a table, a JSON document, or OpenMetrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldswitch.cli import top_columns as columns
from worldswitch.cli.top_draw import counted, short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worldswitch.live.rates import Rates, VmRates
    from worldswitch.record.openmetrics import Family

_SHOWN = ("vm", "process", "vcpus", "exits", "faults", "io", "mmio", "halt", "irq", "poll", "mapped", "huge", "nx")
_SPARED = ("irq", "io", "mapped", "vcpus", "nx")
"""Columns left out, one after the other, where all are too wide together."""
_REASONS = 12


def text(rates: Rates) -> str:
    """The VMs by their exits, and the exits by reason."""
    from worldswitch.report.tables import WIDTH, table

    if not rates.vms:
        return "no VM can be seen here\n" if rates.lacks else "no VM runs here\n"
    chosen = [column for column in columns.VM_COLUMNS if column.key in _SHOWN]
    rows = columns.ordered(columns.vm_rows(rates, {}), "exits", True)
    there = [
        column for column in chosen if column.key == "vm" or any(row.values.get(column.key) is not None for row in rows)
    ]
    for key in _SPARED:
        if _width(there, rows) > WIDTH:
            there = [column for column in there if column.key != key]
    cells = [[_cell(column, row) for column in there] for row in rows]
    title = f"{counted(len(rows), 'VM')} over {rates.seconds:.2f} s"
    left = [column.title for column in there if column.left]
    parts = [table([column.title for column in there], cells, title, left)]
    reasons = columns.ordered(columns.reason_rows(rates), "exits", True)[:_REASONS]
    if reasons:
        how = "traced" if rates.traced else "as far as statistics tell"
        lines = [(row.values["reason"], short(_number(row, "exits")), f"{row.values['share']:.1f}%") for row in reasons]
        parts.append(table(("reason", "exits/s", "share"), lines, f"Exits by reason, {how}", ("reason",)))
    return "\n".join(parts)


def _width(shown: list[columns.Column], rows: list[columns.Row]) -> int:
    """Columns of the terminal that the table takes."""
    return sum(max(len(column.title), *(len(_cell(column, row) or "-") for row in rows)) + 2 for column in shown) - 2


def _number(row: columns.Row, key: str) -> float:
    value = row.values[key]
    assert isinstance(value, float)
    return value


def _cell(column: columns.Column, row: columns.Row) -> str | None:
    value = row.values.get(column.key)
    assert not isinstance(value, tuple)
    return column.write(value) if isinstance(value, float) else value


def document(rates: Rates) -> dict[str, Any]:
    """The same as JSON types, with every statistic that was read."""
    return {
        "interval_s": rates.seconds,
        "reasons_from": "kvm:kvm_exit" if rates.traced else "statistics",
        "vms": [_vm(vm) for vm in rates.vms],
        "gone": list(rates.gone),
        "missing": [lack._asdict() for lack in rates.lacks],
    }


def _vm(vm: VmRates) -> dict[str, Any]:
    return {
        "vm": vm.name,
        "pid": vm.pid,
        "process": vm.process,
        "vcpus": vm.vcpu_count,
        "seconds": vm.seconds,
        "reset": vm.reset,
        "per_second": dict(vm.rates),
        "totals": dict(vm.totals),
        "states": dict(vm.states),
        "by_vcpu": [{"vcpu": number, "per_second": dict(rates)} for number, rates in sorted(vm.vcpus.items())],
        "by_reason": [
            {"vcpu": number, "reason": reason, "per_second": rate}
            for (number, reason), rate in sorted(vm.reasons.items(), key=lambda one: (-one[1], one[0][1]))
        ],
    }


def openmetrics(rates: Rates) -> str:
    """The same as OpenMetrics: counters since each VM began, which the scraper makes rates of; states; reasons."""
    from worldswitch.record.openmetrics import exposition

    return exposition(list(_families(rates)))


def _families(rates: Rates) -> Iterator[Family]:
    from worldswitch.record.openmetrics import COUNTER, Family, Sample, label_name

    def labels(vm: VmRates) -> dict[str, object]:
        return {"vm": vm.name, "pid": vm.pid, "process": vm.process}

    yield Family("wsw_kvm_vms", "VMs that run on this host.", [Sample(len(rates.vms))])
    counted = [Sample(vm.vcpu_count, labels(vm)) for vm in rates.vms if vm.vcpu_count is not None]
    if counted:
        yield Family("wsw_kvm_vcpus", "vCPUs of a VM.", counted)
    for name in sorted({name for vm in rates.vms for name in vm.totals}):
        family = label_name(name)
        family, scale = (f"{family[:-3]}_seconds", 1e-9) if family.endswith("_ns") else (family, 1)
        samples = [Sample(vm.totals[name] * scale, labels(vm)) for vm in rates.vms if name in vm.totals]
        yield Family(f"wsw_kvm_{family}", f"KVM's statistic {name}, since the VM began.", samples, COUNTER)
    for name in sorted({name for vm in rates.vms for name in vm.states}):
        samples = [Sample(vm.states[name], labels(vm)) for vm in rates.vms if name in vm.states]
        yield Family(f"wsw_kvm_{label_name(name)}", f"KVM's statistic {name}, now.", samples)
    reasons = [
        Sample(rate, {**labels(vm), "vcpu": number, "reason": reason})
        for vm in rates.vms
        for (number, reason), rate in sorted(vm.reasons.items(), key=str)
    ]
    if reasons:
        how = "of trace events" if rates.traced else "as far as statistics tell reasons"
        yield Family("wsw_kvm_exits_per_second", f"Exits a second in the interval, {how}.", reasons)
