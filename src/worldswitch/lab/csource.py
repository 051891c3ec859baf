"""Just enough of C to find macros, functions, statements and calls by the names in them, in the kernel's style of code.

Positions are offsets into the text. Comments and strings are blanked first, so braces and names in them do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SKIPPED = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_CLOSES = {"(": ")", "{": "}"}


class Span(NamedTuple):
    """A part of a text, from its first character to the one after its last."""

    start: int
    end: int

    def of(self, text: str) -> str:
        """The text of it."""
        return text[self.start : self.end]


class If(NamedTuple):
    """An ``if`` without an ``else``: the whole of it, its condition in parentheses, and what it guards."""

    whole: Span
    condition: Span
    body: Span


def blanked(text: str) -> str:
    """*text* with comments, strings and characters as blanks; line breaks and length stay."""
    return _SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def names(code: str) -> set[str]:
    """All identifiers in a piece of blanked text."""
    return set(_NAME.findall(code))


def macro(code: str, name: str) -> Span | None:
    """The definition of an object-like macro, lines it is continued on included; None if it is not defined here."""
    found = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}(?![\w(])(?:[^\n]*\\\n)*[^\n]*\n?", code, re.MULTILINE)
    return Span(*found.span()) if found else None


def functions(code: str, name: str) -> list[Span]:
    """The bodies, braces included, of all functions of that name defined here."""
    found = []
    for head in re.finditer(rf"^[^\s#].*?\b{name}\s*\(", code, re.MULTILINE):
        after = closing(code, head.end() - 1)
        brace = re.compile(r"\s*\{").match(code, after) if after else None
        if brace and ";" not in code[head.start() : head.end()]:
            end = closing(code, brace.end() - 1)
            if end:
                found.append(Span(brace.end() - 1, end))
    return found


def ifs(code: str, within: Span) -> Iterator[If]:
    """Every ``if`` in a part of the text that has no ``else`` and is no ``else if``; inner ones too."""
    for head in re.compile(r"\bif\s*\(").finditer(code, within.start, within.end):
        condition_end = closing(code, head.end() - 1)
        if not condition_end or re.search(r"\belse\s*$", code[within.start : head.start()]):
            continue
        body = _statement(code, condition_end)
        if body and not re.compile(r"\s*else\b").match(code, body.end):
            yield If(Span(head.start(), body.end), Span(head.end() - 1, condition_end), body)


def calls(code: str, name: str) -> list[Span]:
    """The statements ``name(...);``."""
    found = []
    for head in re.finditer(rf"\b{name}\s*\(", code):
        after = closing(code, head.end() - 1)
        if after and code[after : after + 1] == ";":
            found.append(Span(head.start(), after + 1))
    return found


def closing(code: str, at: int) -> int:
    """The offset after the bracket that closes the one at *at*; 0 if none does."""
    opens, closes = code[at], _CLOSES[code[at]]
    depth = 0
    for found in re.compile(rf"[{re.escape(opens + closes)}]").finditer(code, at):
        depth += 1 if found[0] == opens else -1
        if not depth:
            return found.end()
    return 0


def _statement(code: str, at: int) -> Span | None:
    start = at + len(code[at:]) - len(code[at:].lstrip())
    end = closing(code, start) if code[start : start + 1] == "{" else code.find(";", start) + 1
    return Span(start, end) if end else None
