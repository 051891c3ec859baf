"""What ``wsw conform`` prints: the table, each difference, and the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.errors import printable

if TYPE_CHECKING:
    from pathlib import Path

    from worldswitch.conform.seen import Difference
    from worldswitch.conform.session import Outcome, Plan, Unequal

_SHOWN = 4


def text(plan: Plan, done: Sequence[Outcome], rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, what its columns leave open, and the bounds."""
    from worldswitch.conform.bounds import sentences
    from worldswitch.conform.table import cells
    from worldswitch.report.tables import table, wrapped

    head, body = cells(rows)
    parts = [table(head, body, left=head[:3])]
    for one in done:
        left = [f"{count} {why}" for why, count in one.left_out.items()]
        left += [f"{name}: {why}" for name, why in one.failed.items()]
        if one.why and not one.ran:
            left.append(one.why)
        if left:
            parts.append(wrapped(f"{one.kernel} {one.cpu} {one.mmu}, not run: {'; '.join(map(printable, left))}."))
    seconds = sum(one.seconds for one in done)
    executed, starts = sum(one.executed for one in done), sum(one.starts for one in done)
    if seconds:
        parts.append(f"{executed:,} runs in {starts:,} starts, {executed / seconds:.1f} a second of one machine.\n")
    parts.append(wrapped(f"Random programs of seed {plan.seed}. {' '.join(sentences())}"))
    return "\n".join(one if one.endswith("\n") else f"{one}\n" for one in parts)


def difference(found: Outcome, one: Unequal, path: Path | None) -> str:
    """One difference without a name, where its program is, and how to see it again."""
    shown = one.minimal_found or one.found
    lines = [f"{found.kernel} {found.cpu} {found.mmu}: program {printable(one.name)} differs"]
    lines += [f"  {printable(str(each))}" for each in shown[:_SHOWN]]
    if len(shown) > _SHOWN:
        lines.append(f"  and {len(shown) - _SHOWN} more")
    if path is not None:
        lines.append(f"  {again(found, path)}")
    return "\n".join(lines) + "\n\n"


def again(found: Outcome, path: Path) -> str:
    """The command that runs the program on both."""
    place = f"--kernel {found.kernel} --cpu {found.cpu} --mmu {found.mmu}"
    return f"wsw run {path} --on model,lab {place}"


def document(plan: Plan, done: Sequence[Outcome], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All of it as JSON types."""
    from worldswitch.conform.bounds import sentences

    return {
        "seed": plan.seed,
        "bounds": list(sentences()),
        "rows": list(rows),
        "differences": [
            {
                "kernel": found.kernel, "cpu": found.cpu, "mmu": found.mmu, "program": one.name,
                "named": one.by or None,
                "differs": _differences(one.found), "toml": str(one.minimal or one.program),
                "minimal": one.minimal is not None, "minimal_differs": _differences(one.minimal_found),
            }
            for found in done
            for one in found.unequal
        ],
    }  # fmt: skip


def _differences(found: Sequence[Difference]) -> list[dict[str, str]]:
    return [{"what": one.what, "model": one.model, "real": one.real} for one in found]
