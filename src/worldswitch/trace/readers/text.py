"""Traces as text: tracefs ``trace`` and ``trace_pipe``, ``trace-cmd report``, ``perf script``.

The dialects are told per line, so a file may mix them::

    qemu-1234  ( 1200) [003] d..1.   12.345678: kvm_exit: vcpu 0 reason HLT rip 0x1000d ...     tracefs
    qemu-1234  [003]   12.345678901: kvm_exit:          reason HLT rip 0x1000d info 0 0       trace-cmd report
    qemu   1200/1234 [003]   12.345678:      kvm:kvm_exit: vcpu 0 reason HLT rip 0x1000d ...    perf script
    qemu-1234    3d..1. 12345678us!: kvm_exit: vcpu 0 reason HLT rip 0x1000d ...    tracefs, latency-format

Any flag columns or none, task names that hold anything, tgid columns, times in µs, in ns or as raw counts.
KVM's events become columns with the kernel's field names (:mod:`worldswitch.trace.readers.textforms`); any
other event becomes a table with the one column ``text``, and so does a KVM event whose body nobody
understands, under the name ``<event>:unparsed``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, cast

import numpy as np

from worldswitch.record.formats import EventFormat
from worldswitch.record.order import TimeOrder
from worldswitch.record.trace import Batch, Columns, Meta, Selection
from worldswitch.trace.readers import textcodes as codes
from worldswitch.trace.readers import textcolumns, textodd, textreasons
from worldswitch.trace.readers.textforms import FORMS
from worldswitch.trace.readers.textscan import Scanner
from worldswitch.trace.readers.texttemplates import LARGEST_WORD, Template, Words

BLOCK = 4 << 20
_ROWS = 1 << 16
_VALUES = 1 << 20
_MOST_EVENTS = 4000
_UNPARSED = ":unparsed"

_TIME = re.compile(rb"(?<![^\s])\d{1,18}(?:\.\d{1,9}|us.)?:(?=\s)")
_EVENT = re.compile(rb"\s+(?:\(\+?\d{1,18}\)\s+)?(?:\d{1,18}\s+)?(?:[\w-]{1,80}:){0,3}[A-Za-z_][\w.-]{0,80}:(?:\s|$)")


class Lines(Protocol):
    """What a reader of texts needs of its input."""

    name: str

    @property
    def damage(self) -> str | None:
        """What was wrong with the bytes, if anything."""
        ...

    def readinto(self, buffer: memoryview) -> int:
        """Fill *buffer*; fewer bytes only at the end."""
        ...


def event_share(head: bytes) -> tuple[int, int]:
    """How many lines of *head* look like events, and how many are neither that, blank, nor a known header."""
    events = others = 0
    meta = Meta()
    for line in head[: 1 << 16].splitlines()[:500]:
        if len(line) < 4096 and any(_EVENT.match(line, time.end()) for time in _TIME.finditer(line)):
            events += 1
        elif line.strip() and not textodd.take_header(line[:4096].decode("latin-1"), meta):
            others += 1
    return events, others


def sniff(head: bytes) -> bool:
    """Whether *head* begins a trace text as a tool wrote it.

    What people pasted is for :mod:`worldswitch.trace.readers.pasted`, which reads this too, but slowly.
    """
    if b"\0" in head[:4096] or re.search(rb"(?m)^\s*[>|].*:\s+kvm_", head[: 1 << 14]):
        return False
    events, others = event_share(head)
    return events > 0 and (others <= 1 or others * 20 <= events)


class TextTrace:
    """The events of a trace text; an :class:`~worldswitch.record.trace.EventSource`.

    Attributes:
        meta: What the text tells besides events. ``skipped_lines`` counts lines that are neither events nor
        blank nor
            known headers; ``malformed`` the KVM events whose body was not understood.
        formats: Empty: a text describes no layouts.
        reason_names: ``(isa, reason)`` to name for exit reasons no table knows; such a reason's number is
        made from
            its name, the same in every run, and is 0x40000000 or more.
    """

    def __init__(self, source: Lines) -> None:
        self.meta = Meta(source=source.name, format="text")
        self.formats: dict[str, EventFormat] = {}
        self.reason_names: dict[tuple[int, int], str] = {}
        self._source = source
        self._words = Words()
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._templates: dict[int, Template] = {}
        self._columns: dict[int, tuple[str, ...]] = {}
        self._vcpu_of: dict[int, int] = {}
        self._isa = 0
        self._last_time = 0
        self._text = bytearray(BLOCK)
        self._allocate()
        self._skipping = False

    def _allocate(self) -> None:
        self._order = np.zeros(_ROWS, np.uint16)
        self._time, self._from, self._to, self._row_at = (np.zeros(_ROWS, np.int64) for _ in range(4))
        self._cpu, self._tid, self._pid = (np.zeros(_ROWS, np.int32) for _ in range(3))
        self._values = np.zeros(_VALUES, np.uint64)
        events = len(self._words.programs)
        self._counts, self._shown = np.zeros(events, np.int64), np.zeros(events, np.uint64)
        self._other_from, self._other_to = np.zeros(_ROWS, np.int64), np.zeros(_ROWS, np.int64)
        self._tid_seen, self._comm_tid = np.full(codes.TID_SLOTS, -2, np.int32), np.zeros(_ROWS, np.int32)
        self._comm_from, self._comm_to = np.zeros(_ROWS, np.int64), np.zeros(_ROWS, np.int64)
        found = (
            *(self._order, self._time, self._cpu, self._tid, self._pid, self._from, self._to, self._row_at),
            *(self._values, self._counts, self._shown, self._other_from, self._other_to),
            *(self._tid_seen, self._comm_tid, self._comm_from, self._comm_to),
        )
        views = tuple(memoryview(cast(Any, a)) for a in found)
        self._scanner = cast(Any, Scanner)(self._text, self._words.arrays(), views)

    def batches(self, selection: Selection | None = None) -> Iterator[Batch]:
        """All events in time order; *selection* limits what is decoded. :attr:`meta` is final when it
        ends."""
        order = TimeOrder()
        scanner = self._scanner
        while not scanner.last_block:
            self._fill()
            while (why := scanner.scan()) != codes.END:
                if why == codes.FULL:
                    yield from self._flush(order, selection)
                elif why == codes.NEW_EVENT:
                    self._learn_event(selection)
                elif why == codes.NEW_REASON:
                    self._new_reason()
                else:
                    self._odd(selection)
                    scanner.at = scanner.next_line
            yield from self._flush(order, selection)
        yield from order.rest()
        self.meta.out_of_order = order.out_of_order
        self._finish()

    def _fill(self) -> None:
        """Move the unfinished line to the front and read on behind it; a line longer than a block is
        dropped."""
        scanner, text = self._scanner, self._text
        kept = scanner.size - scanner.at
        if kept == len(text):
            kept = 0
            if not self._skipping:
                self.meta.skipped_lines += 1
            self._skipping = True
        if kept:
            text[:kept] = text[scanner.at : scanner.size]
        room = len(text) - kept
        read = self._source.readinto(memoryview(text)[kept:])
        scanner.at, scanner.size = 0, kept + read
        scanner.last_block = read < room
        if self._skipping:
            end = text.find(b"\n", 0, scanner.size)
            self._skipping = end < 0 and not scanner.last_block
            scanner.at = end + 1 if end >= 0 else scanner.size
            if self._skipping:
                scanner.at = 0 if scanner.size == len(text) else scanner.size

    def _word(self) -> str:
        return self._line(self._scanner.word_from, self._scanner.word_to)

    def _line(self, begin: int, end: int) -> str:
        return bytes(self._text[begin:end]).decode("utf-8", "backslashreplace")

    def _learn_event(self, selection: Selection | None) -> None:
        scanner = self._scanner
        if self._new_event(self._word(), selection) < 0:
            self._other(self._line(scanner.at, min(scanner.line_end, scanner.at + 4096)))
            scanner.at = scanner.next_line

    def _new_event(self, name: str, selection: Selection | None) -> int:
        """Give event *name* a number, and the matcher what it needs to take it."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if len(name) > LARGEST_WORD:
            return -1
        if len(self._names) >= _MOST_EVENTS:
            self._close("events")
            return -1
        number = self._numbers[name] = len(self._names)
        self._names.append(name)
        self._words.add(codes.EVENTS, name.encode("utf-8", "surrogateescape"), number)
        if selection is not None and name not in selection:
            self._words.programs[number] = codes.NOT_WANTED
        elif name in FORMS:
            self._templates[number] = self._words.compile(number, FORMS[name])
        else:
            self._words.programs[number] = codes.AS_TEXT
        return number

    def _new_reason(self) -> None:
        """Give the exit reason the scanner stopped at a number; the bytes as they are, or it would stop again."""
        scanner = self._scanner
        word = bytes(self._text[scanner.word_from : scanner.word_to])
        if self._words.full or len(self.reason_names) >= _MOST_EVENTS:
            self._close("exit reasons")
            return
        if len(word) > LARGEST_WORD:
            self.meta.malformed += 1
            scanner.at = scanner.next_line
            return
        self._words.add(codes.REASONS, word, self._reason(word.decode("utf-8", "backslashreplace")))

    def _reason(self, name: str) -> int:
        """``isa << 32 | reason``; a name nobody knows gets a number of its own and is put down."""
        known = textreasons.number(name)
        if known is None:
            isa = 2 if name == name.lower() else 1
            known = isa, 0x40000000 | zlib.crc32(name.encode("utf-8", "surrogateescape")) & 0x3FFFFFFF
            self.reason_names[known] = name
        return known[0] << 32 | known[1]

    def _close(self, what: str) -> None:
        if self._scanner.closed:
            return
        self._scanner.closed = True
        self.meta.notes.append(f"more different names of {what} than a trace has; lines with further ones were skipped")

    # Lines the scanner leaves to us

    def _odd(self, selection: Selection | None) -> None:
        scanner = self._scanner
        head = scanner.head()
        if head is None:
            self._headless(self._line(scanner.at, min(scanner.line_end, scanner.at + (1 << 16))), selection)
            return
        time, cpu, tid, pid, name_from, name_to, body_from, comm_from, comm_to = head
        number = self._numbers[self._line(name_from, name_to)]
        body = self._line(body_from, min(scanner.line_end, body_from + (1 << 16)))
        values = self._loose(number, body)
        if comm_to > comm_from:
            self.meta.comms.setdefault(tid, self._line(comm_from, comm_to))
        if pid >= 0:
            self.meta.vm_identity = "tgid"
        if values is None:
            self.meta.malformed += 1
            number = self._new_event(self._names[number] + _UNPARSED, selection)
            if number < 0:
                return
        self._append(number, (time, cpu, tid, pid), (body_from, scanner.line_end), values)

    def _headless(self, line: str, selection: Selection | None) -> None:
        found = textodd.odd_event(line)
        number = -1 if found is None else self._new_event(found.event, selection)
        if found is None or number < 0:
            self._other(line)
            return
        if number not in self._templates:
            self._counts[number] += 1
            return
        end = self._scanner.line_end
        row_at = self._match(number, found.body, end)
        values = None if row_at >= 0 else self._loose(number, found.body)
        if row_at < 0 and values is None:
            self._other(line)
            return
        time = self._last_time if found.time is None else found.time
        if found.comm and found.tid >= 0:
            self.meta.comms.setdefault(found.tid, found.comm)
        self._append(number, (time, found.cpu, found.tid, -1), (end, end), values, row_at)

    def _match(self, number: int, body: str, end: int) -> int:
        """Where the values of *body* are, which ends at *end* in the block; -1 if no template matches it."""
        scanner, program = self._scanner, int(self._words.programs[number])
        data = body.encode("utf-8", "surrogateescape")
        begin = end - len(data)
        if program <= 0 or begin < 0 or self._text[begin:end] != data:
            return -1
        what = scanner.match(program, number, begin, end)
        if what == codes.NEW_REASON and scanner.word_to - scanner.word_from <= LARGEST_WORD:
            self._new_reason()
            what = scanner.match(program, number, begin, end)
        return scanner.used - len(self._templates[number].slots) if what == codes.TAKEN else -1

    def _loose(self, number: int, body: str) -> dict[str, int] | None:
        template = self._templates[number]
        values = textodd.loose_values(template, body) or {}
        reason = next((name for name, kind in template.kinds.items() if kind == "reason"), None)
        if reason is None or reason in values:
            return values or None
        word = textodd.loose_reason(body)
        if word is None or not word[0]:
            return None
        name, failed = word
        values[reason] = textreasons.printed_number(name) if textreasons.is_number(name) else self._reason(name)
        values["failed"] = int(failed)
        return values

    def _append(
        self,
        number: int,
        who: tuple[int, int, int, int],
        body: tuple[int, int],
        values: dict[str, int] | None,
        row_at: int = -1,
    ) -> None:
        """One event as the scanner would have put it down; its values are at *row_at*, or those of *values*."""
        self._counts[number] += 1
        scanner, program = self._scanner, self._words.programs[number]
        scanner.first, scanner.last = min(scanner.first, who[0]), max(scanner.last, who[0])
        if program == codes.NOT_WANTED:
            return
        n = scanner.n
        self._order[n], self._row_at[n] = number, row_at
        self._time[n], self._cpu[n], self._tid[n], self._pid[n] = who
        self._from[n], self._to[n] = body
        if values is not None:
            self._row_at[n] = scanner.used
            slots = self._templates[number].slots
            for slot, name in enumerate(slots):
                absent = codes.MASK64 if slot == self._words.vcpu_slot[number] else 0
                self._values[scanner.used + slot] = values.get(name, absent)
                if name in values:
                    self._shown[number] |= np.uint64(1 << slot)
            scanner.used += len(slots)
        scanner.n = n + 1
        self._last_time = who[0]

    def _other(self, line: str) -> None:
        if line.strip() and not textodd.take_header(line[:4096], self.meta):
            self.meta.skipped_lines += 1

    # From what the scanner found to batches

    def _flush(self, order: TimeOrder, selection: Selection | None) -> Iterator[Batch]:
        scanner = self._scanner
        for k in range(scanner.n_others):
            begin, end = int(self._other_from[k]), int(self._other_to[k])
            self._other(self._line(begin, min(end, begin + 4096)))
        for k in range(scanner.n_comms):
            name = self._line(int(self._comm_from[k]), int(self._comm_to[k]))
            self.meta.comms[int(self._comm_tid[k])] = name
        if scanner.n:
            batch = self._batch(selection)
            self._last_time = int(batch.time[-1])
            order.add(batch)
        scanner.n = scanner.used = scanner.n_others = scanner.n_comms = 0
        if scanner.last > -(1 << 62):
            yield from order.up_to(scanner.last)

    def _batch(self, selection: Selection | None) -> Batch:
        n = self._scanner.n
        order = self._order[:n]
        numbers = np.flatnonzero(np.bincount(order))
        places = np.zeros(int(numbers[-1]) + 1, np.uint16)
        places[numbers] = np.arange(len(numbers))
        self._tell_vcpus(order)
        tables = tuple(self._table(int(number), np.flatnonzero(order == number), selection) for number in numbers)
        time, cpu, tid, pid = self._time[:n], self._cpu[:n], self._tid[:n], self._pid[:n]
        names = tuple(self._names[number] for number in numbers)
        return Batch(names, places[order], time.copy(), cpu.copy(), tid.copy(), pid.copy(), tables)

    def _table(self, number: int, rows: np.ndarray[Any, Any], selection: Selection | None) -> Columns:
        template = self._templates.get(number)
        if template is None:
            texts = np.empty(len(rows), object)
            for k, row in enumerate(rows):
                texts[k] = self._line(int(self._from[row]), int(self._to[row]))
            return {"text": texts}
        if number not in self._columns:
            names = textcolumns.column_names(template, int(self._shown[number]))
            wanted = None if selection is None else selection[self._names[number]]
            self._columns[number] = names if wanted is None else tuple(n for n in names if n in wanted)
        starts = self._row_at[rows]
        columns = textcolumns.columns(template, self._columns[number], self._values, starts)
        if "isa" in columns and "isa" not in template.slots:
            self._tell_isa(columns)
        return columns

    def _tell_isa(self, columns: Columns) -> None:
        """A reason the kernel printed as a number does not say whose it is; the trace's other reasons do."""
        isa = columns["isa"]
        told = isa[isa != 0]
        if len(told):
            self._isa = self._isa or int(told[0])
        isa[isa == 0] = self._isa

    def _tell_vcpus(self, order: np.ndarray[Any, Any]) -> None:
        """Fill in the vCPU of exits that do not name it (before 5.10, and trace-cmd's plugin) from their
        threads."""
        parts, exits = [], []
        for name, has_to in (("kvm_entry", False), ("kvm_exit", True), ("kvm_nested_vmexit", True)):
            template = self._templates.get(self._numbers.get(name, -1))
            if template is not None and "vcpu_id" in template.slots:
                rows = np.flatnonzero(order == self._numbers[name])
                places = self._row_at[rows] + template.slots.index("vcpu_id")
                parts.append((rows, places))
                if has_to:
                    exits.append(places)
        if not exits or not (self._values[np.concatenate(exits)] == codes.MASK64).any():
            return
        rows, places = (np.concatenate(column) for column in zip(*parts, strict=True))
        in_order = np.argsort(rows, kind="stable")
        rows, places = rows[in_order], places[in_order]
        vcpus = textcolumns.known_vcpus(self._values[places].view(np.int64), self._tid[rows], self._vcpu_of)
        self._values[places] = vcpus.astype(np.uint64)
        note = "exits here do not name their vCPU: it is the one their thread entered"
        if note not in self.meta.notes:
            self.meta.notes.append(note)

    def _finish(self) -> None:
        scanner, meta = self._scanner, self.meta
        meta.events = {name: int(self._counts[k]) for k, name in enumerate(self._names) if self._counts[k]}
        if meta.events:
            meta.first_ns, meta.last_ns = int(scanner.first), int(scanner.last)
        if scanner.processes:
            meta.vm_identity = "tgid"
        if scanner.raw_times:
            meta.notes.append("times without a point are taken as they are: counts of the trace's clock, not ns")
        if scanner.systems and not meta.tool:
            meta.tool = "perf script"
        if self.reason_names:
            meta.notes.append(f"exit reasons in no table: {', '.join(sorted(set(self.reason_names.values()))[:20])}")
        if self._source.damage:
            meta.damaged(self._source.damage)
