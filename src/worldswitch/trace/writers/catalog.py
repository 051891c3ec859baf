"""Which format each event is written with, and what a writer has to say at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from worldswitch.record.formats import EventFormat
from worldswitch.record.schema import generated
from worldswitch.record.trace import Columns, EventSource


@dataclass(slots=True)
class Written:
    """What a writer wrote.

    Attributes:
        events: Events written.
        skipped: Event name -> events the output format could not take.
        notes: Sentences for the user about what the output does not say as the input did.
    """

    events: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class Catalog:
    """The formats of a source's events, completed by generated ones where the source (a text) has none."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._generated: dict[str, EventFormat] = {}

    def format(self, name: str, columns: Columns) -> EventFormat | None:
        """The format to write *name* with; None for a row of a table, which is no event (it has fractions)."""
        own = self._source.formats.get(name)
        if own is not None and own.text:
            return own
        if any(column.dtype.kind == "f" for column in columns.values()):
            return None
        made = self._generated.get(name)
        if made is None:
            taken = {f.id for f in (*self._source.formats.values(), *self._generated.values())}
            number = next(i for i in range(own.id if own else 300, 1 << 16) if i not in taken or (own and i == own.id))
            made = self._generated[name] = generated(name, columns, number)
        return made
