"""Worker processes that are forked early, do one thing when told, and never outlive the one who forked them.

What they hold (VMs, memory, places in control groups) ends with them, so ending them is all the cleaning up there is.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from worldswitch.errors import MissingError, WorldswitchError

if TYPE_CHECKING:
    Job = Callable[[], None]

_PR_SET_PDEATHSIG = 1
_POLL = 0.0005
_DEATH_TAKES = 10.0
"""Seconds a killed process may take: one that is inside KVM_CREATE_VM ends when the call does."""
_MOST_WORDS = 4000
"""Bytes of a complaint: less than PIPE_BUF, so that those of several workers do not mix."""


class Workers:
    """Forked processes, as a context manager: on leaving, those still there are killed.

    Workers ignore Ctrl-C, which is for the one who forked them, and die with it, however it dies.
    """

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._parent = os.getpid()
        self._complaints, self._complain = os.pipe()

    def __enter__(self) -> Workers:
        return self

    def start(self, job: Job) -> int:
        """Fork a process that does *job* and ends; its pid.

        An error in *job* ends it, and :meth:`wait` raises it.

        Raises:
            MissingError: No more processes can be made.
        """
        # A Ctrl-C between the fork and the note of its pid would leave a process nobody knows.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns if threads run; the child uses nothing that they could have locked.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                self._work(job)
            self._pids.append(pid)
        except OSError as error:
            raise MissingError(
                f"no further process can be made after {len(self._pids)}: {error.strerror}; raise ulimit -u, or the "
                "pids.max of the control group"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def _work(self, job: Job) -> None:
        """Be the child; does not return."""
        status = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            gc.disable()
            sys.settrace(None)
            if os.getppid() == self._parent:
                job()
            status = 0
        except WorldswitchError as error:
            self._say(str(error))
        except BaseException as error:
            self._say(f"a worker failed: {type(error).__name__}: {error}")
        finally:
            os._exit(status)

    def _say(self, text: str) -> None:
        with suppress(OSError):
            os.write(self._complain, text.encode("utf-8", "replace")[:_MOST_WORDS] + b"\0")

    def wait(self, reached: Callable[[], bool], what: str, patience: float) -> None:
        """Wait until *reached* is true.

        Args:
            what: What the workers do meanwhile, for the message if they do not.
            patience: Seconds without it being reached.

        Raises:
            MissingError: A worker failed, was killed, or *patience* is at its end.
        """
        deadline = time.monotonic() + patience
        while not reached():
            self._check(what)
            if time.monotonic() > deadline:
                raise MissingError(
                    f"{what} has not come to an end for {patience:.0f} s; see dmesg, and what else holds this host up"
                )
            time.sleep(_POLL)

    def _check(self, what: str) -> None:
        if select.select([self._complaints], [], [], 0)[0]:
            said = os.read(self._complaints, _MOST_WORDS + 1).split(b"\0")[0]
            raise MissingError(said.decode("utf-8", "replace"))
        for pid in list(self._pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            self._pids.remove(pid)
            if select.select([self._complaints], [], [], 0)[0]:
                return self._check(what)
            if status:
                how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "by itself"
                raise MissingError(f"a worker process ended {how} during {what}; memory may be short: see dmesg")
        return None

    def end(self) -> None:
        """Kill the workers that are still there, and wait until they have gone with all they held."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for pid in self._pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + _DEATH_TAKES
            while self._pids and time.monotonic() < deadline:
                self._pids = [pid for pid in self._pids if not _gone(pid)]
                time.sleep(_POLL if self._pids else 0)
            for handle in (self._complaints, self._complain):
                if handle >= 0:
                    os.close(handle)
            self._complaints = self._complain = -1
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
