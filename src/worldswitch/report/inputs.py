"""What a report is made of: each file is told by its content, read once, and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from worldswitch.errors import TraceFormatError, UsageError, printable
from worldswitch.report.document import command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worldswitch.record.result import Result
    from worldswitch.record.trace import EventSource
    from worldswitch.trace.readers.source import Input

_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_CONFORMANCE = "worldswitch-conformance"
_CONFORMANCE_NUMBERS = ("run", "equal", "named", "unexplained", "statistics_run", "statistics_equal", "seed")


@dataclass(frozen=True, slots=True)
class TraceInput:
    """A trace; *whole* is it in memory where its file can be read only once."""

    path: str
    whole: EventSource | None = None

    def opened(self) -> EventSource:
        """The events from the beginning."""
        from worldswitch.trace.readers import open_source

        return self.whole if self.whole is not None else open_source(self.path)


@dataclass(frozen=True, slots=True)
class ResultInput:
    """What ``wsw run --save`` wrote."""

    path: str
    result: Result


@dataclass(frozen=True, slots=True)
class HostInput:
    """What the doctor says of one host, as ``wsw doctor --json`` prints it."""

    path: str
    document: Mapping[str, Any]
    command: str


@dataclass(frozen=True, slots=True)
class ConformanceInput:
    """The rows of a conformance table."""

    path: str
    rows: tuple[Mapping[str, Any], ...]


Read: TypeAlias = "TraceInput | ResultInput | HostInput | ConformanceInput"


def read(path: str, profile: str = "default") -> list[Read]:
    """What a file holds; several hosts if it is the doctor's document of several.

    Args:
        path: A trace, a saved Result, a host's snapshot, or what ``wsw doctor --json`` or ``wsw conform -o`` wrote,
            each as it is or compressed; ``-`` is standard input.
        profile: By which the doctor judges a snapshot.

    Raises:
        MissingError: It cannot be read.
        TraceFormatError: It is none of these, or damaged.
    """
    from worldswitch.trace.readers.source import Input

    if path != "-" and Path(path).is_dir():
        return [_trace(path, None)]
    source = Input.open(path)
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    try:
        if head[:1] == b"{":
            return _document(path, source)
        if source.head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
            return [_snapshot(path, profile)]
    finally:
        if not _only_once(path) or head[:1] == b"{":
            source.close()
    return [_trace(path, source if _only_once(path) else None)]


def _only_once(path: str) -> bool:
    return path == "-" or not Path(path).is_file()


def _trace(path: str, source: Input | None) -> TraceInput:
    from worldswitch.record.trace import Trace
    from worldswitch.trace.readers import open_input, open_source

    if source is not None:
        return TraceInput(path, Trace.read(open_input(source)))
    open_source(path)  # what no reader knows is refused before anything is made
    return TraceInput(path)


def _snapshot(path: str, profile: str) -> HostInput:
    from worldswitch.host.diagnosis import diagnose
    from worldswitch.host.document import Diagnosis, document
    from worldswitch.host.finding import Profile
    from worldswitch.host.gather import gather
    from worldswitch.host.snapshot import Snapshot

    if path == "-":
        raise UsageError("a snapshot cannot come from standard input; give its file")
    host, judged = gather(Snapshot(path)), Profile(profile)
    return HostInput(
        path, document(Diagnosis(host, judged, diagnose(host, judged))), command("doctor", path, "--profile", profile)
    )


def _document(path: str, source: Input) -> list[Read]:
    from worldswitch.record import resultfile
    from worldswitch.record.result import FORMAT

    data = source.read(resultfile.MAX_BYTES + 1)
    name = printable(path)
    if len(data) > resultfile.MAX_BYTES:
        raise TraceFormatError(f"{name} is longer than any document ({resultfile.MAX_BYTES >> 20} MiB)")
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise TraceFormatError(f"{name} nests too deeply for any document") from None
    except ValueError as error:
        raise TraceFormatError(f"{name} is not JSON, or cut off ({printable(str(error))}); write it anew") from None
    form = document.get("format")
    if form == FORMAT:
        try:
            return [ResultInput(path, resultfile.loads(data.removeprefix(b"\xef\xbb\xbf")))]
        except resultfile.ResultFormatError as error:
            raise TraceFormatError(f"{name}: {error}") from None
    if form == _CONFORMANCE:
        return [ConformanceInput(path, _conformance(name, document))]
    hosts = document.get("hosts", [document])
    if isinstance(hosts, list) and hosts and all(isinstance(one, dict) and "findings" in one for one in hosts):
        return [HostInput(path, _host(name, one), "wsw doctor --json") for one in hosts]
    raise TraceFormatError(
        f"{name} is JSON, but neither of wsw run --save, wsw doctor --json nor wsw conform -o; "
        "of a trace give the trace itself"
    )


def _conformance(name: str, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise TraceFormatError(f"{name} is damaged: it has no rows; wsw conform -o writes them")
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("kernel", "cpu", "mmu")):
            raise TraceFormatError(f"{name} is damaged: rows[{place}] names no kernel, cpu and mmu")
        for key in _CONFORMANCE_NUMBERS:
            if not isinstance(row.get(key), int):
                raise TraceFormatError(f"{name} is damaged: rows[{place}].{key} is no whole number")
    return tuple(rows)


_FINDING = {"id": str, "severity": str, "title": str, "evidence": list, "gain": dict, "fix": dict, "undo": dict}


def _host(name: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document, if what a report shows of it is as it should be."""
    findings = document["findings"]
    if not isinstance(findings, list):
        raise TraceFormatError(f"{name} is damaged: findings is no list; wsw doctor --json writes one")
    for place, one in enumerate(findings):
        for key, kind in _FINDING.items():
            if not isinstance(one, dict) or not isinstance(one.get(key), kind):
                raise TraceFormatError(f"{name} is damaged: findings[{place}].{key} is missing, or of another kind")
        for key in ("fix", "undo"):
            commands = one[key].get("commands", [])
            if not isinstance(commands, list) or not all(isinstance(line, str) for line in commands):
                raise TraceFormatError(f"{name} is damaged: findings[{place}].{key}.commands are no lines")
    return document
