"""wsw programs: what ships, and one program as a file that runs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from worldswitch.cli.programs import programs
from worldswitch.errors import UnknownNameError
from worldswitch.guest import library
from worldswitch.guest.toml import loads


def wsw(*words: str) -> str:
    done = CliRunner().invoke(programs, words, catch_exceptions=False, standalone_mode=False)
    return done.output


def test_the_list_has_every_program_its_unit_parameters_and_a_sentence() -> None:
    shown = wsw()
    for name in library.names():
        assert f"\n{name} (per " in f"\n{shown}"
    assert "cr0-wp (per pair) single=false\n    Clears CR0.WP and sets it again" in shown
    assert "\ncreate-vm (per VM) --vms --burst" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize("spec", ["cr0-wp", "ssdd:pcid=true,cet=true", "recorded-wp", "page-touch:size=2M"])
def test_one_program_is_printed_as_a_file_that_reads_back_equal(spec: str) -> None:
    assert loads(wsw(spec)) == library.program(spec)


def test_a_file_of_ones_own_is_checked_and_printed(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nsummary = "S."\nunit = "pass"\n[[vcpus]]\nbody = [{ op = "cpuid" }]\n')
    assert loads(wsw(str(path))).name == "mine"


def test_json_has_stable_keys() -> None:
    rows = {row["name"]: row for row in json.loads(wsw("--json"))["programs"]}
    assert set(rows) == {*library.names(), "create-vm"}
    keys = {
        "name",
        "kind",
        "unit",
        "summary",
        "parameters",
        "default_n",
        "mode",
        "vcpus",
        "features",
        "expect",
        "source",
    }
    assert set(rows["cr4-smep"]) == keys
    assert rows["cr4-smep"]["features"] == ["nx", "smep"]
    assert rows["page-touch"]["parameters"] == {"size": "4K", "pages": 64, "write": True, "huge": False}
    (one,) = json.loads(wsw("page-touch:pages=8", "--json"))["programs"]
    assert one["parameters"]["pages"] == 8
    assert loads(one["toml"]) == library.program("page-touch:pages=8")


@pytest.mark.parametrize("words", [(), ("cr0-wp:single=true",), ("create-vm",)])
def test_the_python_that_does_the_same_runs(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code = wsw(*words, "--python")
    exec(compile(code, "<--python>", "exec"), {})
    assert capsys.readouterr().out


def test_host_programs_are_shown_too() -> None:
    assert "KVM_CREATE_VM" in wsw("create-vm")
    assert json.loads(wsw("create-vm", "--json"))["programs"][0]["kind"] == "host"


def test_an_unknown_program_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: .*cr0-wp"):
        wsw("cr0-wq")
