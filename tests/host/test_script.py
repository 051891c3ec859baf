"""Fix scripts: hostile values stay data, what fails is said, what contradicts is left out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from worldswitch.host.finding import (
    BootParameter,
    ByHand,
    Change,
    DropIn,
    Evidence,
    Finding,
    Remove,
    Run,
    Severity,
    Step,
    Write,
)
from worldswitch.host.script import script

HOSTILE = ["$(touch owned)", "`touch owned`", "'; touch owned; '", '"; touch owned; "', "a\ntouch owned\n", "-n", "\\x"]


def finding(fix: tuple[Step, ...], undo: tuple[Step, ...] = (), *, id: str = "one", title: str = "t") -> Finding:
    seen = (Evidence("/proc/x", "1"),)
    return Finding(id, Severity.WARNING, title, seen, fix=Change("Do.", fix), undo=Change("Undo.", undo), risk="r")


def run(text: str, word: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-s", word], input=text, text=True, capture_output=True, cwd=folder, check=False)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_written_and_never_run(value: str, tmp_path: Path) -> None:
    path = str(tmp_path / "it's $(x)")
    steps = (Write(path, value), Run(("test", value, "=", value)), DropIn(f"{path}.conf", value), ByHand(value))
    text = script(value, [finding((*steps, BootParameter(value)), (Write(path, "old"), Remove(f"{path}.conf")),
                                  title=value)])  # fmt: skip
    done = run(text, "fix", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Path(path).read_text() == f"{value}\n"
    assert not (tmp_path / "owned").exists()
    assert run(text, "undo", tmp_path).returncode == 0
    assert Path(path).read_text() == "old\n"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["it's $(x)"]


def test_what_fails_is_said_and_the_other_findings_are_fixed(tmp_path: Path) -> None:
    text = script("host", [
        finding((Run(("false",)), Write("not-reached", "1")), (Run(("false",)), Write("reached", "1")), id="bad"),
        finding((Write("good", "1"),), (Write("good", "0"),), id="good"),
    ])  # fmt: skip
    done = run(text, "fix", tmp_path)
    assert done.returncode == 1
    assert "failed: fix bad" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["good"]
    # Undoing goes on after a failure: what can be taken back is.
    assert run(text, "undo", tmp_path).returncode == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["good", "reached"]


def test_of_two_fixes_of_one_file_the_worse_finding_wins(tmp_path: Path) -> None:
    text = script("host", [finding((Write("p", "never"),), id="first"), finding((Write("p", "auto"),), id="second")])
    assert run(text, "fix", tmp_path).returncode == 0
    assert (tmp_path / "p").read_text() == "never\n"
    assert "left out, as first sets the same: warning second" in text


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_text("theirs\n")
    done = run(script("host", [finding((DropIn("x.conf", "ours\n"),))]), "fix", tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "x.conf").read_text() == "theirs\n"
