"""Recording from within ``wsw top``: ``wsw record`` as a process of its own, ended as Ctrl-C would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from worldswitch.errors import printable
from worldswitch.units import format_size

_PATIENCE = 30.0


class Recorder:
    """At most one recording at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._began = 0.0

    @property
    def running(self) -> bool:
        """Whether it records."""
        return self._process is not None

    @property
    def seconds(self) -> float:
        """How long it has recorded."""
        return time.monotonic() - self._began if self._process else 0.0

    def start(self, pid: int | None) -> str:
        """Record the VMs of a process, or all, into a file of this folder named by the time; a sentence about it.

        Raises:
            MissingError, UsageError: They cannot be recorded; see :func:`worldswitch.live.record.plan`.
        """
        from worldswitch.live.record import Request, plan

        pids = () if pid is None else (pid,)
        how = plan(Request(pids=pids))
        name = time.strftime("kvm-%Y%m%d-%H%M%S") + "".join(how.output.suffixes[-2:])
        words = [sys.executable, "-m", "worldswitch", "record", "-o", name, "--json"]
        words += [word for one in pids for word in ("--pid", str(one))]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._began = time.monotonic()
        return f"recording {'all VMs' if pid is None else f'process {pid}'} to {Path(name).resolve()}; r ends it"

    def stop(self) -> str:
        """End it, and a sentence about what it gave; nothing happens where none runs."""
        process, self._process = self._process, None
        if process is None:
            return "nothing was recorded"
        process.send_signal(signal.SIGINT)
        try:
            said, complaint = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "the recording did not end in time and was given up"
        try:
            found = json.loads(said)
            events = sum(found["events"].values())
            return f"{found['output']}: {events:,} events, {format_size(found['size_bytes'])}; next: {found['next']}"
        except (ValueError, KeyError):
            lines = complaint.strip().splitlines()
            return printable(lines[-1]) if lines else f"the recording ended with status {process.returncode}"
