"""``wsw run --on model --trace``: a file that the other commands read, or one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import wsw
from worldswitch.errors import WorldswitchError


def ran(*words: str) -> Result:
    return CliRunner().invoke(wsw, words)


@pytest.mark.parametrize("name", ["out.data", "out.dat", "out.txt", "out"])
def test_the_recording_has_the_exits_of_the_run(name: str, tmp_path: Path) -> None:
    out = str(tmp_path / name)
    done = ran(
        "run", "cr0-wp", "-n", "5", "--on", "model", "--kernel", "5.10", "--cpu", "intel", "--json", "--trace", out
    )
    assert done.exit_code == 0
    counted = json.loads(done.stdout)["results"][0]["counters"]["exits_by_reason"]
    seen = json.loads(ran("analyze", out, "--json").stdout)
    assert {row["reason"]: row["count"] + row["open"] for row in seen["exits"]} == counted


def test_it_says_of_what_it_is(tmp_path: Path) -> None:
    out = str(tmp_path / "out.data")
    assert (
        ran("run", "cr0-wp", "-n", "5", "--on", "model", "--kernel", "5.10", "--cpu", "intel", "--trace", out).exit_code
        == 0
    )
    meta = json.loads(ran("analyze", out, "--json").stdout)["meta"]
    assert meta["vendor"] == "intel" and meta["kernel"].startswith("5.10.")


def test_each_program_and_host_has_a_file_of_its_own(tmp_path: Path) -> None:
    out = str(tmp_path / "out.data")
    done = ran("run", "cr0-wp,cpuid", "-n", "2", "--on", "model", "--kernel", "5.10,6.12", "--trace", out)
    assert done.exit_code == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 4
    assert all(name.startswith("out-c") and name.endswith(".data") for name in names)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cr0-wp", "--trace", "x.nothing"), "does not tell the format"),
        (("cr0-wp", "--trace", "-"), "give --trace its name"),
        (("cr0-wp", "--trace", "nowhere/x.data"), "no folder for"),
        (("create-vm", "--trace", "x.data"), "none runs"),
        (("cpuid", "-n", "9000000", "--trace", "x.data"), "take -n 4"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_leaves_no_file(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ran("run", *words, "--on", "model", "--kernel", "6.12")
    told = str(done.exception) if isinstance(done.exception, WorldswitchError) else done.output
    assert says in told
    assert not list(tmp_path.iterdir())


def test_passes_without_exits_are_limited_too(tmp_path: Path) -> None:
    """On Intel CR0.WP is the guest's own since 6.4: no exit, and yet every pass would be executed."""
    words = ("run", "cr0-wp", "-n", "1000000000", "--on", "model", "--kernel", "6.12", "--cpu", "intel")
    done = ran(*words, "--trace", str(tmp_path / "out.data"))
    assert "takes" not in done.stdout
    assert "goes to 500,000; take -n 500000" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "next_"),
    [
        ("out.json", "to look at in ui.perfetto.dev"),
        ("out.txt", "wsw whatif {} --from 6.12."),
        ("out.data", "next: wsw analyze {}\n"),
    ],
)
def test_it_says_what_can_be_done_with_the_recording(name: str, next_: str, tmp_path: Path) -> None:
    out = tmp_path / name
    done = ran("run", "cr0-wp", "-n", "5", "--on", "model", "--kernel", "6.12", "--trace", str(out))
    assert next_.format(out) in done.stderr
