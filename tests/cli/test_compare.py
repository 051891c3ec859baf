"""``wsw compare``: its text, its JSON, its exit status, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from worldswitch.cli import main, wsw
from worldswitch.record.result import Cell, Environment, Metric, Provenance, Result
from worldswitch.record.resultfile import save

FAST = tuple(300 + i * 0.5 for i in range(8))
SLOW = tuple(2000 + i * 3.0 for i in range(8))


def result(kernel: str, exits: float, times: tuple[float, ...], **more: Any) -> Result:
    dimensions = {"on": "kvm", "kernel": kernel, "cpu": "intel", "mmu": "tdp", "program": "cr0-wp", **more}
    per_op = {"exits": exits, "exits_by_reason": {"CR_ACCESS": exits} if exits else {}, "root_loads": 0}
    cell = Cell(dimensions, n=1000, unit="pair", per_op=per_op, metrics=(Metric("time", "ns", times),))
    return Result((cell,), Provenance("0.1.0"), Environment("Xeon", kernel))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(result("5.10", 2, SLOW), "old.json")
    save(result("6.12", 0, FAST), "new.json")
    return tmp_path


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(wsw, ["compare", *args], catch_exceptions=False, standalone_mode=False)
    return done.return_value, done.stdout


def failing(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *args])
    shown = capsys.readouterr()
    assert shown.out == ""
    return stopped.value.code, shown.err


def test_better_is_status_0_and_worse_is_1(saved: Path) -> None:
    assert run("old.json", "new.json")[0] == 0
    assert run("new.json", "old.json")[0] == 1
    assert run("new.json", "new.json")[0] == 0


def test_main_exits_with_the_status(saved: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "new.json", "old.json"])
    assert stopped.value.code == 1


def test_text_says_counts_times_and_verdicts(saved: Path) -> None:
    text = run("old.json", "new.json")[1]
    assert text.startswith("cr0-wp, kvm, intel, tdp: kernel 6.12 against 5.10, per pair\n")
    rows = [line.split() for line in text.splitlines()]
    assert ["exits", "2", "0", "-2", "fewer"] in rows
    assert ["exits,", "CR_ACCESS", "2", "0", "-2", "fewer"] in rows
    # Medians 2010.5 and 301.75; Hodges and Lehmann's shift of two symmetric sides is the difference of their middles.
    (time,) = [row for row in rows if row[:1] == ["time"]]
    assert time[:7] == ["time", "2.01", "µs", "302", "ns", "-85", "%"]
    assert time[-1] == "faster"
    assert "root_loads" not in text, "what is 0 on both sides says nothing"
    assert max(map(len, text.splitlines())) <= 100


def test_what_is_worse_is_marked(saved: Path) -> None:
    text = run("new.json", "old.json")[1]
    assert text.count(" !\n") == 2
    assert "so the exit status is 1" in text


def test_json_has_the_keys_that_tools_rely_on(saved: Path) -> None:
    document = json.loads(run("--json", "new.json", "old.json")[1])
    assert document["worse"] is True
    assert (document["confidence"], document["margin"]) == (0.95, 0.01)
    assert (document["only_a"], document["only_b"]) == ([], [])
    (pair,) = document["pairs"]
    assert pair["compared"] == {"name": "kernel", "a": "6.12", "b": "5.10"}
    assert (pair["a"]["program"], pair["b"]["kernel"]) == ("cr0-wp", "5.10")
    assert pair["counts"][0] == {"name": "exits", "a": 0, "b": 2, "verdict": "more", "worse": True, "why": None}
    (time,) = pair["times"]
    assert (time["verdict"], time["worse"]) == ("slower", True)
    assert time["a"] == {"n": 8, "median": 301.75}
    assert time["shift"]["low"] < time["shift"]["mid"] == 1708.75 < time["shift"]["high"]


def test_python_prints_calls_that_give_the_same(saved: Path) -> None:
    for args, worse in ((("new.json", "old.json"), True), (("new.json",), None)):
        program = run("--python", *args)[1]
        scope: dict[str, Any] = {}
        if worse is None:
            assert "b = a" in program
            continue
        exec(program.replace("print(found.worse)", "worse = found.worse"), scope)
        assert scope["worse"] is worse


def test_one_result_is_compared_with_itself_cell_by_cell(saved: Path) -> None:
    both = Result((*result("5.10", 2, SLOW).cells, *result("6.12", 0, FAST).cells), Provenance("1"))
    save(both, "both.json")
    status, text = run("both.json")
    assert status == 0
    assert "kernel 6.12 against 5.10" in text


def test_what_has_no_partner_is_named(saved: Path) -> None:
    save(
        Result((*result("6.12", 0, FAST).cells, *result("6.12", 1, FAST, program="cpuid").cells), Provenance("1")), "x"
    )
    text = run("old.json", "x")[1]
    assert "Only in B\n- cpuid, kvm, 6.12, intel, tdp\n" in text


def test_two_conditions_at_once_are_refused(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(result("6.12", 0, FAST, mmu="shadow"), "x")
    status, said = failing(capsys, "old.json", "x")
    assert status == 2
    assert "differ in kernel (5.10 and 6.12) and mmu (tdp and shadow)" in said
    assert run("--ignore", "mmu", "old.json", "x")[0] == 0


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (("nowhere.json", "old.json"), 3, "nowhere.json cannot be read (No such file or directory)"),
        (("old.json", "damaged.json"), 2, "damaged.json: not JSON, or cut off"),
        (("old.json", "trace.json"), 2, "trace.json: not a result"),
        (("old.json", "new.json", "--ignore", "kernal"), 2, "nearest: kernel"),
        (("old.json", "new.json", "--confidence", "95"), 2, "a confidence of 95.0 is none"),
        (("old.json", "new.json", "--margin", "-1"), 2, "a margin of -1.0 is none"),
        (("old.json",), 2, "no two cells to compare"),
        ((), 2, "Missing argument 'A'"),
    ],
)
def test_what_cannot_be_asked(
    saved: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], status: int, message: str
) -> None:
    (saved / "damaged.json").write_text((saved / "new.json").read_text()[:-20])
    (saved / "trace.json").write_text('{"traceEvents": []}')
    code, said = failing(capsys, *args)
    assert code == status
    assert message in said
    assert "Traceback" not in said


def test_hostile_strings_do_not_reach_the_terminal(saved: Path) -> None:
    hostile = "\x1b[2J\x07"
    save(result("5.10", 2, SLOW, program=hostile), "a")
    save(result(hostile, 0, FAST, program=hostile), "b")
    save(
        Result((*result("5.10", 2, SLOW).cells, *result("5.10", 1, SLOW, program=hostile).cells), Provenance("1")), "c"
    )
    for args in (("a", "b"), ("old.json", "c")):
        assert not set(run(*args)[1]) & {"\x1b", "\x07"}


RECORDED = [
    str(Path(__file__).parents[1] / "data" / name / "wp.perf.data.zst") for name in ("svm-5.10-npt", "svm-6.1-npt")
]


def test_traces_are_compared_as_results_are(saved: Path) -> None:
    status, text = run(*RECORDED, "--json", "--same-work")
    (pair,) = json.loads(text)["pairs"]
    assert status == 0
    assert pair["compared"]["name"] == "kernel"
    assert pair["counts"][0]["name"] == "exits"
    rates = json.loads(run(*RECORDED, "--json")[1])["pairs"][0]["times"]
    assert set(rates[0]["a"]) == {"n", "mean"}


def test_python_of_traces_does_the_same(saved: Path) -> None:
    program = run(*RECORDED, "--same-work", "--python")[1]
    scope: dict[str, Any] = {}
    exec(program, scope)
    assert scope["found"].pairs[0].counts[0].name == "exits"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("old.json", RECORDED[0]), "is a trace and old.json a result"),
        ((RECORDED[0], "old.json"), "is a trace and old.json a result"),
        ((RECORDED[0],), "give a second one"),
        (("old.json", "new.json", "--same-work"), "are for traces"),
        ((*RECORDED, "--operations", "1,0"), "is not two numbers"),
        ((*RECORDED, "--operations", "5"), "is not two numbers"),
        ((*RECORDED, "--operations", "5,6", "--same-work"), "contradict"),
        (("old.json", "new.json", "--at-least", "soon"), "not a duration"),
        (("-", "-"), "standard input holds one trace"),
    ],
)
def test_what_traces_cannot_be_asked(
    saved: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    code, said = failing(capsys, *args)
    assert code == 2
    assert message in said


def test_junit_of_hostile_names_is_well_formed(saved: Path) -> None:
    from xml.etree import ElementTree

    hostile = "</testcase>\x1b\x00]]>&"
    save(result("5.10", 2, FAST, program=hostile), "a")
    save(result("6.12", 3, SLOW, program=hostile), "b")
    for name in ("a", "b"):
        Path(name).rename(f"{name}.json")
    assert run("a.json", "b.json", "--junit", "v.xml")[0] == 1
    (suite,) = ElementTree.parse("v.xml").getroot()
    assert (suite.attrib["failures"], suite.attrib["tests"]) == ("2", str(len(suite)))
    assert suite.attrib["name"].startswith("</testcase>\\x1b\\x00]]>&")


def test_junit_that_cannot_be_written_is_said(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "old.json", "new.json", "--junit", "nowhere/v.xml"])
    assert stopped.value.code == 3
    assert "give --junit another name" in capsys.readouterr().err


def test_markdown_is_a_table_with_pipes(saved: Path) -> None:
    text = run("old.json", "new.json", "--markdown")[1]
    assert text.startswith("**cr0-wp, kvm, intel, tdp: kernel 6.12 against 5.10, per pair**\n\n|")
    assert "| exits " in text


@pytest.mark.parametrize("name", ["old.json", "./new.json", "link.xml"])
def test_junit_never_overwrites_what_is_compared(saved: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (saved / "link.xml").symlink_to(saved / "new.json")
    before = [(saved / one).read_bytes() for one in ("old.json", "new.json")]
    status, said = failing(capsys, "old.json", "new.json", "--junit", name)
    assert (status, "is one of the inputs" in said) == (2, True)
    assert [(saved / one).read_bytes() for one in ("old.json", "new.json")] == before


def test_verdicts_are_printed_though_the_junit_file_cannot_be_written(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "old.json", "new.json", "--junit", "/dev/full"])
    shown = capsys.readouterr()
    assert stopped.value.code == 3
    assert "fewer" in shown.out
    assert "No space left" in shown.err


def test_what_follows_from_the_kernel_is_not_told_of_one_side_as_of_both() -> None:
    done = CliRunner().invoke(wsw, ["run", "cr0-wp", "--on", "model", "--cpu", "intel", "--compare", "5.10,6.12"])
    title = " ".join(done.stdout.split("exits")[0].split())
    assert "mmu tdp against legacy" in title
    assert "intel, legacy," not in title
