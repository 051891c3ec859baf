"""Findings as Markdown, to paste into an issue or a mail: an overview, then each with what to type. Python 3.9."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worldswitch.errors import printable
from worldswitch.host import script
from worldswitch.host.document import Diagnosis
from worldswitch.host.finding import Change, Finding, Severity
from worldswitch.host.text import in_order
from worldswitch.record.markdown import escaped, table

_OVERVIEW = ("severity", "finding", "what")


def markdown(diagnoses: Sequence[Diagnosis]) -> str:
    """All hosts, the worst first."""
    return "\n".join(line for one in in_order(diagnoses) for line in _host(one))


def _host(of: Diagnosis) -> Iterator[str]:
    kernel = f"Linux {of.host.release or '?'}, {of.host.cpu.processors} × {of.host.cpu.name or 'unknown processor'}"
    yield from (f"## {escaped(of.host.name or '?')}", "", f"{escaped(kernel)}; profile {of.profile.value}", "")
    told = [one for one in of.findings if one.severity is not Severity.OK]
    yield table(_OVERVIEW, [(one.severity.label, one.id, one.title) for one in told], left=_OVERVIEW)
    for one in told:
        if one.fix.steps:
            yield from _finding(one)
    if of.host.missing:
        yield from (f"{len(of.host.missing)} files could not be read; --json lists them.", "")


def _finding(one: Finding) -> Iterator[str]:
    yield from (f"### {escaped(one.id)}: {escaped(one.title)}", "")
    yield from (f"- {escaped(f'{path}: {value}')}" for path, value in one.evidence)
    yield ""
    if one.gain.text:
        yield from (f"Gain: {escaped(one.gain.text)}", "")
    yield from _change("Fix", one.fix)
    yield from _change("Undo", one.undo)


def _change(name: str, change: Change) -> Iterator[str]:
    yield from (f"{name}: {escaped(change.text)}", "")
    lines = [printable(shown) for line in script.lines(change) for shown in line.splitlines()]
    if lines:
        # A fence longer than any in what it holds ends where it should.
        longest = max((len(run) for line in lines for run in _ticks(line)), default=0)
        fence = "`" * max(3, longest + 1)
        yield from (f"{fence}sh", *lines, fence, "")


def _ticks(line: str) -> Iterator[str]:
    run = ""
    for sign in f"{line} ":
        if sign == "`":
            run += sign
        elif run:
            yield run
            run = ""
