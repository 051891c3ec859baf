"""A machine saved as it was when first booted, before any VM exists in it, and restored from there.

Its memory is a file that each restored machine maps privately; what else there is to it is one small file more.
Both lie in the cache under a hash of all that the machine is made of: a changed kernel, module, setting, guest or
emulator is another state.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from worldswitch.lab import cache, diskio, initramfs, modules
from worldswitch.lab.console import Running
from worldswitch.lab.emulator import Boot, Command, Emulator
from worldswitch.lab.failures import MachineCrashed, MachineError
from worldswitch.lab.jobs import Job, Setup, pack
from worldswitch.lab.qmp import QmpError

if TYPE_CHECKING:
    from worldswitch.lab.machine import Machine, Results, Start

KIND = "states"
MEMORY, STATE = "memory", "state"
KEPT = {KIND: 12, "guests": 8, "kits": 8}
"""Entries of the cache kept of what the lab makes on its own; a state is 150 MB or so on disk. Those used longest ago
go first."""
_NO_SPACE = 1 << 20
"""With fewer bytes left a disk counts as full."""
_LAYOUT = 1


@runtime_checkable
class Saving(Emulator, Protocol):
    """An emulator whose machines can be saved and restored."""

    def saving(self, boot: Boot, memory: Path, control: int) -> Command:
        """The command for a machine whose memory is the file *memory*, steered through the socket *control*."""

    def restoring(self, boot: Boot, memory: Path, control: int) -> Command:
        """The same, for one that waits for its state and keeps what it writes to itself."""

    def save(self, channel: socket.socket, state: int, until: float) -> None:
        """Write the state to the descriptor *state*.

        Raises:
            QmpError: It cannot.
        """

    def restore(self, channel: socket.socket, state: int, until: float) -> None:
        """Read it from there, and let the machine run.

        Raises:
            QmpError: It cannot.
        """


def run(start: Start, emulator: Saving, jobs: Sequence[Job], folder: Path) -> tuple[Results, bool]:
    """The jobs' results from the saved machine, which is booted and saved first unless the cache has it.

    Returns:
        The results, and whether the machine was there.

    Raises:
        MachineError: See :func:`worldswitch.lab.machine.run`.
    """
    name = key(start.machine, emulator)
    entry = cache.find(KIND, name)
    if entry and not entry.damage():
        try:
            return _restore(start, emulator, jobs, folder, entry.path), True
        except MachineError as error:
            # What fails before the guest took its jobs is the state's fault: it may be damaged in a way no size shows.
            if error.stage == "running":
                raise
            start.progress("the saved machine does not come back; booting it anew")
            cache.remove(KIND, name)
    entry = cache.store(KIND, name, lambda place: _save_or_full(start, emulator, folder, place))
    for kind, keep in KEPT.items():
        prune(kind, keep)
    return _restore(start, emulator, jobs, folder, entry.path), False


def key(machine: Machine, emulator: Emulator) -> str:
    """A hash of all a saved state depends on.

    Files are taken by path, size and time of change; the guest's programs by content.
    """
    from worldswitch.lab.machine import guest

    nowhere = Boot(machine.kernel.vmlinuz, Path("initrd"), (), Path("folder"), machine.smp, machine.memory)
    found = {**modules.find(machine.kernel.modules), **(machine.build.modules if machine.build else {})}
    document = {
        "layout": _LAYOUT,
        "emulator": [emulator.name, emulator.version, *emulator.command(nowhere).words],
        "files": [_identity(path) for path in (machine.kernel.vmlinuz, *_used(found))],
        "guest": initramfs.guest_key(guest(machine)),
        "size": [machine.smp, machine.memory],
        "settings": sorted(machine.settings.items()),
    }
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:24]


def prune(kind: str, keep: int) -> None:
    """Remove entries of a kind but those *keep* used last."""
    old = sorted(cache.entries(kind), key=lambda entry: _used_at(entry.path), reverse=True)[keep:]
    for entry in old:
        cache.remove(kind, entry.name)


def _used(found: Mapping[str, Path]) -> list[Path]:
    """The module files a machine may load: all that lie with KVM's own, and what those are known to need."""
    near = {found[name].parent for name in (*initramfs.VENDOR.values(), "kvm") if name in found}
    return sorted(path for name, path in found.items() if path.parent in near or name in ("irqbypass", "ccp"))


def _identity(path: Path) -> list[str | int]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_size, status.st_mtime_ns]


def _used_at(folder: Path) -> float:
    try:
        return (folder / cache.MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _save_or_full(start: Start, emulator: Saving, folder: Path, place: Path) -> Mapping[str, Any]:
    """:func:`_save`; an emulator that cannot write to its memory's file is just killed, by SIGBUS."""
    try:
        return _save(start, emulator, folder, place)
    except MachineError as error:
        if shutil.disk_usage(place).free < _NO_SPACE:
            raise cache.full() from error
        raise


def _save(start: Start, emulator: Saving, folder: Path, place: Path) -> Mapping[str, Any]:
    boot, setup = start.files(folder)
    diskio.write_image(boot.jobs, pack(replace(setup, save=True), ()))
    emulator.prepare(boot)
    start.progress(f"booting kernel {start.machine.kernel.release} in {emulator.name}, to be saved")
    with (place / MEMORY).open("wb") as memory:
        memory.truncate(boot.memory << 20)
    with (place / STATE).open("wb") as state, _control() as (ours, theirs):
        command = emulator.saving(boot, place / MEMORY, theirs.fileno())
        with Running(command, folder, (theirs.fileno(),)) as running:
            theirs.close()  # so that an emulator that ends closes it
            start.wait(running, "ready")
            with _told(start, running, "saved"):
                emulator.save(ours, state.fileno(), start.until)
    return {"kernel": start.machine.kernel.release, "cpu": start.machine.cpu, "settings": dict(start.machine.settings)}


def _restore(start: Start, emulator: Saving, jobs: Sequence[Job], folder: Path, place: Path) -> Results:
    boot = Boot(start.machine.kernel.vmlinuz, None, (), folder, start.machine.smp, start.machine.memory)
    diskio.write_image(boot.jobs, pack(Setup(), jobs))
    diskio.empty_image(boot.results, diskio.RESULTS)
    with (place / STATE).open("rb") as state, _control() as (ours, theirs):
        os.utime(place / cache.MANIFEST)
        command = emulator.restoring(boot, place / MEMORY, theirs.fileno())
        with Running(command, folder, (theirs.fileno(),)) as running:
            theirs.close()  # so that an emulator that ends closes it
            with _told(start, running, "restored"):
                emulator.restore(ours, state.fileno(), start.until)
            running.send(b"go\n")
            start.wait(running, "running")
            return start.collect(running, boot, len(jobs))


@contextmanager
def _control() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@contextmanager
def _told(start: Start, running: Running, what: str) -> Iterator[None]:
    """Have an error of the control channel tell what the emulator said."""
    try:
        yield
    except QmpError as error:
        running.ending()
        raise MachineCrashed(f"{start.what} could not be {what}: {error}", running.output()) from error
