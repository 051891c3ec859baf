"""Run programs in a real kernel with real KVM, inside an emulator."""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from worldswitch.errors import MissingError, printable
from worldswitch.lab import artifacts, cache, diskio, initramfs, settings
from worldswitch.lab.artifacts import BuildFiles, KernelFiles
from worldswitch.lab.console import Running
from worldswitch.lab.emulator import MEMORY, Boot, Emulator, emulator
from worldswitch.lab.failures import MachineCrashed, MachineHung, MachineRefused, ResultMissing
from worldswitch.lab.jobs import About, Job, JobResult, Setup, pack, unpack

DEADLINE = {"amd": 120.0, "intel": 300.0}
"""Seconds of wall time after which a machine counts as hung, unless said otherwise."""
PREFIX = "wsw-lab: "
_PANIC = "Kernel panic - not syncing"
_LAST_WORDS = 1.0


@dataclass(frozen=True)
class Machine:
    """A kernel on an emulated processor, with its settings.

    Attributes:
        kernel: What boots.
        cpu: ``"amd"`` or ``"intel"``.
        settings: Module parameters (``tdp_mmu``, ``kvm_intel.ept``, ...) and ``favordynmods``.
        build: KVM's modules in place of the kernel's own.
        smp: CPUs.
        memory: MiB.
        tools: Of :data:`worldswitch.lab.artifacts.TOOLS`, those the guest has besides busybox and Python.
        kit: The field kit, which the guest has as the command ``wsw``.
    """

    kernel: KernelFiles
    cpu: str
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    build: BuildFiles | None = None
    smp: int = 1
    memory: int = MEMORY
    tools: tuple[str, ...] = ()
    kit: initramfs.Kit | None = None


@dataclass(frozen=True)
class Run:
    """What came of the jobs of one start.

    Attributes:
        results: One per job, in order.
        about: What the guest said of itself.
        emulator: Its name and version.
        restored: The machine was restored from a saved state, not booted.
        seconds: Wall time of all.
    """

    results: list[JobResult]
    about: About
    emulator: str
    restored: bool
    seconds: float


Progress = Callable[[str], None]


def _silent(_: str) -> None:
    pass


def run(
    machine: Machine,
    jobs: Sequence[Job],
    *,
    deadline: float | None = None,
    saved: bool = True,
    progress: Progress = _silent,
    through: Emulator | None = None,
) -> Run:
    """Run *jobs*, one after the other, in one start of *machine*.

    Processes and threads may call this at once; each starts a machine of its own.

    Args:
        machine: What to run them in.
        jobs: At least one.
        deadline: Seconds of wall time for all; default by vendor, :data:`DEADLINE`.
        saved: Where the emulator can, restore the machine as it was when first booted, or boot it and save it so.
        progress: Called with a short sentence at each stage.
        through: The emulator; default the one of this host for the vendor.

    Raises:
        MachineError: It gave no results: crashed, hung, refused, or they are missing.
        MissingError: Something is not on this host.
        UsageError: A setting or path makes no sense.
    """
    from worldswitch.lab import snapshot

    begin = time.monotonic()
    chosen = through or emulator(machine.cpu, machine.kernel.release)
    limit = DEADLINE[machine.cpu] if deadline is None else deadline
    start = Start(machine, chosen, limit, begin + limit, progress)
    with work_folder() as folder:
        if saved and isinstance(chosen, snapshot.Saving):
            results, restored = snapshot.run(start, chosen, jobs, folder)
        else:
            results, restored = start.boot(jobs, folder), False
        about, outcomes = results
    seconds = time.monotonic() - begin
    return Run(outcomes, about, f"{chosen.name} {chosen.version}", restored, round(seconds, 3))


Results = tuple[About, list[JobResult]]


