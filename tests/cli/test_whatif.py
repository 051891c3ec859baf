"""``wsw whatif``: its text, its JSON, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from guest_build import EPT_VIOLATION, PE_PG, WP, Guest
from worldswitch.cli import main, wsw
from worldswitch.cli.whatif import describe, to_json
from worldswitch.trace.whatif import whatif

DATA = Path(__file__).parents[1] / "data"
TDPMMU = str(DATA / "svm-5.10-npt-tdpmmu/wp.perf.data.zst")
EPT = str(DATA / "vmx-5.10-ept/wp.trace.dat")
TEXT = str(DATA / "vmx-5.10-ept/trace.txt")


def run(*args: str) -> str:
    return CliRunner().invoke(wsw, ["whatif", *args], catch_exceptions=False).stdout


def ask_json(*args: str) -> dict[str, Any]:
    return json.loads(run("--json", *args))


def failing(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Any, str]:
    """Exit status and what is said on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["whatif", *args])
    shown = capsys.readouterr()
    assert shown.out == ""
    return stopped.value.code, shown.err


def test_json_has_the_keys_that_tools_rely_on() -> None:
    answer = ask_json("--from", "5.10", "--to", "6.12", TDPMMU)
    assert answer["assumed_from"] == "5.10"
    (removed,) = answer["removed"]
    assert (removed["reason"], removed["count"], removed["known"]) == ("npf", 800, False)
    assert set(answer["saving_ns"]) == {"low", "mid", "high"}
    assert 0 < answer["saving_ns"]["low"] < answer["saving_ns"]["mid"] < answer["saving_ns"]["high"]
    assert answer["cannot_tell"]
    assert all(isinstance(entry["why"], str) for entry in answer["cannot_tell"])


def test_json_tells_assumed_from_told() -> None:
    assert ask_json("--to", "6.12", EPT)["assumed_from"] is None
    assert ask_json("--to", "6.12", EPT)["from"]["kernel"] == "5.10.223"


def test_json_is_the_same_each_time() -> None:
    assert ask_json("--to", "6.12", EPT) == ask_json("--to", "6.12", EPT)


@pytest.mark.parametrize(
    "args",
    [
        ("--from", "5.10", "--to", "6.12", TDPMMU),
        ("--to", "5.10+tdp-root-role-constant+cr0-wp-init-only", TDPMMU),
        ("--set", "nx_huge_pages=never", "--set", "tdp_mmu=0", TDPMMU),
        ("--to", "6.12", "--set", "ept=0", EPT),
        ("--from", "6.1", "--to", "6.12", EPT),
        ("--from", "5.10", "--to", "6.12", TEXT),
        ("--to", "5.10", str(DATA / "svm-7.2-npt/wp.perf.data.zst")),
    ],
)
def test_text_fits_100_columns(args: tuple[str, ...]) -> None:
    # The names of files are the user's.
    lines = [line for line in run(*args).splitlines() if not line.startswith("trace ")]
    assert max(map(len, lines)) <= 100


def test_text_says_all_parts() -> None:
    text = run("--from", "5.10", "--to", "6.12", TDPMMU)
    assert "from     5.10.262 (assumed), AMD, TDP MMU" in text
    assert "removed  800 of 1,013 exits" in text
    assert re.search(r"saving   59.3 ms \(95 %: [\d.]+ ms to [\d.]+ ms\), 45 % of the time outside the guest", text)
    titles = ["Would not have happened", "Stay", "Inferred", "Cannot tell", "Notes"]
    assert [line for line in text.splitlines() if line in titles] == titles
    assert "a refault is a page fault on a page that was mapped before the register write" in text


def test_nothing_saved_is_said_shortly() -> None:
    text = run("--to", "6.12", str(DATA / "vmx-5.10-shadow/wp.trace.dat"))
    assert "removed  0 of 302 exits\nsaving   none\n" in text
    assert "Would not have happened" not in text


def test_a_small_share_is_not_zero() -> None:
    text = run("--to", "6.12", str(DATA / "svm-5.10-npt/wp.perf.data.zst"))
    assert "0.16 % of the time outside the guest" in text


