"""Budgets of exits, and what a failed one says: seen, allowed, the rule behind it, the kernel that would mend it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldswitch.budget.exits import Exits, exits_of
from worldswitch.errors import NotTold, UnknownNameError, UsageError, WorldswitchError

if TYPE_CHECKING:
    from worldswitch.guest.program import Program
    from worldswitch.kvm.facts import Kernel

ALL = "all"
"""In a budget: exits of every reason together."""
_RULES = (
    ("cr0-guest-owned", ("CR_ACCESS",)),
    ("cr4-guest-owned", ("CR_ACCESS",)),
    ("svm-cr0-intercept", ("write_cr0", "cr0_sel_write")),
    ("svm-cr4-intercept", ("write_cr4",)),
    ("cr-access-exits", ("read_cr", "write_cr3", "write_cr8")),
    ("msr-exits", ("MSR_", "msr")),
    ("debug-register-exits", ("DR_ACCESS", "read_dr", "write_dr")),
    ("exception-exits", ("EXCEPTION", "DB excp", "BP excp", "UD excp", "PF excp", "GP excp", "AC excp")),
    ("instruction-exits", ("CPUID", "HLT", "RDTSC", "INVLPG", "INVPCID", "cpuid", "hlt", "rdtsc", "invlpg", "invpcid")),
)
"""Rule -> how the reasons it decides about begin."""


def assert_exits(program: str | Path | Program, at_most: Mapping[str, float], on: str = "model", **where: Any) -> Exits:
    """Fail if a pass of *program* has more exits than *at_most* allows.

    Args:
        at_most: Exit reason, as kvm_exit prints it, or ``"all"`` -> exits of a pass. Reasons that are not named are not
            limited.
        on, where: See :func:`~worldswitch.budget.exits.exits_of`.

    Returns:
        What was seen.

    Raises:
        AssertionError: There were more; the message says what, by which rule, and since which kernel there are not.
        UnknownNameError: A reason that no processor has.
        NotTold: The machine tells too few reasons to say.
        MissingError, UsageError: See :func:`~worldswitch.budget.exits.exits_of`.
    """
    _check_names(at_most)
    seen = exits_of(program, on, **where)
    over = _over(seen, at_most)
    if over:
        raise AssertionError(_message(seen, at_most, over, program, where))
    return seen


def assert_no_exits(
    program: str | Path | Program,
    reason: str | None = None,
    *,
    reasons: Iterable[str] = (),
    on: str = "model",
    **where: Any,
) -> Exits:
    """Fail if a pass of *program* has an exit, or one of these *reasons*. See :func:`assert_exits`."""
    names = [*([] if reason is None else [reason]), *reasons]
    return assert_exits(program, dict.fromkeys(names or [ALL], 0), on, **where)


def _check_names(budget: Mapping[str, float]) -> None:
    from worldswitch.x86.exits import builtin, reason_number

    if not budget:
        raise UsageError("a budget names at least one exit reason, or all")
    for name, limit in budget.items():
        if not isinstance(limit, int | float) or not limit >= 0:
            raise UsageError(f"the budget of {name} is {limit!r}; it is a number of exits, 0 or more")
        if name != ALL and reason_number(name, None) is None:
            names = [known for isa in builtin().isas.values() for known in isa.numbers]
            raise UnknownNameError("exit reason", name, [*names, ALL])


def _over(seen: Exits, budget: Mapping[str, float]) -> dict[str, float]:
    """What is over the budget: reason -> seen."""
    over = {}
    for name, limit in budget.items():
        value = seen.total if name == ALL else seen.per_pass.get(name, 0.0)
        if value > limit:
            over[name] = value
        elif name != ALL and value + seen.untold > limit:
            raise NotTold(
                f"{seen.where} tells {seen.untold:g} exits a {seen.unit} of {seen.program} no reason, so {name} may be "
                "over its budget or not; trace events tell reasons (run as root, with tracefs), or give a budget of all"
            )
    return over


def _message(
    seen: Exits,
    budget: Mapping[str, float],
    over: Mapping[str, float],
    program: str | Path | Program,
    where: Mapping[str, Any],
) -> str:
    lines = [f"{seen.program} has more exits than its budget allows ({seen.where}; exits per {seen.unit}, n={seen.n})"]
    width = max(len(name) for name in over)
    for name, value in over.items():
        lines.append(f"  {name:<{width}}  seen {_plain(value)}, at most {_plain(budget[name])}")
    others = {name: value for name, value in seen.per_pass.items() if name not in over}
    if others:
        lines.append("  also seen: " + ", ".join(f"{name} {_plain(value)}" for name, value in others.items()))
    near = [hint for name in budget if name not in over and (hint := _near(name, seen))]
    lines += [f"  {hint}" for hint in near]
    lines += [f"  {line}" for line in _why(over, budget, seen, program, where)]
    return "\n".join(lines)


def _near(name: str, seen: Exits) -> str:
    found = difflib.get_close_matches(name, seen.per_pass, n=1, cutoff=0.7) if name != ALL else []
    return f"(there is also {found[0]}, near {name})" if found else ""


def _plain(value: float) -> str:
    return f"{value:g}"


def _why(
    over: Mapping[str, float],
    budget: Mapping[str, float],
    seen: Exits,
    program: str | Path | Program,
    where: Mapping[str, Any],
) -> list[str]:
    """The rule, and the first newer kernel that keeps the budget, as the model has it."""
    from worldswitch.kvm import rules

    lines = []
    for name in seen.per_pass if ALL in over else over:
        for rule, begins in _RULES:
            if name.startswith(begins):
                lines.append(f"rule {rule}: {rules.find(rule).sentence}")
    lines += _mended(budget, seen, program, where)
    return list(dict.fromkeys(lines))


def _mended(
    budget: Mapping[str, float], seen: Exits, program: str | Path | Program, where: Mapping[str, Any]
) -> list[str]:
    if seen.kernel is None or seen.cpu is None or seen.mmu is None:
        return []
    from worldswitch.kvm import facts, rules

    given = {**where, "cpu": seen.cpu, "mmu": where.get("mmu", "default")}

    def keeps(kernel: str) -> bool:
        try:
            return not _over(exits_of(program, "model", **{**given, "kernel": kernel}), budget)
        except WorldswitchError:
            return False

    try:
        now = facts.kernel(seen.kernel)
    except WorldswitchError:
        return []
    newer = [line for line in facts.lines() if facts.parse_version(line).line > now.version.line]
    first = next((line for line in newer if keeps(line)), None)
    if first is None:
        return ["no newer kernel the model knows keeps this budget"]
    lines = [f"Linux {first} keeps this budget, by the model"]
    fact = _deciding(now, facts.kernel(first), keeps)
    if fact is not None:
        lines.append(f"because of {fact}: {facts.facts()[fact].statement}")
        for rule in rules.rules().values():
            if rule.depends[:1] == (fact,):
                lines.append(f"rule {rule.id}: {rule.sentence}")
    return lines


def _deciding(now: Kernel, then: Kernel, keeps: Callable[[str], bool]) -> str | None:
    """The one fact that, added to the kernel of now, would keep the budget."""
    from worldswitch.kvm import facts

    for one in facts.diff(now, then):
        if one.gained and keeps(f"{now.version}+{one.fact.id}"):
            return one.fact.id
    return None
