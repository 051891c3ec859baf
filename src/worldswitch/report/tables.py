"""Tables for the terminal: never wider than 100 columns on their own, and safe with any string in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from worldswitch.errors import printable

WIDTH = 100


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", left: Iterable[str] = ()) -> str:
    """A table as text.

    Args:
        columns: Headings.
        rows: Cells; None is shown as ``-``.
        title: A line above it.
        left: Headings of the columns aligned left; the others are aligned right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    flush_left = frozenset(left)
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        is_left = name in flush_left
        drawn.add_column(
            name,
            justify="left" if is_left else "right",
            no_wrap=not is_left,
            overflow="fold",
            min_width=8 if is_left else None,
        )
    for row in rows:
        drawn.add_row(*(Text(printable("-" if cell is None else str(cell))) for cell in row))
    out = StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False, force_terminal=False)
    console.print(drawn)
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return f"{title}\n{text}\n" if title else f"{text}\n"


def fields(pairs: Iterable[tuple[str, Any]]) -> str:
    """Lines of ``name  value``, names aligned; pairs whose value is None or empty are left out."""
    shown = [(name, printable(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in shown)


def wrapped(text: str) -> str:
    """*text* in lines as wide as a table may be."""
    import textwrap

    return textwrap.fill(printable(text), WIDTH)


def indented(text: str) -> str:
    """*text* in lines as wide as a table may be, each four columns in."""
    import textwrap

    return textwrap.fill(printable(text), WIDTH, initial_indent="    ", subsequent_indent="    ")


def paragraphs(title: str, sentences: Iterable[str]) -> str:
    """A title and one wrapped item per sentence; nothing if there is none."""
    import textwrap

    items = [
        textwrap.fill(printable(sentence), WIDTH, initial_indent="- ", subsequent_indent="  ") for sentence in sentences
    ]
    return "\n".join([title, *items, ""]) if items else ""
