"""Timed calls: the machine code says what its comments say, and both ways of calling give the same."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from iced_x86 import Decoder, Formatter, FormatterSyntax

from worldswitch.live import timed_call
from worldswitch.live.timed_call import CLOSE, CODE, POLL, Call, Gate, Timed

GETPID, NO_SUCH_CALL = 39, 1023
"""arch/x86/entry/syscalls/syscall_64.tbl; no number so high is in it."""


@pytest.fixture(params=[True, False], ids=["machine-code", "interpreted"])
def gate(request: pytest.FixtureRequest) -> Iterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(workers: int, kinds: int = 1) -> Gate:
        made.append(Gate(workers, kinds, machine_code=request.param))
        assert made[-1].exact == request.param
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def once(gate: Gate, *calls: Call) -> list[Timed]:
    """Each worker makes one of *calls*, all at once."""
    threads = [threading.Thread(target=gate.fire, args=(i, 0, 0, call)) for i, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    until(lambda: gate.ready(0))
    gate.open()
    for thread in threads:
        thread.join()
    assert gate.done(0)
    return [gate.timed(worker, 0) for worker in range(len(calls))]


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


def test_results_and_errors_come_back(gate: Callable[..., Gate]) -> None:
    pid, none = once(gate(2), Call(GETPID), Call(NO_SUCH_CALL))
    assert (pid.result, pid.eintr) == (os.getpid(), 0)
    assert none.result == -errno.ENOSYS


def test_arguments_arrive(gate: Callable[..., Gate]) -> None:
    read, write = os.pipe()
    os.close(read)
    closed, bad = once(gate(2), Call(CLOSE, write), Call(CLOSE, 1 << 20))
    assert (closed.result, bad.result) == (0, -errno.EBADF)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(write)


def test_the_clock_is_the_monotonic_one_around_the_call(gate: Callable[..., Gate]) -> None:
    before = time.monotonic_ns()
    (waited,) = once(gate(1), Call(POLL, 0, 0, 30))
    after = time.monotonic_ns()
    assert before <= waited.start_ns <= waited.end_ns <= after
    assert waited.ns >= 30_000_000


def test_nobody_goes_before_the_gate_opens(gate: Callable[..., Gate]) -> None:
    made = gate(1)
    thread = threading.Thread(target=made.fire, args=(0, 0, 0, Call(GETPID)))
    thread.start()
    until(lambda: made.ready(0))
    time.sleep(0.02)
    assert thread.is_alive()
    opened = time.monotonic_ns()
    made.open()
    thread.join()
    assert made.timed(0, 0).start_ns >= opened


def test_all_go_at_one_moment_after_the_opening(gate: Callable[..., Gate]) -> None:
    opened = time.monotonic_ns()
    starts = [one.start_ns for one in once(gate(3), *[Call(GETPID)] * 3)]
    assert min(starts) >= opened + timed_call._LEAD_NS


def test_an_interrupted_call_is_made_again_and_counted(gate: Callable[..., Gate]) -> None:
    """poll(2) is never restarted by the kernel: signal(7)."""
    made = gate(1)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    result: list[Timed] = []
    main = threading.get_ident()
    try:

        def disturb() -> None:
            until(lambda: made.ready(0))
            made.open()
            for _ in range(3):
                time.sleep(0.02)
                signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=disturb)
        thread.start()
        result.append(made.fire(0, 0, 0, Call(POLL, 0, 0, 200)))
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert result[0].result == 0
    assert 1 <= result[0].eintr <= 3
    assert result[0].ns >= 220_000_000, "the clock runs on through interruptions"


def test_rounds_follow_each_other(gate: Callable[..., Gate]) -> None:
    made = gate(3, 2)
    seen: list[int] = []

    def work(worker: int) -> None:
        for number in range(5):
            made.fire(worker, 0, 2 * number, Call(GETPID))
            made.fire(worker, 1, 2 * number + 1, Call(NO_SUCH_CALL))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        for kind in (0, 1):
            until(lambda kind=kind: made.ready(kind))
            made.open()
            until(lambda kind=kind: made.done(kind))
            seen += [made.timed(worker, kind).result for worker in range(3)]
    for thread in threads:
        thread.join()
    assert seen == [*[os.getpid()] * 3, *[-errno.ENOSYS] * 3] * 5


def test_forked_workers_share_the_gate(gate: Callable[..., Gate]) -> None:
    made = gate(1)
    pid = os.fork()
    if pid == 0:
        made.fire(0, 0, 0, Call(GETPID))
        os._exit(0)
    until(lambda: made.ready(0))
    made.open()
    assert os.waitpid(pid, 0) == (pid, 0)
    assert made.timed(0, 0).result == pid


def test_a_system_that_forbids_machine_code_gets_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    real = timed_call.mmap.mmap
    monkeypatch.setattr(timed_call.mmap, "mmap", lambda *a, **o: refuse() if "prot" in o else real(*a, **o))
    made = Gate(1)
    assert not made.exact
    assert once(made, Call(GETPID))[0].result == os.getpid()
    made.close()
