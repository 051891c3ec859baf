"""``wsw doctor`` and the kit's: the same code, the same answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOSTS = sorted((Path(__file__).parents[1] / "data" / "hosts").glob("*.tar.xz"))
WSW = Path(sys.executable).with_name("wsw")


def wsw(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WSW, "doctor", *map(str, words)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_a_recorded_host_is_known_and_judged(host: Path) -> None:
    done = wsw(host, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    vendor, line = host.name.removesuffix(".tar.xz").split("-")
    assert document["kernel"]["upstream"].startswith(f"{line}.")
    assert document["cpu"]["vendor"] == ("intel" if vendor == "intel" else "amd")
    assert document["notes"] == []
    for finding in document["findings"]:
        assert finding["evidence"]
        assert finding["rule"]
        assert finding["gain"]["amount"] is None or (finding["gain"]["formula"] and finding["gain"]["origin"])


def test_a_fleet_is_a_table_and_a_missing_snapshot_a_line_of_it(tmp_path: Path) -> None:
    done = wsw(*HOSTS, tmp_path / "gone.tar")
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == len(HOSTS) + 2
    assert "gone.tar" in done.stdout.splitlines()[-1]


def test_a_script_is_shell_that_does_nothing_by_itself() -> None:
    script = wsw(HOSTS[0], "--script").stdout
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    done = subprocess.run(["sh"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_metrics_have_help_type_and_an_end() -> None:
    lines = wsw(HOSTS[0], "--prometheus").stdout.splitlines()
    assert lines[-1] == "# EOF"
    kinds = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.partition("{")[0].split()[0] for line in lines if line[0] != "#"} == kinds


def test_fail_on_decides_the_status() -> None:
    assert wsw(HOSTS[0], "--fail-on", "unknown").returncode == 1
    assert wsw(HOSTS[0]).returncode == 0


@pytest.mark.parametrize(
    "words", [("--json", "--script"), ("a.tar", "--root", "/"), ("--snapshot", "x", "--json"), ("--profile", "fast")]
)
def test_contradictions_are_refused(words: tuple[str, ...]) -> None:
    done = wsw(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_snapshot_of_this_host_is_written_whole_and_the_same_host_is_read(tmp_path: Path) -> None:
    out = tmp_path / "me.tar"
    assert wsw("--snapshot", out).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["me.tar"]
    assert wsw(out, "--json").returncode == 0


def test_a_snapshot_takes_no_place_of_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    done = wsw("--snapshot", fifo)
    assert (done.returncode, fifo.is_fifo()) == (2, True)
    assert "no regular file" in done.stderr


def test_a_snapshot_written_through_a_link_leaves_the_link(tmp_path: Path) -> None:
    (tmp_path / "link.tar").symlink_to(tmp_path / "real.tar")
    (tmp_path / "real.tar").touch()
    assert wsw("--snapshot", tmp_path / "link.tar").returncode == 0
    assert (tmp_path / "link.tar").is_symlink()
    assert (tmp_path / "real.tar").stat().st_size > 0


@pytest.mark.needs("strace")
def test_the_doctor_changes_nothing(tmp_path: Path) -> None:
    """Nothing of the host is opened for writing, made, renamed, removed or given other rights."""
    log = tmp_path / "log"
    calls = (
        "open,openat,creat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,chmod,fchmod,fchmodat,chown,mount"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(
        ["strace", "-f", "-e", f"trace={calls}", "-o", log, WSW, "doctor", "--script"],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    lines = log.read_text().splitlines()
    assert any("/proc/cpuinfo" in line for line in lines)
    opened = [line for line in lines if "/dev/null" not in line and "/dev/tty" not in line]
    assert [line for line in opened if re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", line)] == []
    assert [line for line in lines if re.search(r"\b(creat|rename|unlink|mkdir|chmod|chown|mount)\w*\(", line)] == []
