"""Tables that other tools print: no events, but numbers people compare with.

* ``perf kvm stat report`` (tools/perf/builtin-kvm.c) gives ``perf_kvm_stat``: kind, name, samples, samples_percent,
  time_percent, min_ns, max_ns, mean_ns, spread_percent;
* ``kvm_stat -1``, ``-l``, ``-c`` (tools/kvm/kvm_stat) gives ``kvm_stat``: name, total, delta;
* kvm-unit-tests' vmexit (x86/vmexit.c) gives ``kvm_unit_tests``: name, cycles.

Percentages and means a table does not have are NaN, whole numbers -1. Times are 0 but in logs of kvm_stat
that carry a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from worldswitch.record.formats import EventFormat
from worldswitch.record.trace import Batch, Meta, Selection
from worldswitch.trace.readers.lines import Source, table_batch, text_lines

PERF, KVM_STAT, UNIT_TESTS = "perf_kvm_stat", "kvm_stat", "kvm_unit_tests"
COLUMNS: dict[str, dict[str, str]] = {
    PERF: {
        "kind": "object",
        "name": "object",
        "samples": "i8",
        "samples_percent": "f8",
        "time_percent": "f8",
        "min_ns": "f8",
        "max_ns": "f8",
        "mean_ns": "f8",
        "spread_percent": "f8",
    },
    KVM_STAT: {"name": "object", "total": "i8", "delta": "i8"},
    UNIT_TESTS: {"name": "object", "cycles": "i8"},
}

_ROWS = 1 << 14
_MOST_NAMES = 4096
_NAN = float("nan")

_PERF_TITLE = re.compile(r"\s*(?P<kind>\S.*?)\s{2,}Samples\s+(?P<rest>Samples?%.*)\Z")
_PERF_WORDS = {
    "Samples%": "samples_percent",
    "Sample%": "samples_percent",
    "Time%": "time_percent",
    "Min Time": "min_ns",
    "Max Time": "max_ns",
    "Avg time": "mean_ns",
    "Mean Time": "mean_ns",
    "Time": "",
}
_PERF_COLUMN = re.compile("|".join(map(re.escape, _PERF_WORDS)))
_PERF_VALUE = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)\s?(ns|us|ms|s|%)?(?=\s|\)|\Z)")
_PERF_NAME = re.compile(r"\s*(?P<name>\S.*?)\s+(?P<samples>\d{1,18})\s+(?P<rest>-?[\d.]+\s?%?.*)\Z")
_SPREAD = re.compile(r"\(\s*\+-\s*([\d.]+)%\s*\)")
_PERF_END = re.compile(r"\s*Total Samples:\s*(\d+), Total events handled time:\s*([\d.]+)\s*us")
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

_STAT_TITLE = re.compile(r"\s*(?:kvm statistics - |Event\s+Total\s+(?:%Total\s+)?(?:CurAvg/s|Current))")
_STAT_LINE = re.compile(
    r"\s*(?P<name>[a-z][a-z0-9_]*(?:\([\w -]{1,40}\))?)\s+(?P<total>\d{1,18})(?P<rest>(?:\s+[\d.]+%?)*)\s*\Z"
)
_STAT_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[\s,]+(.*)\Z")
_STAT_BANNER = re.compile(r"\s*(?:timestamp,)?[a-z][a-z0-9_]*(?:[ ,]+[a-z][a-z0-9_]*(?:\([^)]*\))?)+[ ,]*\Z")
_STAT_NAMES = {
    "kvm_exit",
    "kvm_entry",
    "exits",
    "halt_exits",
    "io_exits",
    "tlb_flush",
    "insn_emulation",
    "kvm_fpu",
}

_CYCLES = re.compile(r"(?P<name>[A-Za-z][\w:+.-]*(?: [A-Za-z][\w:+.-]*){0,3})\s+(?P<cycles>\d{1,18})\s*\Z")
_UNIT_TESTS = {
    *(
        "cpuid",
        "vmcall",
        "mov_from_cr8",
        "mov_to_cr8",
        "inl_from_pmtimer",
        "inl_from_qemu",
        "inl_from_kernel",
    ),
    *(
        "outl_to_kernel",
        "self_ipi_sti_nop",
        "self_ipi_tpr",
        "ipi",
        "ipi_halt",
        "ple_round_robin",
        "wr_tsc_adjust_msr",
    ),
    *(
        "wr_kernel_gs_base",
        "rd_tsc_adjust_msr",
        "toggle_cr0_wp",
        "toggle_cr4_pge",
        "inl_pmtimer",
        "rdtsc",
        "wr_ibpb_msr",
    ),
}


def sniff(head: bytes) -> bool:
    """Whether *head* holds one of the tables, and no trace: who pastes both means the trace."""
    if b"\0" in head[:4096] or re.search(rb"\bkvm_(?:exit|entry):\s", head):
        return False
    units = stats = 0
    for data in head[: 1 << 16].splitlines()[:2000]:
        line = data[:4096].decode("utf-8", "backslashreplace")
        if _PERF_TITLE.match(line) or _STAT_TITLE.match(line):
            return True
        cycles = _CYCLES.match(line)
        units += cycles is not None and cycles["name"] in _UNIT_TESTS
        stat = _STAT_LINE.match(line)
        stats += stat is not None and stat["name"] in _STAT_NAMES and len(stat["rest"].split()) == 1
        if _STAT_BANNER.match(line) and _STAT_NAMES & set(re.split(r"[ ,]+", line)):
            return True
    return units >= 2 or stats >= 1


class ToolTables:
    """The rows of tools' tables; an :class:`~worldswitch.record.trace.EventSource`."""

    def __init__(self, source: Source) -> None:
        self.meta = Meta(source=source.name, format="tool table", clock="none")
        self.formats: dict[str, EventFormat] = {}
        self._source = source
        self._rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in COLUMNS}
        self._times: dict[str, list[int]] = {name: [] for name in COLUMNS}
        self._kind: str | None = None
        self._order: list[str] = []
        self._unit = "us"
        self._names: list[str] = []
        self._units = False
        self._last = 0

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """One batch or more per table, in the order of the text; :attr:`meta` is final when it ends."""
        for line in text_lines(self._source):
            known = self._line(line[:8192].rstrip())
            if not known and line.strip():
                self.meta.skipped_lines += 1
            if sum(map(len, self._rows.values())) >= _ROWS:
                yield from self._flush(selection)
        yield from self._flush(selection)
        if self._source.damage:
            self.meta.damaged(self._source.damage)

    def _flush(self, selection: Selection | None) -> Iterator[Batch]:
        for name, rows in self._rows.items():
            if not rows:
                continue
            self.meta.events[name] = self.meta.events.get(name, 0) + len(rows)
            times = self._times[name]
            self.meta.first_ns = times[0] if self.meta.first_ns is None else self.meta.first_ns
            self.meta.last_ns = times[-1]
            if selection is None or name in selection:
                fields = None if selection is None else selection[name]
                batch = table_batch(name, COLUMNS[name], rows, times, [-1] * len(rows))
                if fields is not None:
                    kept = {column: values for column, values in batch.tables[0].items() if column in fields}
                    batch.tables = (kept,)
                yield batch
            self._rows[name], self._times[name] = [], []

    def _add(self, table: str, *row: object, time: int = 0) -> bool:
        self._last = max(self._last, time)
        self._rows[table].append(row)
        self._times[table].append(self._last)
        return True

    def _line(self, line: str) -> bool:
        """Whether the line is part of a table."""
        if title := _PERF_TITLE.match(line):
            self._kind = title["kind"]
            self._order = [_PERF_WORDS[found[0]] for found in _PERF_COLUMN.finditer(title["rest"])]
            self._unit = "ns" if "(ns)" in title["rest"] or "ns)" in title["kind"] else "us"
            self.meta.tool = "perf kvm stat report"
            return True
        if end := _PERF_END.match(line):
            self._kind = None
            self.meta.notes.append(f"perf's own total: {end[1]} samples in {end[2]} us")
            return True
        if self._kind is not None and (row := _PERF_NAME.match(line)):
            return self._perf(row)
        if _STAT_TITLE.match(line):
            self.meta.tool = "kvm_stat"
            return True
        if clocked := _STAT_CLOCK.match(line):
            return self._log(clocked[2], _epoch(clocked[1]))
        if self._names and re.fullmatch(r"[\s\d,]+", line):
            return self._log(line, 0)
        if _STAT_BANNER.match(line) and _STAT_NAMES & set(re.split(r"[ ,]+", line)):
            names = [name for name in re.split(r"[ ,]+", line.strip(" ,")) if name != "timestamp"]
            self._names = names[:_MOST_NAMES]
            self.meta.tool = "kvm_stat"
            return True
        return self._name_and_number(line)

    def _perf(self, row: re.Match[str]) -> bool:
        spread = _SPREAD.search(row["rest"])
        rest = row["rest"][: spread.start()] if spread else row["rest"]
        values = dict.fromkeys(list(COLUMNS[PERF])[3:], _NAN)
        for name, (number, unit) in zip(self._order, _PERF_VALUE.findall(rest), strict=False):
            if name.endswith("_ns"):
                values[name] = float(number) * _NS.get(unit or self._unit, 1e3)
            elif name:
                values[name] = float(number)
        if spread:
            values["spread_percent"] = _number(spread[1])
        return self._add(PERF, self._kind, row["name"], int(row["samples"]), *values.values())

    def _log(self, text: str, time: int) -> bool:
        numbers = [number for number in re.split(r"[\s,]+", text) if number]
        if not self._names or len(numbers) != len(self._names):
            return False
        if not all(number.isdecimal() and len(number) < 19 for number in numbers):
            return False
        for name, number in zip(self._names, numbers, strict=True):
            self._add(KVM_STAT, name, -1, int(number), time=time)
        return True

    def _name_and_number(self, line: str) -> bool:
        cycles = _CYCLES.match(line)
        self._units |= cycles is not None and cycles["name"] in _UNIT_TESTS
        if cycles and self._units and self.meta.tool in (None, "kvm-unit-tests"):
            self.meta.tool = "kvm-unit-tests"
            return self._add(UNIT_TESTS, cycles["name"], int(cycles["cycles"]))
        stat = _STAT_LINE.match(line)
        if stat is None or self._units:
            return False
        rest = [value for value in stat["rest"].split() if not value.endswith("%")]
        told = self.meta.tool == "kvm_stat" or stat["name"] in _STAT_NAMES or stat["name"].startswith("kvm_")
        if not told or (len(rest) != 1 and self.meta.tool != "kvm_stat"):
            return False
        self.meta.tool = "kvm_stat"
        # The interactive table has total, share of the total, current; the batch form has total, delta.
        delta = rest[-1] if rest else "-1"
        return self._add(KVM_STAT, stat["name"].strip(), int(stat["total"]), int(_number(delta)))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _epoch(text: str) -> int:
    try:
        return int(datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()) * 10**9
    except (ValueError, OverflowError):
        return 0
