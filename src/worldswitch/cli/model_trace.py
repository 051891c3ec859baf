"""``wsw run --on model --trace OUT``: the model's events as a recording, in any format that ``wsw convert`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldswitch.cli import recording_target
from worldswitch.cli.convert import chosen, write
from worldswitch.errors import UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worldswitch.guest.program import Program
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import Run
    from worldswitch.record.result import Cell

MOST_EXITS = 500_000
"""Exits of one recording: each is a few rows in memory, and every pass is executed."""


def name_of(output: str, spec: str, policy: Policy, programs: int, hosts: int) -> str:
    """The file for one program on one host: *output*, with what tells it from the others in its name."""
    words: list[str] = [spec] if programs > 1 else []
    if hosts > 1:
        words += [str(policy.kernel), str(policy.vendor), str(policy.mmu)]
    return recording_target.named(output, words) if words else output


def refuse_large(program: Program, cell: Cell) -> None:
    """Refuse what would not fit.

    Args:
        cell: What the run without events counted.

    Raises:
        UsageError: The run has more than :data:`MOST_EXITS` exits.
    """
    exits = cell.counters["exits"]
    assert isinstance(exits, int)
    if exits > MOST_EXITS:
        fewer = max(1, cell.n * MOST_EXITS // exits * 9 // 10)
        raise UsageError(
            f"{program.name} with -n {cell.n} makes {exits:,} exits, and --trace on the model holds {MOST_EXITS:,}; "
            f"take -n {fewer}"
        )


def keep(found: Run, policy: Policy, command: Sequence[str], output: str) -> str:
    """Write the events of *found* to *output*; a sentence that says so."""
    trace = found.trace()
    trace.meta.kernel, trace.meta.vendor = str(policy.kernel), str(policy.vendor)
    trace.meta.command, trace.meta.tool = " ".join(command), "worldswitch's model"
    trace.meta.notes.append("events of a model: their order is that of the rules, their times only number them")
    written = write(trace, chosen(output))
    left = f", {sum(written.skipped.values()):,} left out, which the format cannot take" if written.skipped else ""
    return f"{printable(output)}: {written.events:,} events of the model{left}; next: wsw analyze {printable(output)}"
