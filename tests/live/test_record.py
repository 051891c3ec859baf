from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.live.record import Plan, Request, carry_out, plan, record
from worldswitch.record.trace import Meta
from worldswitch.trace import open_source

VM = str(Path(__file__).parents[1] / "throwaway_vm.py")
WRITES = 50


def host(root: Path, *, capabilities: int = 0, paranoid: int = -1) -> Path:
    """A root folder with the files of a host that can record."""
    for event in ("kvm_exit", "kvm_entry", "kvm_cr"):
        (root / "sys/kernel/tracing/events/kvm" / event).mkdir(parents=True)
        (root / "sys/kernel/tracing/events/kvm" / event / "format").write_text("")
    (root / "sys/kernel/tracing/instances").mkdir()
    for name, text in {
        "proc/self/status": f"CapEff:\t{capabilities:016x}\n",
        "proc/sys/kernel/perf_event_paranoid": f"{paranoid}\n",
        "proc/filesystems": "nodev\ttracefs\n",
        "proc/meminfo": "MemTotal: 8388608 kB\n",
        "etc/os-release": "ID=debian\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def fake_perf(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A perf on PATH that knows every option and whose ``record`` fails with a message."""
    folder = tmp_path_factory.mktemp("bin")
    script = """#!/bin/sh
case "$1 $2" in
  "--version "*) echo 'perf version 6.1.0' ;;
  "record -h") printf '    -q, --quiet  x\\n        --synth <x>  x\\n    -k, --clockid <x>  x\\n' ;;
  *) echo 'Error: the kernel said no' >&2; exit 255 ;;
esac
"""
    (folder / "perf").write_text(script)
    (folder / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def no_perf(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))


def read(path: Path) -> Meta:
    source = open_source(path)
    for _ in source.batches({}):
        pass
    return source.meta


# What is missing is told before anything runs.


def test_without_tracefs(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    with pytest.raises(MissingError, match="tracefs is not mounted"):
        plan(Request(), tmp_path)


def test_without_kvm_events(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/tracing/events/sched").mkdir(parents=True)
    with pytest.raises(MissingError, match="the kvm module is not loaded"):
        plan(Request(), tmp_path)


def test_under_lockdown(tmp_path: Path) -> None:
    (host(tmp_path) / "sys/kernel/security").mkdir()
    (tmp_path / "sys/kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    with pytest.raises(MissingError, match="lockdown is at confidentiality"):
        plan(Request(), tmp_path)


@pytest.mark.usefixtures("fake_perf")
def test_perf_that_is_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="perf_event_paranoid is 3"):
        plan(Request(tool="perf"), host(tmp_path, paranoid=3))


@pytest.mark.usefixtures("no_perf")
def test_no_perf_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="perf is not installed; to get it: sudo apt install linux-perf"):
        plan(Request(tool="perf"), host(tmp_path))


@pytest.mark.usefixtures("no_perf")
def test_no_perf_but_tracefs_records_through_tracefs_and_says_why(tmp_path: Path) -> None:
    found = plan(Request(output=str(tmp_path / "out")), host(tmp_path))
    assert (found.tool, found.argv) == ("tracefs", ())
    assert "perf is not installed" in (found.because or "")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(seconds=0), "more than 0"),
        (Request(seconds=float("nan")), "more than 0"),
        (Request(everywhere=True, pids=(1,)), "exclude each other"),
        (Request(pids=(0,)), "process id"),
        (Request(output="-"), "standard output"),
        (Request(tool="strace"), "unknown tool 'strace'"),
        (Request(events="kvm_cr", exit_filter="isa == 1"), "--filter is for kvm_exit"),
    ],
)
def test_requests_that_contradict_themselves(tmp_path: Path, request_: Request, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(request_, host(tmp_path))


def test_an_event_the_kernel_lacks(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="kvm_pio"):
        plan(Request(events="kvm_pio"), host(tmp_path))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="'no-such-program' is not found"):
        plan(Request(program=("no-such-program",)), host(tmp_path))


@pytest.mark.usefixtures("fake_perf")
def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="does not exist"):
        plan(Request(output=str(tmp_path / "no" / "out")), host(tmp_path))


# The command.


@pytest.mark.usefixtures("fake_perf")
def test_the_named_filter_of_control_registers_reaches_perf(tmp_path: Path) -> None:
    argv = plan(Request(events="cr", exit_filter="cr"), host(tmp_path)).argv
    assert argv[argv.index("--filter") + 1].startswith("(isa == 1 && exit_reason == 28) || (isa == 2")


@pytest.mark.usefixtures("fake_perf")
def test_a_program_is_recorded_alone_unless_all_cpus_are_asked_for(tmp_path: Path) -> None:
    root = host(tmp_path)
    assert "-a" not in plan(Request(program=("true",)), root).argv
    assert "-a" in plan(Request(program=("true",), everywhere=True), root).argv
    assert "-a" in plan(Request(), root).argv


@pytest.mark.usefixtures("fake_perf")
def test_a_slow_clock_source_leaves_perf_its_own_clock(tmp_path: Path) -> None:
    root = host(tmp_path)
    assert "CLOCK_MONOTONIC" in plan(Request(), root).argv
    folder = root / "sys/devices/system/clocksource/clocksource0"
    folder.mkdir(parents=True)
    (folder / "current_clocksource").write_text("hpet\n")
    assert "-k" not in plan(Request(), root).argv


