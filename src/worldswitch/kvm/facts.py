"""What each kernel's KVM does, as a set of facts.

A kernel here is nothing but a set of fact ids; a version string is a shortcut to one. ``X.Y`` is the newest
version of that stable line that was read for backports, ``X.Y.0`` the mainline release, ``X.Y.Z`` just that
one, and ``6.2.0+cr0-wp-owned-tdp-mmu`` mainline 6.2 with one fact more and one less. The facts are in
``facts.toml``, each with the commit that brought it and where that was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.shipped import shipped

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?:[-~]rc(\d{1,3}))?(?![.\d\w])", re.ASCII)


class Version(NamedTuple):
    """An upstream kernel version; of a release candidate ``patch`` is 0 and ``rc`` its number."""

    major: int
    minor: int
    patch: int
    rc: int = 0

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor: what a stable line is named by."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f"-rc{self.rc}" if self.rc else f".{self.patch}")


@dataclass(frozen=True)
class Fact:
    """One thing KVM does or does not do, and since when. The fields are those of ``facts.toml``."""

    id: str
    sentence: str
    before: str
    default: bool
    since: str = ""
    commit: str = ""
    subject: str = ""
    backports: Mapping[str, str] = field(default_factory=dict, hash=False)
    until: str = ""
    until_commit: str = ""
    until_subject: str = ""
    removed: Mapping[str, str] = field(default_factory=dict, hash=False)
    source: str = ""
    verified: bool = True
    why: str = ""
    proposed: bool = False

    @property
    def statement(self) -> str:
        """Commit, release, what is so and what was so before, in one fixed shape."""
        if not self.since:
            return f"{_capital(self.sentence)}. Without that, {self.before}."
        origin = f"commit {self.commit} " if self.commit else ""
        subject = f'("{self.subject}") ' if self.subject else ""
        return f"Since Linux {origin}{subject}(v{self.since}), {self.sentence}. Before that, {self.before}."

    def holds(self, version: Version) -> tuple[bool, str]:
        """Whether upstream *version* has it, and why, in a few words."""
        line = f"{version.major}.{version.minor}"
        value, origin = self.default, "since before 5.4" if self.default else "not in any kernel known"
        if self.since:
            value, origin = version.line >= _pair(self.since), f"mainline {self.since}"
            if not value:
                origin = f"comes with mainline {self.since}"
        if line in self.backports:
            first = parse_version(self.backports[line])
            if version >= first:
                value, origin = True, f"backported in {first}"
            elif not value:
                origin = f"backported in {first} only"
        if self.until and version.line >= _pair(self.until):
            value, origin = False, f"gone with mainline {self.until}"
        if line in self.removed and version >= parse_version(self.removed[line]):
            value, origin = False, f"taken back in {self.removed[line]}"
        return value, origin


@dataclass(frozen=True)
class Kernel:
    """A kernel as a set of facts.

    Attributes:
        version: The upstream version the set started from.
        facts: The ids of the facts that hold.
        origins: For every fact id, held or not, why.
        changes: What was added (``+id``) or taken away (``-id``) by the request.
        notes: What a reader should know, such as that the version is newer than what was read.
    """

    version: Version
    facts: frozenset[str]
    origins: Mapping[str, str] = field(hash=False, compare=False, repr=False)
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def has(self, fact: str) -> bool:
        """Whether *fact* holds.

        Raises:
            UnknownNameError: There is no such fact.
        """
        if fact not in self.facts and fact not in self.origins:
            raise _unknown_fact(fact)
        return fact in self.facts

    def __str__(self) -> str:
        return str(self.version) + "".join(self.changes)


class Difference(NamedTuple):
    """A fact in which two kernels differ: *gained* if the second has it, else the second lacks it."""

    fact: Fact
    gained: bool


class _Known(NamedTuple):
    lines: Mapping[str, str]
    facts: Mapping[str, Fact]
    debian: Mapping[str, Any]
    parameters: Mapping[str, frozenset[str]]


@cache
def _known() -> _Known:
    document = shipped(__package__, "facts")
    facts = {name: Fact(id=name, **entry) for name, entry in document["facts"].items()}
    names = {module: frozenset(given) for module, given in document["parameters"].items()}
    return _Known(*(MappingProxyType(part) for part in (document["lines"], facts, document["debian"], names)))


def facts() -> Mapping[str, Fact]:
    """All facts by id, in the order of ``facts.toml``."""
    return _known().facts


def lines() -> Mapping[str, str]:
    """The stable lines known: ``X.Y`` to the version that stands for it."""
    return _known().lines


def debian_names() -> Mapping[str, Any]:
    """Debian's ``X.Y.0-N`` names: ``X.Y.0`` to (N to one version, or the first and the last one)."""
    return _known().debian


