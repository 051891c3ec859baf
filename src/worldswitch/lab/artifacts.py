"""What the lab boots and runs: kernels, builds of KVM, emulators and the guest's programs, where they lie on this host.

Nothing here fetches; what is not there is a MissingError with the command that gets it. Emulators on PATH come before
fetched ones, but for the fast Bochs.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.lab import cache

_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio", "usr/lib", "usr/lib64")
TOOLS = ("perf", "trace-cmd", "strace")
"""Programs for the guest that may be fetched besides its userland."""


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """A kernel that can be booted.

    Attributes:
        spec: What was asked for, such as ``"5.10"``.
        version: Upstream version: ``"5.10.223"``, ``"7.3-rc7"``.
        release: What ``uname -r`` says in it: ``"5.10.0-32-cloud-amd64"``.
        vmlinuz: The bzImage.
        modules: The folder of its modules, ``lib/modules/RELEASE``.
        package: Name and version of the package it is from; empty for an own kernel.
    """

    spec: str
    version: str
    release: str
    vmlinuz: Path
    modules: Path
    package: str = ""


@dataclass(frozen=True, slots=True)
class BuildFiles:
    """KVM's modules as ``wsw lab build`` made them.

    Attributes:
        name: As given to ``--name``.
        release: The kernel they load in.
        folder: The folder that holds the modules.
        modules: Module name, with underscores -> its file (``kvm``, ``kvm_intel``, ``kvm_amd``).
        stamp: What they were built from and what was changed; JSON values.
    """

    name: str
    release: str
    folder: Path
    modules: Mapping[str, Path] = field(hash=False)
    stamp: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A program of this host, and how to start it.

    Attributes:
        command: What to put before its arguments: the program, or a loader, its library path and the program.
        version: What it says of itself, or its package's version.
        environment: Variables it needs besides those of this process.
        root: The folder its data lie in: ``/`` or the unpacked packages.
    """

    command: tuple[str, ...]
    version: str
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    root: Path = Path("/")

    @property
    def executable(self) -> Path:
        """The program itself."""
        return Path(self.command[-1])


@dataclass(frozen=True, slots=True)
class QemuFiles(Program):
    """QEMU's x86-64 emulator; ``data`` are its firmware folders, for ``-L``; empty where it finds them itself."""

    data: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class BochsFiles(Program):
    """Bochs, and the ROM images it boots with.

    Attributes:
        bios: The system BIOS.
        vgabios: The VGA BIOS.
        fast: Built without the debugger and with the nogui display.
        debugger: Starts in its debugger's prompt, so that it needs ``-rc FILE`` whose only line is ``c``.
        display: Its ``display_library``.
    """

    bios: Path = Path()
    vgabios: Path = Path()
    fast: bool = False
    debugger: bool = True
    display: str = "term"


@dataclass(frozen=True, slots=True)
class IsoTools:
    """What makes a bootable ISO: xorriso, and isolinux's files."""

    xorriso: Program
    isolinux_bin: Path
    ldlinux: Path


def kernel(spec: str) -> KernelFiles:
    """The newest fetched kernel that *spec* names: ``6.1``, ``6.1.190`` or a release, ``6.1.0-54`` or whole.

    Raises:
        MissingError: None is fetched, or it is damaged.
    """
    fitting = [e for e in cache.entries("kernels") if names(spec, e.name, str(e.about["version"]))]
    if not fitting:
        here = ", ".join(str(e.about["version"]) for e in cache.entries("kernels")) or "none"
        raise MissingError(
            f"no kernel {printable(spec)} is fetched (there: {here}); get it with `wsw lab fetch {printable(spec)}`"
        )
    entry = max(fitting, key=lambda e: version_key(str(e.about["version"])))
    cache.whole(entry, f"`wsw lab fetch {entry.about['version']}` fetches it again")
    about = entry.about
    vmlinuz, modules = entry.path / str(about["vmlinuz"]), entry.path / str(about["modules"])
    return KernelFiles(spec, str(about["version"]), entry.name, vmlinuz, modules, str(about["package"]))


def kernel_for(spec: str, build: BuildFiles | None) -> KernelFiles:
    """The kernel that *build* is for, if *spec* names it; else the one :func:`kernel` finds, such as a newer one.

    Raises:
        MissingError: It is not fetched, or it is damaged.
    """
    if build and names(spec, build.release, str(build.stamp.get("version", ""))):
        return replace(kernel(build.release), spec=spec)
    return kernel(spec)


