"""Readers, one file per format; :func:`open_source` chooses by content."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from worldswitch.errors import TraceFormatError
from worldswitch.record.trace import EventSource
from worldswitch.trace.readers.source import Input

FORMATS: dict[str, tuple[str, str]] = {
    "perfdata": ("PerfData", "perf.data"),
    "tracedat": ("TraceDat", "trace.dat"),
    "tooltables": ("ToolTables", "tables of perf kvm stat, kvm_stat or kvm-unit-tests"),
    "strace": ("Strace", "strace"),
    "text": ("TextTrace", "text of tracefs, trace-cmd report or perf script"),
    "pasted": ("Pasted", "the same as people paste it into mails"),
}
"""Reader module -> its class and what it reads, in the order in which they are asked."""


def open_source(path: str | Path) -> EventSource:
    """Open a trace, whatever its format and compression; ``-`` is standard input.

    A folder that :meth:`~worldswitch.record.trace.Trace.save` wrote is opened too.

    Raises:
        MissingError: The file cannot be read.
        TraceFormatError: No reader knows it, or it is damaged before its first event.
    """
    if str(path) != "-" and Path(path).is_dir() and (Path(path) / "meta.json").exists():
        from worldswitch.record.trace import Trace

        return Trace.load(path)
    return open_input(Input.open(path))


def open_input(source: Input) -> EventSource:
    """Choose the reader for *source* by its first bytes; where none takes it, it is closed."""
    try:
        return _chosen(source)
    except BaseException:
        source.close()
        raise


def _chosen(source: Input) -> EventSource:
    if not source.head:
        raise TraceFormatError(f"{source.name} holds nothing: {source.damage or 'its compressed data is empty'}")
    for module_name, (class_name, _) in FORMATS.items():
        module = import_module(f"worldswitch.trace.readers.{module_name}")
        if module.sniff(source.head):
            return cast(EventSource, getattr(module, class_name)(source))
    known = ", ".join(what for _, what in FORMATS.values())
    raise TraceFormatError(
        f"{source.name} starts with {source.head[:8].hex(' ')}, which no reader knows; known are {known}"
    )
