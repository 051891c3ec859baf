"""Helpers for the tests of the readers of texts."""

from __future__ import annotations

from unittest import mock

import uncompiled
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import text, textmatch, textscan
from worldswitch.trace.readers.source import Input

HEAD = "qemu-1234  [003] d..1.   12.345678: "


SCANNERS = {"as installed": textscan.Scanner, "uncompiled": uncompiled.load(textmatch, textscan).Scanner}


def read(data: str | bytes, selection=None, reader=text.TextTrace, scanner: str = "as installed"):
    """``(trace, source)`` of a text."""
    data = data.encode() if isinstance(data, str) else data
    with mock.patch.object(text, "Scanner", SCANNERS[scanner]):
        source = reader(Input.from_bytes(data))
        return Trace.read(source, selection), source


def one(event: str, body: str, **options):
    """The columns of one event with *body*, as plain values."""
    trace, source = read(f"{HEAD}{event}: {body}\n", **options)
    assert source.meta.malformed == 0, source.meta
    table = trace.table(event)
    return {name: column[0].tolist() if hasattr(column[0], "tolist") else column[0] for name, column in table.items()}
