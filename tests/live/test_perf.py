from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from worldswitch.live.perf import Perf, command, complaint, finished, known_options

HELP = """
 Usage: perf record [<options>] [<command>]

    -a, --all-cpus        system-wide collection from all CPUs
    -B, --no-buildid      do not collect buildids in perf.data
    -q, --quiet           don't print any warnings or messages
    -z, --compression-level[=<n>]
                          Compress records using specified level
        --off-cpu         Enable off-cpu analysis
                          (not built-in because no BUILD_BPF_SKEL=1)
"""
"""The form of what ``perf record -h`` of perf 6.1 prints."""

EVENTS = ("kvm:kvm_exit", "kvm:kvm_entry")
FULL = Perf("perf", "6.1", frozenset({"quiet", "period", "no-buildid", "synth", "clockid", "compression-level"}))


def test_options_that_are_not_built_in_do_not_count() -> None:
    assert known_options(HELP) == {"all-cpus", "no-buildid", "quiet", "compression-level"}


def test_options_a_perf_does_not_know_are_left_out() -> None:
    argv = command(Perf("perf", "4.19", frozenset({"quiet"})), "out", EVENTS)
    assert argv == [
        "perf",
        "record",
        "-o",
        "out",
        "-c",
        "1",
        "-m",
        "8192K",
        "-q",
        "-a",
        "-e",
        "kvm:kvm_exit,kvm:kvm_entry",
    ]


def test_everything_that_saves_bytes_is_used_where_known() -> None:
    argv = command(FULL, "out", EVENTS)
    assert {"--no-period", "-B", "--synth=task", "-z"} <= set(argv)
    assert argv[argv.index("-k") + 1] == "CLOCK_MONOTONIC"


def test_a_filter_goes_to_kvm_exit_alone() -> None:
    argv = command(FULL, "out", EVENTS, exit_filter="exit_reason == 28")
    assert argv[-6:] == ["-e", "kvm:kvm_exit", "--filter", "exit_reason == 28", "-e", "kvm:kvm_entry"]


def test_processes_take_the_place_of_all_cpus() -> None:
    argv = command(FULL, "out", EVENTS, pids=(12, 13))
    assert argv[argv.index("-p") + 1] == "12,13"
    assert "-a" not in argv


def test_a_program_comes_last_behind_a_double_dash() -> None:
    argv = command(FULL, "out", EVENTS, everywhere=False, program=("-x", "a b"))
    assert argv[-3:] == ["--", "-x", "a b"]
    assert "-a" not in argv


def fake_perf(folder: Path, script: str) -> None:
    (folder / "perf").write_text("#!/bin/sh\n" + script)
    (folder / "perf").chmod(0o755)


def test_a_distributions_stub_for_another_kernel_is_no_perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ubuntu's /usr/bin/perf without linux-tools-$(uname -r).
    fake_perf(tmp_path, "echo 'WARNING: perf not found for kernel 6.8.0-41' >&2; exit 2\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Perf.find() is None


def test_no_perf_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Perf.find() is None


def test_what_perf_complains_about_is_quoted_safely(tmp_path: Path) -> None:
    fake_perf(tmp_path, "printf 'libtraceevent: noise\\nfailed to mmap \\033[31mwith 1\\n' >&2; exit 1\n")
    argv = [str(tmp_path / "perf"), "record", "-o", "out", "-q", "-a", "-e", "kvm:kvm_exit", "--", "sleep", "99"]
    text = str(complaint(argv))
    assert r"failed to mmap \x1b[31mwith 1" in text
    assert "noise" not in text


def test_a_recording_perf_did_not_finish_is_told_by_its_size_field(
    tmp_path: Path, plain_recording: Callable[[str], Path]
) -> None:
    # perf says of such a file that its "data size field is 0 which is unexpected".
    whole = plain_recording("vmx-6.1-ept/kvmstat.perf.data")
    content = bytearray(whole.read_bytes())
    content[48:56] = bytes(8)
    (tmp_path / "cut").write_bytes(content)
    assert finished(whole)
    assert not finished(tmp_path / "cut")


@pytest.mark.needs("perf")
def test_the_perf_of_this_machine_is_understood() -> None:
    found = Perf.find()
    assert found is not None
    assert {"all-cpus", "event", "filter", "mmap-pages", "output", "pid"} <= found.options
