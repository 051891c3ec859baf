"""What ``strace`` printed: KVM's ioctls, their results and how long they took.

Any of ``-T -t -tt -ttt -r -f -y -n -i`` are understood, calls that another thread interrupts (``<unfinished ...>``,
``<... resumed>``) are put together. Grammar: strace(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from worldswitch.record.formats import EventFormat
from worldswitch.record.order import TimeOrder
from worldswitch.record.trace import Batch, Meta, Selection
from worldswitch.trace.readers.lines import Source, nanoseconds, table_batch, text_lines

_PREFIX = (
    r"(?:\[pid\s+(?P<pid>\d{1,9})\]\s+|(?P<tid>\d{1,9})\s+(?=\D|\d+[:.]\d))?"
    r"(?:(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.(?P<us>\d{1,9}))?\s+|(?P<sec>\d{1,10})\.(?P<frac>\d{1,9})\s+)?"
    r"(?:\[\s*(?:\d{1,4}|[0-9a-f]{8,16})\]\s+){0,2}"  # -n: number of the call, -i: instruction pointer
)
_LINE = re.compile(rf"\s*{_PREFIX}(?P<rest>(?:[a-z_]\w*\(|<\.\.\. \w+ resumed>|---|\+\+\+).*)\Z", re.DOTALL)
_CALL = re.compile(r"(?P<name>\w+)\((?P<args>.*)\Z", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>,?(?P<args>.*)\Z", re.DOTALL)
_UNFINISHED = re.compile(r"\s*<unfinished \.\.\.>\s*\Z")
_RESULT = re.compile(
    r"\)?\s+= (?P<result>-?\d{1,19}|0x[0-9a-fA-F]{1,16}|\?)(?:<[^>]*>)?"
    r"(?:\s+(?P<errno>E[A-Z0-9]+)\s*(?:\([^)]*\))?)?"
    r"(?:\s+\([^)]*\))?(?:\s+<(?P<seconds>\d{1,9})\.(?P<fraction>\d{1,9})>)?\s*\Z"
)
_KVM = re.compile(
    r"(?P<fd>-?\d{1,9})(?:<[^>]*>)?,\s*(?:[^,()]{0,80}?\b(?P<name>KVM_\w+)"
    r"|_IOC\([\w|]+,\s*0xae,\s*0x(?P<nr>[0-9a-fA-F]{1,2})|0x[0-9a-fA-F]{0,4}ae(?P<raw>[0-9a-fA-F]{2})\b)"
)
_NUMBERS = {
    0x00: "KVM_GET_API_VERSION",
    0x01: "KVM_CREATE_VM",
    0x03: "KVM_CHECK_EXTENSION",
    0x41: "KVM_CREATE_VCPU",
}
_NUMBERS |= {0x80: "KVM_RUN", 0xCE: "KVM_GET_STATS_FD"}
_DAY = 86400 * 10**9
_EPOCH = 10**8
_ROWS = 1 << 15
_MOST_PENDING = 1 << 16
_COLUMNS = {"request": "object", "fd": "i4", "result": "i8", "errno": "object", "duration_ns": "i8"}


def sniff(head: bytes) -> bool:
    """Whether *head* begins what strace printed: most of its lines are system calls."""
    if b"\0" in head[:4096]:
        return False
    calls = others = 0
    for data in head[: 1 << 16].splitlines()[:200]:
        line = data[:4096].decode("utf-8", "backslashreplace")
        found = _LINE.match(line)
        if found and (_RESULT.search(line) or "<unfinished" in line or found["rest"][:3] in ("---", "+++", "<..")):
            calls += 1
        elif line.strip() and not line.startswith("strace: "):
            others += 1
    return calls > 0 and calls >= others


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call whose result has not come yet."""

    name: str
    args: str
    time: int


