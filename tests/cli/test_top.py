"""``wsw top --once``, and what it says where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from record.openmetrics_spec import parse
from stat_tree import GROWS, STATES, StatTree
from worldswitch.cli import wsw

WSW = [sys.executable, "-c", "from worldswitch.cli import main; main()"]
BLOCKED = [sys.executable, "-c", "import sys; sys.modules['textual'] = None; from worldswitch.cli import main; main()"]
HOSTILE = 'a"b\\c\nd\x1b[31m'


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(wsw, ["top", *arguments], catch_exceptions=False, standalone_mode=False)
    assert (result.return_value or 0) == status, result.output
    return result.stdout


@pytest.fixture
def tree(tmp_path: Path) -> StatTree:
    return StatTree(tmp_path / "root")


@pytest.fixture
def grown(tree: StatTree, monkeypatch: pytest.MonkeyPatch) -> StatTree:
    """A tree of two VMs that grow by one step while the program waits for its interval."""
    tree.add(10, process="crosvm")
    tree.add(11, weight=2.0)
    monkeypatch.setattr("worldswitch.cli.top.time.sleep", lambda _: tree.step())
    return tree


def once(tree: StatTree, *arguments: str, status: int = 0) -> str:
    return run("--once", "--interval", "50ms", "--root", str(tree.root), *arguments, status=status)


def test_json_has_every_statistic_and_rates_by_each_vms_time(grown: StatTree) -> None:
    found = json.loads(once(grown, "--json"))
    one, two = found["vms"]
    assert (found["reasons_from"], found["gone"], found["missing"]) == ("statistics", [], [])
    assert (one["vm"], one["pid"], one["process"], one["vcpus"], one["reset"]) == ("10-11", 10, "crosvm", 4, False)
    # A step of weight 1 is 12,000 exits and 9,000 more of weight 2.
    assert one["totals"]["exits"] == 13_000
    assert one["per_second"]["exits"] * one["seconds"] == pytest.approx(12_000)
    assert two["per_second"]["exits"] * two["seconds"] == pytest.approx(24_000)
    # Two peaks grow in the tree as counters do, and are states.
    assert one["states"] == {**STATES, **{name: 1_000 for name in GROWS if name.startswith("max_mmu")}}
    reasons = {row["reason"]: row["per_second"] * one["seconds"] for row in one["by_reason"]}
    assert reasons["IO"] == pytest.approx(700, abs=1)
    assert reasons["interrupt"] == pytest.approx(1_100, abs=1)
    assert sum(reasons.values()) == pytest.approx(12_000, abs=1)


def test_prometheus_is_openmetrics_by_the_letter(grown: StatTree) -> None:
    series = parse(once(grown, "--prometheus"))
    by = {(one.family, one.labels.get("vm")): one for one in series if "reason" not in one.labels}
    assert by["wsw_kvm_vms", None].value == 2
    exits = by["wsw_kvm_exits", "11-11"]
    assert (exits.kind, exits.value, exits.labels["process"]) == ("counter", 25_000, "qemu-system-x86")
    # 1,000 ns at first and 90 ms of the step.
    assert by["wsw_kvm_halt_poll_success_seconds", "10-11"].value == pytest.approx(0.090001)
    assert by["wsw_kvm_pages_2m", "10-11"].kind == "gauge"


def test_a_hostile_process_name_breaks_no_output(tree: StatTree) -> None:
    tree.add(10, process=HOSTILE)
    labels = {one.labels["process"] for one in parse(once(tree, "--prometheus")) if "process" in one.labels}
    assert len(labels) == 1
    assert "\x1b" not in once(tree)


def test_the_table_has_the_most_exits_first_and_counts_one_vm_as_one(grown: StatTree) -> None:
    lines = once(grown).splitlines()
    assert lines[0].startswith("2 VMs over ")
    assert [line.split()[0] for line in lines[3:5]] == ["11-11", "10-11"]
    assert any(line.startswith("Exits by reason, as far as statistics tell") for line in lines)
    assert once(grown, "--vm", "10").startswith("1 VM over ")


@pytest.mark.parametrize("word", ["10-11", "10", "crosvm"])
def test_a_vm_is_chosen_by_name_process_and_process_name(grown: StatTree, word: str) -> None:
    assert [vm["vm"] for vm in json.loads(once(grown, "--json", "--vm", word))["vms"]] == ["10-11"]


def test_a_vm_that_does_not_run_is_missing(grown: StatTree) -> None:
    done = subprocess.run(
        [*WSW, "top", "--once", "--root", str(grown.root), "--interval", "50ms", "--vm", "99"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("wsw: no VM 99 runs here")


def test_a_host_without_vms_is_no_error(tree: StatTree) -> None:
    assert once(tree) == "no VM runs here\n"
    assert [(one.family, one.value) for one in parse(once(tree, "--prometheus"))] == [("wsw_kvm_vms", 0)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json"], "add --once"),
        (["--once", "--json", "--prometheus"], "exclude each other"),
        (["--interval", "1ms", "--once"], "from 0.05 s to an hour"),
        (["--interval", "soon", "--once"], "soon"),
        (["--root", "/nowhere/at/all", "--once"], "is no folder"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], said: str) -> None:
    done = subprocess.run([*WSW, "top", *words], capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_debugfs_the_status_is_3_and_the_remedy_said(tmp_path: Path) -> None:
    (tmp_path / "sys/module/kvm").mkdir(parents=True)
    done = subprocess.run(
        [*WSW, "top", "--once", "--interval", "50ms", "--root", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "no VM can be seen here\n")
    assert "debugfs is not mounted; as root: mount -t debugfs none /sys/kernel/debug" in done.stderr


@pytest.fixture
def anyones():
    """A folder that every user may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_is_told_what_is_missing_and_how_to_get_it(anyones: Path) -> None:
    """A folder as debugfs is mounted, for root only; everything is imported before the user changes."""
    tree = StatTree(anyones)
    tree.add(10)
    (tree.root / "sys/kernel/debug").chmod(0o700)
    code = (
        "import os; from worldswitch.cli import main, top, top_text; from worldswitch.live import rates, sampling; "
        "from worldswitch.report import tables; os.setgroups([]); os.setgid(65534); os.setuid(65534); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "top", "--once", "--interval", "50ms", "--root", str(tree.root)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "no VM can be seen here\n"), done.stderr
    assert "this user may not read /sys/kernel/debug/kvm; run as root: sudo wsw top" in done.stderr


def test_without_textual_one_sentence_says_how_to_get_it(tree: StatTree) -> None:
    done = subprocess.run([*BLOCKED, "top"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "pip install 'worldswitch[tui]'; --once needs none" in done.stderr
    done = subprocess.run(
        [*BLOCKED, "top", "--once", "--interval", "50ms", "--root", str(tree.root)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "no VM runs here\n")


def test_without_a_terminal_it_says_so(tree: StatTree) -> None:
    done = subprocess.run(
        [*WSW, "top", "--root", str(tree.root)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 3
    assert "--once prints one interval" in done.stderr


def test_python_does_the_same(grown: StatTree) -> None:
    code = once(grown, "--python").replace("import time\n", "").replace("time.sleep(0.05)", "step()")
    printed: list[tuple] = []
    exec(code, {"step": grown.step, "print": lambda *words: printed.append(words)})
    assert [words[:2] for words in printed] == [("10-11", "crosvm"), ("11-11", "qemu-system-x86")]
