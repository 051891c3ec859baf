"""``wsw lab exec``, ``boot`` and ``command``."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from worldswitch.cli.lab import lab
from worldswitch.errors import MissingError, UsageError

WSW = str(Path(sys.executable).with_name("wsw"))


def invoke(*words: str):
    return CliRunner().invoke(lab, words, catch_exceptions=True)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["exec", "--", "true"], UsageError, "name a kernel"),
        (["exec", "--kernel", "1.2.3", "--", "true"], MissingError, "no kernel 1.2.3"),
        (["exec", "--kernel", "6.12", "--set", "npt", "--", "true"], UsageError, "NAME=VALUE"),
        (["exec", "--kernel", "6.12", "--modules", "/x", "--", "true"], UsageError, "--kernel-image"),
        (["exec", "--kernel-image", "/x", "--", "true"], UsageError, "--modules"),
        (["exec", "--kernel", "6.12", "--trace", "out.bin", "--", "true"], UsageError, "tells no format"),
        (["exec", "--kernel", "6.12", "--copy", "/no/such/file", "--", "true"], MissingError, "/no/such/file"),
        (["exec", "--kernel", "6.12", "--deadline", "0s", "--", "true"], UsageError, "no time"),
        (["exec", "--build", "no-such-build", "--", "true"], MissingError, "no build no-such-build"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(words, error, said, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = invoke(*words)
    assert isinstance(result.exception, error), result.output
    assert said in str(result.exception)


def test_python_is_shown_and_nothing_done():
    shown = invoke("exec", "--python", "--kernel", "6.1", "--set", "npt=0", "--", "echo", "a b").output
    compile(shown, "shown", "exec")
    assert "Job(('echo', 'a b')" in shown
    assert "'npt': '0'" in shown


def test_the_python_of_a_build_alone_asks_for_its_own_kernel():
    shown = invoke("exec", "--python", "--build", "mine", "--", "true").output
    compile(shown, "shown", "exec")
    assert "artifacts.kernel(artifacts.build('mine').release)" in shown
    assert "kernel_for('6.1', artifacts.build('mine'))" in invoke(
        "exec", "--python", "--kernel", "6.1", "--build", "mine", "--", "true"
    ).output  # fmt: skip


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "tdp_mmuu=1"], "unknown module parameter 'tdp_mmuu'"),
        (["--mmu", "shadow", "--set", "kvm_amd.npt=1"], "--mmu shadow is kvm_amd.npt=0, and --set gives it 1"),
    ],
)
def test_settings_that_make_no_sense_get_no_command(words, said):
    result = invoke("command", "--kernel", "6.12", *words)
    assert said in str(result.exception)
    assert not result.output


@pytest.mark.needs("lab-amd")
def test_the_command_is_printed_and_nothing_is_started(tmp_path):
    result = invoke("command", "--kernel", "6.12", "--smp", "3")
    words = shlex.split(result.output)
    assert words[0].endswith("qemu-system-x86_64")
    assert words[words.index("-smp") + 1] == "3"
    assert not Path("lab-machine").exists()


@pytest.mark.needs("lab-intel")
def test_the_files_a_command_names_are_written_if_asked_for(tmp_path):
    folder = tmp_path / "machine"
    result = invoke("command", "--kernel", "6.12", "--cpu", "intel", "--folder", str(folder))
    assert result.exit_code == 0, result.exception
    assert {"bochsrc", "boot.iso", "jobs.img", "results.img", "initrd"} <= {path.name for path in folder.iterdir()}
    assert str(folder / "bochsrc") in result.output.splitlines()[-1]


@pytest.mark.needs("lab-amd")
def test_a_programs_output_files_and_status_come_back(tmp_path):
    (tmp_path / "given").write_text("from here")
    line = "cat given; echo warned >&2; cp given out/copy; exit 9"
    command = [WSW, "lab", "exec", "--kernel", "6.12", "--copy", "given", "-o", "back", "--", "sh", "-c", line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, "from here")
    assert done.stderr.endswith("warned\n")
    assert (tmp_path / "back/copy").read_text() == "from here"


@pytest.mark.needs("lab-amd")
def test_json_says_what_ran_where():
    done = subprocess.run(
        [WSW, "lab", "exec", "--json", "--kernel", "6.12", "--", "uname", "-r"], capture_output=True, check=True
    )
    document = json.loads(done.stdout)
    assert document["stdout"].strip() == document["kernel"]
    assert document["status"] == 0
    assert document["parameters"]["kvm_amd.npt"] == "Y"


@pytest.mark.needs("lab-amd")
def test_boot_gives_a_shell():
    """With a terminal of its own on both ends, as a user has it."""
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [WSW, "lab", "boot", "--kernel", "6.12"], stdin=terminal, stdout=terminal, stderr=terminal
    ) as shell:
        os.close(terminal)
        read_until(master, b"# ")
        os.write(master, b"echo $((6*7)) is it; exit\r")
        seen = read_until(master, b"42 is it")
        assert b"42 is it" in seen
        assert shell.wait(20) == 0
    os.close(master)


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What a terminal shows until *wanted*."""
    seen = b""
    while wanted not in seen:
        try:
            data = os.read(descriptor, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    return seen