@dataclass(frozen=True)
class Start:
    """One start of a machine, with its deadline.

    Attributes:
        limit: Seconds of wall time it has in all.
        until: When they are over, by :func:`time.monotonic`.
    """

    machine: Machine
    emulator: Emulator
    limit: float
    until: float
    progress: Progress = _silent

    def boot(self, jobs: Sequence[Job], folder: Path) -> Results:
        """Boot it and run *jobs*; see :func:`run`."""
        boot, setup = self.files(folder)
        diskio.write_image(boot.jobs, pack(setup, jobs))
        self.emulator.prepare(boot)
        self.progress(f"booting kernel {self.machine.kernel.release} in {self.emulator.name}")
        with Running(self.emulator.command(boot), folder) as running:
            self.wait(running, "running")
            return self.collect(running, boot, len(jobs))

    def files(self, folder: Path, interactive: bool = False) -> tuple[Boot, Setup]:
        """Make in *folder* what a start needs but the first disk, and say what the guest must do before its jobs."""
        machine = self.machine
        _unchanged(machine)
        modules, setup = self.setup()
        initrd = folder / "initrd"
        with initrd.open("wb") as file:
            file.write(initramfs.guest_archive(guest(machine)).read_bytes())
            file.write(modules.archive().pack())
        boot = Boot(machine.kernel.vmlinuz, initrd, (), folder, machine.smp, machine.memory, interactive)
        diskio.empty_image(boot.results, diskio.RESULTS)
        return boot, setup

    def setup(self) -> tuple[initramfs.KernelModules, Setup]:
        """The modules it loads, and with what.

        Raises:
            MissingError: The modules do not fit.
            UsageError: A setting makes no sense.
        """
        machine = self.machine
        modules = initramfs.KernelModules.of(machine.kernel, machine.cpu, machine.build)
        return modules, settings.resolve(machine.settings, modules.loaded).setup(modules.loaded)

    def wait(self, running: Running, word: str, stage: str = "booting") -> None:
        """Follow the console until the guest says *word*.

        Raises:
            MachineError: It fails before.
        """
        for line in running.read_lines(self.until):
            if line.startswith(PREFIX):
                said = line.removeprefix(PREFIX)
                if said == word:
                    return
                if said.startswith("failed"):
                    raise MachineRefused(
                        f"{self.what}: {printable(said.removeprefix('failed '))}", running.lines, stage
                    )
                self.progress(f"{self.what}: {printable(said)}")
            elif _PANIC in line:
                for _ in running.read_lines(min(self.until, time.monotonic() + _LAST_WORDS)):
                    pass
                text = f"{self.what} panicked while {stage}: {printable(line[line.index(_PANIC) :])}"
                raise MachineCrashed(text, running.lines, stage)
        lines = [*running.lines, *(f"{self.emulator.name}: {line}" for line in running.output())]
        if time.monotonic() >= self.until:
            raise MachineHung(
                f"{self.what} was still {stage} after {self.limit:g} s and was ended; a longer deadline helps if it was"
                " only slow", lines, stage,
            )  # fmt: skip
        why = f" ({self.emulator.name}: {printable(running.given_up)})" if running.given_up else ""
        raise MachineCrashed(
            f"{self.what} {running.ending()} while {stage}, without a word from the guest{why}", lines, stage
        )

    def collect(self, running: Running, boot: Boot, count: int) -> Results:
        """Wait for the end of the jobs and read their results.

        Raises:
            MachineError: It fails before, or there are none.
        """
        self.wait(running, "done", "running")
        archive = diskio.read_image(boot.results)
        try:
            if archive is None:
                raise ValueError("the disk holds no whole archive")
            return unpack(archive, count)
        except ValueError as error:
            text = f"{self.what} came to its end, and its results are missing or damaged ({error})"
            raise ResultMissing(text, running.lines, "running") from error

    @property
    def what(self) -> str:
        """The machine, for messages."""
        return f"kernel {printable(self.machine.kernel.release)} on {self.emulator.name} ({self.machine.cpu})"


def _unchanged(machine: Machine) -> None:
    """A kernel with a damaged file would only be seen to hang.

    Raises:
        MissingError: It, or the build, is not as it was stored.
    """
    kernel, build = machine.kernel, machine.build
    cache.unchanged(kernel.vmlinuz, f"`wsw lab fetch {kernel.version}` fetches it again")
    if build:
        again = build.stamp.get("command", f"wsw lab build … --name {build.name}")
        cache.unchanged(build.folder, f"build it again with `{again}`")


def guest(machine: Machine) -> initramfs.Guest:
    """The guest's programs.

    Raises:
        MissingError: They are not fetched.
    """
    tools = {name: artifacts.tool(name) for name in machine.tools}
    return initramfs.Guest(artifacts.userland(), tools, machine.kit)


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for one start, gone afterwards.

    Raises:
        MissingError: The disk is full, or the folder for temporary files cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="wsw-lab-") as name:
            yield Path(name)
    except OSError as error:
        if isinstance(error, MissingError) or error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EACCES,
            errno.EROFS,
        ):
            raise
        raise MissingError(
            f"cannot write what a machine needs to {printable(tempfile.gettempdir())}: {error.strerror}; free some"
            " space or set TMPDIR to a folder that has it"
        ) from error
