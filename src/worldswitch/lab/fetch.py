"""Fetching what the lab needs into its cache: kernels, the guest's userland and tools, emulators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, printable
from worldswitch.lab import artifacts, cache, deb, elf
from worldswitch.lab.apt import SECURITY
from worldswitch.lab.packages import USUAL, KernelPackages, NoSuite, Package, Say, Source, Suite, kernels

USERLAND_SUITE = "trixie"
"""Userland and tools come from one suite, so that they share their libraries."""
QEMU_SUITE = "bookworm"
"""QEMU 7.2: what the lab was tried with."""
BOCHS_SUITE = "trixie"
"""Bochs 3.0: 2.7 is slow, 3.1 dies while it boots kernel 7.2 on tigerlake."""
TOOL_PACKAGES = {
    "perf": ("linux-perf", "usr/bin/perf"),
    "trace-cmd": ("trace-cmd", "usr/bin/trace-cmd"),
    "strace": ("strace", "usr/bin/strace"),
}
"""Tool -> its package, and the program in it."""
EMULATOR_PACKAGES = {
    "qemu": (QEMU_SUITE, ("qemu-system-x86", "seabios", "ipxe-qemu")),
    "bochs": (BOCHS_SUITE, ("bochs", "bochs-term", "bochsbios", "vgabios")),
    "iso": (BOCHS_SUITE, ("xorriso", "isolinux", "syslinux-common")),
}
"""Entry of the cache -> the suite and the packages it is made of."""

_MERGED = ("bin", "lib", "lib64", "sbin")
_UNUSED = re.compile(
    r"usr/share/(doc|doc-base|man|info|locale|lintian|bash-completion|zoneinfo|menu|applications|icons)/"
)


def quiet(_: str) -> None:
    """A :data:`Say` that says nothing."""


def kernel(spec: str, source: Source, say: Say = quiet, *, newest: bool = False) -> artifacts.KernelFiles:
    """The kernel, fetched unless it is there.

    Args:
        spec: ``6.1`` is the newest of that line in the archive; ``6.1.190`` and a release just that one.
        source: Where packages come from.
        say: Takes a line per step.
        newest: Look for a newer one of the line although one is there.

    Raises:
        MissingError: The source does not have it, or it cannot be fetched or stored.
    """
    if not newest and (here := _whole_kernel(spec)):
        say(f"{spec}: {here.version} is there ({here.release})")
        return here
    found = resolve(spec, source)
    there = cache.find("kernels", found.release)
    known = there is not None and there.about["package"] == found.package

    def fill(folder: Path) -> Mapping[str, Any]:
        suite = source.suite(found.suite)
        packages = suite.exact(found.packages)
        _unpack(source, packages, folder, say)
        vmlinuz, modules = _layout(folder, found)
        return {
            "what": f"Linux {found.version}", "version": found.version, "package": found.package, "suite": found.suite,
            "packages": dict(found.packages), "sha256": {p.name: p.sha256 for p in packages},
            "vmlinuz": vmlinuz, "modules": modules,
        }  # fmt: skip

    cache.store("kernels", found.release, fill, anew=not known)
    say(f"{spec}: {found.version} ({found.release})")
    return replace(artifacts.kernel(found.release), spec=spec)


def resolve(spec: str, source: Source) -> KernelPackages:
    """The packages of the kernel *spec* names, the newest of several.

    Raises:
        MissingError: The source has none; the message names what it has.
    """
    known: list[KernelPackages] = []
    unread: list[NoSuite] = []
    for name in _order(spec, source):
        try:
            here = kernels(source.suite(name))
        except NoSuite as error:
            # One suite that is gone must not hide what the others have.
            unread.append(error)
            continue
        known += here
        fitting = [k for k in here if artifacts.names(spec, k.release, k.version)]
        if fitting:
            return max(fitting, key=_newness)
    if unread and not known:
        raise unread[0]
    newest: dict[str, KernelPackages] = {}
    for candidate in sorted(known, key=lambda k: artifacts.version_key(k.version)):
        newest[candidate.version] = candidate
    there = ", ".join(newest) or "no kernel at all"
    also = f"; and one suite could not be read: {unread[0]}" if unread else ""
    raise MissingError(f"{source.description} has no kernel {printable(spec)}; it has {there}{also}")


def _newness(kernel: KernelPackages) -> tuple[object, ...]:
    package_version = kernel.package.partition(" ")[2]
    return artifacts.version_key(kernel.version), _numbers(package_version), _numbers(kernel.release), kernel.release


def userland(source: Source, say: Say = quiet) -> Path:
    """The guest's userland, fetched unless it is there: busybox, and Python with its standard library.

    Raises:
        MissingError: It cannot be fetched or stored.
    """

    def fill(folder: Path) -> Mapping[str, Any]:
        suite = _suite(source, USERLAND_SUITE)
        pythons = sorted({name for name, _ in suite.find(r"python3\.[0-9]+-minimal")}, key=_numbers)
        if not pythons:
            raise MissingError(f"{source.description} has no python3.N-minimal, which the lab's guest needs")
        python = pythons[-1].removesuffix("-minimal")
        packages = suite.closure(["busybox-static", f"{python}-minimal", f"lib{python}-stdlib"])
        _unpack(source, packages, folder, say, merged=True)
        versions = {p.name: p.version for p in packages}
        return {
            "what": f"busybox {versions['busybox-static']}, {python} {versions[f'{python}-minimal']}",
            "python": f"usr/bin/{python}", "packages": versions,
        }  # fmt: skip

    return cache.store("userland", "base", fill).path


def tool(name: str, source: Source, say: Say = quiet) -> Path:
    """A tool for the guest with just the libraries it needs, fetched unless it is there.

    Raises:
        UsageError: There is no such tool.
        MissingError: It cannot be fetched or stored.
    """
    package, program = TOOL_PACKAGES[name]

    def fill(folder: Path) -> Mapping[str, Any]:
        packages = _suite(source, USERLAND_SUITE).closure([package])
        everything = folder / ".everything"
        everything.mkdir()
        _unpack(source, packages, everything, say, merged=True)
        _merge_usr(folder)
        plugins = sorted(str(p.relative_to(everything)) for p in everything.glob("usr/lib/*/traceevent/plugins/*.so"))
        for file in elf.closure(everything, [program, *(plugins if name == "trace-cmd" else [])]):
            _move(everything, folder, file)
        cache.discard(everything)
        versions = {p.name: p.version for p in packages}
        return {"what": f"{name} {versions[package]}", "program": program, "packages": versions}

    return cache.store("tools", name, fill).path


def emulator(name: str, source: Source, say: Say = quiet) -> Path:
    """One of :data:`EMULATOR_PACKAGES` with its libraries, unpacked into the cache unless it is there.

    Raises:
        MissingError: It cannot be fetched or stored.
    """
    suite, wanted = EMULATOR_PACKAGES[name]

    def fill(folder: Path) -> Mapping[str, Any]:
        packages = _suite(source, suite).closure(wanted)
        _unpack(source, packages, folder, say, merged=True)
        versions = {p.name: p.version for p in packages}
        return {"what": ", ".join(f"{n} {versions[n]}" for n in wanted if n in versions), "packages": versions}

    return cache.store("emulators", name, fill).path


def _whole_kernel(spec: str) -> artifacts.KernelFiles | None:
    try:
        here = artifacts.kernel(spec)
    except MissingError:
        return None
    entry = cache.find("kernels", here.release)
    return here if entry and entry.damage(thorough=True) is None else None


def _order(spec: str, source: Source) -> Sequence[str]:
    """The suites to search. The security archive only where one version was asked for: it forgets them soon."""
    suites = source.suites()
    line = re.match(r"v?(\d+\.\d+)", spec)
    usual = USUAL.get(line[1], "") if line else ""
    # Newer lines are in the newer suites.
    ordered = sorted(suites, key=lambda name: (name != usual, -suites.index(name)))
    if re.fullmatch(r"v?\d+\.\d+", spec):
        return ordered
    return [name for base in ordered for name in (base, *((f"{base}-security",) if base in SECURITY else ()))]


def _suite(source: Source, name: str) -> Suite:
    suites = source.suites()
    return source.suite(name if name in suites else suites[0])


def _unpack(source: Source, packages: Sequence[Package], folder: Path, say: Say, *, merged: bool = False) -> None:
    if merged:
        _merge_usr(folder)
    files = source.get(packages, say)
    for file in files:
        deb.unpack(file, folder, lambda name: not _UNUSED.match(name))
    source.drop(packages)


def _merge_usr(folder: Path) -> None:
    """Packages of both layouts, with /lib and with /usr/lib, then fit together."""
    for name in _MERGED:
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")


def _move(source: Path, target: Path, name: str) -> None:
    place = target / name
    place.parent.mkdir(parents=True, exist_ok=True)
    (source / name).rename(place)


def _layout(folder: Path, found: KernelPackages) -> tuple[str, str]:
    """Where the image and the modules lie: up to 6.12 in /boot and /lib, from 7.x on both in /usr/lib/modules."""
    release = found.release
    images = [f"boot/vmlinuz-{release}", f"usr/lib/modules/{release}/vmlinuz", f"lib/modules/{release}/vmlinuz"]
    modules = [f"usr/lib/modules/{release}", f"lib/modules/{release}"]
    image = _present(folder, images)
    below = _present(folder, [f"{name}/kernel" for name in modules])
    if not image or not below:
        raise MissingError(
            f"{found.package} does not hold {'modules' if image else 'a kernel'} where it was looked for"
        )
    return image, below.removesuffix("/kernel")


def _present(folder: Path, names: Iterable[str]) -> str:
    return next((name for name in names if (folder / name).exists()), "")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