def parameters() -> Mapping[str, frozenset[str]]:
    """Module to the names of its parameters, over all kernels known."""
    return _known().parameters


def parse_version(text: str) -> Version:
    """The upstream version *text* names: ``6.1.29``, ``6.1``, ``7.3-rc7``, ``v6.4``.

    Raises:
        UsageError: It is not a kernel version.
    """
    found = _VERSION.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{printable(text)!r} is not a kernel version; write X.Y, X.Y.Z or X.Y-rcN, such as 6.1.29")
    major, minor, patch, rc = (int(part or 0) for part in found.groups())
    return Version(major, minor, patch, rc)


def kernel(spec: str) -> Kernel:
    """The kernel *spec* names: a version, then any number of ``+fact`` and ``-fact``.

    Raises:
        UsageError: *spec* does not start with a version, or a change changes nothing.
        UnknownNameError: The version is outside the facts, or a fact does not exist; names the nearest.
    """
    spec = spec.strip()
    found = _VERSION.match(spec)
    if not found:
        raise UnknownNameError("kernel", spec, lines(), "Write a version, such as 6.1, 6.1.29 or 6.2.0+cr0-wp-owned")
    version = _resolve(found[0].removeprefix("v"))
    held: set[str] = set()
    origins: dict[str, str] = {}
    for fact in facts().values():
        value, origins[fact.id] = fact.holds(version)
        if value:
            held.add(fact.id)
    changes = tuple(_changes(spec[found.end() :]))
    for change in changes:
        sign, name = change[0], change[1:]
        if (sign == "+") == (name in held):
            has = "has" if sign == "+" else "lacks"
            raise UsageError(f"{change} changes nothing: {version} {has} {name} already ({origins[name]})")
        held.add(name) if sign == "+" else held.remove(name)
        origins[name] = f"{'added' if sign == '+' else 'taken away'} by {change}"
    return Kernel(version, frozenset(held), MappingProxyType(origins), changes, _notes(version))


def diff(a: Kernel, b: Kernel) -> tuple[Difference, ...]:
    """The facts in which *b* differs from *a*, in the order of ``facts.toml``."""
    return tuple(Difference(fact, fact.id in b.facts) for fact in facts().values() if fact.id in a.facts ^ b.facts)


def _resolve(text: str) -> Version:
    version = parse_version(text)
    oldest, *_, newest = lines()
    if not _pair(oldest) <= version.line <= _pair(newest):
        raise UnknownNameError("kernel", text, (), f"The facts reach from {oldest} to {newest}")
    if text.count(".") > 1 or version.rc:
        return version
    if text not in lines():
        raise UnknownNameError("kernel line", text, lines(), f"Mainline is {text}.0; a stable version is exact too")
    return parse_version(lines()[text])


def _notes(version: Version) -> tuple[str, ...]:
    line = f"{version.major}.{version.minor}"
    if not version.patch:
        return ()
    if line not in lines():
        return (f"what stable {line} took over after {line}.0 is not in the facts, but where a fact says so",)
    if version > parse_version(lines()[line]):
        return (f"newer than {lines()[line]}, the newest {line} that was read for backports",)
    return ()


def _changes(text: str) -> Iterator[str]:
    """``+cr0-wp-owned-tdp-mmu`` as ``+cr0-wp-owned`` and ``-tdp-mmu``; ids hold hyphens, the longest fits."""
    while text:
        if text[0] not in "+-":
            raise UsageError(f"after the version comes +fact or -fact, not {printable(text)!r}")
        rest = text[1:]
        fitting = [name for name in facts() if rest == name or (rest.startswith(name) and rest[len(name)] in "+-")]
        if not fitting:
            raise _unknown_fact(rest.partition("+")[0])
        name = max(fitting, key=len)
        yield text[0] + name
        text = rest[len(name) :]


def _unknown_fact(name: str) -> UnknownNameError:
    return UnknownNameError("fact", name, facts(), "`wsw kernels` lists the facts")


def _pair(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
