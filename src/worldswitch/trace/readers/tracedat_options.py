"""What the options of a trace.dat say: about the recording, and how its time stamps become nanoseconds.

Source: trace-cmd's Documentation/trace-cmd/trace-cmd.dat.v7.5.txt, "OPTIONS SECTION", and ``handle_options``,
``timestamp_calc`` and ``timestamp_host_sync`` in its lib/trace-cmd/trace-input.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.errors import printable
from worldswitch.record.trace import Meta
from worldswitch.trace.readers.tracedat_layout import Layout, Option
from worldswitch.trace.readers.tracingdata import Cursor, Ended

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NS_CLOCKS = ("local", "global", "uptime", "perf", "mono", "mono_raw", "boot", "tai", "tsc2nsec")
_INTERPOLATE = 1
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")


@dataclass(frozen=True, slots=True)
class Shift:
    """A guest's corrections towards its host, for one CPU; columns of equal length, times ascending."""

    time: NDArray[np.int64]
    offset: NDArray[np.int64]
    scaling: NDArray[np.uint64]
    fraction: NDArray[np.uint64]


@dataclass(slots=True)
class TimeBase:
    """How a time stamp becomes the time trace-cmd shows: shifted towards the host, cycles to ns, offset."""

    mult: int = 0
    shift: int = 0
    offset: int = 0
    interpolate: bool = False
    shifts: list[Shift] = field(default_factory=list)

    def convert(self, stamps: NDArray[np.int64], cpu: int) -> NDArray[np.int64]:
        """Nanoseconds for raw *stamps* of one CPU."""
        if 0 <= cpu < len(self.shifts):
            stamps = _shifted(stamps, self.shifts[cpu], self.interpolate)
        if self.mult:
            cycles = stamps.astype(np.uint64)
            low = (cycles & np.uint64(0xFFFFFFFF)) * np.uint64(self.mult) >> np.uint64(self.shift)
            high = (cycles >> np.uint64(32)) * np.uint64(self.mult)
            left = 32 - self.shift
            high = high << np.uint64(left) if left >= 0 else high >> np.uint64(-left)
            stamps = (low + high).astype(np.int64)
        return stamps + np.int64(self.offset) if self.offset else stamps


