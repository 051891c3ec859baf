"""Bochs: an Intel processor with VMX, EPT, VPID, unrestricted guest and, newer models, CET and protection keys.

Bochs boots no kernel itself, so each start gets a small bootable CD of kernel and first file system. Its clock is its
instruction count. Sources: Bochs' user manual, "The configuration file bochsrc"; isolinux's documentation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worldswitch.errors import MissingError, printable
from worldswitch.lab import artifacts
from worldswitch.lab.artifacts import BochsFiles
from worldswitch.lab.emulator import CONSOLE, Boot, Command

IPS = 50_000_000
"""Instructions in a second of the guest's clock."""
OLDER, NEWER = "corei7_skylake_x", "tigerlake"
"""Processor models. Kernels before 6.12 were seen to fault without end on the newer one, early, over its fast short
REP MOVSB."""
_FIRST_ON_NEWER = (6, 12)

GIVEN_UP = re.compile(r">>PANIC<< (?!.*asked to set dirty on paging leaf entry)(.*)")
"""A panic in its log, of those that are none: a processor model with CET takes a supervisor's write through an entry
without R/W, with CR0.WP clear, for impossible, and then sets D as any other does (3.0, cpu/paging.cc,
update_access_dirty_PAE)."""
RC, START, LOG, ISO = "bochsrc", "bochs.start", "bochs.log", "boot.iso"
KERNEL_ARGUMENTS = (
    "console=ttyS0,115200", "panic=-1", "oops=panic", "nokaslr", "random.trust_cpu=on", "no5lvl", "cryptomgr.notests",
    # CPUID tells a frequency 70 times the one at which Bochs counts.
    f"tsc_early_khz={IPS // 1000}", "quiet",
)  # fmt: skip


def model_for(release: str) -> str:
    """The processor model a kernel of that release boots on."""
    return OLDER if artifacts.version_key(release)[:2] < _FIRST_ON_NEWER else NEWER


@dataclass(frozen=True, slots=True)
class Bochs:
    """Bochs as an emulator of an Intel processor."""

    program: BochsFiles
    model: str = NEWER
    name: str = "bochs"
    cpu: str = "intel"

    @property
    def version(self) -> str:
        """What it says of itself."""
        return self.program.version

    def command(self, boot: Boot) -> Command:
        """All is in ``bochsrc``; the console is a file of the start's folder."""
        words = [*self.program.command, "-q", "-f", str(boot.folder / RC)]
        if self.program.debugger:
            words += ["-rc", str(boot.folder / START)]
        environment = dict(self.program.environment)
        screen = self.program.display == "term"
        if screen:
            environment["TERM"] = "vt100"
        console = boot.folder / CONSOLE
        return Command(
            tuple(words), environment, console, interactive=boot.interactive, screen=screen, log=boot.folder / LOG,
            given_up=GIVEN_UP,
        )  # fmt: skip

    def files(self, boot: Boot) -> Mapping[Path, bytes]:
        """Its configuration, what its debugger does first, and the CD's boot menu.

        Raises:
            MissingError: It has not that many CPUs.
        """
        if self.program.fast and boot.smp > 1:
            raise MissingError(
                f"the Bochs of `wsw lab fetch --fast-bochs` has one CPU, not {boot.smp}; leave --smp out,"
                " or use --cpu amd"
            )
        files = {boot.folder / RC: self._configuration(boot), boot.folder / "isolinux.cfg": _menu(boot)}
        if self.program.debugger:
            files[boot.folder / START] = "c\n"
        return {path: text.encode() for path, text in files.items()}

    def prepare(self, boot: Boot) -> None:
        """Write :meth:`files` and make the CD.

        Raises:
            MissingError: xorriso or isolinux is not there, or fails.
        """
        for path, data in self.files(boot).items():
            path.write_bytes(data)
        _make_iso(boot)

    def _configuration(self, boot: Boot) -> str:
        folder = boot.folder
        mode = "term" if boot.interactive else "file"
        disk = "mode=flat, cylinders=0"
        # Its processors go on, for not each of their panics is one (GIVEN_UP); who waits for the machine ends it.
        processors = ", ".join(f"cpu{i}=report" for i in range(boot.smp))
        return f"""\
config_interface: textconfig
display_library: {self.program.display}
romimage: file={self.program.bios}
vgaromimage: file={self.program.vgabios}
cpu: model={self.model}, count={boot.smp}, ips={IPS}, reset_on_triple_fault=0, ignore_bad_msrs=1
memory: guest={boot.memory}, host={boot.memory}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path={folder / ISO}, status=inserted
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata1-master: type=disk, path={boot.jobs}, {disk}
ata1-slave: type=disk, path={boot.results}, {disk}
boot: cdrom
com1: enabled=1, mode={mode}, dev={folder / CONSOLE}
clock: sync=none, time0=1700000000
log: {folder / LOG}
panic: action=fatal, {processors}
error: action=ignore
info: action=ignore
debug: action=ignore
"""


def _menu(boot: Boot) -> str:
    arguments = " ".join((*KERNEL_ARGUMENTS, *boot.kernel_arguments))
    return f"default lab\nprompt 0\nlabel lab\n kernel /vmlinuz\n initrd /initrd\n append {arguments}\n"


def _make_iso(boot: Boot) -> None:
    tools = artifacts.iso_tools()
    loader = "isolinux/isolinux.bin"
    content = {
        loader: tools.isolinux_bin,
        "isolinux/ldlinux.c32": tools.ldlinux,
        "isolinux/isolinux.cfg": boot.folder / "isolinux.cfg",
        "vmlinuz": boot.vmlinuz,
        "initrd": boot.initrd,
    }
    # Graft points: = separates, \ quotes.
    grafts = [f"{inside}={_quoted(path)}" for inside, path in content.items() if path]
    command = [
        *tools.xorriso.command, "-as", "mkisofs", "-quiet", "-R", "-o", str(boot.folder / ISO),
        "-b", loader, "-c", "isolinux/boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table",
        "-graft-points", *grafts,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise MissingError(f"cannot start {printable(command[0])}: {error.strerror}") from error
    if done.returncode:
        needed = sum(path.stat().st_size for path in content.values() if path)
        if shutil.disk_usage(boot.folder).free < needed:
            raise MissingError(
                f"the disk of {printable(str(boot.folder.parent))} has no {needed >> 20} MiB left for the boot CD; free"
                " some space or set TMPDIR to a folder that has it"
            )
        said = printable(done.stderr.strip().splitlines()[-1]) if done.stderr.strip() else f"status {done.returncode}"
        raise MissingError(f"xorriso could not make the boot CD: {said}")


def _quoted(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace("=", "\\=")
