"""Tables for the terminal: never wider than 100 columns on their own, and safe with any string in them.

Within :func:`markdown` all of them come as Markdown, for issues and mails; as plain text that is readable too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from typing import Any

from worldswitch.errors import printable
from worldswitch.record.markdown import escaped
from worldswitch.record.markdown import table as pipes

WIDTH = 100
_LEAST = 8
_ONE_WIDE = frozenset(map(chr, range(0x20, 0x7F))) | frozenset("µ–─≠×…")
"""Signs that take one column in every terminal."""


_as_markdown: ContextVar[bool] = ContextVar("as_markdown", default=False)


@contextmanager
def markdown() -> Iterator[None]:
    """Within, everything here is Markdown (GitHub's, which has tables)."""
    token = _as_markdown.set(True)
    try:
        yield
    finally:
        _as_markdown.reset(token)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", left: Iterable[str] = ()) -> str:
    """A table as text.

    Args:
        columns: Headings.
        rows: Cells; None is shown as ``-``.
        title: A line above it.
        left: Headings of the columns aligned left; the others are aligned right.
    """
    flush_left = frozenset(left)
    cells = [[printable("-" if cell is None else str(cell)) for cell in row] for row in rows]
    if _as_markdown.get():
        return pipes(columns, cells, title, flush_left)
    text = _fitting(columns, cells, flush_left) or _folded(columns, cells, flush_left)
    return f"{title}\n{text}" if title else text


def _fitting(columns: Sequence[str], cells: Sequence[Sequence[str]], left: frozenset[str]) -> str | None:
    """The table where it is narrow enough and no sign is of unknown width: as rich draws it, without importing it."""
    lines = [list(columns), *([*row, *[""] * (len(columns) - len(row))] for row in cells)]
    if not all(
        _ONE_WIDE.issuperset(cell) and cell == cell.strip() for line in lines for cell in line
    ) or "[" in "".join(columns):
        return None
    widths = [
        max((_LEAST if name in left else 1), *(len(line[place]) for line in lines))
        for place, name in enumerate(columns)
    ]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    if len(rule) > WIDTH:
        return None
    drawn = [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for cell, width, name in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([drawn[0], rule, *drawn[1:], ""])


def _folded(columns: Sequence[str], cells: Sequence[Sequence[str]], left: frozenset[str]) -> str:
    """The table with its widest columns narrowed so that it fits, their cells on several lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    gaps = len(columns) - 1
    least = _least_width(columns, cells, left)
    between = 1 if least + 2 * gaps <= WIDTH else 0  # besides the one that the box draws
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, between, 0, 0))
    for name in columns:
        is_left = name in left
        drawn.add_column(
            name,
            justify="left" if is_left else "right",
            no_wrap=not is_left,
            overflow="fold",
            min_width=_LEAST if is_left else None,
        )
    for row in cells:
        drawn.add_row(*map(Text, row))
    out = StringIO()
    width = max(WIDTH, least + (1 + between) * gaps)
    console = Console(file=out, width=width, no_color=True, highlight=False, force_terminal=False)
    console.print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _least_width(columns: Sequence[str], cells: Sequence[Sequence[str]], left: frozenset[str]) -> int:
    """How wide the columns are together if no number is cut off: better too wide than wrong."""
    from rich.cells import cell_len

    numbers = [place for place, name in enumerate(columns) if name not in left]
    widths = [max(cell_len(line[place]) for line in (columns, *cells) if place < len(line)) for place in numbers]
    return sum(widths) + (len(columns) - len(numbers)) * _LEAST


def fields(pairs: Iterable[tuple[str, Any]]) -> str:
    """Lines of ``name  value``, names aligned; pairs whose value is None or empty are left out."""
    shown = [(name, printable(str(value))) for name, value in pairs if value not in (None, "")]
    if _as_markdown.get():
        # What has no name goes on with what was said before.
        return "".join(
            f"- {escaped(name)}: {escaped(value)}\n" if name else f"  {escaped(value)}\n" for name, value in shown
        )
    width = max((len(name) for name, _ in shown), default=0)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in shown)


def wrapped(text: str) -> str:
    """*text* in lines as wide as a table may be."""
    if _as_markdown.get():
        return escaped(text)
    import textwrap

    return textwrap.fill(printable(text), WIDTH)


def indented(text: str) -> str:
    """*text* in lines as wide as a table may be, each four columns in."""
    if _as_markdown.get():
        return f"  {escaped(text)}"
    import textwrap

    return textwrap.fill(printable(text), WIDTH, initial_indent="    ", subsequent_indent="    ")


def paragraphs(title: str, sentences: Iterable[str]) -> str:
    """A title and one wrapped item per sentence; nothing if there is none."""
    if _as_markdown.get():
        listed = [f"- {escaped(sentence)}" for sentence in sentences]
        return "\n".join([f"**{escaped(title)}**", "", *listed, ""]) if listed else ""
    import textwrap

    items = [
        textwrap.fill(printable(sentence), WIDTH, initial_indent="- ", subsequent_indent="  ") for sentence in sentences
    ]
    return "\n".join([title, *items, ""]) if items else ""
