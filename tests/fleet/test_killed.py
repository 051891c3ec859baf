"""Runs whose processes are killed at random moments: asked again, they come to the same bytes."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.small_traces import write_many

WSW = (sys.executable, "-m", "worldswitch", "fleet", "analyze", ".", "--names", "(?P<host>[^/]+)$")
DASK = (sys.executable, "-m", "dask")
COUNT = 120
KILLS = int(os.environ.get("WSW_KILLS", "1"))
"""Of each kind."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    write_many(folder, COUNT)
    return folder


def start(traces, output, *words):
    return subprocess.Popen(
        [*WSW, "-o", str(output), *words], cwd=traces, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(traces, output, *words):
    process = start(traces, output, *words)
    text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return files(output)


def files(output):
    return {str(path.relative_to(output)): path.read_bytes() for path in Path(output).rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(traces, tmp_path_factory):
    begin = time.monotonic()
    output = tmp_path_factory.mktemp("whole")
    found = finished(traces, output, "--workers", "0")
    return found, time.monotonic() - begin


@pytest.mark.parametrize("workers", ["1", "2"])
def test_any_number_of_workers_comes_to_the_same_bytes(traces, whole, tmp_path, workers):
    assert finished(traces, tmp_path / "out", "--workers", workers) == whole[0]


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_client_in_one_process(traces, whole, tmp_path, seed):
    process = start(traces, tmp_path / "out", "--workers", "0")
    time.sleep(random.Random(seed).uniform(0.2, whole[1]))
    process.kill()
    process.communicate()
    assert finished(traces, tmp_path / "out", "--workers", "0") == whole[0]


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_client_with_workers(traces, whole, tmp_path, seed):
    process = start(traces, tmp_path / "out", "--workers", "2")
    time.sleep(random.Random(seed).uniform(1, 3 + whole[1]))
    workers = descendants(process.pid)
    process.kill()
    process.communicate()
    assert finished(traces, tmp_path / "out", "--workers", "2") == whole[0]
    # They end by themselves when the process that started them is gone.
    assert not [one for one in workers if alive(one)]


def descendants(pid):
    found = []
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]:
        child, parent = map(int, line.split())
        if parent == pid:
            found += [child, *descendants(child)]
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_worker(traces, whole, tmp_path, seed):
    process = start(traces, tmp_path / "out", "--workers", "2")
    time.sleep(random.Random(seed).uniform(2, 3 + whole[1] / 2))
    victims = [one for one in descendants(process.pid) if b"spawn_main" in cmdline(one)]
    for one in victims[:1]:
        os.kill(one, signal.SIGKILL)
    text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert files(tmp_path / "out") == whole[0]


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Outside:
    """A scheduler and two workers of their own."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.log = (folder / "dask.log").open("w")
        self.scheduler = self.run("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        self.workers = [
            self.run("worker", self.address, "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard", "--no-nanny")
            for _ in range(2)
        ]

    def run(self, *words):
        # Workers are elsewhere than who asks them.
        return subprocess.Popen([*DASK, *words], cwd="/", stdout=self.log, stderr=self.log)

    def close(self):
        for one in (self.scheduler, *self.workers):
            one.kill()
            one.wait()
        self.log.close()


@pytest.fixture
def outside(tmp_path):
    made = Outside(tmp_path)
    yield made
    made.close()


def test_workers_of_a_scheduler_come_to_the_same_bytes(traces, whole, tmp_path, outside):
    assert finished(traces, tmp_path / "out", "--scheduler", outside.address) == whole[0]


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_scheduler(traces, whole, tmp_path, outside, seed):
    process = start(traces, tmp_path / "out", "--scheduler", outside.address)
    time.sleep(random.Random(seed).uniform(2, 4 + whole[1] / 2))
    done = process.poll() is not None
    outside.scheduler.kill()
    _, err = process.communicate(timeout=120)
    if not done and process.returncode:
        assert process.returncode == 3, err
        # Its workers had not come yet, or were at work.
        assert "is gone; what is finished is kept" in err or "has no workers" in err or "no scheduler answers" in err
        assert "Traceback" not in err
    assert finished(traces, tmp_path / "out", "--workers", "0") == whole[0]


def test_a_scheduler_that_is_not_there(traces, tmp_path):
    process = start(traces, tmp_path / "out", "--scheduler", "tcp://127.0.0.1:1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert err.startswith("wsw: no scheduler answers at tcp://127.0.0.1:1")
    assert err.count("\n") == 1
