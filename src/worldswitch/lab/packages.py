"""Where packages come from: a mirror through apt, or a folder of ``.deb`` files, behind one Protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from worldswitch.errors import MissingError, printable

Say = Callable[[str], None]
"""Takes one line on what is being done; the library does not print."""

SUITES = ("bullseye", "bookworm", "trixie", "sid", "experimental")
"""Debian's suites, oldest first; each has kernels of one line."""
USUAL = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie"}
"""Where a stable line is looked for first; a hint that saves downloading the other suites' indexes."""


class NoSuite(MissingError):
    """The mirror answers, and does not have the suite."""


class Package(NamedTuple):
    """A package's file: to download from *url*, or lying at *path* already. *sha256* is from the signed index."""

    name: str
    version: str
    file: str
    url: str = ""
    sha256: str = ""
    size: int = 0
    path: Path | None = None


class Suite(Protocol):
    """One consistent set of packages."""

    @property
    def name(self) -> str:
        """Its name, such as ``"trixie"``."""

    def find(self, pattern: str) -> list[tuple[str, str]]:
        """(name, version) of all packages whose whole name matches the regular expression; all versions."""

    def exact(self, wanted: Mapping[str, str]) -> list[Package]:
        """The packages of those names, in those versions; an empty version means the newest."""

    def closure(self, names: Sequence[str]) -> list[Package]:
        """The packages and all they depend on, without recommended ones."""

    def depends(self, name: str, version: str) -> list[str]:
        """The names a package depends on; of alternatives, the first."""

    def source(self, name: str) -> list[Package]:
        """The files of a source package, but for its ``.dsc``."""


class Source(Protocol):
    """A mirror or a folder."""

    @property
    def description(self) -> str:
        """What it is, for messages."""

    def suites(self) -> Sequence[str]:
        """The names of its suites, in the order to search."""

    def suite(self, name: str, *, sources: bool = False) -> Suite:
        """One suite, its indexes refreshed; with those of source packages if asked."""

    def get(self, packages: Iterable[Package], say: Say) -> list[Path]:
        """The packages' files, in that order, downloaded where needed and verified."""

    def drop(self, packages: Iterable[Package]) -> None:
        """Forget downloaded files that were unpacked."""


class KernelPackages(NamedTuple):
    """A kernel in a suite: what must be unpacked to boot it."""

    release: str
    version: str
    suite: str
    packages: Mapping[str, str]

    @property
    def package(self) -> str:
        """Name and version of the package with its image."""
        name, version = next(iter(self.packages.items()))
        return f"{name} {version}"


_IMAGE = re.compile(r"linux-(image|binary)-(\d.*?-cloud-amd64)(-unsigned)?")
KERNEL_PATTERN = r"linux-(image|binary|modules)-[0-9].*-cloud-amd64(-unsigned)?"


def upstream(version: str) -> str:
    """The upstream kernel version of a package version: ``7.3~rc7-1~exp1`` is ``7.3-rc7``."""
    plain = version.partition(":")[2] or version
    found = re.match(r"(\d+\.\d+(?:\.\d+)?)(?:~(rc\d+))?", plain)
    if not found:
        return plain
    return f"{found[1]}-{found[2]}" if found[2] else found[1]


def kernels(suite: Suite) -> list[KernelPackages]:
    """All kernels of a suite, in no order. Where a release has several packages with its image, one is chosen."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name, version in suite.find(KERNEL_PATTERN):
        found.setdefault((version, _release(name)), {})[name] = version
    known = []
    for (version, release), packages in found.items():
        if chosen := _chosen(release, packages):
            known.append(KernelPackages(release, upstream(version), suite.name, chosen))
    return known


def _release(name: str) -> str:
    image = _IMAGE.fullmatch(name)
    return image[2] if image else name.removeprefix("linux-modules-")


def _chosen(release: str, packages: Mapping[str, str]) -> dict[str, str]:
    """From 7.x on, linux-image is empty and depends on linux-binary and linux-modules."""
    if f"linux-binary-{release}" in packages and f"linux-modules-{release}" in packages:
        return {name: packages[name] for name in (f"linux-binary-{release}", f"linux-modules-{release}")}
    for name in (f"linux-image-{release}", f"linux-image-{release}-unsigned"):
        if name in packages and f"linux-modules-{release}" not in packages:
            return {name: packages[name]}
    return {}


def missing_suite(name: str, where: str, known: Iterable[str]) -> NoSuite:
    """The error of a suite a source does not have."""
    return NoSuite(f"{where} has no suite {printable(name)}; it has {', '.join(known) or 'none'}")
