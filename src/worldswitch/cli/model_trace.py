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


MOST_PASSES = 500_000
"""Passes of one recording: a pass without an exit is executed as well, and shows in no event."""


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
        UsageError: The run has more than :data:`MOST_EXITS` exits, or :data:`MOST_PASSES` passes.
    """
    exits = cell.counters["exits"]
    assert isinstance(exits, int)
    if exits > MOST_EXITS:
        fewer = max(1, cell.n * MOST_EXITS // exits * 9 // 10)
        raise UsageError(
            f"{program.name} with -n {cell.n} makes {exits:,} exits, and --trace on the model holds {MOST_EXITS:,}; "
            f"take -n {fewer}"
        )
    if cell.n > MOST_PASSES:
        raise UsageError(
            f"{program.name} with -n {cell.n} makes {cell.n:,} passes, and --trace on the model executes each and goes "
            f"to {MOST_PASSES:,}; take -n {MOST_PASSES}"
        )


def keep(found: Run, policy: Policy, command: Sequence[str], output: str) -> str:
    """Write the events of *found* to *output*; a sentence that says so."""
    trace = found.trace()
    trace.meta.kernel, trace.meta.vendor = str(policy.kernel), str(policy.vendor)
    trace.meta.command, trace.meta.tool = " ".join(command), "worldswitch's model"
    trace.meta.notes.append("events of a model: their order is that of the rules, their times only number them")
    written = write(trace, chosen(output))
    left = f", {sum(written.skipped.values()):,} left out, which the format cannot take" if written.skipped else ""
    said = f"{printable(output)}: {written.events:,} events of the model{left}"
    return f"{said}; {_next(output, chosen(output).format, str(policy.kernel))}"


def _next(output: str, form: str, kernel: str) -> str:
    """What the recording is good for: not every format can be read back, or says what kernel it is of."""
    name = printable(output)
    if form == "perfetto":
        return "to look at in ui.perfetto.dev; for wsw analyze and whatif record a folder, a .data or a .dat"
    return f"next: wsw analyze {name}" + (f", wsw whatif {name} --from {kernel}" if form == "ftrace" else "")
