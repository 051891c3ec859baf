"""``wsw kernels``: the facts about KVM in each kernel, where each came from, and how two kernels differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options
from worldswitch.errors import UsageError

if TYPE_CHECKING:
    from worldswitch.kvm.facts import Fact, Kernel


@click.command()
@click.argument("names", nargs=-1, metavar="[KERNEL | FACT | diff A B]")
@options.as_json
@options.as_python
def kernels(names: tuple[str, ...], as_json: bool, as_python: bool) -> int:
    """List kernels and facts; the facts of one KERNEL; one FACT; or in what two kernels differ.

    A KERNEL is X.Y (the newest version of that line that is known), X.Y.0 (mainline) or X.Y.Z, with +fact and
    -fact appended; or the version string of a distribution's kernel, where that can be told.
    """
    from worldswitch.kvm.facts import facts

    if names[:1] == ("diff",):
        if len(names) != 3:
            raise UsageError(f"diff takes two kernels, not {len(names) - 1}; such as: wsw kernels diff 5.10 6.12")
        return _show(_difference(*names[1:]), as_json, as_python)
    if len(names) > 1:
        raise UsageError("give one kernel, or diff and two; such as: wsw kernels diff 5.10 6.12")
    if not names:
        return _show(_overview(), as_json, as_python)
    if names[0] in facts():
        return _show(_one_fact(facts()[names[0]]), as_json, as_python)
    return _show(_one_kernel(names[0]), as_json, as_python)


def _show(shown: tuple[str, dict[str, Any], str], as_json: bool, as_python: bool) -> int:
    text, document, python = shown
    if as_python:
        click.echo(python)
    elif as_json:
        options.print_json(document)
    else:
        click.echo(text, nl=False)
    return 0


def _overview() -> tuple[str, dict[str, Any], str]:
    from worldswitch.kvm.facts import facts, kernel, lines
    from worldswitch.report.tables import table, wrapped

    known = {line: kernel(line) for line in lines()}
    rows = [
        [
            fact.id + ("" if fact.verified else " ?"),
            *("x" if fact.id in k.facts else "." for k in known.values()),
        ]
        for fact in facts().values()
    ]
    versions = ", ".join(f"{line} is {version}" for line, version in lines().items() if line != version)
    text = table(["fact", *known], rows, left=["fact"])
    text += f"\nx: has it. ?: not all of it could be confirmed (wsw kernels FACT says what).\n{wrapped(versions)}\n"
    text += "X.Y.0 is the mainline release, X.Y.Z exactly that one. wsw kernels KERNEL says where each is from.\n"
    document = {
        "kernels": [
            {"kernel": line, "stands_for": str(k.version), "facts": sorted(k.facts)} for line, k in known.items()
        ],
        "facts": [_fact_document(fact) for fact in facts().values()],
    }
    python = (
        "from worldswitch.kvm.facts import facts, kernel, lines\n\n"
        "for line in lines():\n    print(line, kernel(line), sorted(kernel(line).facts))\n"
        "for fact in facts().values():\n    print(fact.id, fact.statement)"
    )
    return text, document, python


def _one_kernel(name: str) -> tuple[str, dict[str, Any], str]:
    from worldswitch.kvm.facts import facts
    from worldswitch.report.tables import table

    chosen, how = _read(name)
    rows = [
        [
            "x" if fact.id in chosen.facts else ".",
            fact.id,
            _origin(fact, chosen),
            "" if fact.verified else "?",
        ]
        for fact in facts().values()
    ]
    text = table(["", "fact", "why", "?"], rows, f"Linux {chosen}" + (f" ({how})" if how else ""), ["fact", "why"])
    text += "".join(f"Note: {note}.\n" for note in chosen.notes)
    document = {
        "kernel": str(chosen),
        "told_by": how or None,
        "facts": [
            {
                "id": fact.id,
                "holds": fact.id in chosen.facts,
                "why": chosen.origins[fact.id],
                "verified": fact.verified,
            }
            for fact in facts().values()
        ],
        "notes": list(chosen.notes),
    }
    python = (
        "from worldswitch.kvm.distributions import kernel_named\n"
        "from worldswitch.kvm.facts import facts\n\n"
        f"chosen, how = kernel_named({name!r})\n"
        "for name in facts():\n    print(chosen.has(name), name, chosen.origins[name])"
    )
    return text, document, python


def _difference(first: str, second: str) -> tuple[str, dict[str, Any], str]:
    from worldswitch.kvm.facts import diff
    from worldswitch.report.tables import table

    (a, _), (b, _) = _read(first), _read(second)
    differences = diff(a, b)
    rows = [
        [
            "+" if gained else "-",
            fact.id + ("" if fact.verified else " ?"),
            fact.sentence if gained else fact.before,
            b.origins[fact.id],
        ]
        for fact, gained in differences
    ]
    title = f"From Linux {a} to {b}: {len(rows)} differences" if rows else f"Linux {a} and {b} do not differ here"
    headings = ["", "fact", f"what {b.version} does", "why"]
    text = table(headings, rows, title, headings[1:]) if rows else f"{title}\n"
    document = {
        "from": str(a),
        "to": str(b),
        "differences": [
            {
                "fact": fact.id,
                "gained": gained,
                "sentence": fact.sentence if gained else fact.before,
                "from_why": a.origins[fact.id],
                "to_why": b.origins[fact.id],
                "verified": fact.verified,
            }
            for fact, gained in differences
        ],
    }
    python = (
        "from worldswitch.kvm.distributions import kernel_named\n"
        "from worldswitch.kvm.facts import diff\n\n"
        f"a, b = kernel_named({first!r})[0], kernel_named({second!r})[0]\n"
        "for fact, gained in diff(a, b):\n    print(gained, fact.id, fact.sentence if gained else fact.before)"
    )
    return text, document, python


def _one_fact(fact: Fact) -> tuple[str, dict[str, Any], str]:
    from worldswitch.kvm.facts import kernel, lines
    from worldswitch.report.tables import fields, wrapped

    have = [line for line in lines() if fact.id in kernel(line).facts]
    text = f"{wrapped(fact.statement)}\n\n{wrapped('Read in: ' + fact.source)}.\n\n"
    text += fields(
        [
            ("has it", ", ".join(have) or "none"),
            ("backports", ", ".join(fact.backports.values())),
            ("gone since", ", ".join(filter(None, [fact.until, *fact.removed.values()]))),
            ("unconfirmed", fact.why),
        ]
    )
    call = f"fact = facts()[{fact.id!r}]"
    python = f"from worldswitch.kvm.facts import facts\n\n{call}\nprint(fact.statement, fact.source)"
    return text, _fact_document(fact), python


def _fact_document(fact: Fact) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(fact) | {"statement": fact.statement}


def _read(name: str) -> tuple[Kernel, str]:
    from worldswitch.kvm.distributions import kernel_named

    return kernel_named(name)


def _origin(fact: Fact, chosen: Kernel) -> str:
    commit = fact.commit if fact.id in chosen.facts else ""
    return chosen.origins[fact.id] + (f" ({commit})" if commit else "")
