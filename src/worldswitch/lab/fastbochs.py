"""A fast Bochs: built from the distribution's source package, unmodified, without the debugger, with no display.

Debian's own package has the debugger built in and runs several times slower.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError
from worldswitch.lab import artifacts, cache, compiling, deb
from worldswitch.lab.fetch import BOCHS_SUITE, quiet
from worldswitch.lab.packages import Say, Source

NAME = "bochs-fast"
CONFIGURE = (
    "CFLAGS=-O2", "CXXFLAGS=-O3", "--with-nogui", "--without-x", "--disable-docbook",
    "--disable-debugger", "--disable-plugins", "--disable-smp", "--enable-all-optimizations", "--enable-trace-linking",
    "--enable-cpu-level=6", "--enable-x86-64", "--enable-vmx=2", "--enable-svm", "--enable-avx", "--enable-evex",
    "--enable-amx", "--enable-cet", "--enable-uintr", "--enable-protection-keys", "--enable-monitor-mwait",
    "--enable-memtype", "--enable-3dnow", "--enable-a20-pin", "--enable-fpu", "--enable-pci", "--enable-cdrom",
)  # fmt: skip
"""What the processor models of 2.7 to 3.0 need, and nothing that costs time per instruction."""
_NEEDED = {"g++": "g++", "make": "make"}
_ROMS = {
    "bochsbios": ("usr/share/bochs/BIOS-bochs-latest", "share/bochs/BIOS-bochs-latest"),
    "vgabios": ("usr/share/vgabios/vgabios.bin", "share/vgabios/vgabios.bin"),
}


def build(source: Source, say: Say = quiet, *, jobs: int = 0) -> artifacts.BochsFiles:
    """The fast Bochs, built unless it is there: about five minutes of one processor.

    Args:
        source: Where its source package and its ROM images' packages come from.
        say: Takes a line per step.
        jobs: Compilers at once; 0 means one per CPU.

    Raises:
        MissingError: A compiler or a package is missing, or the build fails.
    """

    def fill(folder: Path) -> Mapping[str, Any]:
        compiling.require(_NEEDED, "building Bochs")
        suites = source.suites()
        suite = source.suite(BOCHS_SUITE if BOCHS_SUITE in suites else suites[0], sources=True)
        parts = [p for p in suite.source("bochs") if ".orig.tar" in p.file]
        roms = suite.exact(dict.fromkeys(_ROMS, ""))
        if not parts:
            raise MissingError(f"{source.description} has no source of bochs")
        files = source.get([*parts, *roms], say)
        work = folder / ".work"
        work.mkdir()
        log = compiling.log_of(NAME)
        tree = _unpacked(files[0], work)
        say(f"building Bochs {parts[0].version}; this takes minutes")
        compiling.step(["./configure", *CONFIGURE], tree, log, "configuring Bochs")
        compiling.step(["make", f"-j{jobs or compiling.jobs()}"], tree, log, "building Bochs")
        _install(tree, folder)
        for package, file in zip(roms, files[1:], strict=True):
            deb.unpack(file, work)
            inside, outside = _ROMS[package.name]
            (folder / outside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(work / inside, folder / outside)
        cache.discard(work)
        source.drop([*parts, *roms])
        versions = {p.name: p.version for p in (*parts, *roms)}
        return {
            "what": f"Bochs {parts[0].version}, without debugger", "packages": {**versions, "bochs": parts[0].version},
            "sha256": {p.file: p.sha256 for p in (*parts, *roms)}, "configure": list(CONFIGURE),
        }  # fmt: skip

    cache.store("emulators", NAME, fill)
    return artifacts.bochs()


def _unpacked(archive: Path, work: Path) -> Path:
    try:
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(work, filter="data")
            else:  # Python 3.11 before 3.11.4
                packed.extractall(work)
    except (tarfile.TarError, EOFError) as error:
        raise MissingError(f"{archive.name} is damaged ({error}); fetch it again") from error
    trees = [path for path in work.iterdir() if (path / "configure").exists()]
    if len(trees) != 1:
        raise MissingError(f"{archive.name} does not hold one tree with a configure script")
    return trees[0]


def _install(tree: Path, folder: Path) -> None:
    (folder / "bin").mkdir()
    target = folder / "bin/bochs"
    shutil.copyfile(tree / "bochs", target)
    target.chmod(0o755)