def _shifted(stamps: NDArray[np.int64], shift: Shift, interpolate: bool) -> NDArray[np.int64]:
    n = len(shift.time)
    if n == 0:
        return stamps
    if n == 1:
        return stamps + np.int64(shift.offset[0])
    at = np.clip(np.searchsorted(shift.time, stamps, side="right") - 1, 0, n - 2)
    correction = shift.offset[at]
    if interpolate:
        span = shift.time[at + 1] - shift.time[at]
        scaled = (stamps - shift.time[at]) * (shift.offset[at + 1] - shift.offset[at]) + span // 2
        # C divides towards zero.
        correction = correction + np.sign(scaled) * (np.abs(scaled) // span)
    scaled_time = (stamps.astype(np.uint64) * shift.scaling[at]) >> shift.fraction[at]
    return scaled_time.astype(np.int64) + correction


def read_options(layout: Layout, meta: Meta) -> TimeBase:
    """Fill *meta* from the options; the rest is how to read times. A damaged option is noted and skipped."""
    base = TimeBase()
    for option, data in layout.options:
        if option not in _READERS:
            continue
        try:
            _READERS[Option(option)](data, meta, base)
        except (Ended, ValueError):
            meta.damaged(f"the option {Option(option).name} is damaged")
    clocks = {buffer.clock.strip("[]") for buffer in layout.buffers if buffer.clock}
    if meta.clock is None and clocks:
        meta.clock = next(b.clock.strip("[]") for b in layout.buffers if b.clock)
    if len(clocks) > 1:
        meta.notes.append(f"buffer instances use different clocks ({printable(', '.join(sorted(clocks)))})")
    if meta.clock and not base.mult and meta.clock not in _NS_CLOCKS:
        meta.notes.append(f"times are units of the clock {printable(meta.clock)!r}, not nanoseconds")
    return base


def lost_by_cpustat(layout: Layout) -> tuple[int, int]:
    """Events the kernel lost: overwritten before they were read (which pages may tell too), and dropped."""
    overrun = dropped = 0
    for option, data in layout.options:
        if option == Option.CPUSTAT:
            for name, number in re.findall(r"^\s*([a-z ]+): (\d{1,18})\s*$", _text(data), re.MULTILINE):
                overrun += int(number) if name == "overrun" else 0
                dropped += int(number) if name in ("dropped events", "commit overrun") else 0
    return overrun, dropped


def _uname(data: bytes, meta: Meta, _base: TimeBase) -> None:
    """``Linux HOST RELEASE MACHINE``. The kernel's version string is what follows the host."""
    words = _text(data).split(" ", 2)
    if len(words) == 3 and words[0] == "Linux":
        meta.host = words[1] if words[1] != "(none)" else None
        meta.kernel = words[2]
    else:
        meta.kernel = _text(data) or None


def _clock(data: bytes, meta: Meta, _base: TimeBase) -> None:
    """The text of tracefs ``trace_clock``: the clock in use stands in brackets."""
    found = re.search(r"\[([\w-]+)\]", _text(data))
    if found:
        meta.clock = found[1]


def _version(data: bytes, meta: Meta, _base: TimeBase) -> None:
    meta.tool = f"trace-cmd {_text(data)}".strip()


def _cpu_count(data: bytes, meta: Meta, _base: TimeBase) -> None:
    meta.cpus = Cursor.over(data).number(4)


def _date(data: bytes, _meta: Meta, base: TimeBase) -> None:
    base.offset = _limited(base.offset + 1000 * _number(data))


def _offset(data: bytes, _meta: Meta, base: TimeBase) -> None:
    base.offset = _limited(base.offset + _number(data))


def _tsc(data: bytes, meta: Meta, base: TimeBase) -> None:
    option = Cursor.over(data)
    mult, shift, _ = option.number(4), option.number(4), option.number(8)
    if shift > 63:
        raise ValueError
    base.mult, base.shift = mult, shift
    if mult:
        meta.notes.append("times were converted from TSC cycles by the file's own factor")


def _time_shift(data: bytes, meta: Meta, base: TimeBase) -> None:
    option = Cursor.over(data)
    option.number(8)
    interpolate = bool(option.number(4) & _INTERPOLATE)
    raw: list[list[Any]] = []
    cpus = option.number(4)
    for _ in range(cpus):
        n = option.number(4)
        raw.append([np.frombuffer(option.take(8 * n), kind) for kind in ("<i8", "<i8", "<u8")])
    has_fraction = option.at < len(data)
    shifts = []
    for time, offset, scaling in raw:
        n = len(time)
        fraction = np.frombuffer(option.take(8 * n), "<u8") if has_fraction else np.zeros(n, np.uint64)
        if (fraction > 63).any():
            raise ValueError
        time, first = np.unique(time, return_index=True)  # noqa: PLW2901
        shifts.append(Shift(time, offset[first], scaling[first], fraction[first]))
    base.shifts, base.interpolate = shifts, interpolate
    meta.notes.append("times were shifted to the host's clock by the corrections in the file")


def _guest(data: bytes, meta: Meta, _base: TimeBase) -> None:
    option = Cursor.over(data)
    name = option.string()
    option.number(8)
    threads = [(option.number(4), option.number(4))[1] for _ in range(option.number(4))]
    meta.notes.append(f"guest {printable(name)!r} runs on the threads {', '.join(map(str, threads[:64]))}")


_READERS = {
    Option.DATE: _date,
    Option.TRACECLOCK: _clock,
    Option.UNAME: _uname,
    Option.OFFSET: _offset,
    Option.CPUCOUNT: _cpu_count,
    Option.VERSION: _version,
    Option.TIME_SHIFT: _time_shift,
    Option.GUEST: _guest,
    Option.TSC2NSEC: _tsc,
}


def _number(data: bytes) -> int:
    """As strtoll with base 0 reads it."""
    found = _NUMBER.match(_text(data))
    if not found:
        return 0
    digits = found[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") and set(digits) <= set("01234567") else 10
    return -int(digits, base) if found[1] == "-" else int(digits, base)


def _limited(value: int) -> int:
    return max(-(1 << 62), min(1 << 62, value))


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace").strip()
