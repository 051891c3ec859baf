from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from worldswitch.live.alarm import alarm, kick, kicks


def caught() -> int:
    return int(Path("/proc/self/status").read_text().split("SigCgt:")[1].split()[0], 16)


def interrupted(seconds: float) -> float:
    """How long a read lasts that signals interrupt, which Python would go on with."""
    import ctypes
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    start = time.monotonic()
    # nanosleep(2) is never restarted by the kernel after a handler has run.
    libc.nanosleep(struct.pack("<qq", int(seconds), int(seconds % 1 * 1e9)), None)
    return time.monotonic() - start


def test_an_alarm_interrupts_this_threads_calls_and_nothing_else_is_seen() -> None:
    before = caught()
    with kicks() as number:
        assert caught() == before | 1 << (number - 1)
        with alarm(number, 0.05):
            assert 0.04 < interrupted(20) < 10
            assert interrupted(20) < 10  # again and again
        assert interrupted(0.05) >= 0.05  # but not after it
    assert caught() == before


def test_it_works_in_a_thread_that_is_not_the_main_one() -> None:
    lasted: list[float] = []

    def run() -> None:
        with kicks() as number, alarm(number, 0.05):
            lasted.append(interrupted(20))

    thread = threading.Thread(target=run)
    thread.start()
    assert interrupted(0.3) >= 0.3  # the main thread is left alone
    thread.join(20)
    assert lasted[0] < 10


def test_a_thread_can_be_kicked_and_a_gone_one_does_not_matter() -> None:
    lasted: list[float] = []
    with kicks() as number:
        thread = threading.Thread(target=lambda: lasted.append(interrupted(20)))
        thread.start()
        native = thread.native_id
        assert native is not None
        while not lasted:
            kick(number, native)
            time.sleep(0.01)
        thread.join()
        kick(number, native)
    assert lasted[0] < 10


def test_a_signal_that_is_in_use_is_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGRTMAX, lambda n, _: seen.append(n))
    try:
        with kicks() as number:
            assert number != signal.SIGRTMAX
            os.kill(os.getpid(), signal.SIGRTMAX)
        assert seen == [signal.SIGRTMAX]
    finally:
        signal.signal(signal.SIGRTMAX, before)


def test_a_blocked_signal_still_comes() -> None:
    number = signal.SIGRTMAX
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        with kicks() as used, alarm(used, 0.05):
            assert used == number
            assert interrupted(20) < 10
        assert number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_kicks_may_be_nested() -> None:
    before = caught()
    with kicks() as outer:
        with kicks() as inner:
            assert inner == outer
        with alarm(outer, 0.02):
            assert interrupted(20) < 10
    assert caught() == before


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_no_time_at_all_is_a_time(seconds: float) -> None:
    with kicks() as number, alarm(number, seconds):
        assert interrupted(20) < 10
