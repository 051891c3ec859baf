"""``wsw rules``: what KVM does, rule by rule, each with its source and its test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options

if TYPE_CHECKING:
    from worldswitch.kvm.rules import Rule


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]")
@options.as_json
@options.as_python
def rules(rule_id: str | None, as_json: bool, as_python: bool) -> int:
    """List every rule of KVM, or say all about the one with this ID."""
    from worldswitch.kvm import rules as registry

    if as_python:
        call = f"find({rule_id!r})" if rule_id else "rules().values()"
        name = "find" if rule_id else "rules"
        each = [f"rule = {call}", "print(rule.id, rule.sentence, rule.source)"]
        if not rule_id:
            each = [f"for rule in {call}:", "    print(rule.id, rule.sentence, rule.source)"]
        click.echo("\n".join([f"from worldswitch.kvm.rules import {name}", "", *each]))
        return 0
    shown = [registry.find(rule_id)] if rule_id else list(registry.rules().values())
    if as_json:
        options.print_json({"rules": [_document(rule) for rule in shown]})
    else:
        click.echo(_page(shown[0]) if rule_id else _list(shown), nl=False)
    return 0


def _document(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "sentence": rule.sentence,
        "since": rule.first_release or None,
        "until": rule.until or None,
        "source": rule.source,
        "facts": list(rule.depends),
        "function": rule.where,
        "tested": rule.tested,
        "verified": rule.verified,
        "why_not": rule.unverified or None,
    }


def _list(shown: list[Rule]) -> str:
    from worldswitch.report.tables import table

    rows = [[rule.id, rule.first_release, rule.sentence + ("" if rule.verified else " (unverified)")] for rule in shown]
    return table(["rule", "since", "what it says"], rows, left=["rule", "what it says"])


def _page(rule: Rule) -> str:
    from worldswitch.report.tables import fields, wrapped

    head = fields(
        [
            ("rule", rule.id),
            ("since", rule.first_release),
            ("until", rule.until),
            ("function", rule.where),
            ("facts", ", ".join(rule.depends)),
            ("tested by", rule.tested),
            ("unverified", rule.unverified),
        ]
    )
    return f"{wrapped(rule.sentence)}\n\n{head}\n{wrapped(rule.source)}\n"
