"""The exits of a guest program by reason, on the model, on this host's KVM, or on a kernel in the lab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldswitch.errors import NotTold, UnknownNameError, UsageError, printable
from worldswitch.kvm.facts import lines
from worldswitch.record.result import BY_REASON, NOT_TOLD

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.guest.program import Program
    from worldswitch.kit.running import Work
    from worldswitch.record.result import Cell

MODEL = "model"


@dataclass(frozen=True, slots=True)
class Exits:
    """The exits of a program on one machine.

    Attributes:
        program: Its name; *unit* is what one pass of its body is.
        on: ``model``, ``kvm`` or ``lab``; *kernel*, *cpu* and *mmu* as far as they are known.
        n: Passes.
        per_pass: Reason, as kvm_exit prints it -> exits of one pass: those of n passes without those of none, by n.
        total: All of them, also those of no known reason.
    """

    program: str
    unit: str
    on: str
    kernel: str | None
    cpu: str | None
    mmu: str | None
    n: int
    per_pass: Mapping[str, float]
    total: float

    @property
    def where(self) -> str:
        """The machine in words: ``model: 6.1, intel, tdp``."""
        known = [one for one in (self.kernel, self.cpu, self.mmu) if one]
        return f"{self.on}: {', '.join(known)}" if known else self.on

    @property
    def untold(self) -> float:
        """Exits of one pass whose reason this machine does not tell."""
        return self.per_pass.get(NOT_TOLD, 0)


def exits_of(
    program: str | Path | Program,
    on: str = MODEL,
    *,
    kernel: str | None = None,
    cpu: str = "intel",
    mmu: str = "default",
    n: int | None = None,
    set: Mapping[str, str] | None = None,
) -> Exits:
    """The exits of one pass of *program*, by reason.

    Args:
        program: One that ships (``"cr0-wp"``, ``"page-touch:size=2M"``), a TOML file or an image, or a Program.
        on: ``"model"``, ``"kvm"`` (this host's) or ``"lab"`` (a real kernel in an emulator).
        kernel: For model and lab; the newest the model knows if not given.
        cpu: ``"intel"`` or ``"amd"``; *mmu* one of default, tdp, legacy, shadow. Both for model and lab.
        n: Passes of its body; the program's own if not given.
        set: Module parameters by name, for model and lab.

    Raises:
        MissingError: The machine, or something it needs, is not here; the message says how to get it.
        NotTold: The counts did not repeat, so no budget can be held against them.
        UsageError: No such program, kernel, processor.
    """
    from worldswitch.cli.conditions import CPUS, MMUS, Conditions

    if n is not None and n < 1:
        raise UsageError("n is a number of passes, 1 or more")
    for name, given, known in (("cpu", cpu, CPUS), ("mmu", mmu, MMUS)):
        if given not in known:
            raise UnknownNameError(name, given, known)
    newest = kernel or list(lines())[-1]
    conditions = Conditions() if on == "kvm" else Conditions((newest,), (cpu,), (mmu,), dict(set or {}))
    if on == MODEL and not isinstance(program, str | Path):
        return _modelled(program, newest, cpu, mmu, n, [f"{name}={value}" for name, value in (set or {}).items()])
    return _of_cell(_cell(program, on, conditions, n), on)


def _modelled(program: Program, kernel: str, cpu: str, mmu: str, n: int | None, given: list[str]) -> Exits:
    from worldswitch.guest.assemble import assemble
    from worldswitch.kvm.policy import Policy
    from worldswitch.kvm.vcpu import run
    from worldswitch.live.counting import per_pass

    policy, image = Policy.of(kernel, cpu, mmu, given), assemble(program)
    none, found = run(program, policy, 0, image=image), run(program, policy, n, image=image)
    each = per_pass(found.exits_by_reason, none.exits_by_reason, found.n)
    total = (found.exits - none.exits) / found.n
    told = {reason: value for reason, value in each.items() if value}
    kernel, cpu, mmu = str(policy.kernel), str(policy.vendor), str(policy.mmu)
    return Exits(program.name, program.unit, MODEL, kernel, cpu, mmu, found.n, told, total)


def _cell(program: str | Path | Program, on: str, conditions: Conditions, n: int | None) -> Cell:
    """What the machine gives."""
    from worldswitch.cli.machines import machines
    from worldswitch.kit.running import Failure, Settings

    for _, machine in machines(on, conditions):
        for found in machine.run([_work(program)], Settings(n, 0 if on == "kvm" else None), lambda _: None):
            if isinstance(found, Failure):
                raise found.error
            if not found.steady:
                raise NotTold(
                    f"the counts of {printable(str(found.dimensions['program']))} on {on} did not repeat, so no budget "
                    "can be held against them; run it on a quieter machine, or with a smaller n"
                )
            return found
    raise NotTold(f"{on} gave no result")


def _work(program: str | Path | Program) -> Work:
    from worldswitch.cli.work import prepare
    from worldswitch.kit.running import Work

    if isinstance(program, str | Path):
        (work,) = prepare([str(program)])
        if work.image is None:
            raise UsageError(f"{printable(str(program))} is a program of the host, which has no exits of its own")
        return work
    from worldswitch.guest.assemble import assemble

    return Work(program.name, assemble(program))


def _of_cell(cell: Cell, on: str) -> Exits:
    at = cell.dimensions
    reasons = cell.per_op.get(BY_REASON, {})
    assert isinstance(reasons, Mapping)
    if "exits" not in cell.per_op:
        raise NotTold(
            f"{on} counts no exits here: KVM's statistics cannot be read; be root, or take Linux 5.14 or newer"
        )
    total = cell.per_op["exits"]
    assert not isinstance(total, Mapping)
    kernel, cpu, mmu = (None if at.get(name) is None else str(at[name]) for name in ("kernel", "cpu", "mmu"))
    told = {reason: value for reason, value in reasons.items() if value}
    return Exits(str(at["program"]), cell.unit, on, kernel, cpu, mmu, cell.n, told, total)
