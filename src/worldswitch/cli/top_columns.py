"""The tables of ``wsw top``: what each column is, how it is written, and what its colours mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from worldswitch.cli.top_draw import bar, short, short_bytes, sparkline
from worldswitch.live.rates import Rates, VmRates

Value = float | str | tuple[float, ...] | None
QUIET, PLAIN, GOOD, WARN, BAD, NAME, BARS = "dim", "", "green", "yellow", "bold red", "cyan", "#5b93c4"
_PAGE, _HUGE = 4096, 512
_HISTORY, _BAR = 12, 18


class Row(NamedTuple):
    """A line of a table: *key* names it from one sample to the next."""

    key: str
    values: Mapping[str, Value]
    new: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        key: Of :attr:`Row.values`.
        title: Heading.
        width: Columns of the terminal; the heading's arrow is within it.
        about: What it is, for the help.
        left: Aligned left.
        write: The text of a value.
        style: What a value looks like in its row.
    """

    key: str
    title: str
    width: int
    about: str
    left: bool = False
    write: Callable[[float], str] = short
    style: Callable[[float, Row], str] | None = None

    def cell(self, row: Row) -> tuple[str, str]:
        """The text of a row's cell, as wide as the column, and its style."""
        value = row.values.get(self.key)
        if value is None:
            return "-".rjust(self.width), QUIET
        if isinstance(value, str):
            text = value if len(value) <= self.width else value[: self.width - 1] + "…"
            style = NAME if self.key in _NAMES else BARS if self.title == "" else PLAIN
            return (text.ljust(self.width) if self.left else text.rjust(self.width)), style
        if isinstance(value, tuple):
            return sparkline(value, self.width), BARS
        style = self.style(value, row) if self.style else PLAIN
        text = self.write(value)[: self.width]
        if text == "0":
            style = QUIET
        return (text.ljust(self.width) if self.left else text.rjust(self.width)), style


_NAMES = ("vm", "reason", "counter")


def _percent(value: float) -> str:
    return f"{value:.0f}%"


def _polling(value: float, _row: Row) -> str:
    """Time a CPU burns for a vCPU that has nothing to do."""
    return BAD if value >= 80 else WARN if value >= 20 else PLAIN


def _hits(value: float, row: Row) -> str:
    polled = row.values.get("poll")
    return WARN if isinstance(polled, float) and polled >= 5 and value < 50 else PLAIN


def _huge(value: float, row: Row) -> str:
    mapped = row.values.get("mapped")
    if not isinstance(mapped, float) or mapped < 1 << 30:
        return PLAIN
    return GOOD if value >= 90 else WARN if value < 50 else PLAIN


def _any(value: float, _row: Row) -> str:
    return WARN if value > 0 else PLAIN


def _failed(value: float, _row: Row) -> str:
    return BAD if value > 0 else PLAIN


VM_COLUMNS = (
    Column("vm", "VM", 12, "KVM's name: the thread that made it, and its file descriptor", True),
    Column("process", "process", 11, "the VMM's name", True),
    Column("vcpus", "vCPU", 5, "how many vCPUs it has", write=lambda value: f"{value:.0f}"),
    Column("exits", "exits/s", 8, "exits a second"),
    Column("history", "", _HISTORY, "exits a second over the last samples, each VM to its own scale", True),
    Column("faults", "fault/s", 8, "page faults that exited (pf_taken; pf_fixed where a kernel lacks it)"),
    Column("io", "pio/s", 7, "port accesses that went to userspace"),
    Column("mmio", "mmio/s", 7, "device memory accesses that went to userspace"),
    Column("halt", "halt/s", 7, "HLT"),
    Column("irq", "irq/s", 7, "interrupts of the host that came while the guest ran"),
    Column("inject", "inj/s", 7, "interrupts given to the guest"),
    Column("hypercalls", "hcall/s", 8, "hypercalls"),
    Column("emulated", "emul/s", 7, "instructions KVM emulated"),
    Column("failed", "efail/s", 8, "instructions KVM could not emulate: a fault", style=_failed),
    Column("flush", "flush/s", 8, "TLB flushes, of vCPUs and of all CPUs"),
    Column("poll", "poll%", 7, "time spent polling for a halted vCPU, of one CPU", write=_percent, style=_polling),
    Column("hit", "hit%", 6, "polls that ended by the guest waking up", write=_percent, style=_hits),
    Column("mapped", "mapped", 8, "guest memory KVM has mapped", write=short_bytes),
    Column("huge", "huge%", 7, "of it in pages of 2 MiB and 1 GiB", write=_percent, style=_huge),
    Column("4k", "4K", 7, "pages of 4 KiB"),
    Column("2m", "2M", 7, "pages of 2 MiB"),
    Column("1g", "1G", 6, "pages of 1 GiB"),
    Column("nx", "nx-split", 9, "huge pages split by the iTLB multihit mitigation", style=_any),
)
VCPU_COLUMNS = (
    VM_COLUMNS[0],
    Column("vcpu", "vCPU", 5, "its number", write=lambda value: f"{value:.0f}"),
    VM_COLUMNS[3],
    *(column for column in VM_COLUMNS if column.key in
      ("faults", "io", "mmio", "halt", "irq", "inject", "hypercalls", "emulated", "failed", "flush", "poll", "hit")),
    Column("top", "most of them", 24, "the reason of most of its exits", True),
)  # fmt: skip
REASON_COLUMNS = (
    Column("reason", "reason", 26, "why the guest left", True),
    Column("exits", "exits/s", 8, "exits a second"),
    Column("share", "share", 7, "of all exits told", write=lambda value: f"{value:.1f}%"),
    Column("bar", "", _BAR, "the same", True),
    Column("vms", "VMs", 5, "VMs that have such exits", write=lambda value: f"{value:.0f}"),
    Column("most", "most in", 13, "the VM with the most of them", True),
)
COUNTER_COLUMNS = (
    Column("counter", "statistic", 28, "KVM's name", True),
    Column("rate", "per second", 11, "how often a second"),
    Column("total", "total", 8, "since the VM began, or its value if it is a state"),
    Column("history", "", 30, "the last samples", True),
)
HISTORY = 30


