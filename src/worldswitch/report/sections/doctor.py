"""What the doctor says of a host, with fixes and their undoing to copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from worldswitch.report.document import Advice, Change, Finding, Part, Section
from worldswitch.report.words import capital, many, sentence

if TYPE_CHECKING:
    from worldswitch.report.inputs import HostInput

LEVELS = ("critical", "warning", "notice", "info", "unknown", "ok")
"""Severities, the worst first."""
_WEIGHTS = {"critical": 95.0, "warning": 65.0, "notice": 30.0}
_NOTHING = "Nothing to do."
_NOT_WHOLE = "The archive is not whole"
"""How a note on a damaged snapshot begins."""
_BY_HAND = "# by hand:"
_SHOWN = 4


def part(given: HostInput, ident: str) -> Part:
    """All about one host; a document's texts are taken as they are, whatever they are."""
    document = given.document
    advice = sorted((_advice(one) for one in document["findings"]), key=lambda one: _rank(one.severity))
    told = [one for one in advice if one.severity != "ok"]
    well = [one for one in advice if one.severity == "ok"]
    sections = []
    if told:
        lead = f"As {given.command} says. Nothing is changed by this page: copy what you want to run."
        sections.append(Section(f"{ident}-findings", "What was found", lead, advice=told))
    notes = [f"Well: {one.title} ({one.id})." for one in well]
    notes += [sentence(_text(note)) for note in _list(document.get("notes"))]
    unread = _list(document.get("unreadable"))
    notes += [f"Not read: {_text(_get(one, 'path'))}: {_text(_get(one, 'why'))}." for one in unread]
    if notes:
        sections.append(Section(f"{ident}-notes", "What is well, and what was not read", notes=notes))
    host = _text(document.get("host")) or given.path
    found = [*_damaged(given, host, notes, ident), *_finding(given, host, told, ident)]
    return Part(ident, "host", host, list(_facts(given, document)), sections, found)


def _damaged(given: HostInput, host: str, notes: list[str], ident: str) -> Iterator[Finding]:
    """That the snapshot is cut off, before anything that may only follow from that."""
    if why := next((note for note in notes if note.startswith(_NOT_WHOLE)), ""):
        yield Finding(
            "warning",
            f"{host} is not whole: what it lacks may be there on the host.",
            why=[why],
            remedy=["Make the snapshot again, or copy it again."],
            about=given.path,
            link=f"{ident}-notes",
            weight=_WEIGHTS["critical"] + 1,
        )


def _facts(given: HostInput, document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kernel, cpu = _mapping(document.get("kernel")), _mapping(document.get("cpu"))
    yield "file", given.path
    for name, value in (
        ("kernel", kernel.get("release")),
        ("upstream", kernel.get("upstream")),
        ("processor", cpu.get("model") or cpu.get("vendor")),
        ("CPUs", cpu.get("count")),
        ("profile", document.get("profile")),
        ("worst", document.get("worst")),
    ):
        if value is not None and _text(value):
            yield name, _text(value)


def _advice(one: Mapping[str, Any]) -> Advice:
    gain = one["gain"]
    inputs = "; ".join(
        f"{_text(_get(each, 'name'))} = {_text(_get(each, 'value'))} ({_text(_get(each, 'from'))})"
        for each in _list(gain.get("inputs"))
    )
    told = [_text(gain.get("formula")), inputs, _text(gain.get("origin"))]
    return Advice(
        one["id"],
        one["severity"],
        one["title"],
        [(_text(_get(each, "path")), _text(_get(each, "value"))) for each in one["evidence"]],
        _text(gain.get("text")),
        "; ".join(filter(None, told)),
        _change(one["fix"]),
        _change(one["undo"]),
        _text(one.get("risk")),
        _text(one.get("rule")),
    )


def _change(document: Mapping[str, Any]) -> Change:
    text = _text(document.get("text"))
    commands = tuple(document.get("commands", ()))
    # What is done by hand has its text said again as a comment, for scripts: nothing to copy.
    if all(_text(command).startswith(_BY_HAND) for command in commands):
        commands = ()
    return Change("" if text == _NOTHING else text, commands)


def _finding(given: HostInput, host: str, told: list[Advice], ident: str) -> Iterator[Finding]:
    """One finding for the host: its worst, and how many more."""
    bad = [one for one in told if one.severity in _WEIGHTS]
    if not bad:
        return
    worst = bad[0]
    rest = len(bad) - _SHOWN
    more = f" And {many(rest, 'thing')} more to look at." if rest > 0 else ""
    yield Finding(
        "warning" if worst.severity in ("critical", "warning") else "notice",
        f"{host}: {worst.title}.",
        why=[f"{capital(one.severity)}: {one.title}." for one in bad[1:_SHOWN]] + ([more.strip()] if more else []),
        remedy=[text for text in (worst.fix.text, worst.gain) if text],
        about=given.path,
        link=f"{ident}-findings",
        weight=_WEIGHTS[worst.severity],
        ids=(worst.id,),
    )


def _rank(severity: str) -> int:
    return LEVELS.index(severity) if severity in LEVELS else len(LEVELS)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
