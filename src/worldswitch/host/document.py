"""Findings as what programs read: JSON with stable keys, and Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from worldswitch.errors import printable
from worldswitch.host import script
from worldswitch.host.diagnosis import worst
from worldswitch.host.facts import Host
from worldswitch.host.finding import Change, DropIn, Finding, Gain, Profile, Severity
from worldswitch.record.openmetrics import Family, Sample, exposition


class Diagnosis(NamedTuple):
    """A host, the profile it was judged by, and what was found."""

    host: Host
    profile: Profile
    findings: tuple[Finding, ...]


def document(of: Diagnosis) -> dict[str, Any]:
    """All that is known, as JSON takes it."""
    host = of.host
    return {
        "host": host.name,
        "profile": of.profile.value,
        "kernel": {
            "release": host.release,
            "upstream": None if host.kernel is None else str(host.kernel),
            "told_by": host.kernel_how or None,
            "why_not": host.kernel_why or None,
        },
        "cpu": {"vendor": host.cpu.vendor or None, "model": host.cpu.name or None, "count": host.cpu.processors},
        "worst": worst(of.findings).label,
        "findings": [_finding(one) for one in of.findings],
        "unreadable": [one._asdict() for one in host.missing],
        "notes": list(host.notes),
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "id": one.id,
        "severity": one.severity.label,
        "title": one.title,
        "evidence": [evidence._asdict() for evidence in one.evidence],
        "gain": _gain(one.gain),
        "fix": _change(one.fix),
        "undo": _change(one.undo),
        "risk": one.risk,
        "rule": one.rule,
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "text": gain.text,
        "formula": gain.formula or None,
        "inputs": [{"name": name, "value": value, "from": source} for name, value, source in gain.inputs],
        "origin": gain.origin or None,
        "amount": None if gain.amount is None else gain.amount._asdict(),
        "unknown": gain.unknown or None,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "text": change.text,
        "commands": list(script.lines(change)),
        "files": [step.path for step in change.steps if isinstance(step, DropIn)],
        "needs_reboot": change.needs_reboot,
    }


def prometheus(diagnoses: Sequence[Diagnosis]) -> str:
    """The findings in the text format of Prometheus (and OpenMetrics), for node_exporter's textfile collector."""
    where = _hosts(diagnoses)
    families = (
        ("wsw_doctor_info", "What was judged, and by which profile.", _info),
        ("wsw_doctor_finding", "Severity: 0 ok, 1 unknown, 2 info, 3 notice, 4 warning, 5 critical.", _each),
        ("wsw_doctor_findings", "How many findings have this severity.", _counts),
        ("wsw_doctor_unreadable_files", "Files that are there but could not be read.", _unreadable),
    )
    return exposition(
        Family(
            name,
            help_,
            [
                Sample(value, {"host": host, **labels})
                for one, host in zip(diagnoses, where)  # noqa: B905 - Python 3.9 has no strict
                for labels, value in samples(one)
            ],
        )
        for name, help_, samples in families
    )


def _hosts(diagnoses: Sequence[Diagnosis]) -> Sequence[str | None]:
    """The label of each: none for a host alone, a number behind a name that several have."""
    if len(diagnoses) < 2:
        return [None] * len(diagnoses)
    names: list[str | None] = []
    for one in diagnoses:
        name, again = printable(one.host.name), 1
        while (label := name if again == 1 else f"{name} ({again})") in names:
            again += 1
        names.append(label)
    return names


Samples = Iterable["tuple[Mapping[str, str], int]"]


def _info(of: Diagnosis) -> Samples:
    kernel = of.host.kernel
    labels = {
        "profile": of.profile.value, "release": of.host.release, "upstream": str(kernel or ""),
        "vendor": of.host.cpu.vendor,
    }  # fmt: skip
    yield labels, 1


def _each(of: Diagnosis) -> Samples:
    seen: dict[str, int] = {}
    for one in of.findings:
        # A check may say the same of several things; the worst comes first.
        if one.id not in seen:
            seen[one.id] = int(one.severity)
            yield {"id": one.id, "severity": one.severity.label}, int(one.severity)


def _counts(of: Diagnosis) -> Samples:
    for severity in Severity:
        yield {"severity": severity.label}, sum(one.severity is severity for one in of.findings)


def _unreadable(of: Diagnosis) -> Samples:
    yield {}, len(of.host.missing)