class Strace:
    """The KVM ioctls strace saw, as the table ``ioctl``; an :class:`~worldswitch.record.trace.EventSource`.

    Columns: ``request`` (``KVM_CREATE_VM``; a number strace has no name for as strace prints it), ``fd``,
    ``result`` (-1 on failure), ``errno`` (``EINTR``, empty on success), ``duration_ns`` (-1 without
    ``-T``). Their time is when the call began: the clock of ``-tt`` or ``-ttt``, the sum of ``-r``, or
    without any of them the sum of the durations so far. All other calls are only counted, in
    ``meta.events["syscall"]``. A call that never returned is counted, and has no row.
    """

    def __init__(self, source: Source) -> None:
        self.meta = Meta(source=source.name, format="strace", tool="strace")
        self.formats: dict[str, EventFormat] = {}
        self._source = source
        self._begun: dict[int, _Begun] = {}
        self._time = 0
        self._midnights = 0
        self._of_day = -1
        self._ioctls = 0
        self._syscalls = 0
        self._rows: list[tuple[int, int, tuple[object, ...]]] = []

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """All KVM ioctls in the order they began; :attr:`meta` is final when it ends."""
        order = TimeOrder()
        wanted = _COLUMNS if selection is None else {}
        if selection is not None and "ioctl" in selection:
            fields = selection["ioctl"]
            wanted = {name: dtype for name, dtype in _COLUMNS.items() if fields is None or name in fields}
        keep = selection is None or "ioctl" in selection
        for line in text_lines(self._source):
            self._line(line)
            if len(self._rows) >= _ROWS:
                yield from self._flush(order, wanted, keep)
        yield from self._flush(order, wanted, keep)
        yield from order.rest()
        self._finish(order)

    def _line(self, line: str) -> None:
        found = _LINE.match(line[: 1 << 16])
        if not found:
            self.meta.skipped_lines += bool(line.strip())
            return
        tid = int(found["pid"] or found["tid"] or -1)
        tid = min(tid, 0x7FFFFFFF)
        clock = self._clock(found)
        rest = found["rest"]
        if rest.startswith(("---", "+++")):
            return
        resumed = _RESUMED.match(rest)
        if resumed:
            begun = self._begun.pop(tid, None)
            if begun and begun.name == resumed["name"]:
                self._call(begun.name, begun.args + resumed["args"], tid, begun.time, clock)
            else:
                self._call(resumed["name"], resumed["args"], tid, self._time, clock)
            return
        call = _CALL.match(rest)
        if not call:
            self.meta.skipped_lines += 1
            return
        unfinished = _UNFINISHED.search(call["args"])
        if unfinished and len(self._begun) < _MOST_PENDING:
            self._begun[tid] = _Begun(call["name"], call["args"][: unfinished.start()], self._time)
            return
        self._call(call["name"], call["args"], tid, self._time, clock)

    def _clock(self, found: re.Match[str]) -> bool:
        """Take the line's time, if it has one."""
        if found["h"]:
            minutes = int(found["h"]) * 60 + int(found["m"])
            now = minutes * 60 * 10**9 + nanoseconds(found["s"], found["us"])
            if now < self._of_day - _DAY // 2:
                self._midnights += 1
            self._of_day = now
            self._time = now + min(self._midnights, 10**4) * _DAY
            self.meta.clock = "time of day"
            return True
        if found["sec"]:
            value = nanoseconds(found["sec"], found["frac"])
            if int(found["sec"]) >= _EPOCH:
                self._time, self.meta.clock = min(value, 9 * 10**18), "realtime"
            else:
                self._time = min(self._time + value, 9 * 10**18)
                self.meta.clock = "relative"
            return True
        return False

    def _call(self, name: str, args: str, tid: int, time: int, clock: bool) -> None:
        result = _RESULT.search(args)
        duration = -1
        if result and result["seconds"]:
            duration = nanoseconds(result["seconds"], result["fraction"])
        request = _kvm_request(args) if name == "ioctl" else None
        if request is None:
            self._syscalls += 1
        else:
            self._ioctls += 1
            if result:
                text = result["result"]
                value = -1 if text == "?" else _signed(int(text, 16 if text.startswith("0x") else 10))
                row = (request[1], request[0], value, result["errno"] or "", duration)
                self._rows.append((time, tid, row))
        if not clock and duration > 0:
            self._time = min(self._time + duration, 9 * 10**18)

    def _flush(self, order: TimeOrder, wanted: dict[str, str], keep: bool) -> Iterator[Batch]:
        rows, self._rows = self._rows, []
        if not rows:
            return
        self.meta.first_ns = min(
            [row[0] for row in rows] + ([] if self.meta.first_ns is None else [self.meta.first_ns])
        )
        self.meta.last_ns = max([row[0] for row in rows] + ([] if self.meta.last_ns is None else [self.meta.last_ns]))
        if not keep:
            return
        at = [list(_COLUMNS).index(name) for name in wanted]
        values = [[row[2][index] for index in at] for row in rows]
        order.add(table_batch("ioctl", wanted, values, [row[0] for row in rows], [row[1] for row in rows]))
        pending = min((begun.time for begun in self._begun.values()), default=self._time)
        yield from order.up_to(min(pending, self._time))

    def _finish(self, order: TimeOrder) -> None:
        meta = self.meta
        for begun in self._begun.values():
            if begun.name == "ioctl" and _kvm_request(begun.args):
                self._ioctls += 1
            else:
                self._syscalls += 1
        meta.out_of_order = order.out_of_order
        meta.events = {name: n for name, n in (("ioctl", self._ioctls), ("syscall", self._syscalls)) if n}
        if meta.clock is None:
            meta.clock = "sum of durations"
        if self._source.damage:
            meta.damaged(self._source.damage)


def _kvm_request(args: str) -> tuple[int, str] | None:
    """``(fd, request)`` of a KVM ioctl, or None for any other."""
    found = _KVM.match(args)
    if not found:
        return None
    if found["name"]:
        return int(found["fd"]), found["name"]
    number = int(found["nr"] or found["raw"], 16)
    return int(found["fd"]), _NUMBERS.get(number, f"KVM ioctl {number:#04x}")


def _signed(value: int) -> int:
    return max(-(1 << 63), value - (1 << 64) if value >= 1 << 63 else value)
