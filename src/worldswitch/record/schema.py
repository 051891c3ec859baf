"""Layouts of the events of kvm and kvmmmu, for events that come without a format (from text, from a model)."""

from __future__ import annotations

from worldswitch.record.formats import EventFormat
from worldswitch.record.trace import Columns


def generated(name: str, columns: Columns, number: int) -> EventFormat:
    raise NotImplementedError