def test_one_and_many() -> None:
    guest = Guest().write(0, PE_PG).write(0, PE_PG | WP).exit(EPT_VIOLATION)
    text = describe(whatif(guest.trace(), "5.10+cr0-wp-init-only", "5.10"))
    assert "whether the EPT violation is a refault" in " ".join(text.split())
    assert "2 CR0.WP exits get" in text


def test_hostile_strings_do_not_reach_the_terminal() -> None:
    guest = Guest(meta={"complete": False, "damage": ["at \x1b[31m byte"]}, kernel="6.1.29\x1b]0;x\x07").write(0, PE_PG)
    trace = guest.trace()
    trace.meta.source = "a\x1b[2Jb\nc"
    result = whatif(trace, "6.12", "5.10")
    assert not set(describe(result)) & {"\x1b", "\x07", "\r"}
    assert "\x1b" not in json.dumps(to_json(result), ensure_ascii=True)


def test_many_kinds_are_cut_in_the_text_only() -> None:
    guest = Guest().write(4, 0)
    for bits in range(1, 100):
        guest.write(4, bits << 33).write(4, 0)
    result = whatif(guest.trace(), "6.12", "5.10")
    assert "more kinds; --json has them all" in describe(result)
    assert len(describe(result).splitlines()) < 150
    assert len(to_json(result)["stays"]) > 90


def test_python_prints_calls_that_give_the_same() -> None:
    program = run("--python", "--from", "5.10", "--to", "6.12", TEXT)
    scope: dict[str, Any] = {}
    exec(program.replace("print(", "shown = ("), scope)
    assert sum(exits.count for exits in scope["result"].removed) == 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((TEXT,), "say what to compare with"),
        (("--to", "6.12", TEXT), "does not say which kernel it was recorded on; state it, as in --from 5.10"),
        (("--from", "5.10", "--to", "6.12+cr0-wp-ownd", TEXT), "nearest: cr0-wp-owned"),
        (("--from", "5.10", "--to", "6.12", "--set", "ept=maybe", TEXT), "say 1 or 0"),
        (("--from", "5.10", "--to", "6.12", "--set", "npt=0", TEXT), "unknown setting"),
        (("--from", "5.10", "--to", "6.12", "--set", "ept=0", "--set", "ept=1", TEXT), "say one of them"),
    ],
)
def test_what_cannot_be_asked(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str) -> None:
    status, said = failing(capsys, *args)
    assert status == 2
    assert said.startswith("wsw: ")
    assert message in said
    assert "Traceback" not in said


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = failing(capsys, "--to", "6.12", str(DATA / "nowhere"))
    assert status == 3
    assert "nowhere" in said


def test_a_cut_file_answers_for_what_is_left(tmp_path: Path) -> None:
    part = tmp_path / "cut.trace.dat"
    part.write_bytes((DATA / "svm-7.2-npt/wp.trace.dat").read_bytes()[:-3000])
    answer = ask_json("--from", "7.2", "--to", "6.12", str(part))
    (writes,) = answer["stays"]
    assert 0 < writes["count"] < 2000
    assert any("part of the trace that is missing" in entry["why"] for entry in answer["cannot_tell"])


def test_the_text_says_which_method_was_used() -> None:
    replayed = run(str(DATA / "svm-5.10-lab/wp.perf.data.zst"), "--to", "6.12")
    assert "- replay: register writes and page faults" in replayed
    assert "MMU roots are unloaded 300 times in the trace, and 0 times" in replayed.replace("\n  ", " ")
    assert "- facts: each write is judged by itself" in run(
        str(DATA / "vmx-5.10-ept/kvmstat.perf.data"), "--to", "6.12"
    )


def test_json_says_which_method_was_used_and_what_is_predicted() -> None:
    document = json.loads(run(str(DATA / "vmx-5.10-lab/wp.perf.data.zst"), "--to", "6.12", "--json"))
    assert (document["method"], document["method_why"]) == ("replay", "")
    assert {vm["method"] for vm in document["vms"]} == {"replay"}
    assert document["by_reason"]["EPT_VIOLATION"] == {"from": 48, "to": 32}
    assert document["roots"]["from"] == {"unloads": 300, "freed": 0}
