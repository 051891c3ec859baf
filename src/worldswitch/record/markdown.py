"""Text as Markdown (GitHub's, which has tables) that shows it as it is. Standard library only, Python 3.9."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from worldswitch.errors import printable

_SPECIAL = re.compile(r"[\\|`*\[\]<>~]|&(?=#?\w+;)|(?<!\w)_|_(?!\w)")
"""What would be markup; an underscore inside a word is none."""
_FIRST = re.compile(r"^(\d*)([.)]|#{1,6}|[+-]+|=+)(?=\s|$)")
"""What would be markup where a line begins."""


class Marked(str):
    """Text that is Markdown already."""

    __slots__ = ()


def escaped(text: str, cell: bool = False) -> str:
    """*text* as one line of Markdown that shows it as it is; *cell*: in a table, where no line begins."""
    if isinstance(text, Marked):
        return text
    plain = _SPECIAL.sub(lambda one: "&amp;" if one[0] == "&" else f"\\{one[0]}", printable(text))
    return Marked(plain if cell else _FIRST.sub(r"\1\\\2", plain))


def table(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str = "", left: Collection[str] = ()) -> str:
    """The table with pipes, each column as wide as its widest cell so that it is a table in plain text as well."""
    lines = [
        [escaped(cell, cell=True) for cell in (*row, *[""] * (len(columns) - len(row)))] for row in (columns, *cells)
    ]
    widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(columns))]
    rules = [
        ":".ljust(width, "-") if name in left else "-" * (width - 1) + ":"
        for name, width in zip(columns, widths)  # noqa: B905 - Python 3.9 has no strict
    ]
    padded = [
        [
            cell.ljust(width) if name in left else cell.rjust(width)
            for cell, width, name in zip(line, widths, columns)  # noqa: B905
        ]
        for line in lines
    ]
    drawn = [f"| {' | '.join(line)} |" for line in (padded[0], rules, *padded[1:])]
    return "\n".join([*_heading(title), *drawn, ""])


def _heading(title: str) -> Iterator[str]:
    """Its first line in bold, the others below."""
    if not title:
        return
    first, *others = [title] if isinstance(title, Marked) else title.splitlines()
    yield from (f"**{escaped(first)}**", "")
    for line in others:
        yield from (escaped(line), "")
