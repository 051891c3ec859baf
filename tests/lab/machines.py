"""A stand-in for an emulator: a small script that prints, writes results and ends as it is told."""

from __future__ import annotations

import io
import re
import socket
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worldswitch.lab.artifacts import KernelFiles
from worldswitch.lab.emulator import Boot, Command

SCRIPT = """
import sys, time
from pathlib import Path
results, archive, *steps = sys.argv[1:]
for step in steps:
    word, _, rest = step.partition(" ")
    if word == "say":
        print(rest, flush=True)
    elif word == "read":
        print("read", sys.stdin.readline().strip(), flush=True)
    elif word == "write":
        with open(results, "r+b") as disk:
            data = Path(archive).read_bytes()
            disk.seek(512)
            disk.write(data)
            disk.seek(0)
            disk.write(b"wsw-disk" + len(data).to_bytes(8, "little"))
    elif word == "sleep":
        time.sleep(float(rest))
    elif word == "exit":
        sys.exit(int(rest))
    elif word == "log":
        with Path(archive).with_name("log").open("a") as log:
            log.write(rest + "\\n")
    elif word == "complain":
        print(rest, file=sys.stderr, flush=True)
"""
GIVEN_UP = re.compile(r">>PANIC<< (?!nothing)(.*)")
MARK = "wsw-test-emulator"
"""Word in the command lines of stand-ins, by which a test finds them in the process table."""


def results(jobs: int = 1, status: int = 0, files: Mapping[str, bytes] | None = None) -> bytes:
    """The archive a guest leaves."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

        add("about/release", b"6.99.0\n")
        add("about/version", b"#1 SMP\n")
        add("about/cmdline", b"console=ttyS0\n")
        add("about/parameters", b"/sys/module/kvm/parameters/tdp_mmu:Y\n/sys/module/kvm_amd/parameters/npt:1\n")
        for number in range(jobs):
            here = f"out/jobs/{number}"
            add(f"{here}/status", f"{status}\n".encode())
            add(f"{here}/seconds", b"1.25 3.75\n")
            add(f"{here}/stdout", b"hello\n")
            add(f"{here}/stderr", b"")
            for name, data in (files or {}).items():
                add(f"{here}/files/{name}", data)
    return sink.getvalue()


GOOD = ("say wsw-lab: ready", "say wsw-lab: running", "write", "say wsw-lab: done", "sleep 60")


@dataclass(frozen=True)
class Stand:
    """The stand-in, as an emulator."""

    steps: tuple[str, ...] = GOOD
    archive: bytes = field(default_factory=results)
    mark: str = MARK
    name: str = "stand"
    version: str = "1"
    cpu: str = "amd"

    def command(self, boot: Boot) -> Command:
        script = (sys.executable, "-c", SCRIPT)
        words = (*script, str(boot.results), str(boot.folder / "archive"), *self.steps, f"say {self.mark}")
        return Command(words, log=boot.folder / "log", given_up=GIVEN_UP)

    def files(self, boot: Boot) -> Mapping[Path, bytes]:
        return {boot.folder / "archive": self.archive}

    def prepare(self, boot: Boot) -> None:
        for path, data in self.files(boot).items():
            path.write_bytes(data)


@dataclass(frozen=True)
class SavingStand(Stand):
    """The stand-in, as one whose machines can be saved: the state is a line of text."""

    restored: tuple[str, ...] = ("read", *GOOD[1:])
    state: bytes = b"as saved\n"

    def saving(self, boot: Boot, memory: Path, control: int) -> Command:
        return self.command(boot)

    def restoring(self, boot: Boot, memory: Path, control: int) -> Command:
        self.prepare(boot)
        return Stand(self.restored, self.archive, self.mark).command(boot)

    def save(self, channel: socket.socket, state: int, until: float) -> None:
        import os

        os.write(state, self.state)

    def restore(self, channel: socket.socket, state: int, until: float) -> None:
        import os

        from worldswitch.lab.qmp import QmpError

        if os.read(state, 100) != b"as saved\n":
            raise QmpError("no such state")


def kernel(folder: Path, *, vermagic: str = "6.99.0") -> KernelFiles:
    """A kernel's files, with modules that say what they need and take, and nothing else."""
    modules = folder / "lib/modules/6.99.0/kernel/arch/x86/kvm"
    modules.mkdir(parents=True)
    taken = {
        "irqbypass": ("", ()),
        "kvm": ("irqbypass", ("tdp_mmu", "nx_huge_pages")),
        "kvm-amd": ("kvm", ("npt",)),
        "kvm-intel": ("kvm", ("ept",)),
    }
    for name, (depends, parameters) in taken.items():
        (modules / f"{name}.ko").write_bytes(module(depends, parameters, vermagic))
    image = folder / "vmlinuz"
    image.write_bytes(b"no kernel at all")
    return KernelFiles("6.99", "6.99.0", "6.99.0", image, folder / "lib/modules/6.99.0")


def module(depends: str, parameters: tuple[str, ...] = (), vermagic: str = "6.99.0") -> bytes:
    """An ELF file with the .modinfo of a module (System V gABI, chapter 4)."""
    import struct

    lines = [f"depends={depends}", f"vermagic={vermagic} SMP mod_unload ", *(f"parmtype={p}:bool" for p in parameters)]
    modinfo = b"".join(line.encode() + b"\0" for line in lines)
    names = b"\0.modinfo\0.shstrtab\0"
    at = 64 + len(modinfo) + len(names)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 3, 2)
    sections = (
        struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, len(modinfo), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, 64 + len(modinfo), len(names), 0, 0, 1, 0),
    )
    return header + modinfo + names + b"".join(sections)
