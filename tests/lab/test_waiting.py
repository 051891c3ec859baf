"""The kit that waits in the guest, run here: it forks for a command, and its status is that of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.lab.l1 import waiting


def ask(folder: Path, *arguments: str) -> tuple[int, str, str]:
    here, there = folder / "in", folder / "out"
    (here / "files").mkdir(parents=True)
    there.mkdir()
    (here / "kit").write_text("\0".join(arguments))
    status = waiting.run(here, there)
    return status, (there / "stdout").read_text(), (there / "stderr").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("counters", "0"), 3, "wsw: "),
        (("run", "--nonsense"), 2, "usage: "),
        (("--help",), 0, ""),
    ],
)
def test_the_status_is_the_commands(tmp_path, arguments, status, said):
    found, stdout, stderr = ask(tmp_path, *arguments)
    assert found == status
    assert stderr.startswith(said)
    assert ("usage: " in stdout) == (arguments == ("--help",))


def test_a_command_starts_in_its_working_folder(tmp_path):
    (tmp_path / "image").write_bytes(b"no image")
    status, _, stderr = ask(tmp_path, "run", "--image", "image.img")
    assert status == 3
    assert "image.img" in stderr


def test_this_process_stays_where_it_was(tmp_path):
    before = Path.cwd()
    ask(tmp_path, "--help")
    assert Path.cwd() == before
