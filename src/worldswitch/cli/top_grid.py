"""A table on the terminal that is drawn line by line: only what is seen is made, so a thousand rows cost no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from worldswitch.cli.top_columns import Column, Row, ordered

_HEAD = Style.parse("bold #c8d3e0 on #2b3a4a")
_SORTED = Style.parse("bold #101820 on #7fc8ff")
_CURSOR = Style.parse("on #24425f")
_GROUND = Style.parse("on #101820")
_COLOURS = {
    "dim": "#66717d", "": "#d5dde5", "green": "#7bd88f", "yellow": "#ffc857", "bold red": "bold #ff6b6b",
    "cyan": "#7fc8ff", "#5b93c4": "#5b93c4",
}  # fmt: skip
_STYLES = {name: _GROUND + Style.parse(colour) for name, colour in _COLOURS.items()}
_HERE = {name: _CURSOR + Style.parse(colour) for name, colour in _COLOURS.items()}
"""What the names that columns give their cells look like, and in the row of the cursor."""


class Grid(Widget, can_focus=True):
    """Rows under a heading, sorted by one column; the first columns stay when the others move sideways."""

    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
        Binding("left", "sideways(-1)", "Columns left", show=False),
        Binding("right", "sideways(1)", "Columns right", show=False),
        Binding("less_than_sign,comma", "sort(-1)", "Sort by the column left", show=False),
        Binding("greater_than_sign,full_stop", "sort(1)", "Sort by the column right", show=False),
        Binding("i", "turn", "Turn the order", show=False),
        Binding("enter", "choose", "Look closer", show=False),
    ]

    class Chosen(Message):
        """A row was chosen."""

        def __init__(self, grid: Grid, key: str) -> None:
            super().__init__()
            self.grid, self.key = grid, key

    def __init__(self, columns: Sequence[Column], sort: str, fixed: int = 1, nothing: str = "", **kwargs: str) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.nothing = nothing
        self.rows: list[Row] = []
        self.take_columns(columns, sort, fixed)

    def take_columns(self, columns: Sequence[Column], sort: str, fixed: int) -> None:
        """Show another table."""
        self.columns, self.sorted_by, self.fixed = tuple(columns), sort, fixed
        self.down = not next(one.left for one in columns if one.key == sort)
        self.aside = self.top = 0
        self._seen: list[Column] = []
        self.cursor: str | None = None
        self._place, self._moved = 0, False

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows, in the order chosen; the cursor stays on its row once it was moved."""
        before, self.rows = len(self.rows), ordered(rows, self.sorted_by, self.down)
        if not self._moved or self.cursor not in {row.key for row in self.rows}:
            place = min(self._place if self._moved else 0, len(self.rows) - 1)
            self.cursor = self.rows[place].key if self.rows else None
        self._see_cursor()
        self._seen = self.shown()
        self.refresh(layout=len(self.rows) != before)

    def _see_cursor(self) -> None:
        keys = [row.key for row in self.rows]
        self._place = keys.index(self.cursor) if self.cursor in keys else 0
        lines = max(1, self.size.height - 1)
        self.top = max(0, min(self.top, self._place, len(keys) - 1), self._place - lines + 1)
        self.top = max(0, min(self.top, max(0, len(keys) - lines)))

    def shown(self) -> list[Column]:
        """The columns that fit, the fixed ones first."""
        room = self.size.width
        found: list[Column] = []
        wanted = (*self.columns[: self.fixed], *self.columns[self.fixed + self.aside :])
        if sum(column.width + 1 for column in wanted) - 1 > room:
            # For the sign that there are more.
            room -= 1
        for column in wanted:
            if found and room < column.width:
                break
            found.append(column)
            room -= column.width + 1
        return found

    def render_line(self, y: int) -> Strip:
        """See textual's Line API."""
        width = self.size.width
        if y == 0:
            return self._heading(width)
        place = self.top + y - 1
        if not self.rows and y == 2 and self.nothing:
            return Strip([Segment(f"  {self.nothing}"[:width].ljust(width), _STYLES["dim"])], width).apply_style(
                _GROUND
            )
        if place >= len(self.rows):
            return Strip.blank(width, _GROUND)
        row = self.rows[place]
        styles = _HERE if row.key == self.cursor and self.has_focus else _STYLES
        segments, used = [], 0
        said, like = "", ""
        for column in self._seen:
            text, name = column.cell(row)
            if row.new and column.key == self.columns[0].key:
                name = "green"
            # Neighbours that look alike are one piece, which textual handles much faster.
            if name != like and said:
                segments.append(Segment(said, styles[like]))
                said = ""
            said, like = f"{said}{text} ", name
            used += column.width + 1
        segments.append(Segment(said, styles[like]))
        return Strip(segments, used).adjust_cell_length(width, styles[""])

    def _heading(self, width: int) -> Strip:
        segments = []
        for column in self._seen:
            arrow = ("▼" if self.down else "▲") if column.key == self.sorted_by else ""
            text = f"{column.title}{arrow}"[: column.width]
            text = text.ljust(column.width) if column.left else text.rjust(column.width)
            segments.append(Segment(text + " ", _SORTED if arrow else _HEAD))
        more = len(self.columns) > len(self._seen) + self.aside
        strip = Strip(segments).adjust_cell_length(width, _HEAD)
        if more and width > 2:
            strip = Strip([*strip.crop(0, width - 1), Segment("›", _HEAD)], width)
        return strip

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as there are, so that a small table takes no more."""
        return len(self.rows) + 1

    def on_resize(self, _event: events.Resize) -> None:
        """Keep the cursor in sight."""
        self._see_cursor()
        self._seen = self.shown()

    def on_click(self, event: events.Click) -> None:
        """The heading sorts, a row is chosen by its second click."""
        if event.y == 0:
            left = 0
            for column in self.shown():
                if left <= event.x <= left + column.width:
                    self._sort_by(column.key)
                left += column.width + 1
            return
        place = self.top + event.y - 1
        if place < len(self.rows):
            again = self.rows[place].key == self.cursor
            self.cursor, self._moved = self.rows[place].key, True
            self._see_cursor()
            self.refresh()
            if again:
                self.action_choose()

    def on_mouse_scroll_down(self, _event: events.MouseScrollDown) -> None:
        """Three rows."""
        self.action_move(3)

    def on_mouse_scroll_up(self, _event: events.MouseScrollUp) -> None:
        """Three rows."""
        self.action_move(-3)

    def _sort_by(self, key: str) -> None:
        column = next(one for one in self.columns if one.key == key)
        if column.title == "":
            return
        self.down = not self.down if key == self.sorted_by else not column.left
        self.sorted_by = key
        self.show(self.rows)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        if self.rows:
            self._place, self._moved = max(0, min(len(self.rows) - 1, self._place + by)), True
            self.cursor = self.rows[self._place].key
            self._see_cursor()
            self.refresh()

    def action_page(self, by: int) -> None:
        """Move the cursor by what is seen."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_sideways(self, by: int) -> None:
        """Move the columns after the fixed ones."""
        most = max(0, len(self.columns) - self.fixed - 1)
        self.aside = max(0, min(most, self.aside + by))
        self._seen = self.shown()
        self.refresh()

    def action_sort(self, by: int) -> None:
        """Sort by the next column that has a heading, and show it."""
        keys = [column.key for column in self.columns if column.title]
        key = keys[(keys.index(self.sorted_by) + by) % len(keys)]
        self._sort_by(key)
        while key not in {column.key for column in self.shown()}:
            before = self.aside
            place = [column.key for column in self.columns].index(key)
            self.action_sideways(1 if place >= self.fixed + self.aside else -1)
            if self.aside == before:
                break

    def action_turn(self) -> None:
        """The other way round."""
        self.down = not self.down
        self.show(self.rows)

    def action_choose(self) -> None:
        """Tell the screen which row is meant."""
        if self.cursor is not None:
            self.post_message(self.Chosen(self, self.cursor))
