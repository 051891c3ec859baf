"""Worker processes: their errors come back, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldswitch.errors import MissingError
from worldswitch.live.workers import Workers


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def fail(text: str) -> None:
    raise MissingError(text)


def test_workers_are_killed_on_leaving() -> None:
    with Workers() as workers:
        pids = [workers.start(signal.pause) for _ in range(3)]
        assert all(map(alive, pids))
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_no_files_are_left_open() -> None:
    before = {one.name for one in Path("/proc/self/fd").iterdir()}
    with Workers() as workers:
        workers.start(signal.pause)
    assert {one.name for one in Path("/proc/self/fd").iterdir()} == before


def test_an_error_of_a_worker_is_raised_where_it_is_waited_for() -> None:
    with Workers() as workers:
        workers.start(signal.pause)
        workers.start(lambda: fail("no more VMs"))
        with pytest.raises(MissingError, match=r"^no more VMs$"):
            workers.wait(lambda: False, "the test", 10)


def test_unforeseen_errors_come_back_as_one_sentence() -> None:
    with Workers() as workers:
        workers.start(lambda: print(1 // 0))
        with pytest.raises(MissingError, match="a worker failed: ZeroDivisionError: "):
            workers.wait(lambda: False, "the test", 10)


def test_long_complaints_of_several_do_not_mix() -> None:
    with Workers() as workers:
        for letter in "ab":
            workers.start(lambda letter=letter: fail(letter * 100_000))
        with pytest.raises(MissingError, match=r"^(a+|b+)$"):
            workers.wait(lambda: False, "the test", 10)


def test_a_killed_worker_is_told() -> None:
    with Workers() as workers:
        pid = workers.start(signal.pause)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(MissingError, match="ended by signal 9 during the test"):
            workers.wait(lambda: False, "the test", 10)


def test_waiting_has_an_end() -> None:
    with Workers() as workers:
        workers.start(signal.pause)
        with pytest.raises(MissingError, match="the test has not come to an end"):
            workers.wait(lambda: False, "the test", 0.05)


def test_workers_that_have_done_their_job_are_no_error() -> None:
    with Workers() as workers:
        workers.start(lambda: None)
        end = time.monotonic() + 0.1
        workers.wait(lambda: time.monotonic() > end, "the test", 10)


def test_ctrl_c_does_not_reach_workers() -> None:
    with Workers() as workers:
        pid = workers.start(signal.pause)
        os.kill(pid, signal.SIGINT)
        time.sleep(0.05)
        assert alive(pid)


def test_workers_die_with_their_parent_however_it_dies() -> None:
    program = (
        "import signal, sys\n"
        "from worldswitch.live.workers import Workers\n"
        "workers = Workers()\n"
        "print(workers.start(signal.pause), flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with Workers() as workers, pytest.raises(MissingError, match="no further process can be made after 0"):
        workers.start(signal.pause)
