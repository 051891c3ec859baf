"""The text of ``wsw analyze``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from worldswitch.errors import printable
from worldswitch.report.tables import WIDTH, fields, table
from worldswitch.units import format_ns
from worldswitch.x86.registers import register_name

if TYPE_CHECKING:
    from worldswitch.trace.account import Account

_HOT_TITLES = {
    "rip": ("Where exits come from", "rip"),
    "msr": ("MSRs", "msr"),
    "cpuid": ("CPUID leaves", "leaf"),
    "port": ("I/O ports", "port"),
    "address": ("Fault addresses", "address"),
    "mmio": ("MMIO addresses", "address"),
    "hypercall": ("Hypercalls", "nr"),
}


def text(result: Account, shown: int) -> str:
    """The account in tables; lists longer than *shown* are cut, which they say."""
    return "\n".join(part for part in _parts(result, shown) if part)


def _parts(result: Account, shown: int) -> Iterator[str]:
    yield _about(result)
    yield _exits(result, shown)
    yield _cr_writes(result)
    yield _vcpus(result, shown)
    yield from _hot(result)
    yield from _other_tables(result, shown)
    yield _seen(result)


def _about(result: Account) -> str:
    meta = result.meta
    span = format_ns(meta.last_ns - meta.first_ns) if meta.first_ns is not None and meta.last_ns is not None else None
    events = sum(meta.events.values())
    lost = f", {meta.lost} lost" if meta.lost else ""
    skipped = f", {meta.skipped_lines} lines that are no events" if meta.skipped_lines else ""
    cpus = f"{meta.cpus} CPU{'s' * (meta.cpus != 1)}" if meta.cpus else None
    return fields(
        (
            ("trace", f"{meta.source} ({meta.format}{', ' + meta.tool if meta.tool else ''})"),
            ("host", ", ".join(filter(None, (meta.cpu_model or meta.vendor, cpus)))),
            ("kernel", meta.kernel),
            ("events", f"{events:,}{lost}{skipped}{f' in {span}' if span else ''}"),
        )
    )


def _exits(result: Account, shown: int) -> str:
    if not result.exits:
        return "" if result.tables else "No exits: the trace holds no kvm_exit events.\n"
    whole = result.total_ns or 1
    keyed = [(name, any(getattr(row, name) is not None for row in result.exits)) for name in ("vm", "vcpu", "reason")]
    keys = [name for name, used in keyed if used]
    is_open = any(row.open for row in result.exits)
    has_user = any(row.user_ns for row in result.exits)
    nested = any(row.nested for row in result.exits)
    columns = [*keys, "count", "time", "share", "mean", "p50", "p95", "p99", "max"]
    columns += ["user"] * has_user + ["open"] * is_open + ["L2"] * nested
    rows = []
    for row in result.exits[:shown]:
        times = (row.mean_ns, row.p50_ns, row.p95_ns, row.p99_ns, row.max_ns)
        cells = [*(getattr(row, key) for key in keys), f"{row.count:,}", format_ns(row.total_ns)]
        cells += [f"{row.total_ns / whole:.1%}", *map(format_ns, times)]
        cells += [format_ns(row.user_ns)] * has_user + [row.open or None] * is_open + [row.nested or None] * nested
        rows.append(cells)
    title = f"{result.count:,} exits, {format_ns(result.total_ns)} outside the guest"
    rest = len(result.exits) - shown
    more = f"... and {rest} rows more (--json has all)\n" if rest > 0 else ""
    return table(columns, rows, title, left=("reason",)) + more


def _cr_writes(result: Account) -> str:
    if not result.cr_writes:
        return ""
    rows = []
    for row in result.cr_writes[:20]:
        changed = (
            " ".join(row.changed)
            if row.changed
            else ("nothing" if row.changed is not None else f"? ({row.why_unknown})")
        )
        notes = [f"{row.inferred} inferred"] * bool(row.inferred) + [f"{row.faulted} faulted"] * bool(row.faulted)
        mean = format_ns(row.total_ns / row.count) if row.count else None
        rows.append(
            (
                register_name(row.cr),
                changed,
                f"{row.count:,}",
                format_ns(row.total_ns),
                mean,
                ", ".join(notes),
            )
        )
    columns = ("register", "changed", "count", "time", "mean", "notes")
    return table(columns, rows, "Control-register writes", left=("register", "changed", "notes"))


def _vcpus(result: Account, shown: int) -> str:
    rows = [
        (
            v.vm,
            v.vcpu,
            v.tid,
            result.meta.comms.get(v.tid),
            f"{v.exits:,}",
            *map(format_ns, (v.guest_ns, v.host_ns, v.user_ns)),
        )
        for v in result.vcpus[:shown]
    ]
    if not rows:
        return ""
    columns = ("vm", "vcpu", "thread", "name", "exits", "in guest", "in host", "in userspace")
    rest = len(result.vcpus) - shown
    more = f"... and {rest} vCPUs more (--json has all)\n" if rest > 0 else ""
    return table(columns, rows, "Where the time went", left=("name",)) + more


def _hot(result: Account) -> Iterator[str]:
    for kind, (title, heading) in _HOT_TITLES.items():
        mine = [hot for hot in result.hot if hot.kind == kind]
        if mine:
            rows = [(f"{h.value:#x}", h.detail, f"{h.count:,}", format_ns(h.total_ns)) for h in mine]
            yield table((heading, "", "count", "time"), rows, title, left=("",))


def _other_tables(result: Account, shown: int) -> Iterator[str]:
    for name, rows in result.tables.items():
        if rows:
            cells = [tuple(_cell(column, value) for column, value in row.items()) for row in rows[:shown]]
            columns = tuple(column.removesuffix("_ns").replace("_percent", " %") for column in rows[0])
            texts = [c for c, value in zip(columns, rows[0].values(), strict=True) if isinstance(value, str)]
            yield table(columns, cells, name, left=texts)


def _cell(column: str, value: object) -> object:
    if column.endswith("_ns") and isinstance(value, int | float):
        return format_ns(value)
    return f"{value:.2f}" if isinstance(value, float) else value


def _seen(result: Account) -> str:
    lines = [f"{seen.id}: {seen.detail}" for seen in result.detections]
    lines += [f"note: {note}" for note in result.meta.notes]
    if result.meta.out_of_order:
        lines.append(f"note: {result.meta.out_of_order} events came out of order")
    if result.meta.malformed:
        lines.append(f"note: {result.meta.malformed} records could not be decoded")
    return "".join(f"{_wrapped(printable(line))}\n" for line in lines)


def _wrapped(line: str) -> str:
    """A sentence or several, no wider than the tables; what follows the first line is indented."""
    import textwrap

    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False) if len(line) > WIDTH else line
