"""QEMU without hardware virtualization (TCG): an AMD processor with SVM and nested paging.

Sources: QEMU's documentation of the options used; target/i386/tcg/sysemu/svm_helper.c for what it emulates (no decode
assists, no nRIP save, so that KVM emulates the instruction it stopped at).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worldswitch.lab.artifacts import QemuFiles
from worldswitch.lab.emulator import Boot, Command
from worldswitch.lab.qmp import Control

MODEL = "EPYC,+svm,+npt"
KERNEL_ARGUMENTS = (
    "console=ttyS0", "panic=-1", "oops=panic", "quiet",
    # What only takes time here: tests of ciphers, of the timer, and moving the kernel about.
    "cryptomgr.notests", "no_timer_check", "nokaslr", "random.trust_cpu=on",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Qemu:
    """QEMU as an emulator of an AMD processor."""

    program: QemuFiles
    name: str = "qemu"
    cpu: str = "amd"
    model: str = MODEL

    @property
    def version(self) -> str:
        """What it says of itself."""
        return self.program.version

    def command(self, boot: Boot) -> Command:
        """No network, no default devices, the console on standard input and output."""
        return Command((*self.program.command, *self.arguments(boot)), self.program.environment)

    def arguments(self, boot: Boot, memory: Path | None = None, shared: bool = False) -> tuple[str, ...]:
        """All arguments.

        Args:
            boot: What to start.
            memory: File that is the guest's memory; None for memory of the process.
            shared: What the guest writes reaches *memory*.
        """
        data = [word for folder in self.program.data for word in ("-L", str(folder))]
        backing: tuple[str, ...] = ()
        machine = "pc"
        if memory:
            machine += ",memory-backend=ram"
            share = "on" if shared else "off"
            backing = (
                "-object",
                f"memory-backend-file,id=ram,size={boot.memory}M,mem-path={_escaped(memory)},share={share}",
            )
        return (
            *data,
            "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot",
            *backing,
            "-machine", machine, "-accel", "tcg,thread=multi", "-cpu", self.model,
            "-m", f"{boot.memory}M", "-smp", str(boot.smp),
            "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
            "-kernel", str(boot.vmlinuz), *(("-initrd", str(boot.initrd)) if boot.initrd else ()),
            "-append", " ".join((*KERNEL_ARGUMENTS, *boot.kernel_arguments)),
            # The image is a copy of this start's own; a PIO disk of QEMU cannot be read-only.
            "-drive", f"file={_escaped(boot.jobs)},format=raw,if=ide,index=2,rerror=report",
            "-drive", f"file={_escaped(boot.results)},format=raw,if=ide,index=3,werror=report,rerror=report",
        )  # fmt: skip

    def saving(self, boot: Boot, memory: Path, control: int) -> Command:
        """As :meth:`command`, its memory a file, steered through the inherited socket *control*."""
        words = (*self.program.command, *self.arguments(boot, memory, shared=True), *_steered(control))
        return Command(words, self.program.environment)

    def restoring(self, boot: Boot, memory: Path, control: int) -> Command:
        """As :meth:`saving`; it waits for its state, and what it writes to memory stays its own."""
        words = (*self.program.command, *self.arguments(boot, memory), *_steered(control), "-incoming", "defer")
        return Command(words, self.program.environment)

    def save(self, channel: socket.socket, state: int, until: float) -> None:
        """Stop the machine and write its state."""
        control = Control(channel)
        control.begin()
        control.save(state, until)

    def restore(self, channel: socket.socket, state: int, until: float) -> None:
        """Load the state and let the machine run."""
        control = Control(channel)
        control.begin()
        control.restore(state, until)

    def files(self, boot: Boot) -> Mapping[Path, bytes]:
        """None: all is in the command."""
        return {}

    def prepare(self, boot: Boot) -> None:
        """Nothing to prepare."""


def _escaped(path: Path) -> str:
    """A path as a value in one of QEMU's option lists, where a comma is written twice."""
    return str(path).replace(",", ",,")


def _steered(control: int) -> tuple[str, ...]:
    return ("-chardev", f"socket,id=control,fd={control}", "-mon", "chardev=control,mode=control")
