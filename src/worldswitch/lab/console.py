"""A started emulator: its console line by line until a deadline, and its certain end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
import tty
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from worldswitch.errors import MissingError, printable
from worldswitch.lab.emulator import OUTPUT, Command

KEPT = 400
"""Lines of the console that are kept; a guest may print without end."""
LONGEST = 4096
"""Bytes after which a line without an end counts as one."""
_EXPECTED = "TCG doesn't support requested feature"
"""QEMU warns so of a processor's features at every start; lines of it would leave no place for the guest's own."""
_GOING = 2.0
"""Seconds a process gets to end once its console is closed."""

# Runs the rest of its arguments, killed when the process that started it ends; argument 1 is that process.
_LAUNCH = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None).prctl(1,signal.SIGKILL);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execvp(sys.argv[2],sys.argv[2:])"
)


class Running:
    """An emulator that was started, in a process group of its own; use as a context manager.

    It ends with the context, whatever ends that, and with this process, if that is killed. The thread that enters the
    context must outlive it: the kernel takes its end for the end of the process (prctl(2), PR_SET_PDEATHSIG).

    Attributes:
        lines: The last lines of the console, oldest first.
        pid: Of the emulator, which is also its process group.
        given_up: Why the emulator cannot go on, as its log says; empty while it can.
    """

    def __init__(self, command: Command, folder: Path, pass_fds: Sequence[int] = ()) -> None:
        self._command = command
        self._folder = folder
        self._pass_fds = tuple(pass_fds)
        self._open: list[int] = []
        self._read = self._write = self._screen = -1
        self._buffer = b""
        self._pending: deque[str] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_read = 0
        self.given_up = ""
        self.lines: deque[str] = deque(maxlen=KEPT)

    def __enter__(self) -> Running:
        try:
            self._start()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, MissingError):
                what = printable(self._command.words[0])
                raise MissingError(f"cannot start {what}: {error.strerror}") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the emulator, which is also its process group."""
        assert self._process
        return self._process.pid

    def _start(self) -> None:
        if not shutil.which(self._command.words[0]):
            raise MissingError(f"there is no program {printable(self._command.words[0])} to run")
        stdin, stdout, theirs = self._streams()
        words = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *self._command.words]
        with (self._folder / OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=output if stdout is None else stdout,
                stderr=output,
                env={**os.environ, **self._command.environment},
                start_new_session=True,
                pass_fds=self._pass_fds,
            )
        for descriptor in theirs:
            os.close(descriptor)
            self._open.remove(descriptor)

    def _streams(self) -> tuple[int, int | None, list[int]]:
        """Its standard input and output, and what to close here once it runs; the console's ends are set."""
        stdin, stdout = subprocess.DEVNULL, None
        theirs: list[int] = []
        place = self._command.console
        if place is None:
            (stdin, self._write), (self._read, stdout) = self._keep(os.pipe()), self._keep(os.pipe())
            theirs = [stdin, stdout]
        elif self._command.interactive:
            self._read, other = self._keep(os.openpty())
            self._write = self._read
            tty.setraw(other)
            place.symlink_to(os.ttyname(other))
        else:
            os.mkfifo(place)
            (self._read,) = self._keep((os.open(place, os.O_RDONLY | os.O_NONBLOCK),))
        if self._command.screen:
            self._screen, stdout = self._keep(os.openpty())
            stdin = stdout
            theirs.append(stdout)
        os.set_blocking(self._read, False)
        return stdin, stdout, theirs

    def _keep(self, descriptors: tuple[int, ...]) -> tuple[int, ...]:
        self._open += descriptors
        return descriptors

    def fileno(self) -> int:
        """Descriptor that is readable when the console has something."""
        return self._read

    def send(self, text: bytes) -> None:
        """Type *text* on the console."""
        with suppress(BrokenPipeError, OSError):
            os.write(self._write, text)

    def read(self, seconds: float) -> bytes | None:
        """What the console has within *seconds*, b"" if nothing, None once it is closed."""
        poll = select.poll()  # select would stop at descriptor 1024
        for descriptor in (self._read, self._screen):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(max(seconds, 0) * 1000)]
        if self._screen in ready:
            self._drain()
        if self._read not in ready:
            return b"" if self.alive else None
        try:
            return os.read(self._read, 1 << 16) or None
        except BlockingIOError:
            return b""
        except OSError:  # a terminal whose other end is closed
            return None

    def _drain(self) -> None:
        try:
            gone = not os.read(self._screen, 1 << 16)
        except OSError:
            gone = True
        if gone:
            self._screen = -1

    def read_lines(self, until: float) -> Iterator[str]:
        """Lines of the console as they come, until it is closed, the emulator gives up, or :func:`time.monotonic` is
        *until*.

        A caller may stop at a line and go on with the next by another call.
        """
        while True:
            while self._pending:
                yield self._pending.popleft()
            if (left := until - time.monotonic()) <= 0:
                return
            data = self.read(min(left, 0.25))
            if data is None:
                break
            self._split(data)
            if self._gives_up():
                break
        self._gives_up()
        self._split(b"\n" if self._buffer else b"")
        while self._pending:
            yield self._pending.popleft()

    def take_lines(self, data: bytes) -> list[str]:
        """The lines not taken yet, with those that *data*, read from the console, completes."""
        self._split(data)
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def _split(self, data: bytes) -> None:
        self._buffer += data
        *whole, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > LONGEST:
            whole.append(self._buffer)
            self._buffer = b""
        for raw in whole:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            self.lines.append(line)
            self._pending.append(line)

    def rest(self) -> bytes:
        """What came after the last whole line; it is then no longer part of one."""
        data, self._buffer = self._buffer, b""
        return data

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def ending(self) -> str:
        """How it ended, waiting a moment for it: ``"ended with status 1"``, ``"was killed by signal 11"``."""
        assert self._process
        try:
            status = self._process.wait(_GOING)
        except subprocess.TimeoutExpired:
            return "could not go on" if self.given_up else "closed its console"
        return f"ended with status {status}" if status >= 0 else f"was killed by {_signal(-status)}"

    def output(self) -> list[str]:
        """The last lines the emulator itself printed, but for those it prints at every start."""
        try:
            with (self._folder / OUTPUT).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if _EXPECTED not in line]

    def _gives_up(self) -> bool:
        """Whether its log says so by now; only whole lines that came since are read."""
        place, pattern = self._command.log, self._command.given_up
        if place is None or pattern is None:
            return False
        try:
            with place.open("rb") as file:
                file.seek(self._log_read)
                data = file.read()
        except OSError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self._log_read += len(whole)
        for found in map(pattern.search, whole.decode("utf-8", "replace").splitlines()):
            if found:
                self.given_up = found[found.re.groups].strip()
        return bool(self.given_up)

    def close(self) -> None:
        """Kill it and all it started, if it runs, and close what is open."""
        if self._process:
            # Its group is its own, and it is not reaped yet: this number is nobody else's.
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        while self._open:
            with suppress(OSError):
                os.close(self._open.pop())


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
