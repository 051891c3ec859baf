"""``wsw report``: what it writes, prints and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from report_inputs import DATA, mixed, result
from worldswitch.cli import main, wsw

WP = str(DATA / "svm-5.10-npt-tdpmmu" / "wp.trace.dat")
WSW = str(Path(sys.executable).with_name("wsw"))


def run(*args: str) -> str:
    return CliRunner().invoke(wsw, ["report", *args], catch_exceptions=False).stdout


def failing(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Any, str]:
    """Exit status and what is said on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["report", *args])
    shown = capsys.readouterr()
    assert shown.out == ""
    return stopped.value.code, shown.err


def test_it_writes_the_page_and_says_the_first_finding(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    said = run(WP, "-o", str(target), "--to", "6.12")
    assert "200 writes of CR0.WP cost 800 page faults" in said
    page = target.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "200 writes of CR0.WP cost 800 page faults" in page


def test_the_page_goes_to_standard_output(tmp_path: Path) -> None:
    assert run(WP, "-o", "-").startswith("<!DOCTYPE html>")


def test_a_trace_comes_from_standard_input() -> None:
    with Path(WP).open("rb") as source:
        done = subprocess.run([WSW, "report", "-", "--json"], stdin=source, capture_output=True, check=True, text=True)
    assert json.loads(done.stdout)["parts"][0]["kind"] == "trace"


def test_inputs_of_all_kinds_are_mixed(tmp_path: Path) -> None:
    document = json.loads(run(*mixed(tmp_path), "--json"))
    assert {part["kind"] for part in document["parts"]} == {"trace", "result", "host", "conformance"}


def test_json_has_findings_figures_tables_and_origins() -> None:
    document = json.loads(run(WP, "--json", "--to", "6.12"))
    assert set(document) == {"title", "parts", "command", "version", "made", "terms", "findings"}
    assert document["findings"][0]["ids"] == ["root-churn", "whatif"]
    for section in document["parts"][0]["sections"]:
        for figure in section["figures"]:
            assert set(figure) == {"id", "title", "lead", "origin", "table"}
            assert set(figure["origin"]) == {"file", "command", "method"}


def test_the_title_is_what_was_asked_for(tmp_path: Path) -> None:
    assert json.loads(run(WP, "--json", "--title", "My <host>"))["title"] == "My <host>"


def test_python_prints_calls_that_do_the_same(tmp_path: Path) -> None:
    target, other = tmp_path / "by-command.html", tmp_path / "by-python.html"
    code = run(WP, "--to", "6.12", "-o", str(other), "--python")
    assert not other.exists()
    exec(compile(code, "<printed>", "exec"), {})
    run(WP, "--to", "6.12", "-o", str(target))

    def body(path: Path) -> str:
        return path.read_text(encoding="utf-8").split('id="about"')[0]

    assert body(other) == body(target)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name what to report"),
        ([WP], "say where to write the page: -o report.html"),
        ([WP, "-o", "-", "--json"], "both want standard output"),
        ([WP, "-o", "{tmp}"], "is a folder"),
        ([WP, "-o", "{tmp}/a.html", "--to", "9.9"], "9.9"),
        ([WP, "-o", "{tmp}/a.html", "--published", "nothing"], "unknown table"),
        ([WP, "-o", "{tmp}/a\0b.html"], "no name for a file"),
        (["{tmp}/text", "-o", "{tmp}/a.html"], "no reader knows"),
        (["{tmp}/empty", "-o", "{tmp}/a.html"], "is empty"),
        ([WP, "{tmp}/text", "-o", "{tmp}/a.html"], "no reader knows"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "text").write_text("nothing that is a trace\n")
    (tmp_path / "empty").touch()
    status, said = failing(capsys, *(word.replace("{tmp}", str(tmp_path)) for word in arguments))
    assert status == 2
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{tmp}/missing", "-o", "{tmp}/a.html"], "No such file"),
        ([WP, "-o", "{tmp}/no/folder/a.html"], "there is no folder"),
        ([WP, "-o", "/proc/version.html"], "cannot be written"),
    ],
)
def test_what_is_missing_has_its_own_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    status, said = failing(capsys, *(word.replace("{tmp}", str(tmp_path)) for word in arguments))
    assert status == 3
    assert says in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("link", [False, True])
def test_an_input_is_never_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path, link: bool) -> None:
    given = result(tmp_path / "result.json")
    before = given.read_bytes()
    target = tmp_path / "link.html" if link else given
    if link:
        target.symlink_to(given)
    status, said = failing(capsys, str(given), "-o", str(target))
    assert (status, "is one of the inputs" in said) == (2, True)
    assert given.read_bytes() == before


def test_a_failed_report_leaves_what_was_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")
    damaged = tmp_path / "damaged.dat"
    damaged.write_bytes(Path(WP).read_bytes()[:200])
    failing(capsys, str(damaged), "-o", str(target))
    assert target.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.dat", "report.html"]


def test_a_trace_that_is_cut_off_is_reported_with_a_warning(tmp_path: Path) -> None:
    cut = tmp_path / "cut.data"
    data = (DATA / "vmx-5.10-ept" / "wp.perf.data").read_bytes()
    cut.write_bytes(data[: len(data) * 9 // 10])
    findings = json.loads(run(str(cut), "--json"))["findings"]
    assert any("incomplete" in one["ids"] for one in findings)


def test_nothing_heavy_is_imported_for_help_or_python() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom worldswitch.cli import wsw\n"
        "CliRunner().invoke(wsw, ['report', '--help'])\n"
        f"CliRunner().invoke(wsw, ['report', {WP!r}, '-o', 'x.html', '--python'])\n"
        "print([name for name in ('numpy', 'polars', 'scipy', 'jinja2', 'altair') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_no_plotting_library_is_imported_for_a_page() -> None:
    code = (
        "import sys\nfrom worldswitch.report.build import report\nfrom worldswitch.report.html import html\n"
        f"html(report([{WP!r}]))\n"
        "print([name for name in ('polars', 'scipy', 'altair', 'rich') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_kernel_of_a_trace_may_be_stated(tmp_path: Path) -> None:
    trace = str(DATA / "vmx-5.10-ept" / "trace.txt")
    document = json.loads(run(trace, "--json", "--from", "5.10", "--to", "6.12"))
    titles = [figure["title"] for section in document["parts"][0]["sections"] for figure in section["figures"]]
    assert "From 5.10.262 to 6.12.117" in titles


def test_a_file_of_exit_reasons_that_is_not_there_is_said_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, said = failing(capsys, WP, "-o", str(tmp_path / "a.html"), "--exit-reasons", "/nowhere.toml")
    assert status == 3
    assert "/nowhere.toml" in said