def own_kernel(vmlinuz: Path, modules: Path) -> KernelFiles:
    """A kernel of one's own: a bzImage, and ``lib/modules/RELEASE`` or the folder given to ``INSTALL_MOD_PATH``.

    Raises:
        MissingError: A file is not there, not a bzImage, or the modules are another kernel's.
    """
    release = release_of(vmlinuz)
    # A folder named otherwise holds them too, if they say they are of this kernel.
    for place in (modules / "lib/modules" / release, modules / release, modules):
        if (place / "kernel").is_dir() and (place.name == release or _module_release(place) == release):
            return KernelFiles(str(vmlinuz), _upstream(release), release, vmlinuz, place)
    if not modules.is_dir():
        raise MissingError(f"no folder {printable(str(modules))} with the modules of {printable(str(vmlinuz))}")
    raise MissingError(
        f"{printable(str(modules))} has no modules of kernel {printable(release)}, which {printable(str(vmlinuz))} is;"
        f" name the folder `make modules_install INSTALL_MOD_PATH=…` wrote, or lib/modules/{printable(release)} in it"
    )


def release_of(vmlinuz: Path) -> str:
    """The release a bzImage says it is (Documentation/arch/x86/boot.rst, kernel_version).

    Raises:
        MissingError: It cannot be read or is not a bzImage.
    """
    try:
        with vmlinuz.open("rb") as source:
            head = source.read(1 << 16)
    except OSError as error:
        raise MissingError(f"cannot read the kernel {printable(str(vmlinuz))}: {error.strerror}") from error
    if len(head) < 0x210 or head[0x202:0x206] != b"HdrS":
        raise MissingError(
            f"{printable(str(vmlinuz))} is not a bzImage; name arch/x86/boot/bzImage or /boot/vmlinuz-…, not vmlinux"
        )
    (offset,) = struct.unpack_from("<H", head, 0x20E)
    text = head[offset + 0x200 :].split(b"\0", 1)[0].decode("ascii", "replace")
    if not offset or not text:
        raise MissingError(f"{printable(str(vmlinuz))} does not say which kernel it is")
    return text.split()[0]


def build(name: str) -> BuildFiles:
    """The build of KVM of that name.

    Raises:
        MissingError: There is none, or it is damaged.
    """
    entry = cache.find("builds", name)
    if entry is None:
        here = ", ".join(e.name for e in cache.entries("builds")) or "none"
        raise MissingError(
            f"no build {printable(name)} (there: {here}); make it with `wsw lab build KERNEL --revert … --name"
            f" {printable(name)}`"
        )
    cache.whole(entry, f"build it again with `{entry.about.get('command', f'wsw lab build … --name {name}')}`")
    modules = {str(module): entry.path / str(file) for module, file in entry.about["modules"].items()}
    return BuildFiles(name, str(entry.about["release"]), entry.path, modules, entry.about)


def userland() -> Path:
    """The root folder of the guest's programs: busybox, Python and their libraries.

    Raises:
        MissingError: It is not fetched, or damaged.
    """
    return _fetched("userland", "base", "the lab's userland", "wsw lab fetch 6.12")


def tool(name: str) -> Path:
    """The root folder of one of :data:`TOOLS`, with its libraries.

    Raises:
        UsageError: There is no such tool.
        MissingError: It is not fetched, or damaged.
    """
    if name not in TOOLS:
        raise UsageError(f"no tool {printable(name)!r} for the guest; there are {', '.join(TOOLS)}")
    return _fetched("tools", name, f"{name} for the guest", f"wsw lab fetch --tool {name}")


def qemu() -> QemuFiles:
    """QEMU for x86-64: that on PATH, else the fetched one.

    Raises:
        MissingError: There is neither.
    """
    if found := shutil.which("qemu-system-x86_64"):
        return QemuFiles((found,), _said((found, "--version"), r"version (\S+)"))
    root = _fetched("emulators", "qemu", "qemu-system-x86_64", "wsw lab fetch --emulators", "qemu-system-x86")
    command = _with_loader(root, root / "usr/bin/qemu-system-x86_64")
    data = tuple(root / "usr/share" / name for name in ("qemu", "seabios"))
    version = _package_version("emulators", "qemu", "qemu-system-x86")
    # The program is not where it was built to look for its modules, and with a loader before it cannot tell.
    environment = {"QEMU_MODULE_DIR": str(root / "usr/lib/x86_64-linux-gnu/qemu")}
    return QemuFiles(command, version, environment, root, tuple(folder for folder in data if folder.is_dir()))


