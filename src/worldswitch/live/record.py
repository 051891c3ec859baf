"""Record KVM's trace events on this host: the right ones, in the fewest bytes, through perf or tracefs.

Nothing here needs more than the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.live import events as events_of
from worldswitch.live import perf, permissions, tracefs, vms
from worldswitch.live.perf import Perf
from worldswitch.live.permissions import ROOT

TOOLS = ("perf", "tracefs")
DEFAULT_OUTPUT = {"perf": "kvm.perf.data", "tracefs": "kvm.trace.txt.gz"}
CLOCK = "CLOCK_MONOTONIC"
"""The clock to stamp with. Unlike perf's own it is the same on all CPUs whatever the TSC does, any program can read it
(a VMM's log, strace, a second recorder), tracefs has it as ``mono``, and it is as cheap where the TSC is good."""

_SELF = "$$"
_STEP = 0.05
_PATIENCE = 10.0


@dataclass(frozen=True)
class Request:
    """What to record.

    Attributes:
        output: File to write; None is :data:`DEFAULT_OUTPUT` in the current directory.
        events: See :func:`worldswitch.live.events.choose`.
        program: Program to run, with its arguments; recording ends when it does.
        pids: Processes to record, with all their threads.
        vms: The same, but refused unless the process holds a VM.
        everywhere: Record all CPUs although *program* is given.
        seconds: Stop after this time; with *program*, counted from the start of the recorder.
        exit_filter: Kernel-side filter on kvm_exit, in the kernel's filter language (Documentation/trace/events.rst,
            section 5); ``"cr"`` is :data:`~worldswitch.live.events.CONTROL_REGISTER_EXITS`.
        tool: ``"perf"`` or ``"tracefs"``; None takes perf where it can be had.
    """

    output: str | None = None
    events: str = "default"
    program: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    vms: tuple[int, ...] = ()
    everywhere: bool = False
    seconds: float | None = None
    exit_filter: str | None = None
    tool: str | None = None


@dataclass(frozen=True)
class Plan:
    """How a request is carried out on this host.

    Attributes:
        tool: ``"perf"`` or ``"tracefs"``.
        output: File to write.
        events: As ``system:event``.
        absent: Events of the sets asked for that this kernel lacks.
        argv: The perf command; empty with tracefs.
        steps: What to write to a tracing instance; empty with perf.
        tracefs: Where tracefs is mounted.
        program: The program to run, found on PATH.
        seconds: Stop after this time; None also where perf itself waits for a sleep.
        because: Why it is not perf, where that was not asked for.
    """

    tool: str
    output: Path
    events: tuple[str, ...]
    absent: tuple[str, ...]
    argv: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    tracefs: Path
    program: tuple[str, ...]
    seconds: float | None
    because: str | None = None

    def shell(self) -> str:
        """The same as shell commands."""
        if self.argv:
            limit = ["timeout", "--foreground", "--signal=INT", _plain(self.seconds)] if self.seconds else []
            return shlex.join([*limit, *self.argv])
        here = self.tracefs / "instances/wsw"
        packer = "gzip -1" if self.output.suffix == ".gz" else "cat"
        wait = shlex.join(self.program) or (f"sleep {_plain(self.seconds)}" if self.seconds else "sleep infinity")
        return "\n".join(
            [
                f"mkdir {here}",
                *(f"echo {_quoted(value)} > {here / name}" for name, value in self.steps),
                f"{packer} < {here / 'trace_pipe'} > {shlex.quote(str(self.output))} &",
                wait,
                f"echo 0 > {here / 'tracing_on'}; kill $!; rmdir {here}",
            ]
        )


@dataclass(frozen=True)
class Recording:
    """What was recorded.

    Attributes:
        path: The file.
        size: Its bytes.
        tool: What wrote it.
        status: The program's exit status (negative: the signal that ended it); None if there was none, or it was
            stopped with the recording.
        interrupted: Whether Ctrl-C or a SIGTERM ended it.
    """

    path: Path
    size: int
    tool: str
    status: int | None
    interrupted: bool


def plan(request: Request, root: Path = ROOT) -> Plan:
    """How *request* is carried out here, with everything it needs checked.

    Raises:
        MissingError: perf, tracefs, KVM's events, a permission, a process or the program is missing.
        UsageError: The request contradicts itself.
    """
    _consistent(request)
    if reason := permissions.locked_down(root):
        raise MissingError(reason)
    where = tracefs.find(root)
    known = tracefs.events(where) if where else None
    if where is None or known is None:
        raise MissingError(permissions.no_tracefs(where, root))
    if "kvm" not in known:
        raise MissingError(permissions.no_kvm_events(root))
    chosen, absent = events_of.choose(request.events, known)
    exit_filter = events_of.CONTROL_REGISTER_EXITS if request.exit_filter == "cr" else request.exit_filter
    if exit_filter and "kvm:kvm_exit" not in chosen:
        raise UsageError("--filter is for kvm_exit, which --events does not name")
    for pid in request.vms:
        vms.demand_vm(pid, root)
    threads = [tid for pid in (*request.vms, *request.pids) for tid in vms.threads(pid, root)]
    program = _found(request.program)
    found, because = _tool(request, where, root)
    tool = "perf" if found else "tracefs"
    output = _writable(request.output or DEFAULT_OUTPUT[tool])
    everywhere = request.everywhere or not program
    buffer, clock = permissions.buffer_bytes(root), None if permissions.slow_clock(root) else CLOCK
    limit = request.seconds if program or not found else None
    argv: list[str] = []
    steps: list[tuple[str, str]] = []
    if found:
        argv = perf.command(
            found, str(output), chosen, pids=(*request.vms, *request.pids), everywhere=everywhere,
            exit_filter=exit_filter, buffer=buffer if permissions.may_lock(root) else 512 << 10, clock=clock,
            program=program or _sleep(request.seconds),
        )  # fmt: skip
    else:
        steps = tracefs.steps(
            chosen, threads=threads, exit_filter=exit_filter, buffer=buffer, clock="mono" if clock else "global"
        )
        if not threads and not everywhere:
            # Whatever this process starts; it runs no VM itself.
            steps[2:2] = [("options/event-fork", "1"), ("set_event_pid", _SELF)]
    return Plan(
        tool, output, chosen, absent, tuple(argv), tuple(steps), where, program, limit, because
    )  # fmt: skip


def record(request: Request, root: Path = ROOT) -> Recording:
    """Record until the program ends, the time is over, or Ctrl-C; the file is whole in each case.

    Raises:
        MissingError, UsageError: See :func:`plan`; or perf failed, with what it said.
    """
    return carry_out(plan(request, root))


def carry_out(how: Plan) -> Recording:
    """Do what :func:`plan` found."""
    status, interrupted = (_with_perf if how.argv else _with_tracefs)(how)
    return Recording(how.output, how.output.stat().st_size, how.tool, status, interrupted)


def _quoted(value: str) -> str:
    return value if value == _SELF else shlex.quote(value)


def _consistent(request: Request) -> None:
    if request.tool not in (None, *TOOLS):
        raise UsageError(f"unknown tool {printable(str(request.tool))!r}; known are {', '.join(TOOLS)}")
    if request.seconds is not None and not 0 < request.seconds < 1e8:
        raise UsageError("--seconds must be more than 0")
    if request.everywhere and (request.pids or request.vms):
        raise UsageError("all CPUs and single processes exclude each other; leave out -a, or --pid and --vm")
    if any(pid <= 0 for pid in (*request.pids, *request.vms)):
        raise UsageError("a process id is more than 0")
    if request.output == "-":
        raise UsageError("a recording is read back at its end, so it cannot go to standard output; give -o a name")


def _found(program: tuple[str, ...]) -> tuple[str, ...]:
    if program and shutil.which(program[0]) is None:
        raise MissingError(
            f"the program {printable(program[0])!r} is not found, or not executable; check its name and PATH"
        )
    return program


def _sleep(seconds: float | None) -> tuple[str, ...]:
    """What perf runs to record for a time: it starts only when all events are open, which takes perf a while."""
    return () if seconds is None else ("sleep", _plain(seconds))


def _plain(seconds: float) -> str:
    """Without an exponent, which sleep does not read."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _writable(name: str) -> Path:
    path = Path(name)
    if "\0" in name or path.is_dir():
        raise UsageError(f"{printable(name)!r} is no name for a file")
    if not path.parent.is_dir():
        raise MissingError(
            f"the folder {printable(str(path.parent))!r} does not exist; make it, or give -o another name"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise MissingError(f"this user may not write to {printable(str(path.parent))!r}; give -o another name")
    return path


def _tool(request: Request, where: Path, root: Path) -> tuple[Perf | None, str | None]:
    """perf, or None for tracefs and why perf is not used."""
    can_write = tracefs.may_write(where)
    if request.tool == "tracefs":
        if not can_write:
            raise MissingError(f"this user may not make instances in {where}; run as root")
        return None, None
    found = Perf.find()
    because = permissions.perf_refused(root) if found else _no_perf(root)
    if because is None or (found and request.tool is None and not can_write):
        if because:
            raise MissingError(because)
        return found, None
    if request.tool == "perf" or not can_write:
        raise MissingError(because)
    return None, because


def _no_perf(root: Path) -> str:
    how = permissions.how_to_get_perf(root)
    what = "the perf on PATH is only a stub for another kernel" if shutil.which("perf") else "perf is not installed"
    return f"{what}; to get it: {how}"


def _with_perf(how: Plan) -> tuple[int | None, bool]:
    with _stopping() as stopped:
        started = time.time()
        process = subprocess.Popen(how.argv)
        stop = _waited(process, how.seconds, stopped, lambda wait: _wait(process, wait))
        if process.poll() is None:
            # It gets Ctrl-C from the terminal too; twice does no harm.
            process.send_signal(signal.SIGINT)
        status = process.wait()
    if not _wrote(how.output, started):
        raise perf.complaint(how.argv)
    if not perf.finished(how.output):
        raise MissingError(
            f"perf broke off with status {status}, most likely because the disk is full; free some, or give -o "
            f"another place: {printable(str(how.output))} is not whole"
        )
    return (None if stop or not how.program else status), stopped.is_set()


def _with_tracefs(how: Plan) -> tuple[int | None, bool]:
    if how.output.exists():
        how.output.replace(how.output.with_name(how.output.name + ".old"))
    steps = [(name, value.replace(_SELF, str(os.getpid()))) for name, value in how.steps]
    result: list[tuple[int | None, bool]] = []

    def run(save: Callable[[float], object]) -> None:
        process = subprocess.Popen(how.program) if how.program else None
        stop = _waited(process, how.seconds, stopped, save)
        if process and process.poll() is None:
            _end(process, save)
        result.append((None if stop or not process else process.returncode, stopped.is_set()))

    with _stopping() as stopped:
        tracefs.record(how.tracefs, how.output, steps, run)
    return result[0]


def _waited(
    process: subprocess.Popen[bytes] | None,
    seconds: float | None,
    stopped: threading.Event,
    wait: Callable[[float], object],
) -> bool:
    """Wait for the process, the time or a signal; True if it was not the process that ended."""
    end = None if seconds is None else time.monotonic() + seconds
    while process is None or process.poll() is None:
        left = _STEP if end is None else end - time.monotonic()
        if stopped.is_set() or left <= 0:
            return True
        wait(min(left, _STEP))
    return False


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _end(process: subprocess.Popen[bytes], save: Callable[[float], object]) -> None:
    """Stop the program, politely first."""
    process.terminate()
    end = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < end:
        save(_STEP)
    if process.poll() is None:
        process.kill()
        process.wait()


def _wrote(output: Path, started: float) -> bool:
    """Whether there is a recording that is not from before; perf leaves an empty file when it fails."""
    try:
        found = output.stat()
    except OSError:
        return False
    if found.st_size == 0:
        output.unlink(missing_ok=True)
        return False
    # File times are coarser than the clock.
    return found.st_mtime >= started - 1


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """While it lasts, SIGINT and SIGTERM set the event instead of ending this process."""
    stopped = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
