"""Threads on chosen CPUs of the host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from worldswitch.errors import MissingError
from worldswitch.live.permissions import read

_STAT = Path("/proc/thread-self/stat")
_PROCESSOR = 36
"""Field 39 of /proc/self/stat, "processor", counted behind the name in field 2, which may hold anything: proc(5)."""


@contextlib.contextmanager
def pinned(cpus: Sequence[int]) -> Iterator[None]:
    """This thread on these CPUs only, as long as it lasts; with none, where it was.

    Raises:
        MissingError: It may not run there.
    """
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        allowed = ", ".join(map(str, sorted(before)))
        raise MissingError(
            f"this process may not run on CPU {', '.join(map(str, cpus))}: {error.strerror}; it may on {allowed}"
        ) from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def choose(cpu: int | None, count: int) -> tuple[int, ...]:
    """*count* CPUs, or all this thread may use if that is fewer: *cpu* and those after it.

    Without *cpu* the first is the one the thread is on, which the scheduler chose.

    Raises:
        MissingError: It may not run on *cpu*.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if cpu is None:
        words = (read(_STAT) or "").rpartition(")")[2].split()
        cpu = int(words[_PROCESSOR]) if len(words) > _PROCESSOR else allowed[-1]
        cpu = cpu if cpu in allowed else allowed[-1]
    elif cpu not in allowed:
        raise MissingError(f"this process may not run on CPU {cpu}; it may on {', '.join(map(str, allowed))}")
    at = allowed.index(cpu)
    return tuple(allowed[(at + i) % len(allowed)] for i in range(min(count, len(allowed))))
