"""Exits by reason, by duration, by control-register bit, by place, and by vCPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from worldswitch.report import draw
from worldswitch.report.document import Column, Figure, Origin, Section, Table, command
from worldswitch.report.sections.over_time import colours
from worldswitch.report.words import reason, share
from worldswitch.units import format_ns
from worldswitch.x86.registers import register_name

if TYPE_CHECKING:
    from markupsafe import Markup

    from worldswitch.report.study import Study

_DRAWN = 12
"""Rows of a picture; its table has all."""
_MOST_ROWS = 500
_HOT = {
    "rip": ("Instructions that exit", "rip", "The guest's instruction pointer at the exit."),
    "address": ("Addresses that fault", "address", "Guest-physical with two-dimensional paging, else virtual."),
    "mmio": ("Device addresses", "address", "Guest-physical addresses that a device model answers."),
    "msr": ("Model-specific registers", "msr", ""),
    "cpuid": ("CPUID leaves", "leaf", ""),
    "port": ("I/O ports", "port", ""),
    "hypercall": ("Hypercalls", "nr", ""),
}


def sections(study: Study, ident: str) -> Iterator[Section]:
    """All that is told of exits; nothing for a trace without any."""
    account = study.account
    if not account.exits:
        return
    lead = (
        "An exit lasts from its kvm_exit to the thread's next kvm_entry, time in userspace included, as perf kvm stat "
        "counts."
    )
    figures = [_by_reason(study, ident), _durations(study, ident)]
    yield Section(f"{ident}-exits", "Exits by reason", lead, [one for one in figures if one is not None])
    if account.cr_writes:
        yield Section(f"{ident}-cr", "Control-register writes", figures=[_cr_writes(study, ident)])
    hot = list(_hot(study, ident))
    if hot:
        yield Section(f"{ident}-hot", "Where exits come from", figures=hot)
    if account.vcpus:
        yield Section(f"{ident}-vcpus", "Time of each vCPU", figures=[_vcpus(study, ident)])


def _by_reason(study: Study, ident: str) -> Figure:
    account, tone = study.account, colours(study)
    whole = account.total_ns or 1
    counted = [row for row in account.exits if row.count]
    most = max((row.total_ns for row in counted), default=0) or 1
    lines = [
        draw.Row(
            str(row.reason),
            reason(row.reason),
            draw.bar(
                [draw.Segment(tone.get(str(row.reason), draw.REST), f"{row.reason}: {format_ns(row.total_ns)}", 0,
                              row.total_ns / most)]
            ),
            f"{format_ns(row.total_ns)} · {share(row.total_ns, whole)} · {row.count:,}×",
        )
        for row in counted[:_DRAWN]
    ]  # fmt: skip
    has_user = any(row.user_ns for row in account.exits)
    columns = [
        Column("reason", "code"), Column("exits", "count"), Column("time", "ns"), Column("share", "share"),
        Column("mean", "ns"), Column("min", "ns"), Column("p50", "ns"), Column("p95", "ns"), Column("p99", "ns"),
        Column("max", "ns"), Column("no entry", "count"),
    ]  # fmt: skip
    columns += [Column("in userspace", "ns")] * has_user
    rows = [
        [row.reason, row.count, row.total_ns, row.total_ns / whole, row.mean_ns, row.min_ns, row.p50_ns, row.p95_ns,
         row.p99_ns, row.max_ns, row.open, *[row.user_ns] * has_user]
        for row in account.exits
    ]  # fmt: skip
    return Figure(
        f"{ident}-reasons",
        "Time by reason",
        f"{account.count:,} exits, {format_ns(account.total_ns)} outside the guest.",
        Origin(study.path, command("analyze", study.path), "exits paired with entries; percentiles by nearest rank"),
        Table(columns, rows),
        draw.rows(lines, f"Time by exit reason: {_said(lines)}") if lines else None,
    )


def _durations(study: Study, ident: str) -> Figure | None:
    """One distribution for each reason, over one axis."""
    tone, rows, shown = colours(study), [], []
    for row in study.account.exits[:_DRAWN]:
        bins = sorted(one for number in study.numbers.get(str(row.reason), []) for one in study.durations.of(number))
        if row.count and bins:
            shown.append((row, bins))
            rows += [[row.reason, low, high, count] for low, high, count in bins]
    if not shown:
        return None
    axis = draw.scale(edge for _, bins in shown for low, high, _ in bins for edge in (low, high))
    lines = [
        draw.Row(
            str(row.reason),
            f"{row.count:,} exits",
            draw.distribution(
                bins,
                axis,
                [draw.Mark("p50", "p50", row.p50_ns or 0), draw.Mark("p99", "p99", row.p99_ns or 0)],
                tone.get(str(row.reason), draw.REST),
            ),
            f"p50 {format_ns(row.p50_ns)} · p99 {format_ns(row.p99_ns)} · max {format_ns(row.max_ns)}",
        )
        for row, bins in shown
    ]
    columns = [Column("reason", "code"), Column("from", "ns"), Column("to", "ns"), Column("exits", "count")]
    return Figure(
        f"{ident}-durations",
        "How long exits take",
        "Height: exits of that duration, each reason against its own most frequent one. The axis is logarithmic; lines "
        "stand at the median and at the 99th percentile.",
        Origin(
            study.path, command("analyze", study.path), "all exits counted, eight bins from each duration to its double"
        ),
        Table(columns, rows),
        draw.rows(lines, f"Durations by exit reason: {_said(lines)}", axis.axis()),
    )


def _cr_writes(study: Study, ident: str) -> Figure:
    rows, lines = [], []
    for row in study.account.cr_writes:
        register = register_name(row.cr)
        bits = " ".join(row.changed) if row.changed else "nothing" if row.changed is not None else "not told"
        rows.append([register, bits, row.count, row.total_ns, row.total_ns / row.count if row.count else None,
                     row.inferred, row.faulted, row.why_unknown])  # fmt: skip
        name = f"{register}.{'+'.join(row.changed)}" if row.changed else f"{register}: {bits}"
        below = row.why_unknown or (f"{row.inferred:,} inferred" if row.inferred else "")
        lines.append((name, below, float(row.count), f"{row.count:,}× · {format_ns(row.total_ns)}"))
    columns = [
        Column("register", "code"), Column("changed", "code"), Column("writes", "count"), Column("time", "ns"),
        Column("mean", "ns"), Column("inferred", "count"), Column("faulted", "count"), Column("why not told"),
    ]  # fmt: skip
    return Figure(
        f"{ident}-cr-bits",
        "Writes by the bits they change",
        "How often each set of bits was changed, and the time of those exits.",
        Origin(
            study.path,
            command("analyze", study.path),
            "kvm_cr against the same vCPU's write before; where the trace has no value, the bits are not told",
        ),
        Table(columns, rows),
        draw.amounts(lines[:_DRAWN], f"Control-register writes by changed bits: {_listed(lines[:_DRAWN])}"),
    )


def _hot(study: Study, ident: str) -> Iterator[Figure]:
    for kind, (title, heading, lead) in _HOT.items():
        mine = [hot for hot in study.account.hot if hot.kind == kind]
        if not mine:
            continue
        lines = [
            (f"{hot.value:#x}", hot.detail, float(hot.total_ns), f"{format_ns(hot.total_ns)} · {hot.count:,}×")
            for hot in mine[:_DRAWN]
        ]
        columns = [Column(heading, "hex"), Column("", "code"), Column("exits", "count"), Column("time", "ns")]
        yield Figure(
            f"{ident}-hot-{kind}",
            title,
            f"{lead} The {len(mine)} with most time.".strip(),
            Origin(
                study.path, command("analyze", study.path, "--top", str(len(mine))), "time of the exits at each place"
            ),
            Table(columns, [[hot.value, hot.detail, hot.count, hot.total_ns] for hot in mine]),
            draw.amounts(lines, f"{title}: {_listed(lines)}"),
        )


def _vcpus(study: Study, ident: str) -> Figure:
    account = study.account
    shown = account.vcpus[:_MOST_ROWS]
    lines = []
    for one in shown[:_DRAWN]:
        whole = one.guest_ns + one.host_ns + one.user_ns or 1
        name = f"vCPU {one.vcpu}" if one.vcpu is not None else f"thread {one.tid}"
        comm = account.meta.comms.get(one.tid, "")
        picture = _time_bar(one.guest_ns / whole, one.host_ns / whole)
        shown_time = f"{share(one.guest_ns, whole)} of {format_ns(whole)} in the guest"
        lines.append(draw.Row(name, f"{comm}, VM {one.vm}".lstrip(", "), picture, shown_time))
    columns = [
        Column("vm", "number"), Column("vcpu", "number"), Column("thread", "number"), Column("name", "code"),
        Column("exits", "count"), Column("in guest", "ns"), Column("in host", "ns"), Column("in userspace", "ns"),
    ]  # fmt: skip
    rows = [
        [v.vm, v.vcpu, v.tid, account.meta.comms.get(v.tid), v.exits, v.guest_ns, v.host_ns, v.user_ns] for v in shown
    ]
    rest = len(account.vcpus) - len(shown)
    cut = f"The {len(shown)} vCPUs with most time outside the guest; {rest:,} more: wsw analyze --json." if rest else ""
    return Figure(
        f"{ident}-vcpu-time",
        "Guest, host, userspace",
        f"{len(account.vcpus):,} vCPU{'s' * (len(account.vcpus) != 1)}, as far as the trace shows both ends of "
        "each stretch.",
        Origin(study.path, command("analyze", study.path), "between entries and exits of each vCPU thread"),
        Table(columns, rows, cut),
        draw.rows(lines, f"Time of each vCPU: {_said(lines)}"),
        legend=[("c2", "guest"), ("c0", "host"), ("c3", "userspace")],
    )


def _time_bar(guest: float, host: float) -> Markup:
    return draw.bar(
        [
            draw.Segment("c2", f"guest {guest:.0%}", 0, guest),
            draw.Segment("c0", f"host {host:.0%}", guest, guest + host),
            draw.Segment("c3", f"userspace {1 - guest - host:.0%}", guest + host, 1),
        ]
    )


def _listed(lines: list[tuple[str, str, float, str]]) -> str:
    return "; ".join(f"{label} {shown}" for label, _, _, shown in lines)


def _said(lines: list[draw.Row]) -> str:
    return "; ".join(f"{one.label} {one.value}" for one in lines)
