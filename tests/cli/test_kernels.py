"""``wsw kernels`` and ``wsw rules``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from worldswitch.cli import wsw
from worldswitch.errors import UsageError
from worldswitch.kvm.facts import facts, kernel, lines
from worldswitch.kvm.rules import rules


def run(*args: str) -> str:
    result = CliRunner().invoke(wsw, args, catch_exceptions=False)
    return result.stdout


@pytest.mark.parametrize(
    "args",
    [
        ["kernels"],
        ["kernels", "6.1"],
        ["kernels", "6.1.0-54-cloud-amd64"],
        ["kernels", "diff", "5.4", "7.3"],
        ["kernels", "cr0-wp-owned"],
        ["rules"],
        ["rules", "cr0-after-write"],
    ],
)
def test_tables_fit_100_columns(args: list[str]) -> None:
    lines_shown = run(*args).splitlines()
    assert lines_shown
    assert max(map(len, lines_shown)) <= 100


def test_the_overview_lists_every_kernel_and_fact() -> None:
    text = run("kernels")
    assert all(name in text for name in [*lines(), *facts()])


def test_json_of_one_kernel_has_every_fact_with_its_origin() -> None:
    document = json.loads(run("kernels", "6.1", "--json"))
    held = {fact["id"] for fact in document["facts"] if fact["holds"]}
    assert held == kernel("6.1").facts
    assert {f["id"]: f["why"] for f in document["facts"]}["cr0-wp-owned"] == "backported in 6.1.29"


def test_json_of_a_difference() -> None:
    document = json.loads(run("kernels", "diff", "6.1.28", "6.1.29", "--json"))
    assert {(d["fact"], d["gained"]) for d in document["differences"]} == {
        ("cr0-wp-owned", True),
        ("cr0-wp-init-only", True),
        ("cr0-wp-lazy-refresh", True),
        ("cr-single-bit-reads", True),
    }


def test_a_difference_of_alike_kernels_says_so() -> None:
    assert "do not differ here" in run("kernels", "diff", "6.1.30", "6.1.31")


def test_json_of_rules_has_source_and_test() -> None:
    document = json.loads(run("rules", "--json"))
    assert {rule["id"] for rule in document["rules"]} == set(rules())
    assert all(rule["source"] and rule["tested"] for rule in document["rules"])


@pytest.mark.parametrize(
    "args",
    [
        ["kernels"],
        ["kernels", "6.2.0+cr0-wp-owned"],
        ["kernels", "diff", "5.10", "6.12"],
        ["kernels", "tdp-mmu"],
        ["rules"],
        ["rules", "tdp-root-role"],
    ],
)
def test_the_python_it_prints_runs(args: list[str], tmp_path: Path) -> None:
    script = tmp_path / "same.py"
    script.write_text(run(*args, "--python"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["kernels", "diff", "5.10"], "diff takes two kernels, not 1"),
        (["kernels", "5.10", "6.1"], "give one kernel, or diff and two"),
        (["kernels", "6.9"], "unknown kernel line"),
        (["rules", "cr0-after-writ"], "nearest: cr0-after-write"),
    ],
)
def test_misuse_is_one_sentence(args: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        run(*args)
