"""Templates of event texts, compiled for :class:`worldswitch.trace.readers.textmatch.Matcher`.

A template (notation: :mod:`worldswitch.trace.readers.textforms`) becomes a run of operations, three int32
each. The alternatives of an event hang together as a list: each begins with a head whose second number is
where the next begins (0: none). Words, literals and operations live in arrays of fixed size that the
matcher sees, so telling it a new word moves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from worldswitch.trace.readers import textcodes as codes
from worldswitch.trace.readers.textforms import Form

_POOL = 1 << 20
_WORDS = 1 << 15
_BUCKETS = 1 << 16
_OPERATIONS = 1 << 14
_EVENTS = 1 << 13
LARGEST_WORD = 80
_PIECE = re.compile(r"\{[^}]*\}|«|»|[^{}«»]+")
_KEY = re.compile(r"([A-Za-z_][\w-]*)[\s:=(]*\Z")
_FLAGS = {"P": 1, "W": 2, "U": 4, "RSVD": 8, "F": 16, "PK": 32}
"""Page-fault flags as kvm_mmu_trace_pferr_flags names them."""


@dataclass(slots=True)
class Template:
    """A compiled form.

    Attributes:
        program: Where its first alternative begins, for ``Matcher.match``.
        slots: The names of its values, in the order the matcher leaves them.
        kinds: Name to the part of the placeholder after the colon: ``""``, ``"x"``, ``"reason"`` ...
        keys: The word before a value to the value's name, for texts in another order.
        columns: ``(name, dtype, optional)``.
    """

    program: int
    slots: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    columns: tuple[tuple[str, str, bool], ...] = ()

    def slot(self, name: str) -> int:
        """The place of value *name*; a new one if it has none."""
        if name not in self.slots:
            self.slots.append(name)
        return self.slots.index(name)


class Words:
    """All words and operations a matcher knows, in the arrays it reads.

    Attributes:
        full: No more fit; texts with thousands of different event names are not traces.
    """

    def __init__(self) -> None:
        self.pool = np.zeros(_POOL, np.uint8)
        self.word_at = np.zeros(_WORDS, np.int32)
        self.word_size = np.zeros(_WORDS, np.int32)
        self.word_class = np.zeros(_WORDS, np.int32)
        self.word_value = np.zeros(_WORDS, np.uint64)
        self.buckets = np.full(_BUCKETS, -1, np.int32)
        self.programs = np.full(_EVENTS, codes.NOT_WANTED, np.int32)
        self.values_of = np.zeros(_EVENTS, np.int32)
        self.vcpu_slot = np.full(_EVENTS, -1, np.int32)
        self.code = np.zeros(3 * _OPERATIONS, np.int32)
        self.full = False
        self._pooled = 0
        self._words = 0
        self._operations = 1  # 0 is "no alternative"
        self._enums: dict[tuple[str, ...], int] = {}
        for name, bit in _FLAGS.items():
            self.add(codes.PAGE_FAULT_FLAGS, name.encode(), bit)

    def arrays(self) -> tuple[memoryview, ...]:
        """What ``Matcher.tell`` takes."""
        return tuple(
            memoryview(cast(Any, a))
            for a in (
                *(self.pool, self.word_at, self.word_size, self.word_class, self.word_value, self.buckets),
                *(self.programs, self.values_of, self.vcpu_slot, self.code),
            )
        )

    def add(self, kind: int, word: bytes, value: int) -> None:
        """Give *word* a meaning in class *kind*."""
        index = self._words
        if index >= _WORDS - 1 or self._pooled + len(word) > _POOL - (1 << 16):
            self.full = True
            return
        self.word_at[index] = self._pooled
        self.word_size[index] = len(word)
        self.word_class[index] = kind
        self.word_value[index] = value
        self._put(word)
        self._words += 1
        h = codes.HASH_START ^ kind
        for byte in word:
            h = ((h ^ byte) * codes.HASH_STEP) & codes.MASK32
        slot = (h ^ (h >> 15)) & (_BUCKETS - 1)
        while self.buckets[slot] >= 0:
            slot = (slot + 1) & (_BUCKETS - 1)
        self.buckets[slot] = index

    def compile(self, event: int, form: Form) -> Template:
        """Make *form* the templates of event number *event*."""
        template = Template(self._operations)
        previous = 0
        for text in form.templates:
            if previous:
                self.code[3 * previous + 1] = self._operations
            previous = self._operations
            self._emit(codes.OP_END, 0, 0)
            self._alternative(text, template)
        template.columns = tuple(_column(declared) for declared in form.columns.split())
        self.programs[event] = template.program
        self.values_of[event] = len(template.slots)
        if "vcpu_id" in template.slots and form.columns.startswith("exit_reason"):
            self.vcpu_slot[event] = template.slots.index("vcpu_id")
        return template

    def _alternative(self, text: str, template: Template) -> None:
        opened = 0
        literal = ""
        for piece in _PIECE.findall(text):
            if piece == "«":
                opened = self._operations
                self._emit(codes.OP_OPTIONAL, 0, 0)
            elif piece == "»":
                self._emit(codes.OP_OPTIONAL_END, 0, 0)
                self.code[3 * opened + 1] = self._operations
            elif piece.startswith("{"):
                self._placeholder(piece[1:-1], literal, template)
                literal = ""
                continue
            else:
                literal = piece
                at = self._put(piece.encode())
                self._emit(codes.OP_LITERAL, at, len(piece.encode()))
        self._emit(codes.OP_END, 0, 0)

    def _placeholder(self, inner: str, before: str, template: Template) -> None:
        if inner == "*":
            self._emit(codes.OP_SKIP_WORD, 0, 0)
            return
        if "=" in inner and ":" not in inner:
            name, _, constant = inner.partition("=")
            self._emit(codes.OP_CONSTANT, template.slot(name), int(constant))
            return
        name, _, kind = inner.partition(":")
        slot = template.slot(name)
        template.kinds.setdefault(name, kind)
        key = _KEY.search(before)
        if key and kind in ("", "x", "-", "reason", "pferr"):
            template.keys.setdefault(key[1], name)
        if kind == "bytes":
            template.slot(name + ".high")
            template.slot(name + ".count")
        simple = {
            "": codes.OP_DECIMAL,
            "x": codes.OP_HEX,
            "-": codes.OP_NEGATED,
            "reason": codes.OP_REASON,
            "bytes": codes.OP_BYTES,
            "rwxu": codes.OP_LETTERS,
            "pferr": codes.OP_FLAGS,
        }
        if kind in simple:
            self._emit(simple[kind], slot, 0)
        else:
            self._emit(codes.OP_WORD, slot, self._enum(tuple(kind.split("|"))))

    def _enum(self, words: tuple[str, ...]) -> int:
        kind = self._enums.get(words)
        if kind is None:
            kind = self._enums[words] = codes.FIRST_ENUM + len(self._enums)
            for place, word in enumerate(words):
                name, _, value = word.partition("=")
                if name:
                    self.add(kind, name.encode(), int(value, 0) if value else place)
        return kind

    def _put(self, data: bytes) -> int:
        at = self._pooled
        self.pool[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self._pooled += len(data)
        return at

    def _emit(self, operation: int, a: int, b: int) -> None:
        self.code[3 * self._operations : 3 * self._operations + 3] = (operation, a, b)
        self._operations += 1


def _column(declared: str) -> tuple[str, str, bool]:
    name, _, dtype = declared.partition(":")
    return name, {"b": "bool"}.get(dtype.rstrip("?"), dtype.rstrip("?")), dtype.endswith("?")
