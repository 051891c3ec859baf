"""Running compilers: output to a log, its last lines in the error, nothing left running when interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from worldswitch.errors import MissingError, printable
from worldswitch.lab import cache

LAST_LINES = 12


def log_of(name: str) -> Path:
    """Where the log of the build of that name is, emptied."""
    path = cache.root() / "logs" / f"{name}.log"
    with cache.writable():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return path


def require(programs: Mapping[str, str], what: str) -> None:
    """Check that programs are on PATH: name -> the package that has it.

    Raises:
        MissingError: Some are not; the message names their packages.
    """
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        packages = " ".join(dict.fromkeys(programs[name] for name in missing))
        raise MissingError(f"{what} needs {', '.join(missing)}, not found on PATH; install the packages {packages}")


def step(
    command: Sequence[str], folder: Path, log: Path, what: str, environment: Mapping[str, str] | None = None
) -> None:
    """Run one command of a build at a low priority; its output goes to the end of *log*.

    Raises:
        MissingError: It failed; the message ends in the last lines that say why.
    """
    if shutil.which("nice"):
        command = ["nice", "-n", "5", *command]
    with log.open("ab") as sink:
        sink.write(f"$ {' '.join(command)}\n".encode())
        sink.flush()
        try:
            process = subprocess.Popen(
                command, cwd=folder, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C", **(environment or {})},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise MissingError(
                f"{what} failed: {printable(command[0])} cannot be started ({error.strerror})"
            ) from error
        try:
            status = process.wait()
        except BaseException:
            _end(process)
            raise
    if status:
        raise _failure(what, log)


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """The last lines of a compiler's output that say what is wrong; where none does, the last lines."""
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    telling = [n for n, line in enumerate(lines) if _tells(line)]
    if telling:
        lines = lines[telling[0] : telling[0] + count]
    return "\n".join(f"  {line}" for line in lines[-count:])


def _tells(line: str) -> bool:
    return "error:" in line or "Error: " in line or "ERROR: " in line or "undefined reference" in line


def _failure(what: str, log: Path) -> MissingError:
    with log.open("rb") as source:
        source.seek(max(0, log.stat().st_size - (1 << 20)))
        text = source.read().decode("utf-8", "replace")
    if "No space left on device" in text:
        return cache.full()
    # The last command's output; its first line is the command.
    said = f"\n{text}".rpartition("\n$ ")[2].partition("\n")[2]
    return MissingError(f"{what} failed; all of it is in {log}:\n{last_lines(said)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started: they are a process group of their own."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(5)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def jobs() -> int:
    """How many compilers to run at once: as many as this process may use CPUs."""
    return len(os.sched_getaffinity(0))
