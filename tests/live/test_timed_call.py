"""Timed calls: the machine code says what its comments say, and does it."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from iced_x86 import Decoder, Formatter, FormatterSyntax

from worldswitch.errors import MissingError
from worldswitch.live import timed_call
from worldswitch.live.timed_call import CLOSE, CODE, GETPID, GETTID, POLL, SCHED_SETAFFINITY, At, Call, Crew, Failed
from worldswitch.live.workers import Workers

NO_SUCH_CALL, WRITE, DUP, EPOLL_WAIT = 1023, 1, 32, 232
"""arch/x86/entry/syscalls/syscall_64.tbl; no number as high as the first is in it."""


@contextmanager
def crew(
    *calls: Call, workers: int = 1, threads: int = 1, data: Sequence[bytes] = (), once: Sequence[Call] = ()
) -> Iterator[tuple[Crew, list[int]]]:
    """A crew at work, and the pids of its processes."""
    made = Crew(workers, calls, max(map(len, data), default=0), once)
    for worker, part in enumerate(data):
        made.write(worker, 0, part)
    try:
        with Workers() as processes:
            numbers = range(0, workers, threads)
            yield made, [processes.start(lambda n=number: made.enter(n, threads)) for number in numbers]
    finally:
        made.close()


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def go(made: Crew, place: int = 0) -> None:
    """Open the gate for all who come to the call at *place*, and wait until it is made."""
    until(lambda: made.ready(place))
    made.open()
    until(lambda: made.done(place))


def test_the_machine_code_is_what_its_comments_say() -> None:
    source = Path(timed_call.__file__).read_text(encoding="utf-8").split("CODE = bytes.fromhex(")[1].split("\n)\n")[0]
    labels, said = {}, []
    for instruction, line in zip(Decoder(64, CODE, ip=0), source.strip().splitlines(), strict=True):
        text = line.split("  # ")[1].split("  ")[0]
        label, colon, rest = text.rpartition(": ")
        if colon:
            labels[label] = instruction.ip
        said.append((instruction, rest))
    formatter = Formatter(FormatterSyntax.INTEL)
    for instruction, text in said:
        if target := instruction.near_branch_target:
            name, label = text.split()
            assert (formatter.format_mnemonic(instruction), target) == (name.replace("jnz", "jne"), labels[label])
        else:
            assert plain(formatter.format(instruction)) == text.replace(", ", ",")


def plain(text: str) -> str:
    """As the comments write it: decimal, and sizes without ptr."""

    def decimal(found: re.Match[str]) -> str:
        value = int(found[1], 16)
        return str(value - (value >> 63 << 64))

    return re.sub(r"\b([0-9][0-9A-F]*)h\b", decimal, text).replace(" ptr", "")


def test_every_worker_is_a_process_of_its_own() -> None:
    with crew(Call(GETPID, gated=True), workers=3) as (made, pids):
        go(made)
        assert [made.timed(worker, 0).result for worker in range(3)] == pids


def test_workers_may_be_threads_of_one_process() -> None:
    calls = (Call(GETPID, gated=True), Call(GETTID, gated=True))
    with crew(*calls, workers=4, threads=4) as (made, (pid,)):
        go(made, 0)
        go(made, 1)
        assert [made.timed(worker, 0).result for worker in range(4)] == [pid] * 4
        threads = [made.timed(worker, 1).result for worker in range(4)]
        assert threads[0] == pid
        assert sorted(threads) == sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def test_rounds_follow_each_other() -> None:
    with crew(Call(GETPID, gated=True), Call(GETTID), Call(GETTID, gated=True), workers=2) as (made, pids):
        for _ in range(5):
            go(made, 0)
            go(made, 2)
            assert [made.timed(worker, 2).result for worker in range(2)] == pids
        assert made.opened == 10


def test_results_are_given_to_later_calls() -> None:
    """A descriptor and its copy, both closed again: one that stayed open would make the next ones higher."""
    calls = (
        Call(DUP, (2,), gated=True, gives=((1, 0), (2, 0))),
        Call(DUP, (0,), gives=((3, 0),)),
        Call(CLOSE, gated=True),
        Call(CLOSE),
    )
    with crew(*calls) as (made, _):
        seen = []
        for _ in range(3):
            go(made, 0)
            go(made, 2)
            seen.append(made.timed(0, 0).result)
        assert len(set(seen)) == 1
        assert made.timed(0, 2).result == 0


def test_all_arguments_arrive_and_addresses_are_each_workers_own() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        write = Call(WRITE, (theirs.fileno(), At(4096), 5), gated=True)
        with crew(write, workers=2, data=[bytes(4096) + b"first", bytes(4096) + b"other"]) as (made, _):
            go(made)
        assert sorted((ours.recv(5), ours.recv(5))) == [b"first", b"other"]


def test_calls_are_made_once_before_the_first_round() -> None:
    cpu = min(os.sched_getaffinity(0))
    mask = (1 << cpu).to_bytes(1024, "little")
    pin = Call(SCHED_SETAFFINITY, (0, 1024, At(0)))
    with crew(Call(GETPID, gated=True), data=[mask], once=[pin]) as (made, (pid,)):
        go(made)
        assert os.sched_getaffinity(pid) == {cpu}
        os.sched_setaffinity(pid, os.sched_getaffinity(0))
        go(made)
        assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)


def test_a_failure_stops_its_worker_and_is_told() -> None:
    with crew(Call(GETPID, gated=True), Call(NO_SUCH_CALL, gated=True), workers=2) as (made, pids):
        go(made, 0)
        assert made.failed() is None
        until(lambda: made.ready(1))
        made.open()
        until(made.failed)
        assert made.failed() == Failed(1, errno.ENOSYS)
        assert not made.done(1)
        time.sleep(0.02)
        stat = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()
        assert stat[0] == "S", "it waits to be ended, and does not spin"


def test_a_failure_before_the_first_round_has_no_place_in_the_list() -> None:
    with crew(Call(GETPID, gated=True), once=[Call(CLOSE, (1 << 20,))]) as (made, _):
        until(made.failed)
        assert made.failed() == Failed(None, errno.EBADF)


def test_the_clock_is_the_monotonic_one_around_the_call() -> None:
    with crew(Call(POLL, (0, 0, 30), gated=True)) as (made, _):
        until(lambda: made.ready(0))
        before = time.monotonic_ns()
        made.open()
        until(lambda: made.done(0))
        after = time.monotonic_ns()
        waited = made.timed(0, 0)
        assert before + timed_call._LEAD_NS <= waited.start_ns <= waited.end_ns <= after
        assert waited.ns >= 30_000_000


def test_nobody_goes_before_the_gate_opens() -> None:
    with crew(Call(GETPID, gated=True)) as (made, _):
        until(lambda: made.ready(0))
        time.sleep(0.02)
        assert made.timed(0, 0).end_ns == 0
        opened = time.monotonic_ns()
        go(made)
        assert made.timed(0, 0).start_ns >= opened


def test_an_interrupted_call_is_made_again_and_counted() -> None:
    """epoll_wait(2) is one of those that a stop and a continuation interrupt without any handler: signal(7)."""
    with select.epoll() as nothing:
        wait = Call(EPOLL_WAIT, (nothing.fileno(), At(0), 1, 200), gated=True)
        with crew(wait, data=[bytes(64)]) as (made, (pid,)):
            until(lambda: made.ready(0))
            made.open()
            for _ in range(2):
                time.sleep(0.05)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.02)
                os.kill(pid, signal.SIGCONT)
            until(lambda: made.done(0))
            waited = made.timed(0, 0)
    assert (waited.result, waited.eintr) == (0, 2)
    assert waited.ns >= 200_000_000 + 2 * 50_000_000, "the clock runs on through interruptions"


def test_a_worker_keeps_no_mapping_of_a_file() -> None:
    """What KVM_CREATE_VM takes grows with the mappings; a plain C program has about twenty."""
    with crew(Call(GETPID, gated=True)) as (made, (pid,)):
        go(made)
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        files = [line.split(maxsplit=5)[5] for line in lines if line.split()[4] != "0"]
        assert [name for name in files if name not in ("/dev/zero (deleted)", "/memfd:wsw-timed-call (deleted)")] == []
        assert len(lines) < len(Path("/proc/self/maps").read_text().splitlines()) / 2


def test_a_kernel_without_mfd_exec_or_without_such_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux 6.3 has MFD_EXEC; before, memfd_create refuses the flag. A system may refuse the file or its mapping."""
    real = os.memfd_create

    def older(name: str, flags: int) -> int:
        if flags & timed_call._MFD_EXEC:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", older)
    with crew(Call(GETPID, gated=True)) as (made, pids):
        go(made)
        assert made.timed(0, 0).result == pids[0]

    def none(name: str, flags: int) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", none)
    with crew(Call(GETPID, gated=True)) as (made, pids):
        go(made)
        assert made.timed(0, 0).result == pids[0]

    monkeypatch.setattr(timed_call, "_mmap", lambda *_: timed_call._MAP_FAILED)
    with pytest.raises(MissingError, match=r"no process run code of its own making.*memfd_noexec"):
        Crew(1, [Call(GETPID, gated=True)])


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> tuple[set[str], int]:
        maps = Path("/proc/self/maps").read_text()
        return {one.name for one in Path("/proc/self/fd").iterdir()}, maps.count("wsw-timed-call")

    before = held()
    for _ in range(3):
        with crew(Call(GETPID, gated=True), workers=2) as (made, _):
            go(made)
            assert held()[1] == before[1] + 1
    assert held() == before


def test_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_call.platform, "machine", lambda: "aarch64")
    with pytest.raises(MissingError, match="x86-64 code, and this is aarch64"):
        Crew(1, [Call(GETPID, gated=True)])
