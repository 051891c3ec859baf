"""What builds a kernel's modules: its headers, the distribution's own compiler for it, and KVM's source.

All of it is unpacked into a root folder, and programs run in it with ``chroot``; so the compiler is the one the kernel
was built with, and any x86-64 host will do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, printable
from worldswitch.lab import cache, deb
from worldswitch.lab.packages import KernelPackages, Package, Say, Source

_PROGRAMS = (
    "make", "dash", "bash", "coreutils", "sed", "grep", "findutils", "mawk", "xz-utils", "gzip", "patch", "binutils",
)  # fmt: skip
_LINKS = {"usr/bin/sh": "dash", "usr/bin/awk": "mawk"}
"""Links that packages leave to their installation scripts."""
_UNUSED = ("usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/lib/systemd/")
KVM_SOURCES = (
    "arch/x86/kvm/", "virt/kvm/", "arch/x86/include/asm/kvm", "arch/x86/include/uapi/asm/kvm", "include/linux/kvm",
    "include/uapi/linux/kvm", "include/trace/events/kvm", "include/kvm/",
)  # fmt: skip
"""What of a kernel tree is KVM's; a prefix each."""


@dataclass(frozen=True, slots=True)
class BuildRoot:
    """An unpacked build root.

    Attributes:
        path: The root folder.
        headers: Where in it the kernel's headers lie, to be named to ``make -C``.
        tree: Where in it KVM's sources lie, below the headers that all flavours share.
        packages: Name -> version of every package it is made of.
    """

    path: Path
    headers: str
    tree: str
    packages: Mapping[str, str]


def fetched(kernel: KernelPackages, source: Source, say: Say) -> BuildRoot:
    """The build root of a kernel, fetched unless it is there.

    Raises:
        MissingError: The source lacks a package, or it cannot be fetched or stored.
    """

    def fill(folder: Path) -> Mapping[str, Any]:
        suite = source.suite(kernel.suite)
        version = next(iter(kernel.packages.values()))
        headers = f"linux-headers-{kernel.release}"
        # The headers of some depend on the kernel itself, whose installation needs half a system.
        needed = [n for n in suite.depends(headers, version) if not n.startswith(("linux-image-", "linux-base"))]
        packages = suite.closure([*needed, *_PROGRAMS])
        line = ".".join(kernel.version.partition("-")[0].split(".")[:2])
        own = suite.exact({headers: version, f"linux-source-{line}": version})
        everything = [*packages, *own]
        _unpack(source, everything, folder, say)
        say(f"unpacking KVM's source of {kernel.version}")
        tree = _tree(folder)
        _unpack_source(folder, folder / tree, line)
        for name in ("dev", "tmp", "proc/self"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "dev/null").touch()
        # objtool of 7.x looks there for its stack; where /proc cannot be mounted, any process's does.
        (folder / "proc/self/maps").write_bytes(Path("/proc/self/maps").read_bytes())
        return {
            "what": f"headers, compiler and KVM source of {kernel.version}", "release": kernel.release,
            "headers": f"usr/src/{headers}", "tree": tree, "packages": {p.name: p.version for p in everything},
            "sha256": {p.name: p.sha256 for p in own},
        }  # fmt: skip

    entry = cache.store("buildroots", f"{kernel.release}", fill)
    about = entry.about
    return BuildRoot(entry.path, str(about["headers"]), str(about["tree"]), dict(about["packages"]))


def cloned(root: BuildRoot, folder: Path) -> BuildRoot:
    """A copy of *root* in *folder* that shares its files: to change one, replace it.

    Raises:
        MissingError: It cannot be written.
    """
    with cache.writable():
        shutil.copytree(root.path, folder, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        # 5.10's KVM looks for its own headers below the folder make is called for.
        for name in ("arch/x86/kvm", "virt/kvm"):
            place = folder / root.headers / name
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(f"/{root.tree}/{name}")
    return BuildRoot(folder, root.headers, root.tree, root.packages)


def command(root: Path, arguments: Sequence[str]) -> list[str]:
    """*arguments* as a command that runs in *root*.

    Raises:
        MissingError: This host lets us neither chroot nor make a user namespace.
    """
    tried = []
    for way in _ways(root):
        done = subprocess.run([*way, "true"], capture_output=True, text=True, errors="replace", check=False)
        if not done.returncode:
            return [*way, *arguments]
        tried.append(done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}")
    raise MissingError(
        "modules are built in a root folder of their own, which takes root or user namespaces, and this host allows"
        f" neither ({printable('; '.join(dict.fromkeys(tried)))}); run as root, or allow them with"
        " `sysctl kernel.unprivileged_userns_clone=1`"
    )


def _ways(root: Path) -> list[list[str]]:
    """Ways to run a program in *root* with a /dev/null and a /proc, the one that leaves no trace in it first."""
    script = 'mount --bind /dev/null "$0/dev/null" && mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    ways = []
    if shutil.which("unshare"):
        ways.append(["unshare", *namespaces, "sh", "-c", script, str(root)])
    chroot = shutil.which("chroot")
    if os.geteuid() == 0 and chroot and _made_null(root / "dev/null"):
        ways.append([chroot, str(root)])
    return ways


def _made_null(path: Path) -> bool:
    """Make the device itself, for containers where root may not mount."""
    if path.is_char_device():
        return True
    device = path.with_name("null-device")
    try:
        os.mknod(device, 0o20666, os.makedev(1, 3))
        with device.open("wb") as sink:
            sink.write(b"x")
        device.rename(path)
    except OSError:
        device.unlink(missing_ok=True)
        return False
    return True


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _unpack(source: Source, packages: Sequence[Package], folder: Path, say: Say) -> None:
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")
    for file in source.get(packages, say):
        deb.unpack(file, folder, lambda name: not name.startswith(_UNUSED))
    source.drop(packages)
    for name, target in _LINKS.items():
        if not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target)


def _tree(folder: Path) -> str:
    found = sorted(
        path for path in (folder / "usr/src").glob("linux-headers-*-common*") if (path / "Makefile").exists()
    )
    found = [path for path in found if not path.name.endswith("-rt")]
    if len(found) != 1:
        raise MissingError(
            "the headers packages do not hold one common tree; this kernel's packages are laid out in a new way"
        )
    return str(found[0].relative_to(folder))


def _unpack_source(folder: Path, tree: Path, line: str) -> None:
    archive = folder / f"usr/src/linux-source-{line}.tar.xz"
    try:
        with archive.open("rb") as packed, tarfile.open(fileobj=packed, mode="r|xz") as members:
            for member in members:
                name = member.name.partition("/")[2]
                if not member.isfile() or not name.startswith(KVM_SOURCES):
                    continue
                data = members.extractfile(member)
                target = tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if data is not None:
                    target.write_bytes(data.read())
    except (OSError, tarfile.TarError, EOFError) as error:
        raise MissingError(
            f"cannot read the kernel source {archive.name}: {printable(str(error))}; fetch it again"
        ) from error
    archive.unlink()
    if not (tree / "arch/x86/kvm/x86.c").exists():
        raise MissingError(f"{archive.name} holds no KVM")
