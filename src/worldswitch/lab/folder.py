"""Packages that lie in a folder: for hosts without Debian sources, or without a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from worldswitch.errors import MissingError, printable
from worldswitch.lab import deb
from worldswitch.lab.packages import Package, Say, Suite


@dataclass(frozen=True)
class Folder:
    """A folder of ``.deb`` files, at any depth; it is its own and only suite, and nothing in it is signed."""

    path: Path
    name: str = field(default="folder", init=False)

    @property
    def description(self) -> str:
        return f"the folder {printable(str(self.path))}"

    def suites(self) -> Sequence[str]:
        return (self.name,)

    def suite(self, name: str, *, sources: bool = False) -> Suite:
        return self

    def get(self, packages: Iterable[Package], say: Say) -> list[Path]:
        return [package.path for package in packages if package.path is not None]

    def drop(self, packages: Iterable[Package]) -> None:
        """Nothing: the files are the user's."""

    def find(self, pattern: str) -> list[tuple[str, str]]:
        return [(p.name, p.version) for p, _ in self._known if re.fullmatch(pattern, p.name)]

    def exact(self, wanted: Mapping[str, str]) -> list[Package]:
        return [self._one(name, version) for name, version in wanted.items()]

    def closure(self, names: Sequence[str]) -> list[Package]:
        chosen: dict[str, Package] = {}
        todo = [(name, "") for name in names]
        while todo:
            name, by = todo.pop()
            provider = self._provider(name, by)
            if provider.name in chosen:
                continue
            chosen[provider.name] = provider
            todo += [(self._alternative(group), provider.name) for group in self._needs(provider)]
        return list(chosen.values())

    def depends(self, name: str, version: str) -> list[str]:
        return [self._alternative(group) for group in self._needs(self._one(name, version))]

    def source(self, name: str) -> list[Package]:
        found = sorted([*self.path.rglob(f"{name}_*.orig.tar.*"), *self.path.rglob(f"{name}_*.debian.tar.*")])
        found = [path for path in found if not path.name.endswith(".asc")]
        if not found:
            raise MissingError(f"{self.description} has no source package {name}; put {name}_….orig.tar.xz into it")
        return [Package(name, path.name.split("_")[1].split(".orig")[0], path.name, path=path) for path in found]

    @cached_property
    def _known(self) -> list[tuple[Package, Mapping[str, str]]]:
        found: list[tuple[Package, Mapping[str, str]]] = []
        for path in sorted(self.path.rglob("*.deb")):
            fields = deb.control(path)
            if fields.get("Architecture", "amd64") not in ("amd64", "all"):
                continue
            package = Package(fields.get("Package", ""), fields.get("Version", ""), path.name, path=path)
            found.append((package, fields))
        if not found:
            raise MissingError(f"{self.description} has no .deb packages for amd64")
        return found

    def _one(self, name: str, version: str = "", by: str = "") -> Package:
        fitting = [p for p, _ in self._known if p.name == name and version in ("", p.version)]
        if not fitting:
            needs = f", which {by} needs" if by else ""
            raise MissingError(f"{self.description} has no package {name} {version}".rstrip() + needs)
        return max(fitting, key=lambda p: [int(n) for n in re.findall(r"\d+", p.version)])

    def _provider(self, name: str, by: str) -> Package:
        if any(p.name == name for p, _ in self._known):
            return self._one(name)
        for package, fields in self._known:
            if name in deb.provides(fields):
                return package
        return self._one(name, by=by)

    def _needs(self, package: Package) -> list[list[str]]:
        return deb.relations(next(fields for p, fields in self._known if p == package))

    def _alternative(self, names: list[str]) -> str:
        """The first of *names* the folder has, else the first."""
        there = {p.name for p, _ in self._known} | {n for _, f in self._known for n in deb.provides(f)}
        return next((name for name in names if name in there), names[0])
