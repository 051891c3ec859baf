"""What a report holds, before it is drawn: findings in words, and figures with the table and the origin of each.

One :class:`Report` gives both the HTML page (:mod:`worldswitch.report.html`) and the JSON of ``wsw report --json``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from markupsafe import Markup


def command(*words: str) -> str:
    """A ``wsw`` command as it is typed, whatever is in the names of files."""
    return shlex.join(["wsw", *words])


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Heading.
        kind: ``text``, ``code``, ``count``, ``number``, ``ns``, ``seconds``, ``share`` (of 1) or ``hex``; says how
            values are shown and sorted.
    """

    name: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers behind a picture; None in a row is a value nobody knows.

    Attributes:
        cut: What was left out, in a sentence; empty if nothing was.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a figure is from: the file, a command that gives the same numbers, and how they are made."""

    file: str
    command: str = ""
    method: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture (drawn as SVG, or by the page's script from *data*), with its table and origin.

    Attributes:
        lead: What to see in it, in a sentence or two.
        legend: Colour class and what it stands for.
        data: What the page's script draws from; None for a picture that is drawn already.
    """

    id: str
    title: str
    lead: str
    origin: Origin
    table: Table | None = None
    picture: Markup | None = None
    legend: Sequence[tuple[str, str]] = ()
    data: Mapping[str, Any] | None = None


class Step(NamedTuple):
    """One step of what happens again and again: a few words, a sentence, and how often or long."""

    title: str
    text: str
    number: str = ""


class Bar(NamedTuple):
    """One bar of a comparison: its name, its segments as (colour class, what, amount), and what they sum to."""

    name: str
    segments: Sequence[tuple[str, str, float]]
    total: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know, in words for a reader who has never heard of it.

    Attributes:
        level: ``cost``, ``warning``, ``notice`` or ``ok``.
        headline: One sentence.
        gloss: What the words of the headline mean.
        why, remedy, rests_on: Sentences: the cause, what would remove it, and what is inferred or not told.
        numbers: Value and what it is.
        steps: What happens each time, in order; *steps_title* says how often.
        bars: A comparison, such as now and on another kernel.
        about: The input this is about.
        link: Id of the section or figure with the details.
        weight: Larger ones come first.
        ids: Detectors, checks or rules that say this.
    """

    level: str
    headline: str
    gloss: str = ""
    why: Sequence[str] = ()
    remedy: Sequence[str] = ()
    rests_on: Sequence[str] = ()
    numbers: Sequence[tuple[str, str]] = ()
    steps_title: str = ""
    steps: Sequence[Step] = ()
    bars: Sequence[Bar] = ()
    about: str = ""
    link: str = ""
    weight: float = 0.0
    ids: Sequence[str] = ()


class Change(NamedTuple):
    """Commands to copy: a sentence, and the lines."""

    text: str
    commands: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding of the doctor as it is shown: with what to copy."""

    id: str
    severity: str
    title: str
    evidence: Sequence[tuple[str, str]]
    gain: str
    gain_from: str
    fix: Change
    undo: Change
    risk: str
    rule: str


@dataclass(frozen=True, slots=True)
class Section:
    """Figures and sentences about one matter."""

    id: str
    title: str
    lead: str = ""
    figures: Sequence[Figure] = ()
    advice: Sequence[Advice] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """All about one input."""

    id: str
    kind: str
    title: str
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole; *command* makes it again, *terms* explains the words the findings use."""

    title: str
    parts: Sequence[Part]
    command: str = ""
    version: str = ""
    made: str = ""
    terms: Sequence[tuple[str, str]] = field(default_factory=tuple)

    @property
    def findings(self) -> list[Finding]:
        """Those of all inputs, the weightiest first."""
        return sorted((one for part in self.parts for one in part.findings), key=lambda one: -one.weight)


def to_json(report: Report) -> dict[str, Any]:
    """What the report holds, as JSON types: all but the pictures."""
    whole: dict[str, Any] = _plain(report)
    return {**whole, "findings": [_plain(one) for one in report.findings]}


_DRAWN = ("picture", "legend", "data", "link")


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        shown = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in _DRAWN}
        if isinstance(value, Part):
            del shown["findings"]
        return {name: _plain(one) for name, one in shown.items()}
    if hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