def bochs() -> BochsFiles:
    """Bochs: the fast build, else that on PATH, else the fetched package.

    Raises:
        MissingError: There is none.
    """
    if cache.find("emulators", "bochs-fast"):
        root = _fetched("emulators", "bochs-fast", "the fast Bochs", "wsw lab fetch --fast-bochs")
        version = _package_version("emulators", "bochs-fast", "bochs")
        return BochsFiles(
            (str(root / "bin/bochs"),), version, root=root, bios=root / "share/bochs/BIOS-bochs-latest",
            vgabios=root / "share/vgabios/vgabios.bin", fast=True, debugger=False, display="nogui",
        )  # fmt: skip
    if found := shutil.which("bochs"):
        share = Path("/usr/share")
        bios, vgabios = _first(share / "bochs/BIOS-bochs-latest"), _first(share / "vgabios/vgabios.bin")
        if bios is None or vgabios is None:
            raise MissingError(
                "bochs is installed but its BIOS images are not; install bochsbios and vgabios, or run"
                " `wsw lab fetch --fast-bochs`"
            )
        version = _said((found, "--help"), r"Bochs x86 Emulator (\d\S*)")
        return BochsFiles((found,), version, bios=bios, vgabios=vgabios)
    commands = "wsw lab fetch --fast-bochs` (fast, built in minutes) or `wsw lab fetch --emulators"
    root = _fetched("emulators", "bochs", "Bochs", commands, "bochs")
    plugins = root / "usr/lib/x86_64-linux-gnu/bochs/plugins"
    environment = {"LTDL_LIBRARY_PATH": str(plugins), "BXSHARE": str(root / "usr/share/bochs")}
    return BochsFiles(
        _with_loader(root, root / "usr/bin/bochs-bin", root / "usr/bin/bochs"),
        _package_version("emulators", "bochs", "bochs"), environment, root,
        bios=root / "usr/share/bochs/BIOS-bochs-latest", vgabios=root / "usr/share/vgabios/vgabios.bin",
    )  # fmt: skip


def iso_tools() -> IsoTools:
    """xorriso and isolinux: installed ones, else fetched.

    Raises:
        MissingError: One of them is not there.
    """
    found = shutil.which("xorriso")
    files = _isolinux(Path("/"))
    if found and files:
        return IsoTools(Program((found,), _said((found, "-version"), r"xorriso (\d\S*)")), *files)
    root = _fetched(
        "emulators", "iso", "xorriso and isolinux", "wsw lab fetch --emulators", "xorriso isolinux syslinux-common"
    )
    files = _isolinux(root)
    if files is None:
        raise MissingError(f"{root} has no isolinux.bin; `wsw lab fetch --emulators` fetches it again")
    version = _package_version("emulators", "iso", "xorriso")
    return IsoTools(Program(_with_loader(root, root / "usr/bin/xorriso"), version, root=root), *files)


def names(spec: str, release: str, version: str) -> bool:
    """Whether *spec* names the kernel of that release and upstream version."""
    spec = spec.removeprefix("v")
    if spec in (release, version) or release.startswith(f"{spec}-"):
        return True
    return re.fullmatch(r"\d+\.\d+", spec) is not None and re.match(rf"{re.escape(spec)}[.-]", version) is not None


def version_key(version: str) -> tuple[int, ...]:
    """Sorts upstream versions: ``7.3-rc7`` before ``7.3.0``."""
    plain, _, rc = version.partition("-rc")
    numbers = [int(part) for part in re.findall(r"\d+", plain)[:3]]
    numbers += [0] * (3 - len(numbers))
    return (*numbers, int(rc) if rc.isdigit() else 1 << 30)


def _module_release(folder: Path) -> str:
    """The release that KVM's modules below *folder* are for; empty if it has none."""
    from worldswitch.lab import modules

    try:
        found = modules.find(folder)
        return modules.load(found.get("kvm") or next(iter(found.values()))).release
    except MissingError:
        return ""


def _upstream(release: str) -> str:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:-(rc\d+))?", release)
    if not found:
        return release
    major, minor, patch, rc = found.groups()
    return f"{major}.{minor}-{rc}" if rc else f"{major}.{minor}.{patch or 0}"


def _fetched(kind: str, name: str, what: str, command: str, installable: str = "") -> Path:
    entry = cache.find(kind, name)
    if entry is None:
        also = f", or install the packages {installable}" if installable else ""
        raise MissingError(f"{what} is not there; get it with `{command}`{also}")
    return cache.whole(entry, f"`{command}` fetches it again").path


def _package_version(kind: str, name: str, package: str) -> str:
    entry = cache.find(kind, name)
    packages: Mapping[str, str] = entry.about.get("packages", {}) if entry else {}
    return packages.get(package, "unknown")


def _with_loader(root: Path, *programs: Path) -> tuple[str, ...]:
    """How to start a program of an unpacked root with the root's own libraries."""
    program = _first(*programs)
    loader = _first(root / "usr/lib64/ld-linux-x86-64.so.2", root / "lib64/ld-linux-x86-64.so.2")
    if program is None or loader is None:
        raise MissingError(
            f"{root} lacks {programs[0].name} or its loader; `wsw lab fetch --emulators` fetches it again"
        )
    path = os.pathsep.join(str(root / folder) for folder in _LIBRARIES if (root / folder).is_dir())
    return (str(loader), "--library-path", path, str(program))


def _first(*paths: Path) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _isolinux(root: Path) -> tuple[Path, Path] | None:
    isolinux = _first(root / "usr/lib/ISOLINUX/isolinux.bin", root / "usr/share/syslinux/isolinux.bin")
    ldlinux = _first(root / "usr/lib/syslinux/modules/bios/ldlinux.c32", root / "usr/share/syslinux/ldlinux.c32")
    return (isolinux, ldlinux) if isolinux and ldlinux else None


def _said(command: tuple[str, ...], pattern: str) -> str:
    """The version a program says it has; "unknown" if it says nothing of the kind."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"
