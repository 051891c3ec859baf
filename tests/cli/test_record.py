from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from worldswitch.cli import wsw
from worldswitch.errors import MissingError
from worldswitch.trace import open_source

VM = str(Path(__file__).parents[1] / "throwaway_vm.py")
WSW = [sys.executable, "-c", "from worldswitch.cli import main; main()"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(wsw, ["record", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_options_of_the_command_are_left_to_it() -> None:
    shown = run("--python", "--seconds", "10ms", "sh", "-c", "exit 1")
    assert "Request(program=('sh', '-c', 'exit 1'), seconds=0.01)" in shown


def test_python_is_runnable_as_it_is_printed() -> None:
    shown = run("--python", "-o", "it's.data", "--events", "cr", "--vm", "7", "--vm", "8", "--", "sleep", "1")
    compile(shown, "printed", "exec")
    assert "vms=(7, 8)" in shown


@pytest.mark.needs("kvm-events", "perf")
def test_a_dry_run_prints_the_perf_command_and_runs_nothing(tmp_path: Path) -> None:
    shown = run("-o", str(tmp_path / "out"), "--dry-run", "--", "touch", str(tmp_path / "ran"))
    assert " record -o " in shown
    assert "kvm:kvm_exit" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("kvm-events", "perf", "kvm")
def test_one_line_tells_file_size_events_loss_and_the_next_command(tmp_path: Path) -> None:
    output = tmp_path / "out"
    line = run("-o", str(output), "--", sys.executable, VM, "20").splitlines()[-1]
    assert line.startswith(f"{output}: ")
    assert "events, none lost; " in line
    assert line.endswith(f"next: wsw analyze {output}")


@pytest.mark.needs("kvm-events", "perf", "kvm")
def test_json_counts_what_the_file_holds(tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [*WSW, "record", "--json", "-o", str(output), "--", sys.executable, VM, "20"]
    done = subprocess.run(command, capture_output=True, check=True)
    document = json.loads(done.stdout)
    assert document["events"]["kvm_pio"] == 20
    assert (document["lost"], document["complete"], document["command_status"]) == (0, True, 0)
    assert document["size_bytes"] == output.stat().st_size


@pytest.mark.needs("kvm-events", "perf")
def test_the_commands_failure_is_told_but_is_not_ours(tmp_path: Path) -> None:
    shown = run("-o", str(tmp_path / "out"), "--", "sh", "-c", "exit 7")
    assert "the command sh ended with status 7; the recording is kept" in shown


@pytest.mark.needs("kvm-events")
def test_a_recording_without_events_says_what_to_try(tmp_path: Path) -> None:
    shown = run("-o", str(tmp_path / "out"), "--tool", "tracefs", "--", "true")
    assert "no event was recorded" in shown
    assert "-a records every VM" in shown


@pytest.mark.needs("kvm-events")
@pytest.mark.parametrize("tool", [pytest.param("perf", marks=pytest.mark.needs("perf")), "tracefs"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_and_the_file_is_whole(tmp_path: Path, tool: str, number: int) -> None:
    output = tmp_path / "out"
    command = [*WSW, "record", "--json", "--tool", tool, "-o", str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        # A recorder's first bytes show that its signal handlers stand.
        while process.poll() is None and not (output.exists() and (output.stat().st_size or tool == "tracefs")):
            os.sched_yield()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    document = json.loads(stdout)
    assert document["interrupted"] is True
    assert document["complete"] is True
    if tool == "perf":
        assert open_source(output).meta.tool is not None


def test_what_is_missing_ends_with_status_3(tmp_path: Path) -> None:
    command = [*WSW, "record", "-o", str(tmp_path / "no" / "out"), "--", "no-such-program"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 3
    assert done.stderr.decode().startswith("wsw: ")
    assert b"Traceback" not in done.stderr


def test_an_unknown_tool_is_a_usage_error() -> None:
    assert CliRunner().invoke(wsw, ["record", "--tool", "strace"]).exit_code == 2


def test_the_library_raises_what_the_command_prints() -> None:
    from worldswitch.live.record import Request, plan

    with pytest.raises(MissingError):
        plan(Request(program=("no-such-program",)))
