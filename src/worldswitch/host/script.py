"""Fixes and their undoing as shell: single commands, and one script that does either. Nothing is run here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from worldswitch.errors import printable
from worldswitch.host.finding import (
    BootParameter,
    ByHand,
    Change,
    DropIn,
    Finding,
    ReloadModules,
    Remove,
    Run,
    Severity,
    Step,
    Write,
)

_HEAD = """\
#!/bin/sh
# Written by wsw doctor for {name}. Read it first: wsw has run none of it.
#   sh SCRIPT fix     does what the findings below advise
#   sh SCRIPT undo    goes back to what was set when this was written
# What needs a reboot, a free KVM or a decision stands in comments. Where a command fails, the rest of its finding's fix
# is left out (of its undoing nothing is), the others go on, and the status is 1.
set -u
status=0

failed() {{
    echo "$0: failed: $1" >&2
    status=1
}}
"""
_TAIL = """
case "${1-}" in
fix) fix ;;
undo) undo ;;
*)
    echo "usage: sh $0 fix|undo" >&2
    exit 2
    ;;
esac
exit "$status"
"""


def commands(step: Step) -> tuple[str, ...]:
    """A step as lines of shell; comments where no script should do it."""
    if isinstance(step, Write):
        return (f"printf '%s\\n' {_quoted(step.value)} > {_quoted(step.path)}",)
    if isinstance(step, Run):
        return (" ".join(map(_quoted, step.argv)),)
    if isinstance(step, DropIn):
        text, path = _quoted(step.text.rstrip("\n")), _quoted(step.path)
        # Somebody else's file of that name is left alone: set -C makes > fail where there is one.
        return (f"{{ [ \"$(cat {path} 2> /dev/null)\" = {text} ] || (set -C; printf '%s\\n' {text} > {path}); }}",)
    if isinstance(step, Remove):
        return (f"rm -f -- {_quoted(step.path)}",)
    if isinstance(step, BootParameter):
        verb = "take from" if step.remove else "add to"
        return (_comment(f"{verb} the kernel's command line, then reboot: {step.parameter}"),)
    if isinstance(step, ReloadModules):
        unload = " ".join(("modprobe", "-r", *map(_quoted, step.modules)))
        load = " ".join(("modprobe", _quoted(step.modules[0])))
        return (_comment(f"while no VM runs: {unload} && {load}"),)
    assert isinstance(step, ByHand)
    return (_comment(f"by hand: {step.text}"),)


def lines(change: Change) -> tuple[str, ...]:
    """All steps of a change as lines of shell."""
    return tuple(line for step in change.steps for line in commands(step))


def script(name: str, findings: Iterable[Finding]) -> str:
    """A program for sh with the fixes of *findings* (of those that ask for one) and their undoing.

    Run without a word it does nothing, so that piping it into a shell by mistake is harmless.
    """
    wanted, left_out = _compatible([one for one in findings if one.severity >= Severity.NOTICE and one.fix.steps])
    parts = [_HEAD.format(name=_one_line(name))]
    parts.append("\n".join((*_function("fix", wanted, left_out), "")))
    parts.append("\n".join((*_function("undo", wanted[::-1]), "")))
    return "\n".join(parts) + _TAIL


def _compatible(findings: Iterable[Finding]) -> tuple[list[Finding], list[tuple[Finding, Finding]]]:
    """Those whose fixes write different files, the worst first; and those left out for one of them."""
    wanted: list[Finding] = []
    left_out: list[tuple[Finding, Finding]] = []
    taken: dict[str, Finding] = {}
    for one in findings:
        paths = {step.path for step in one.fix.steps if isinstance(step, (Write, DropIn))}
        first = next((taken[path] for path in sorted(paths) if path in taken), None)
        if first is None:
            wanted.append(one)
            taken.update(dict.fromkeys(paths, one))
        else:
            left_out.append((one, first))
    return wanted, left_out


def _function(name: str, findings: list[Finding], left_out: Iterable[tuple[Finding, Finding]] = ()) -> Iterator[str]:
    undo = name == "undo"
    yield f"{name}() {{"
    for one in findings:
        change = one.undo if undo else one.fix
        yield f"    # {one.severity.label} {one.id}: {_one_line(one.title)}"
        yield f"    # {_one_line(change.text)}"
        if not undo and one.risk:
            yield f"    # Risk: {_one_line(one.risk)}"
        said = lines(change)
        run = [line for line in said if not line.startswith("#")]
        for place, line in enumerate(run):
            last = undo or place == len(run) - 1
            yield f"    {line} " + (f"|| failed {_quoted(f'{name} {one.id}')}" if last else "&&")
        yield from (f"    {line}" for line in said if line.startswith("#"))
        if change.needs_reboot:
            yield "    # This is complete only after a reboot."
    for one, first in left_out:
        yield f"    # left out, as {first.id} sets the same: {one.severity.label} {one.id}: {_one_line(one.title)}"
    yield "    :"
    yield "}"


def _quoted(text: str) -> str:
    if "\0" in text:
        text = text.replace("\0", "")
    return shlex.quote(text)


def _comment(text: str) -> str:
    return f"# {_one_line(text)}"


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
