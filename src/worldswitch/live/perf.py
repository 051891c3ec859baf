"""perf as a recorder: what this perf can do, and the command that takes the fewest bytes.

What the options leave out was measured (docs/recording.md). perf gives no way to leave out the instruction pointer
(eight bytes a sample) or, with several events, the sample's id; compression takes both back.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from worldswitch.errors import MissingError, printable

_SECONDS = 20


class Perf(NamedTuple):
    """A perf that runs.

    Attributes:
        path: Its executable.
        version: As it prints it, such as ``6.1.187``.
        options: The long options ``perf record`` has and was built with.
    """

    path: str
    version: str
    options: frozenset[str]

    @classmethod
    def find(cls) -> Perf | None:
        """The perf on PATH; None if there is none, or only a distribution's stub for another kernel."""
        path = shutil.which("perf")
        if path is None:
            return None
        version = _ask(path, "--version")
        found = re.search(r"perf version (\S+)", version)
        return cls(path, found[1], known_options(_ask(path, "record", "-h"))) if found else None


def known_options(help_text: str) -> frozenset[str]:
    """The long options in the help of ``perf record``, without those it says are not built in."""
    options: set[str] = set()
    latest = ""
    for line in help_text.splitlines():
        found = re.match(r"\s+(?:-\w, )?--([a-z][a-z-]*)", line)
        if found:
            latest = found[1]
            options.add(latest)
        if "not built-in" in line:
            options.discard(latest)
    return frozenset(options)


def command(
    perf: Perf,
    output: str,
    events: Sequence[str],
    *,
    pids: Sequence[int] = (),
    everywhere: bool = True,
    exit_filter: str | None = None,
    buffer: int = 8 << 20,
    clock: str | None = "CLOCK_MONOTONIC",
    program: Sequence[str] = (),
    quiet: bool = True,
) -> list[str]:
    """The ``perf record`` command line.

    Args:
        perf: Which perf; options it does not know are left out.
        output: File to write.
        events: As ``system:event``.
        pids: Processes to record, with all their threads.
        everywhere: Record all CPUs; else, without *pids*, only *program* and what it starts.
        exit_filter: Passed on to the kernel for kvm:kvm_exit only.
        buffer: Bytes of ring buffer per CPU.
        clock: Clock to stamp with; None is perf's own, which no other program can read.
        program: Program to run, and stop when it ends.
        quiet: Without perf's messages, errors included.
    """
    # One -e each, because a filter goes to all events of the -e before it.
    filtered = [event for event in events if exit_filter and event == "kvm:kvm_exit"]
    others = [event for event in events if event not in filtered]
    optional = (
        ("quiet", ["-q"] if quiet else []),
        ("period", ["--no-period"]),
        ("no-buildid", ["-B"]),
        ("no-buildid-cache", ["-N"]),
        ("no-bpf-event", ["--no-bpf-event"]),
        # Names of processes, but not what they have mapped.
        ("synth", ["--synth=task"]),
        ("clockid", ["-k", clock] if clock else []),
        ("compression-level", ["-z"]),
    )
    argv = [perf.path, "record", "-o", output, "-c", "1", "-m", f"{buffer >> 10}K"]
    argv += [word for option, words in optional if option in perf.options for word in words]
    if pids:
        argv += ["-p", ",".join(map(str, pids))]
    elif everywhere:
        argv.append("-a")
    if filtered and exit_filter:
        argv += ["-e", ",".join(filtered), "--filter", exit_filter]
    argv += ["-e", ",".join(others)] if others else []
    return argv + (["--", *program] if program else [])


def complaint(argv: Sequence[str]) -> MissingError:
    """Run *argv*, which has failed before, once more on ``true`` and turn what perf says into an error."""
    with_errors = [word for word in argv if word != "-q"]
    end = with_errors.index("--") if "--" in with_errors else len(with_errors)
    with_errors[with_errors.index("-o") + 1] = "/dev/null"
    said = _ask(*with_errors[:end], "--", "true")
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _NOISE.search(line)]
    text = printable(" ".join(lines[:4]))[:600] or "it does not say why"
    return MissingError(f"perf could not record: {text}. The command was the one wsw record --dry-run prints")


def finished(recording: Path) -> bool:
    """Whether perf wrote *recording* to its end: it fills in the size of the data last (perf.data-file-format.txt)."""
    with recording.open("rb") as file:
        head = file.read(_DATA_SIZE_AT + 8)
    return head[:8] != _MAGIC or (len(head) > _DATA_SIZE_AT and any(head[_DATA_SIZE_AT:]))


_MAGIC = b"PERFILE2"
_DATA_SIZE_AT = 48
_NOISE = re.compile(r"libtraceevent|bad op token|expected type|^\s*\[ perf record|Usage:|^\s*or: perf")


def _ask(*argv: str) -> str:
    """All a command prints; empty if it cannot be run."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, cwd=Path("/")
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")
