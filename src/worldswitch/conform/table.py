"""The conformance table: one row for each kernel, processor and way to page, in a file that a run adds its rows to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldswitch.conform.session import Outcome, Plan
from worldswitch.errors import MissingError, TraceFormatError, printable

FORMAT, VERSION = "worldswitch-conformance", 1
_KEY = ("kernel", "cpu", "mmu")
_HEAD = ("kernel", "processor", "MMU", "run", "equal", "named", "unexplained", "statistics equal", "not run")
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
        "shipped": len(plan.shipped),
        "run": found.ran,
        "equal": found.equal,
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
    """Write the rows, in place of those of the same kernel, processor and way to page that the file has.

    Raises:
        MissingError, TraceFormatError: As :func:`load`, if there is a file; or it cannot be written.
    """
    there = {_key(one): one for one in (load(path) if path.exists() else ())}
    there.update((_key(one), dict(one)) for one in rows)
    document = {"format": FORMAT, "version": VERSION, "rows": [there[key] for key in sorted(there)]}
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise MissingError(f"{printable(str(path))} cannot be written: {error.strerror}") from None


def _key(one: Mapping[str, Any]) -> tuple[tuple[int, ...], str, str]:
    numbers = tuple(int(part) for part in str(one["kernel"]).split(".") if part.isdecimal())
    return numbers, one["cpu"], one["mmu"]


def cells(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows as text."""
    return list(_HEAD), [_cells(one) for one in rows]


def _cells(one: Mapping[str, Any]) -> list[str]:
    left = sum(one["left_out"].values()) + len(one["failed"])
    known = f"{one['statistics_equal']:,}/{one['statistics_run']:,}" if one["statistics_run"] else "–"
    numbers = [f"{one[name]:,}" for name in ("run", "equal", "named", "unexplained")]
    not_run = f"{left:,}" if not one["why"] else "all" if not one["run"] else one["why"]
    return [one["kernel"], one["cpu"], one["mmu"], *numbers, known, not_run]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as Markdown."""
    head, body = cells(rows)
    rule = ["---" if i < _TEXT else "--:" for i in range(len(head))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *body))
