"""Several tasks at once, each in a process of its own, their results in the tasks' order."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

T = TypeVar("T")
Say = Callable[[str], None]
_PR_SET_PDEATHSIG = 1
"""prctl(2): a process is told when the one that started it ends, however that ends."""
_GOING = 15.0
"""Seconds a process gets to end what it has started, once it is told to end."""


def side_by_side(tasks: Sequence[Callable[[Say], T]], at_once: int, say: Say) -> Iterator[T]:
    """What each task returns, in their order; with *at_once* 1 or one task all happens in this process.

    After a Ctrl-C the tasks still running are ended, each as by a Ctrl-C of its own, and what had finished is given.

    Args:
        tasks: Each is called with something to say how far it is; what it returns can be pickled.
        at_once: How many may run at the same time.
        say: Called with what they say.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        RuntimeError: A process ended without a result.
    """
    if at_once < 2 or len(tasks) < 2:
        for task in tasks:
            yield task(say)
        return
    crew = _Crew(tasks, at_once, say)
    try:
        for place in range(len(tasks)):
            yield crew.result(place)
    except KeyboardInterrupt:
        while crew.hear(0):
            pass
        crew.end()
        for place in crew.left():
            yield crew.results.pop(place)
        raise
    finally:
        crew.end()


class _Crew:
    def __init__(self, tasks: Sequence[Callable[[Say], Any]], at_once: int, say: Say) -> None:
        self._tasks, self._at_once, self._say = tasks, at_once, say
        self._waiting = list(range(len(tasks)))
        self._running: dict[Connection, tuple[int, BaseProcess]] = {}
        self.results: dict[int, Any] = {}

    def result(self, place: int) -> Any:
        while place not in self.results:
            while self._waiting and len(self._running) < self._at_once:
                self._start(self._waiting.pop(0))
            self.hear()
        return self.results.pop(place)

    def hear(self, seconds: float | None = None) -> bool:
        """Take in what the processes have to say, as soon as one has, or within *seconds*; whether one had."""
        found = wait(list(self._running), seconds)
        for ready in found:
            assert isinstance(ready, Connection)
            self._hear(ready)
        return bool(found)

    def left(self) -> list[int]:
        """Places of results that nobody has taken yet."""
        return sorted(self.results)

    def end(self) -> None:
        """End all that run, and wait until they have."""
        for _, process in self._running.values():
            process.terminate()
        for source, (_, process) in self._running.items():
            process.join(_GOING)
            if process.is_alive():
                process.kill()
                process.join()
            source.close()
        self._running.clear()
        self._waiting.clear()

    def _start(self, place: int) -> None:
        source, sink = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_work, args=(self._tasks[place], sink))
        # A Ctrl-C between the fork and the note of it would leave a process nobody knows.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns if threads run; the task uses nothing that they could have locked.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            self._running[source] = (place, process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sink.close()

    def _hear(self, source: Connection) -> None:
        place, process = self._running[source]
        try:
            finished, what = source.recv()
        except EOFError:
            del self._running[source]
            process.join()
            raise RuntimeError(f"the process of task {place} ended with {process.exitcode} and no result") from None
        if not finished:
            self._say(what)
            return
        del self._running[source]
        source.close()
        process.join()
        self.results[place] = what


def _work(task: Callable[[Say], Any], sink: Connection) -> None:
    """Be the process of *task*. Ctrl-C is for the one who started it, who passes it on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupted)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

    def say(text: str) -> None:
        with suppress(OSError):
            sink.send((False, text))

    with suppress(KeyboardInterrupt):
        sink.send((True, task(say)))


def _interrupted(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
