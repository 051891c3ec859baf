"""The conformance table: one row for each kernel, processor and way to page, in a file that a run adds its rows to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from worldswitch.conform.session import Outcome, Plan
from worldswitch.errors import MissingError, TraceFormatError, printable
from worldswitch.record.whole import write_whole

FORMAT, VERSION = "worldswitch-conformance", 1
_KEY = ("kernel", "cpu", "mmu")
_HEAD = ("kernel", "processor", "MMU", "run", "equal", "rescued", "named", "unexplained", "failed", "statistics equal",
         "not run")  # fmt: skip
_SUMMED = ("random", "shipped", "run", "equal", "rescued", "named", "unexplained", "statistics_run",
           "statistics_equal", "starts", "executed", "seconds")  # fmt: skip
_COUNTS = ("by_name", "statistics_unequal", "left_out")
_TEXT = 3
"""Columns that hold text; the others are numbers."""


def row(found: Outcome, plan: Plan) -> dict[str, Any]:
    """What a run on one machine came to, as JSON types."""
    unequal: dict[str, int] = {}
    for one in found.unequal:
        if one.by:
            unequal[one.by] = unequal.get(one.by, 0) + 1
    return {
        "kernel": found.kernel,
        "cpu": found.cpu,
        "mmu": found.mmu,
        "emulator": found.emulator,
        "seed": plan.seed,
        "random": len(plan.numbers()),
        "pieces": [] if plan.only else [[plan.first, plan.first + plan.programs]],
        "shipped": len(plan.shipped),
        "run": found.ran,
        "equal": found.equal,
        "rescued": found.rescued,
        "named": sum(unequal.values()),
        "by_name": unequal,
        "unexplained": len(found.unexplained),
        "statistics_run": found.statistics_ran,
        "statistics_equal": found.statistics_equal,
        "statistics_unequal": dict(sorted(found.statistics.items())),
        "left_out": dict(found.left_out),
        "failed": dict(found.failed),
        "starts": found.starts,
        "executed": found.executed,
        "seconds": found.seconds,
        "why": found.why,
    }


def load(path: Path) -> list[dict[str, Any]]:
    """The rows of a table.

    Raises:
        MissingError: The file cannot be read.
        TraceFormatError: It holds no table.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingError(f"{printable(str(path))} cannot be read: {error.strerror}") from None
    except ValueError:
        document = None
    rows = document.get("rows") if isinstance(document, dict) and document.get("format") == FORMAT else None
    if not isinstance(rows, list) or not all(isinstance(one, dict) and set(_KEY) <= one.keys() for one in rows):
        raise TraceFormatError(f"{printable(str(path))} holds no conformance table; wsw conform -o writes one")
    return rows


def save(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Add the rows to those that the file has of the same kernel, processor and way to page.

    Numbers add up where both are of one seed and have no program in common (:func:`added`); else the later row stays.

    Raises:
        MissingError, TraceFormatError: As :func:`load`, if there is a file; or it cannot be written.
    """
    there = {_key(one): one for one in (load(path) if path.exists() else ())}
    for one in rows:
        before = there.get(_key(one))
        there[_key(one)] = added(before, one) if before is not None and _apart(before, one) else dict(one)
    document = {"format": FORMAT, "version": VERSION, "rows": [there[key] for key in sorted(there)]}
    try:
        write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise MissingError(f"{printable(str(path))} cannot be written: {error.strerror}") from None


def added(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """One row of two: pieces of one seed."""
    found = dict(after)
    for name in _SUMMED:
        found[name] = before.get(name, 0) + after.get(name, 0)
    for name in _COUNTS:
        one, other = before[name], after[name]
        found[name] = {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
    found["seconds"] = round(found["seconds"], 1)
    found["failed"] = {**before["failed"], **after["failed"]}
    found["pieces"] = _joined([*before["pieces"], *after["pieces"]])
    return found


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the two are of one seed, whole, and of different programs."""
    if one["seed"] != other["seed"] or one["why"] or other["why"] or (one["shipped"] and other["shipped"]):
        return False
    pieces = [one.get("pieces"), other.get("pieces")]
    if not all(pieces):
        return False
    ranges = sorted(tuple(each) for some in pieces for each in some or () if each[0] < each[1])
    return all(before[1] <= after[0] for before, after in pairwise(ranges))


def _joined(pieces: Sequence[Sequence[int]]) -> list[list[int]]:
    """The pieces in order, those that meet as one."""
    found: list[list[int]] = []
    for first, end in sorted(tuple(one) for one in pieces if one[0] < one[1]):
        if found and found[-1][1] == first:
            found[-1][1] = end
        else:
            found.append([first, end])
    return found


def _key(one: Mapping[str, Any]) -> tuple[tuple[int, ...], str, str]:
    numbers = tuple(int(part) for part in str(one["kernel"]).split(".") if part.isdecimal())
    return numbers, one["cpu"], one["mmu"]


def cells(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows as text."""
    return list(_HEAD), [_cells(one) for one in rows]


def _cells(one: Mapping[str, Any]) -> list[str]:
    left = sum(one["left_out"].values())
    known = f"{one['statistics_equal']:,}/{one['statistics_run']:,}" if one["statistics_run"] else "–"
    numbers = [f"{one[name]:,}" for name in ("run", "equal")]
    numbers.append(f"{one['rescued']:,}" if "rescued" in one else "–")  # older rows have equal without it
    numbers += [f"{one[name]:,}" for name in ("named", "unexplained")] + [f"{len(one['failed']):,}"]
    not_run = f"{left:,}" if not one["why"] else "all" if not one["run"] else one["why"]
    return [one["kernel"], one["cpu"], one["mmu"], *numbers, known, not_run]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as Markdown."""
    head, body = cells(rows)
    rule = ["---" if i < _TEXT else "--:" for i in range(len(head))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *body))
