"""A shell in the lab's guest, on this process's terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from worldswitch.lab import diskio
from worldswitch.lab.console import Running
from worldswitch.lab.failures import MachineRefused
from worldswitch.lab.jobs import pack
from worldswitch.lab.machine import PREFIX, Start, work_folder

LEAVE = b"\x1d"
"""Ctrl-], which ends the machine."""
_END_OF_INPUT = b"\x04"


def shell(start: Start) -> None:
    """Boot the machine with a shell on standard input and output; returns when the shell or the machine ends.

    Raises:
        MachineError: It does not come up.
    """
    with work_folder() as folder:
        boot, setup = start.files(folder, interactive=True)
        diskio.write_image(boot.jobs, pack(replace(setup, shell=True), ()))
        start.emulator.prepare(boot)
        start.progress(f"booting kernel {start.machine.kernel.release} in {start.emulator.name}")
        with Running(start.emulator.command(boot), folder) as running:
            start.wait(running, "ready")
            start.progress("a shell; it ends the machine when it ends, and so does Ctrl-]")
            with _raw():
                _pass_on(running)


def _pass_on(running: Running) -> None:
    source: int | None = sys.stdin.fileno()
    for line in running.take_lines(b""):
        _show(line.encode() + b"\r\n")
    pending = running.rest()
    while True:
        if _ended(running, pending):
            return
        watched = [running.fileno()] if source is None else [running.fileno(), source]
        ready, _, _ = select.select(watched, [], [], 0.5)
        if source is not None and source in ready:
            typed = os.read(source, 4096)
            if LEAVE in typed:
                return
            running.send(typed or _END_OF_INPUT)
            source = source if typed else None
        data = running.read(0)
        if data is None:
            return
        pending = data


def _ended(running: Running, data: bytes) -> bool:
    """Show *data*, but for what the guest says to the lab; whether it said that it is done."""
    shown = data
    ended = False
    for line in running.take_lines(data):
        if line.startswith(PREFIX):
            said = line.removeprefix(PREFIX)
            if said.startswith("failed"):
                raise MachineRefused(said, running.lines, "running")
            ended = ended or said == "done"
            shown = shown.replace(line.encode(), b"")
    _show(shown)
    return ended


def _show(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


@contextmanager
def _raw() -> Iterator[None]:
    """The terminal passes every key on; it is as before afterwards. Nothing, where input is no terminal."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
