"""tracefs: which events this kernel has, and a recorder for hosts without perf.

The recorder works in an instance of its own, so it disturbs nobody else's tracing, and always removes it.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from worldswitch.errors import MissingError, printable
from worldswitch.live.permissions import ROOT, host_lines

_PLACES = ("sys/kernel/tracing", "sys/kernel/debug/tracing")
_PREFIX = "wsw-"
_PIECE = 1 << 16
_POLL_MS = 100


class _Sink(Protocol):
    def write(self, data: bytes, /) -> Any: ...


Steps = Sequence[tuple[str, str]]
"""Files of an instance and what to write to each, in this order."""


def find(root: Path = ROOT) -> Path | None:
    """Where tracefs is mounted, None if nowhere. It may still be unreadable."""
    for place in _PLACES:
        path = root / place
        try:
            if next(path.iterdir(), None) is not None:
                return path
        except PermissionError:
            return path
        except OSError:
            continue
    return None


def events(tracefs: Path) -> dict[str, tuple[str, ...]] | None:
    """System -> its events, sorted; None if this user may not read them."""
    try:
        found = {
            system.name: tuple(sorted(event.name for event in system.iterdir() if (event / "format").exists()))
            for system in sorted((tracefs / "events").iterdir())
            if system.is_dir()
        }
    except OSError:
        return None
    # Since Linux commit 21ccc9cd7211 the files are closed to others, whatever the folders' mode says.
    for system, names in found.items():
        for name in names[:1]:
            if not os.access(tracefs / "events" / system / name / "format", os.R_OK):
                return None
    return found


def may_write(tracefs: Path) -> bool:
    """Whether this user may make instances."""
    return os.access(tracefs / "instances", os.W_OK)


def steps(
    chosen: Sequence[str], *, threads: Sequence[int], exit_filter: str | None, buffer: int, clock: str
) -> list[tuple[str, str]]:
    """What to write to the files of an instance to record *chosen* (``system:event``).

    *threads* are recorded with whatever they start; none means everything. Events are switched on last.
    """
    found = [("buffer_size_kb", str(buffer >> 10)), ("trace_clock", clock)]
    if threads:
        found += [("options/event-fork", "1"), ("set_event_pid", " ".join(map(str, threads)))]
    if exit_filter and "kvm:kvm_exit" in chosen:
        found.append(("events/kvm/kvm_exit/filter", exit_filter))
    return found + [(f"events/{event.replace(':', '/')}/enable", "1") for event in chosen]


@contextlib.contextmanager
def instance(tracefs: Path) -> Iterator[Path]:
    """A new tracing instance, removed at the end. Those that dead recorders left behind are removed too.

    Raises:
        MissingError: It cannot be made.
    """
    _sweep(tracefs)
    path = tracefs / "instances" / f"{_PREFIX}{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        raise MissingError(
            f"cannot make a tracing instance at {path}: {error.strerror}; run as root, with tracefs mounted rw"
        ) from None
    try:
        yield path
    finally:
        _remove(path)


def _sweep(tracefs: Path) -> None:
    with contextlib.suppress(OSError):
        for old in (tracefs / "instances").glob(f"{_PREFIX}*"):
            owner = old.name[len(_PREFIX) :]
            if owner.isdecimal() and not (ROOT / f"proc/{owner}").exists():
                _remove(old)


def _remove(path: Path) -> None:
    for _ in range(50):
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            # Busy until the last reader of its files has gone.
            time.sleep(0.02)


def record(tracefs: Path, output: Path, what: Steps, run: Callable[[Callable[[float], object]], None]) -> None:
    """Record into *output* as the text of ``trace_pipe``; with the ending .gz, compressed.

    Args:
        tracefs: Where it is mounted.
        output: File to write.
        what: From :func:`steps`.
        run: Called once recording is on, with a function that must be called again and again until what is to be
            recorded has ended: it waits that many seconds at most and saves what has come.

    Raises:
        MissingError: The kernel refuses a step, or the disk is full; the message names it.
    """
    try:
        with instance(tracefs) as here, _open(output) as sink:
            sink.write("\n".join(["# tracer: nop", "#", *host_lines(), "#", ""]).encode())
            _set_up(here, what, output)
            pipe = os.open(here / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
            try:
                run(lambda wait: _save(pipe, sink, wait))
                _write(here, "tracing_on", "0")
                while _save(pipe, sink, 0):
                    pass
            finally:
                os.close(pipe)
    except MissingError:
        raise
    except OSError as error:
        raise MissingError(f"the recording {printable(str(output))} broke off: {error.strerror or error}") from None


def _set_up(here: Path, what: Steps, output: Path) -> None:
    try:
        for name, value in what:
            _write(here, name, value)
    except MissingError:
        # Nothing was recorded: what is there is a header.
        output.unlink(missing_ok=True)
        raise


def _open(output: Path) -> AbstractContextManager[_Sink]:
    return gzip.open(output, "wb", compresslevel=1) if output.suffix == ".gz" else output.open("wb")


def _write(here: Path, name: str, value: str) -> None:
    try:
        (here / name).write_text(value)
    except OSError as error:
        raise MissingError(
            f"the kernel refuses {value!r} in {name} of its tracing instance: {error.strerror}"
        ) from None


def _save(pipe: int, sink: _Sink, wait: float) -> bool:
    """Save what has come; wait for it if there is nothing. False if there was nothing."""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    if not poller.poll(min(wait * 1000, _POLL_MS)) and wait:
        return False
    saved = False
    # A bounded number of pages, so that a full buffer does not keep the caller from looking at the time.
    for _ in range(1000):
        try:
            piece = os.read(pipe, _PIECE)
        except (BlockingIOError, InterruptedError):
            break
        if not piece:
            break
        sink.write(piece)
        saved = True
    return saved
