"""Machines that give results, crash, hang, refuse or leave nothing, with a stand-in for the emulator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.machines import GOOD, Stand, kernel, results
from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.lab import cache, initramfs
from worldswitch.lab.artifacts import BuildFiles
from worldswitch.lab.failures import MachineCrashed, MachineHung, MachineRefused, ResultMissing
from worldswitch.lab.jobs import Job
from worldswitch.lab.machine import Machine, run

JOB = Job(("true",))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose guest is one empty archive."""
    guest = tmp_path / "guest.cpio"
    guest.write_bytes(b"")
    monkeypatch.setattr(initramfs, "guest_archive", lambda guest_: guest)
    monkeypatch.setattr("worldswitch.lab.machine.guest", lambda machine_: None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    return Machine(kernel(tmp_path), "amd", {})


def processes(mark: str) -> list[int]:
    """Processes with *mark* among their words, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if int(path.parent.name) != os.getpid() and f"say {mark}".encode() in words:
            found.append(int(path.parent.name))
    return found


def gone(mark: str, seconds: float = 5.0) -> bool:
    """Whether they are all gone, soon."""
    until = time.monotonic() + seconds
    while processes(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_results_come_back(machine):
    stand = Stand(mark="wsw-good")
    done = run(machine, [JOB], through=stand)
    assert (done.results[0].status, done.results[0].stdout) == (0, b"hello\n")
    assert done.about.parameters["kvm_amd.npt"] == "1"
    assert (done.emulator, done.restored) == ("stand 1", False)
    assert not processes(stand.mark)
    assert not list(Path(os.environ["TMPDIR"]).iterdir())


def fails(machine: Machine, error: type[Exception], *steps: str, archive: bytes = b"", deadline: float = 20.0):
    stand = Stand(steps, archive, mark="wsw-failing")
    with pytest.raises(error) as caught:
        run(machine, [JOB], through=stand, deadline=deadline)
    assert not processes(stand.mark)
    assert not list(Path(os.environ["TMPDIR"]).iterdir())
    return caught.value


def test_a_panic_is_a_crash_that_shows_what_the_kernel_said(machine):
    error = fails(
        machine, MachineCrashed, "say wsw-lab: ready", "say wsw-lab: running",
        "say [    1.2] Kernel panic - not syncing: sysrq triggered crash", "say Call Trace:", "sleep 30",
    )  # fmt: skip
    assert "panicked while running: Kernel panic - not syncing: sysrq" in str(error)
    assert str(error).splitlines()[-1] == "  | Call Trace:"
    assert error.stage == "running"


def test_an_emulator_that_ends_is_a_crash(machine):
    error = fails(machine, MachineCrashed, "say one", "say two", "complain 3rd exception", "exit 7")
    assert "ended with status 7 while booting" in str(error)
    assert [line.strip(" |") for line in str(error).splitlines()[1:]] == ["one", "two", "stand: 3rd exception"]


def test_an_emulator_that_says_it_cannot_go_on_is_ended_and_a_crash(machine):
    begin = time.monotonic()
    steps = ("say wsw-lab: ready", "say wsw-lab: running", "log 17p[CPU0  ] >>PANIC<< exception(): 3rd (14) exception")
    error = fails(machine, MachineCrashed, *steps, "sleep 60")
    assert time.monotonic() - begin < 10
    why = "could not go on while running, without a word from the guest (stand: exception(): 3rd (14) exception)"
    assert why in str(error)


def test_an_emulator_that_ends_by_its_panic_says_which(machine):
    error = fails(machine, MachineCrashed, "log >>PANIC<< one", "log >>PANIC<< another", "log bye", "exit 1")
    assert "ended with status 1 while booting, without a word from the guest (stand: another)" in str(error)


def test_a_panic_that_is_none_ends_nothing(machine):
    stand = Stand(("log >>PANIC<< nothing", *GOOD), mark="wsw-good")
    assert run(machine, [JOB], through=stand).results[0].status == 0


def test_a_machine_that_does_not_end_hangs(machine):
    begin = time.monotonic()
    error = fails(machine, MachineHung, "say Booting", "sleep 60", deadline=0.7)
    assert time.monotonic() - begin < 10
    assert "still booting after 0.7 s" in str(error)
    assert "  | Booting" in str(error)


def test_what_qemu_prints_at_every_start_hides_no_console(machine):
    warning = "complain qemu: warning: TCG doesn't support requested feature: CPUID.07H:EBX.rdseed [bit 18]"
    error = fails(machine, MachineCrashed, "say last words", *[warning] * 20, "complain out of memory", "exit 1")
    assert error.console[-2:] == ("last words", "stand: out of memory")


def test_endless_output_does_not_outlive_the_deadline(machine):
    fails(machine, MachineHung, *["say " + "x" * 1000] * 200, "sleep 60", deadline=1.0)


def test_what_the_guest_lacks_is_said(machine):
    error = fails(machine, MachineRefused, "say wsw-lab: failed module kvm has no parameter tdp_mmu", "sleep 30")
    assert "module kvm has no parameter tdp_mmu" in str(error)


@pytest.mark.parametrize("archive", [b"", b"not an archive" * 100, results(0), results()[:2500]])
def test_missing_and_damaged_results_are_neither(machine, archive):
    error = fails(machine, ResultMissing, *GOOD[:2], "write", "say wsw-lab: done", "sleep 30", archive=archive)
    assert "results are missing or damaged" in str(error)


def test_an_end_without_results_is_a_missing_result(machine):
    fails(machine, ResultMissing, *GOOD[:2], "say wsw-lab: done", "sleep 30")


def test_the_console_cannot_steer_the_terminal(machine):
    error = fails(machine, MachineCrashed, "say \x1b[2J\x07evil", "exit 1")
    assert "\x1b" not in str(error)
    assert "evil" in str(error)


def test_a_program_that_is_not_there_is_a_clear_error(machine):
    class Nowhere(Stand):
        def command(self, boot):
            return replace(super().command(boot), words=("/nowhere/emulator",))

    with pytest.raises(MissingError, match="no program /nowhere/emulator"):
        run(machine, [JOB], through=Nowhere(), deadline=10)


def test_unknown_settings_start_nothing(machine):
    with pytest.raises(UnknownNameError):
        run(replace(machine, settings={"nptt": "1"}), [JOB], through=Stand())
    with pytest.raises(UsageError):
        run(replace(machine, settings={"npt": "1 1"}), [JOB], through=Stand())


def test_a_damaged_kernel_or_build_starts_nothing(machine, tmp_path, monkeypatch):
    """Of the right size, it would boot into nothing and count as hung."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def stored(folder):
        kernel(folder)
        return {"version": "6.99.0"}

    entry = cache.store("kernels", "6.99.0", stored)
    own = replace(machine.kernel, vmlinuz=entry.path / "vmlinuz", modules=entry.path / "lib/modules/6.99.0")
    assert run(replace(machine, kernel=own), [JOB], through=Stand()).results[0].status == 0
    build = BuildFiles("mine", "6.99.0", cache.store("builds", "mine", stored).path, {}, {"command": "wsw build it"})
    (build.folder / "vmlinuz").write_bytes(b"NO kernel at all")
    with pytest.raises(MissingError, match=r"builds/mine .* damaged: .*vmlinuz was changed; .*`wsw build it`"):
        run(replace(machine, kernel=own, build=build), [JOB], through=Stand())
    own.vmlinuz.write_bytes(b"NO kernel at all")
    with pytest.raises(MissingError, match=r"damaged: the content of vmlinuz was changed; `wsw lab fetch 6\.99\.0`"):
        run(replace(machine, kernel=own), [JOB], through=Stand())


def test_modules_of_another_kernel_start_nothing(machine, tmp_path):
    other = kernel(tmp_path / "other", vermagic="5.0.0")
    with pytest.raises(MissingError, match=r"built for kernel 5\.0\.0, not 6\.99\.0"):
        run(replace(machine, kernel=other), [JOB], through=Stand())


CHILD = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {tests!r})
from lab.machines import Stand, kernel
from worldswitch.lab import initramfs, machine
from worldswitch.lab.jobs import Job
folder = Path({folder!r})
tempfile.tempdir = str(folder / "tmp")
(folder / "guest").write_bytes(b"")
initramfs.guest_archive = lambda guest: folder / "guest"
machine.guest = lambda machine_: None
print("started", flush=True)
machine.run(machine.Machine(kernel(folder), "amd", {{}}), [Job(("true",))],
            through=Stand(("say begun", "sleep 60"), mark={mark!r}), progress=lambda text: print(text, flush=True))
"""


def child(folder: Path, mark: str) -> subprocess.Popen[bytes]:
    """Another Python with a machine that runs."""
    (folder / "tmp").mkdir(parents=True)
    text = CHILD.format(tests=str(Path(__file__).parents[1]), folder=str(folder), mark=mark)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 30
    while not processes(mark):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def test_ctrl_c_leaves_no_emulator_and_no_files(tmp_path):
    process = child(tmp_path, "wsw-interrupted")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert said.strip().splitlines()[-1] == b"KeyboardInterrupt"
    assert not processes("wsw-interrupted")
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_not_even_a_killed_process_leaves_an_emulator(tmp_path, number):
    mark = f"wsw-killed-{number}"
    process = child(tmp_path, mark)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == -number
    assert gone(mark)


def test_machines_in_threads_do_not_disturb_each_other(machine):
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> int:
        return run(machine, [JOB], through=Stand(archive=results(1, number), mark="wsw-parallel")).results[0].status

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == list(range(8))
    assert not processes("wsw-parallel")
