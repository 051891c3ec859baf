"""Taking a change out of KVM's source again.

What to remove is described in ``reversals.toml`` by names only; where it is, is found in the unpacked source, and a
place that is not found, or found twice, is an error and not a guess. No kernel code is in this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import get_data
from types import MappingProxyType
from typing import Any, Protocol

from worldswitch.errors import MissingError, UnknownNameError, UsageError, printable
from worldswitch.kvm import facts
from worldswitch.lab import csource
from worldswitch.lab.csource import Span

_HASH = re.compile(r"[0-9a-f]{7,40}")


class Edit(Protocol):
    """One thing to remove."""

    @property
    def what(self) -> str:
        """What it is, for messages."""

    def spans(self, code: str) -> list[Span]:
        """Where it is in a blanked source file."""

    @property
    def optional(self) -> bool:
        """Whether a source without it is fine, and several places too."""


@dataclass(frozen=True, slots=True)
class WithoutBit:
    """Remove a name, and the ``|`` beside it, from the definition of a macro."""

    macro: str
    without: str
    optional: bool = False

    @property
    def what(self) -> str:
        return f"{self.without} in the definition of {self.macro}"

    def spans(self, code: str) -> list[Span]:
        place = csource.macro(code, self.macro)
        if place is None:
            return []
        # Before the first name there is no bar, so the one after it goes.
        gap = r"(?:\s|\\\n)*"
        either = re.compile(rf"{gap}\|{gap}\b{self.without}\b|\b{self.without}\b{gap}\|[ \t]*")
        return [Span(*found.span()) for found in either.finditer(code, place.start, place.end)]


@dataclass(frozen=True, slots=True)
class WithoutIf:
    """Remove an ``if`` and what it guards from a function."""

    function: str
    condition: frozenset[str]
    calls: str
    optional: bool = False

    @property
    def what(self) -> str:
        return f"the if on {' and '.join(sorted(self.condition))} in {self.function}() that calls {self.calls}()"

    def spans(self, code: str) -> list[Span]:
        return [
            found.whole
            for body in csource.functions(code, self.function)
            for found in csource.ifs(code, body)
            if self.condition <= csource.names(found.condition.of(code))
            and self.calls in csource.names(found.body.of(code))
        ]


@dataclass(frozen=True, slots=True)
class WithoutCheck:
    """Remove compile-time checks that name certain things."""

    check: str
    naming: frozenset[str]
    optional: bool = True

    @property
    def what(self) -> str:
        return f"{self.check}() on {' and '.join(sorted(self.naming))}"

    def spans(self, code: str) -> list[Span]:
        return [span for span in csource.calls(code, self.check) if self.naming <= csource.names(span.of(code))]


@dataclass(frozen=True, slots=True)
class Reversal:
    """How to take one fact out."""

    fact: str
    commit: str
    edits: tuple[Edit, ...]


@cache
def reversals() -> Mapping[str, Reversal]:
    """All reversals described, by fact."""
    import tomllib

    document = tomllib.loads((get_data(__package__, "reversals.toml") or b"").decode("utf-8"))
    return MappingProxyType(
        {
            name: Reversal(name, entry["commit"], tuple(_edit(edit) for edit in entry["edits"]))
            for name, entry in document.items()
        }
    )


def named(wanted: str) -> Reversal | None:
    """The reversal of a fact or of a commit (7 to 40 hex digits); None of a commit that is not described.

    Raises:
        UnknownNameError: It is neither a fact nor a commit.
        UsageError: It is a fact whose reversal is not described.
    """
    if wanted in reversals():
        return reversals()[wanted]
    if wanted in facts.facts():
        raise UsageError(
            f"how to take {wanted} out is not described; described are {', '.join(reversals())}. Give the change as"
            " --patch FILE, or its commit with --source DIR, a git tree that has it"
        )
    if not _HASH.fullmatch(wanted.lower()):
        known = [*reversals(), *facts.facts()]
        raise UnknownNameError("fact", wanted, known, "A commit is 7 to 40 hex digits; `wsw kernels` lists the facts")
    for reversal in reversals().values():
        if same_commit(reversal.commit, wanted):
            return reversal
    return None


def same_commit(one: str, other: str) -> bool:
    """Whether two abbreviated hashes can be one commit."""
    length = min(len(one), len(other))
    return one[:length].lower() == other[:length].lower()


def take_out(reversal: Reversal, tree: Path) -> list[str]:
    """Remove a change from KVM's source below *tree*; files are replaced, not written into.

    Returns:
        What was removed, a line each: ``FILE:LINE: what``.

    Raises:
        MissingError: Something to remove is not in the source, or is there more than once; nothing was changed then.
    """
    texts = {path: path.read_text("utf-8", "surrogateescape") for path in _files(tree)}
    done: list[str] = []
    for edit in reversal.edits:
        places = [(path, span) for path, text in texts.items() for span in edit.spans(csource.blanked(text))]
        if len(places) != 1 and not edit.optional:
            count = f"{len(places)} times" if places else "not at all"
            raise MissingError(
                f"cannot take out {reversal.fact} ({reversal.commit}): {edit.what} is in this source {count}, not once;"
                " give the change as --patch FILE"
            )
        for path, span in sorted(places, key=lambda place: -place[1].start):
            line = texts[path].count("\n", 0, span.start + 1) + 1
            done.append(f"{path.relative_to(tree)}:{line}: {edit.what}")
            texts[path] = _without(texts[path], span)
    for path, text in texts.items():
        data = text.encode("utf-8", "surrogateescape")
        if data != path.read_bytes():
            path.unlink()
            path.write_bytes(data)
    return done


def _without(text: str, span: Span) -> str:
    """The line breaks of what is removed stay, so that the compiler's line numbers fit the source as it was."""
    gone = span.of(text)
    if "\\\n" in gone:
        return text[: span.start] + " \\\n" * gone.count("\\\n") + text[span.end :]
    return text[: span.start] + "\n" * gone.count("\n") + text[span.end :]


def _files(tree: Path) -> list[Path]:
    below = [tree / "arch/x86/kvm", tree / "virt/kvm"]
    return sorted(path for folder in below for path in folder.rglob("*.[ch]") if path.is_file())


def _edit(entry: Mapping[str, Any]) -> Edit:
    if "macro" in entry:
        return WithoutBit(entry["macro"], entry["without"])
    if "function" in entry:
        return WithoutIf(entry["function"], frozenset(entry["condition"]), entry["calls"])
    return WithoutCheck(entry["check"], frozenset(entry["naming"]))


def reason_not(fact: str, version: str) -> str | None:
    """Why *fact* cannot be taken out of a kernel: it is not in it; None if it is, or if that version is not known."""
    try:
        kernel = facts.kernel(version)
    except (UnknownNameError, UsageError):
        return None
    if kernel.has(fact):
        return None
    return f"{printable(version)} does not have {fact} ({kernel.origins[fact]}), so there is nothing to take out"
