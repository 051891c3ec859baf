"""Findings as what people read: one host in full, many as a table."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from worldswitch.errors import printable
from worldswitch.host import script
from worldswitch.host.diagnosis import worst
from worldswitch.host.document import Diagnosis
from worldswitch.host.facts import Unreadable
from worldswitch.host.finding import Change, Finding, Gain, Severity

_MOST_ROWS_OF_IDS = 4


def report(of: Diagnosis) -> str:
    """One host: what it is, what was found, worst first, what was looked at and is well, and what was not read."""
    width = max(60, min(110, shutil.get_terminal_size((100, 24)).columns))
    told = [one for one in of.findings if one.severity is not Severity.OK]
    parts = [_head(of), *(_finding(one, width) for one in told)]
    well = [one for one in of.findings if one.severity is Severity.OK]
    if well:
        parts.append("Well: " + _wrapped("; ".join(f"{one.title} ({one.id})" for one in well), width, "      ") + "\n")
    parts += [f"Note: {printable(note)}.\n" for note in of.host.notes]
    if of.host.missing:
        parts.append(_unread(of.host.missing, width))
    return "\n".join(parts)


def _head(of: Diagnosis) -> str:
    host = of.host
    kernel = f"Linux {host.release or '?'}"
    if host.kernel is not None:
        kernel += f" ({host.kernel}: {host.kernel_how})"
    elif host.kernel_why:
        kernel += f" (facts unknown: {host.kernel_why})"
    cpu = f"{host.cpu.processors} × {host.cpu.name or host.cpu.vendor_id or 'unknown processor'}"
    guest = f", itself a guest ({host.hypervisor})" if host.hypervisor else ""
    return f"{printable(host.name)}: {printable(kernel)}, {printable(cpu)}{guest}; profile {of.profile.value}\n"


def _finding(one: Finding, width: int) -> str:
    label = one.severity.label.upper()
    lines = [f"{label} {one.id}: {_wrapped(one.title, width - len(label) - len(one.id) - 3, '    ')}"]
    for path, value in one.evidence:
        lines.append(f"    {printable(path)}: {_wrapped(value, width - len(path) - 6, '      ')}")
    if one.gain.text and one.gain.text != "Nothing to gain.":
        lines += _part("gain", _gained(one.gain), width)
    for name, change in (("fix", one.fix), ("undo", one.undo)):
        if change.steps or change.text != "Nothing to do.":
            lines += _change(name, change, width)
    for name, text in (("risk", one.risk), ("rule", one.rule)):
        if text:
            lines += _part(name, text, width)
    return "\n".join(lines) + "\n"


def _gained(gain: Gain) -> str:
    text = gain.text
    if gain.amount is not None and gain.amount.low < gain.amount.high:
        low, mid, high, unit = gain.amount
        text += f" {low:.4g} to {high:.4g}, likely {mid:.4g} {unit}."
    if gain.formula:
        inputs = "; ".join(f"{name} = {value} ({source})" for name, value, source in gain.inputs)
        text += f" Reckoned as {gain.formula}" + (f", where {inputs}" if inputs else "") + "."
    if gain.origin:
        text += f" Origin: {gain.origin}."
    return text


def _change(name: str, change: Change, width: int) -> Iterator[str]:
    yield from _part(name, change.text + (" Complete only after a reboot." if change.needs_reboot else ""), width)
    for line in script.lines(change):
        yield f"        {printable(line)}"


def _part(name: str, text: str, width: int) -> list[str]:
    return [f"  {name:<4} {_wrapped(text, width - 7, ' ' * 7)}"]


def _wrapped(text: str, width: int, indent: str) -> str:
    text = printable(" ".join(text.split()))
    lines = textwrap.wrap(text, max(30, width), break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def _unread(missing: Iterable[Unreadable], width: int) -> str:
    """What could not be read, the files of one folder together."""
    by_place: dict[tuple[str, str], list[str]] = {}
    for path, why in missing:
        folder, _, name = path.rpartition("/")
        by_place.setdefault((folder, why), []).append(name)
    lines = ["Not read:"]
    for (folder, why), names in by_place.items():
        text = (
            f"{folder}/{names[0]}"
            if len(names) == 1
            else f"{folder}: {len(names)} files, such as {', '.join(names[:3])}"
        )
        lines.append("  " + _wrapped(f"{why}: {text}", width - 4, "    "))
    return "\n".join(lines) + "\n"


def fleet(diagnoses: Sequence[Diagnosis], failed: Sequence[tuple[str, str]] = ()) -> str:
    """Many hosts as a table, the worst first.

    Args:
        diagnoses: What was found on each.
        failed: Snapshots that were not read, and why.
    """
    columns = ("host", "kernel", "cpu", "critical", "warning", "notice", "unknown", "worst findings")
    levels = (Severity.CRITICAL, Severity.WARNING, Severity.NOTICE, Severity.UNKNOWN)
    rows: list[tuple[str, ...]] = [columns]
    for one in in_order(diagnoses):
        counts = [sum(found.severity is level for found in one.findings) for level in levels]
        rows.append(
            (
                printable(one.host.name), printable(one.host.release or "?"), one.host.cpu.vendor or "?",
                *map(str, counts), _worst_ids(one.findings),
            )
        )  # fmt: skip
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns) - 1)]
    left = (0, 1, 2)
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))  # noqa: B905 - Python 3.9 has no strict
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    lines += [f"{printable(name)}: not read: {printable(why)}" for name, why in failed]
    return "\n".join(lines) + "\n"


def in_order(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """The worst host first: by its worst finding, then by how many there are of each severity, then by name."""

    def rank(one: Diagnosis) -> tuple[tuple[int, ...], str]:
        counts = [-sum(found.severity is level for found in one.findings) for level in reversed(Severity)]
        return tuple(counts), one.host.name

    return sorted(diagnoses, key=rank)


def _worst_ids(findings: tuple[Finding, ...]) -> str:
    level = worst(findings)
    if level <= Severity.INFO:
        return "-"
    names = list(dict.fromkeys(one.id for one in findings if one.severity is level))
    more = len(names) - _MOST_ROWS_OF_IDS
    return ", ".join(names[:_MOST_ROWS_OF_IDS]) + (f" and {more} more" if more > 0 else "")
