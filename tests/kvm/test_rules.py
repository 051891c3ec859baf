"""The registry: every rule has a source in the fixed shape, a test that names it, and a caller that is not its test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from worldswitch.errors import UnknownNameError
from worldswitch.kvm.facts import facts
from worldswitch.kvm.rules import Rule, find, rules

ROOT = Path(__file__).parents[2]
SHAPE = re.compile(r'Since Linux commit [0-9a-f]{12} \(".+?"\) \(v\d+\.\d+(\.\d+)?\), .+?\. Before that, .+?\.')
EVERY = list(rules().values())


@cache
def _called() -> frozenset[str]:
    """The names of everything that is called somewhere in the package."""
    calls = (
        node.func
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    )
    return frozenset(call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls)


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.id)
def test_every_rule_has_a_source_in_the_fixed_shape(rule: Rule) -> None:
    assert SHAPE.match(rule.source)
    assert set(rule.depends) <= set(facts())
    assert re.fullmatch(r"\d+\.\d+", rule.first_release)


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.id)
def test_every_rule_has_a_test_that_names_it(rule: Rule) -> None:
    path, _, name = rule.tested.partition("::")
    functions = {n.name: n for n in ast.parse((ROOT / path).read_text()).body if isinstance(n, ast.FunctionDef)}
    assert rule.id in (ast.get_docstring(functions[name]) or "")


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.id)
def test_every_rule_has_a_caller_that_is_not_its_test(rule: Rule) -> None:
    assert rule.function.__name__ in _called()


def test_the_first_fact_of_a_rule_is_the_newest_answer() -> None:
    assert find("cr4-guest-owned").first_release == "6.18"


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nearest: cr0-guest-owned"):
        find("cr0-guest-own")