@pytest.mark.usefixtures("fake_perf")
def test_buffers_need_a_privilege_to_be_large(tmp_path: Path) -> None:
    # CAP_PERFMON alone may trace but not lock memory beyond perf_event_mlock_kb: kernel/events/core.c, perf_mmap.
    argv = plan(Request(), host(tmp_path, capabilities=1 << 38, paranoid=2)).argv
    assert argv[argv.index("-m") + 1] == "512K"


@pytest.mark.usefixtures("fake_perf")
def test_the_dry_run_is_a_shell_command(tmp_path: Path) -> None:
    shown = plan(Request(output=str(tmp_path / "a b"), program=("true",), seconds=2.5), host(tmp_path)).shell()
    assert shown.startswith("timeout --foreground --signal=INT 2.5 ")
    assert f"-o '{tmp_path}/a b'" in shown


@pytest.mark.usefixtures("fake_perf")
def test_a_time_without_a_program_starts_when_perf_is_ready(tmp_path: Path) -> None:
    # perf starts the program it is given only when every event is open.
    found = plan(Request(seconds=2.5), host(tmp_path))
    assert found.argv[-3:] == ("--", "sleep", "2.5")
    assert "-a" in found.argv
    assert "timeout" not in found.shell()


@pytest.mark.usefixtures("no_perf")
def test_the_dry_run_of_tracefs_follows_the_shells_own_children(tmp_path: Path) -> None:
    root = host(tmp_path)
    program = root / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shown = plan(Request(program=(str(program),)), root).shell()
    assert "echo $$ > " in shown
    assert shown.index("set_event_pid") < shown.index("kvm_exit/enable")


@pytest.mark.usefixtures("fake_perf")
def test_what_perf_says_when_it_fails_is_passed_on_and_no_empty_file_stays(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(MissingError, match="perf could not record: Error: the kernel said no"):
        record(Request(output=str(output)), host(tmp_path))
    assert not output.exists()


# Real recordings.


@pytest.mark.needs("kvm", "kvm-events")
@pytest.mark.parametrize("tool", [pytest.param("perf", marks=pytest.mark.needs("perf")), "tracefs"])
def test_every_port_write_of_a_vm_is_recorded(tmp_path: Path, tool: str) -> None:
    output = tmp_path / "out"
    done = record(Request(output=str(output), program=(sys.executable, VM, str(WRITES)), tool=tool))
    meta = read(output)
    assert (done.status, done.tool, done.size) == (0, tool, output.stat().st_size)
    # A KVM that emulates the guest (as software KVMs do) has no exits, but each write leaves the kernel.
    assert meta.events["kvm_userspace_exit"] == WRITES
    assert meta.events["kvm_pio"] == WRITES
    assert (meta.lost, meta.complete) == (0, True)


@pytest.mark.needs("kvm-events")
@pytest.mark.parametrize("tool", [pytest.param("perf", marks=pytest.mark.needs("perf")), "tracefs"])
def test_a_failing_program_is_told_and_its_recording_kept(tmp_path: Path, tool: str) -> None:
    output = tmp_path / "out"
    done = record(Request(output=str(output), program=("sh", "-c", "exit 7"), tool=tool))
    assert done.status == 7
    assert output.stat().st_size > 0


@pytest.mark.needs("kvm-events")
@pytest.mark.parametrize("tool", [pytest.param("perf", marks=pytest.mark.needs("perf")), "tracefs"])
def test_time_ends_a_recording_and_the_program(tmp_path: Path, tool: str) -> None:
    output = tmp_path / "out"
    done = record(Request(output=str(output), program=("sleep", "600"), seconds=0.3, tool=tool))
    assert (done.status, done.interrupted) == (None, False)


@pytest.mark.needs("kvm-events")
@pytest.mark.parametrize("tool", [pytest.param("perf", marks=pytest.mark.needs("perf")), "tracefs"])
def test_a_recording_that_exists_is_kept_as_old(tmp_path: Path, tool: str) -> None:
    output = tmp_path / "out"
    output.write_text("precious")
    record(Request(output=str(output), program=("true",), tool=tool))
    assert (tmp_path / "out.old").read_text() == "precious"


@pytest.mark.needs("kvm", "kvm-events")
@pytest.mark.parametrize("tool", [pytest.param("perf", marks=pytest.mark.needs("perf")), "tracefs"])
def test_a_running_vm_is_recorded_by_its_process(tmp_path: Path, tool: str) -> None:
    output = tmp_path / "out"
    with subprocess.Popen([sys.executable, VM, "1000000000"]) as vm:
        try:
            how = _once_it_runs(vm.pid, Request(output=str(output), vms=(vm.pid,), seconds=1, tool=tool))
            carry_out(how)
        finally:
            vm.kill()
    meta = read(output)
    assert meta.events["kvm_userspace_exit"] > 0
    assert set(meta.comms) <= {vm.pid} or meta.vm_identity == "tgid"


def _once_it_runs(pid: int, request: Request) -> Plan:
    """The plan, as soon as the process holds a VM."""
    while True:
        try:
            return plan(request)
        except MissingError as error:
            if f"process {pid} holds no VM" not in str(error):
                raise


@pytest.mark.needs("kvm-events")
def test_no_instance_is_left_behind(tmp_path: Path) -> None:
    record(Request(output=str(tmp_path / "out"), program=("true",), tool="tracefs"))
    assert not list(Path("/sys/kernel/tracing/instances").glob(f"wsw-{os.getpid()}"))
