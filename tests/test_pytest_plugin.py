"""The plugin, as the tests of others use it: each in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ("pytester",)

HOLDS = """
from worldswitch.pytest_plugin import assert_no_exits

def test_fixture(worldswitch):
    seen = worldswitch.assert_exits("cpuid", {"CPUID": 1}, kernel="6.12", n=10)
    assert worldswitch.exits_of("cpuid", kernel="6.12", n=10) == seen

def test_function():
    assert_no_exits("cr0-wp", "CR_ACCESS", kernel="6.12")
"""
FAILS = """
def test_budget(worldswitch):
    worldswitch.assert_no_exits("cr0-wp", reasons=["CR_ACCESS"], kernel="5.10")
"""
LAB = """
def test_lab(worldswitch):
    worldswitch.assert_no_exits("cr0-wp", on="lab", kernel="6.12")
"""

KVM = """
def test_holds(worldswitch):
    worldswitch.assert_exits("io", {"all": 1}, on="kvm", n=20)

def test_breaks(worldswitch):
    worldswitch.assert_no_exits("io", on="kvm", n=20)
"""


def run(pytester: pytest.Pytester, text: str, *words: str) -> pytest.RunResult:
    pytester.makepyfile(text)
    return pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider", *words)


def test_budgets_that_hold_pass(pytester: pytest.Pytester) -> None:
    run(pytester, HOLDS).assert_outcomes(passed=2)


def test_a_failure_is_a_message_without_a_traceback(pytester: pytest.Pytester) -> None:
    done = run(pytester, FAILS)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*CR_ACCESS  seen 2, at most 0", "*because of cr0-wp-owned*"])
    done.stdout.no_fnmatch_line("*budget/check.py*")


@pytest.mark.needs("kvm")
def test_budgets_are_held_against_this_hosts_kvm(pytester: pytest.Pytester) -> None:
    """A port access leaves the guest once on every KVM."""
    done = run(pytester, KVM)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*test_breaks*", "*all  seen 1, at most 0"])


def test_a_missing_machine_skips_with_the_reason(pytester: pytest.Pytester, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run(pytester, LAB)
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*lab: *wsw lab fetch*"])


@pytest.mark.parametrize("word", ["lab", "all", "kvm,lab"])
def test_a_required_machine_fails(pytester: pytest.Pytester, monkeypatch, tmp_path, word: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run(pytester, LAB, "--worldswitch-require", word)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*--worldswitch-require asks for lab*"])


def test_an_unknown_machine_is_a_usage_error(pytester: pytest.Pytester) -> None:
    done = run(pytester, HOLDS, "--worldswitch-require", "xen")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*xen: there are kvm, lab, model and all*"])


def test_loading_it_loads_nothing_else() -> None:
    code = (
        "import sys, worldswitch.pytest_plugin; "
        "print([n for n in sys.modules if n.startswith(('worldswitch.', 'numpy', 'click'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['worldswitch.pytest_plugin']"