def vm_rows(rates: Rates, history: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """A row for each VM."""
    for vm in rates.vms:
        yield Row(vm.name, _vm_values(vm, history.get(vm.name, ())), vm.new)


def _vm_values(vm: VmRates, history: Sequence[float]) -> dict[str, Value]:
    get = vm.states.get
    small, two, one = (get(name) for name in ("pages_4k", "pages_2m", "pages_1g"))
    large = (two or 0) * _HUGE + (one or 0) * _HUGE * _HUGE
    pages = None if small is None else small + large
    return {
        "vm": vm.name,
        "process": vm.process,
        "vcpus": None if vm.vcpu_count is None else float(vm.vcpu_count),
        "history": tuple(history)[-_HISTORY:],
        **_common(vm.rates),
        "mapped": None if pages is None else float(pages * _PAGE),
        "huge": 100.0 * large / pages if pages else None,
        "4k": _float(small),
        "2m": _float(two),
        "1g": _float(one),
        "nx": _float(get("nx_lpage_splits")),
    }


def _common(rates: Mapping[str, float]) -> dict[str, Value]:
    """What VMs and vCPUs have alike."""
    get = rates.get
    polled = _sum(get("halt_poll_success_ns"), get("halt_poll_fail_ns"))
    tried = get("halt_attempted_poll")
    return {
        "exits": get("exits"),
        "faults": get("pf_taken", get("pf_fixed")),
        "io": get("io_exits"),
        "mmio": get("mmio_exits"),
        "halt": get("halt_exits"),
        "irq": get("irq_exits"),
        "inject": get("irq_injections"),
        "hypercalls": get("hypercalls"),
        "emulated": get("insn_emulation"),
        "failed": get("insn_emulation_fail"),
        "flush": _sum(get("tlb_flush"), get("remote_tlb_flush")),
        "poll": None if polled is None else polled / 1e7,
        "hit": 100.0 * get("halt_successful_poll", 0.0) / tried if tried else None,
    }


def vcpu_rows(rates: Rates) -> Iterator[Row]:
    """A row for each vCPU of which something is known by itself."""
    for vm in rates.vms:
        traced: dict[int, dict[str, float]] = {}
        for (number, reason), rate in vm.reasons.items():
            if number is not None:
                traced.setdefault(number, {})[reason] = rate
        for number in sorted({*vm.vcpus, *traced}):
            known, reasons = vm.vcpus.get(number, {}), traced.get(number, {})
            common = _common(known)
            if common["exits"] is None and reasons:
                common["exits"] = sum(reasons.values())
            most = max(reasons, key=lambda name: reasons[name], default=None) if reasons else None
            values: dict[str, Value] = {"vm": vm.name, "vcpu": float(number), **common, "top": most}
            yield Row(f"{vm.name}/{number}", values, vm.new)


def reason_rows(rates: Rates, only: str | None = None) -> Iterator[Row]:
    """A row for each exit reason, of all VMs or of one."""
    vms = [vm for vm in rates.vms if only in (None, vm.name)]
    by_vm = {vm.name: vm.by_reason() for vm in vms}
    totals: dict[str, float] = {}
    for reasons in by_vm.values():
        for reason, rate in reasons.items():
            totals[reason] = totals.get(reason, 0.0) + rate
    whole = sum(totals.values())
    for reason, rate in totals.items():
        having = {name: reasons[reason] for name, reasons in by_vm.items() if reasons.get(reason)}
        yield Row(reason, {
            "reason": reason, "exits": rate, "share": 100.0 * rate / whole if whole else 0.0,
            "bar": bar(rate / whole if whole else 0.0, _BAR), "vms": float(len(having)),
            "most": max(having, key=lambda name: having[name], default=None) if having else None,
        })  # fmt: skip


def counter_rows(vm: VmRates, history: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """A row for each statistic of one VM."""
    for name, total in vm.totals.items():
        yield Row(name, {
            "counter": name, "rate": vm.rates.get(name), "total": float(total),
            "history": tuple(history.get(name, ())),
        })  # fmt: skip
    for name, value in vm.states.items():
        yield Row(name, {"counter": name, "rate": None, "total": float(value), "history": ""})


def ordered(rows: Iterator[Row] | Sequence[Row], column: str, down: bool) -> list[Row]:
    """The rows sorted by a column; those that have nothing there last, either way."""
    rows = list(rows)
    there = [row for row in rows if row.values.get(column) is not None]
    rest = [row for row in rows if row.values.get(column) is None]

    def place(row: Row) -> tuple[float, tuple[object, ...]]:
        value = row.values[column]
        return (value, ()) if isinstance(value, float) else (0.0, natural(str(value)))

    # Equal ones keep their order from one sample to the next.
    there.sort(key=lambda row: natural(row.key))
    there.sort(key=place, reverse=down)
    return there + rest


def natural(text: str) -> tuple[object, ...]:
    """Text to sort by, numbers in it by their value."""
    import re

    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)


def matching(rows: Sequence[Row], words: str) -> list[Row]:
    """The rows that have every one of *words* in one of their texts."""
    wanted = words.lower().split()
    return [row for row in rows if all(any(word in text for text in _texts(row)) for word in wanted)]


def _texts(row: Row) -> list[str]:
    return [value.lower() for key, value in row.values.items() if isinstance(value, str) and key != "bar"]


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
