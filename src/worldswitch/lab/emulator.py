"""What the lab asks of an emulator: the exact command, and the files it names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from worldswitch.errors import UnknownNameError

MEMORY = 512
"""MiB of memory of a machine, unless said otherwise."""

JOBS, RESULTS, CONSOLE, OUTPUT = "jobs.img", "results.img", "console", "emulator.txt"
"""Names in a start's folder: the two disks, the console where it is a file, what the emulator itself prints."""


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of a machine.

    Attributes:
        vmlinuz: The kernel, a bzImage.
        initrd: Its first file system; None for a machine that is restored, not booted.
        kernel_arguments: What the kernel's command line says besides what the emulator needs there.
        folder: The start's own folder: disks, console and the emulator's files.
        smp: CPUs.
        memory: MiB.
        interactive: The console is a terminal, not a file.
    """

    vmlinuz: Path
    initrd: Path | None
    kernel_arguments: tuple[str, ...]
    folder: Path
    smp: int = 1
    memory: int = MEMORY
    interactive: bool = False

    @property
    def jobs(self) -> Path:
        """The disk the guest reads."""
        return self.folder / JOBS

    @property
    def results(self) -> Path:
        """The disk the guest writes."""
        return self.folder / RESULTS


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and what it is run with.

    Attributes:
        words: Program and arguments.
        environment: Variables it needs besides those of this process.
        console: The file or terminal that carries the guest's console; None where it is standard input and output.
        interactive: The console is to be a terminal.
        screen: It wants a terminal on its standard output, for a display nobody looks at.
        log: The file in which it says why it ends, or cannot go on; None where it has none.
        given_up: Matches a line of *log* after which nothing sensible comes; its last group is what to show.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    console: Path | None = None
    interactive: bool = False
    screen: bool = False
    log: Path | None = None
    given_up: re.Pattern[str] | None = None

    def shell(self) -> str:
        """As one line for a shell."""
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.words])


class Emulator(Protocol):
    """An emulator of a processor with hardware virtualization."""

    @property
    def name(self) -> str:
        """``"qemu"`` or ``"bochs"``."""

    @property
    def version(self) -> str:
        """What it says of itself."""

    @property
    def cpu(self) -> str:
        """``"amd"`` or ``"intel"``: whose virtualization it emulates."""

    def command(self, boot: Boot) -> Command:
        """The exact command that starts *boot*; nothing is started, nothing written."""

    def files(self, boot: Boot) -> Mapping[Path, bytes]:
        """Small files the command needs besides the kernel, the initrd and the disks."""

    def prepare(self, boot: Boot) -> None:
        """Write :meth:`files`, and make what else the command names.

        Raises:
            MissingError: A program for that is missing or fails.
        """


CPUS = ("amd", "intel")


def emulator(cpu: str, release: str) -> Emulator:
    """The emulator of this host for a vendor's processor.

    Args:
        cpu: ``"amd"`` or ``"intel"``.
        release: Of the kernel that is to boot; the processor's model depends on it.

    Raises:
        UnknownNameError: No such vendor.
        MissingError: The emulator is not on this host.
    """
    from worldswitch.lab import artifacts

    if cpu == "amd":
        from worldswitch.lab.qemu import Qemu

        return Qemu(artifacts.qemu())
    if cpu == "intel":
        from worldswitch.lab.bochs import Bochs, model_for

        return Bochs(artifacts.bochs(), model_for(release))
    raise UnknownNameError("cpu", cpu, CPUS, "The lab emulates amd and intel.")
