"""Signals that end a KVM_RUN: at a deadline, or because another vCPU of the VM is done for.

Python lets only the main thread install a signal handler, and runs it between two instructions of the main thread. Here
the handler is a C function without effect: all a guest needs to be left is that some handler runs in its thread.
Timers are the kernel's, directed at one thread (timer_create(2), SIGEV_THREAD_ID).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import threading
from collections.abc import Iterator

from worldswitch.errors import MissingError

_TIMER_CREATE, _TIMER_SETTIME, _TIMER_DELETE, _TGKILL = 222, 223, 226, 234
"""Numbers of system calls: arch/x86/entry/syscalls/syscall_64.tbl."""
_SIGEV_THREAD_ID = 4
_SIGEVENT = struct.Struct("<QiIi44x")
"""struct sigevent: sigev_value, sigev_signo, sigev_notify, sigev_notify_thread_id."""
_ITIMERSPEC = struct.Struct("<4q")
_AGAIN_NS = 10_000_000
"""A signal that comes just before KVM_RUN is lost on it; the next one comes this much later."""

_C = ctypes.CDLL(None, use_errno=True)
_C.signal.restype = ctypes.c_void_p
_C.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
_C.syscall.restype = ctypes.c_long
_NOTHING = ctypes.cast(_C.abs, ctypes.c_void_p).value
"""A function that takes an int and touches nothing."""
_DEFAULT = 0

_lock = threading.Lock()
_users = 0
_number = 0


@contextlib.contextmanager
def kicks() -> Iterator[int]:
    """While it lasts, the signal it yields only interrupts system calls; then it is as before.

    It is a real-time signal that nothing in this process uses. May be entered from any thread and more than once.

    Raises:
        MissingError: Every real-time signal is in use.
    """
    global _users, _number  # noqa: PLW0603 (dispositions of signals are the process's)
    with _lock:
        if not _users:
            _number = _install()
        _users += 1
    number = _number
    blocked = number in signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    try:
        yield number
    finally:
        if blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        with _lock:
            _users -= 1
            if not _users:
                _C.signal(number, _DEFAULT)


def _install() -> int:
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN - 1, -1):
        before = _C.signal(number, _NOTHING)
        if not before:
            return number
        _C.signal(number, before)
    raise MissingError("every real-time signal of this process is in use, so no guest can be stopped; free one")


@contextlib.contextmanager
def alarm(number: int, seconds: float) -> Iterator[None]:
    """Send this thread the signal *number* (from :func:`kicks`) after *seconds*, and again and again until the end.

    Raises:
        MissingError: The kernel has no timer left for this user.
    """
    event = ctypes.create_string_buffer(_SIGEVENT.pack(0, number, _SIGEV_THREAD_ID, threading.get_native_id()))
    timer = ctypes.c_int()
    if _C.syscall(_TIMER_CREATE, 1, ctypes.byref(event), ctypes.byref(timer)):
        raise MissingError(f"timer_create fails, so no guest could be stopped: {os.strerror(ctypes.get_errno())}")
    try:
        whole = max(1, int(seconds * 1e9))
        times = _ITIMERSPEC.pack(0, _AGAIN_NS, whole // 10**9, whole % 10**9)
        _C.syscall(_TIMER_SETTIME, timer, 0, ctypes.create_string_buffer(times), None)
        yield
    finally:
        _C.syscall(_TIMER_DELETE, timer)


def kick(number: int, thread: int) -> None:
    """Send the signal to a thread of this process, by its native id; to one that has ended nothing happens."""
    _C.syscall(_TGKILL, os.getpid(), thread, number)
