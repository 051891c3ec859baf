"""``wsw calibrate``, and ``wsw run --on model --costs`` with what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import MISSING, USAGE, main, wsw
from worldswitch.record import result as record
from worldswitch.record.resultfile import save

VMEXIT = "enabling apic\npaging enabled\ncpuid 1234\nvmcall 1200\ninl_from_pmtimer 5000\n"


def run(*words: str) -> Result:
    return CliRunner().invoke(wsw, list(words), catch_exceptions=False, standalone_mode=False)


def failing(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    shown = capsys.readouterr()
    assert shown.out == ""
    return stopped.value.code, shown.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    dimensions = {
        "on": "kvm",
        "program": "cr0-am",
        "parameters": {},
        "kernel": "6.12.117",
        "cpu": "intel",
        "mmu": "tdp",
    }
    cell = record.Cell(dimensions, unit="pair", per_op={"exits": 2}, time_ns=record.Spread(1800.0, 2000.0, 2400.0))
    save(record.Result((cell,), record.Provenance("0.1.0")), "r.json")
    (tmp_path / "vmexit.txt").write_text(VMEXIT, encoding="ascii")
    return tmp_path


def test_results_and_unit_tests_make_a_file_that_gives_times(here: Path) -> None:
    done = run("calibrate", "r.json", "vmexit.txt", "--ghz", "2", "-o", "mine.toml")
    assert done.return_value == 0
    assert "inl_from_pmtimer in vmexit.txt" in done.stdout
    found = run("run", "cr0-am,cpuid", "--on", "model", "--kernel", "5.15.106", "--mmu", "legacy", "--cpu", "intel",
                "--costs", "mine.toml", "--json")  # fmt: skip
    document = json.loads(found.stdout)
    toggles, cpuid = document["results"]
    assert cpuid["time_ns"] == {"low": 617, "mid": 617, "high": 617}
    assert document["provenance"]["costs"]["exit.cr"].startswith("timed: cr0-am in r.json")
    assert toggles["time_ns"] == pytest.approx({"low": 1800, "mid": 2000, "high": 2400})


def test_no_time_where_an_exit_has_no_cost(here: Path) -> None:
    run("calibrate", "r.json", "-o", "mine.toml")
    words = ("run", "dr6", "--on", "model", "--kernel", "6.12", "--costs", "mine.toml", "--json")
    (cell,) = json.loads(run(*words).stdout)["results"]
    assert cell["time_ns"] is None
    assert "no time: exit.dr has no cost" in cell["notes"]


def test_the_published_costs_give_the_benchmark_its_published_time(here: Path) -> None:
    """5.39 s and 3.51 s of 500,000 steps (Message-ID 20230322013731.102955-1), within 5 %: two cells held out."""
    assert run("calibrate", "--published", "500000", "-o", "costs.toml").return_value == 0
    kernels = "6.3.0+cr0-wp-init-only,6.3.0+cr0-wp-init-only+cr0-wp-owned"
    found = run("run", "ssdd:pcid=1", "--on", "model", "--cpu", "intel", "--mmu", "legacy", "--kernel", kernels,
                "-n", "500000", "--costs", "costs.toml", "--json")  # fmt: skip
    kept, owned = json.loads(found.stdout)["results"]
    assert kept["time_ns"]["mid"] * 500_000 / 1e9 == pytest.approx(5.39, rel=0.05)
    assert owned["time_ns"]["mid"] * 500_000 / 1e9 == pytest.approx(3.51, rel=0.05)


def test_json_has_costs_and_what_was_skipped(here: Path) -> None:
    found = json.loads(run("calibrate", "vmexit.txt", "--json").stdout)
    assert {cost["event"]: (cost["mid"], cost["unit"]) for cost in found["costs"]} == {
        "exit.cpuid": (1234, "cycles"),
        "exit.hypercall": (1200, "cycles"),
    }
    assert all(cost["origin"] for cost in found["costs"])
    assert [skip["what"] for skip in found["skipped"]] == ["inl_from_pmtimer in vmexit.txt"]


def test_measured_costs_go_before_published_ones(here: Path) -> None:
    found = json.loads(run("calibrate", "r.json", "--published", "500000", "--json").stdout)
    (cr,) = [cost for cost in found["costs"] if cost["event"] == "exit.cr"]
    assert cr["mid"] == 1000
    assert any(cost["event"] == "work.ssdd" for cost in found["costs"])


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("calibrate",), USAGE, "nothing to take costs from"),
        (("calibrate", "--published", "7"), USAGE, "the benchmark made 100000 or 500000 steps"),
        (("calibrate", "none.json"), MISSING, "cannot read none.json"),
        (("calibrate", "vmexit.txt", "-o", "no/such/folder"), MISSING, "cannot write"),
        (("run", "cpuid", "--on", "kvm", "--costs", "x.toml"), USAGE, "--costs is for --on model"),
        (("run", "cpuid", "--on", "model", "--kernel", "6.12", "--costs", "x.toml"), MISSING, "cannot read costs"),
        (
            ("run", "cpuid", "--on", "model", "--kernel", "6.12", "--costs", "r.json"),
            USAGE,
            "r.json is no file of costs",
        ),
    ],
)
def test_what_cannot_be_is_told(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, why: str
) -> None:
    code, said = failing(capsys, *words)
    assert code == status and why in said, said


def test_nothing_to_calibrate_says_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "only.txt").write_text("enabling apic\ninl_from_pmtimer 5000\nipi 3000\n", encoding="ascii")
    code, said = failing(capsys, "calibrate", "only.txt")
    assert code == USAGE and "no cost can be told from only.txt: inl_from_pmtimer in only.txt" in said


def test_python_does_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(run("calibrate", "r.json", "--published", "500000", "--python").stdout, {})
    assert "timed: cr0-am in r.json" in capsys.readouterr().out
