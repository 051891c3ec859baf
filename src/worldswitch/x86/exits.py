"""Exit reasons: numbers to the names KVM prints, and back.

Tables are data (``exits.toml``). A file of the same form adds to them, for a hypervisor or
processor nobody here has heard of: ``ExitTables.load("pvm.toml")``. Sources: Intel SDM volume 3
appendix C, AMD APM volume 2 appendix C, and the kernel headers named in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import get_data
from types import MappingProxyType
from typing import Any

from worldswitch.errors import MissingError, UsageError, printable

ISA_VMX = 1
ISA_SVM = 2

# The tracepoint's exit_reason has 32 bits, also where the processor's has 64: SVM's -1 arrives as 0xffffffff.
_FIELD = 0xFFFFFFFF
_NUMBERED = ("flags", "reasons", "unprinted", "aliases")


@dataclass(frozen=True, slots=True)
class IsaTable:
    """The exit reasons of one instruction-set extension.

    Attributes:
        number: Value of the ``isa`` field of kvm_exit.
        name: Such as ``"VMX"``.
        mask: The bits of a reason that name it.
        names: Number to name.
        numbers: Name to number, aliases included.
        flags: Bit to name, for bits outside the mask.
        source: Where the numbers come from.
    """

    number: int
    name: str
    mask: int
    names: Mapping[int, str]
    numbers: Mapping[str, int]
    flags: Mapping[int, str]
    source: str = ""


@dataclass(frozen=True, slots=True)
class ExitTables:
    """All exit reasons known: per isa number, and those of exits to userspace."""

    isas: Mapping[int, IsaTable]
    userspace: Mapping[int, str]

    @classmethod
    def load(cls, path: str | Path, base: ExitTables | None = None) -> ExitTables:
        """The tables of *base* (default: the built-in ones) with those of the TOML file *path* laid over.

        Raises:
            MissingError: The file cannot be read.
            UsageError: It is not TOML or not of the form of ``exits.toml``; names the line.
        """
        where = printable(str(path))
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{where} is not UTF-8 text, so no table of exit reasons") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise MissingError(f"cannot read {where}: {reason}") from None
        return _parse(text, where, builtin() if base is None else base)


@cache
def builtin() -> ExitTables:
    """The tables that ship."""
    # pkgutil reads through the package's loader as importlib.resources does, without importing zipfile and tempfile.
    text = (get_data("worldswitch.x86", "exits.toml") or b"").decode()
    return _parse(text, "exits.toml", ExitTables(MappingProxyType({}), MappingProxyType({})))


def reason_name(isa: int, reason: int, tables: ExitTables | None = None) -> str:
    """The name of an exit as kvm_exit prints it, such as ``CR_ACCESS`` or ``INVALID_STATE FAILED_VMENTRY``.

    Flags (the bits that do not name the reason) are appended; what no table names is hexadecimal: ``0x23``.
    """
    table = (tables or builtin()).isas.get(isa)
    reason &= _FIELD
    if table is None:
        return f"0x{reason:x}"
    basic = reason & table.mask
    words = [table.names.get(basic, f"0x{basic:x}")]
    rest = reason & ~table.mask
    for bit, name in table.flags.items():
        if rest & bit:
            words.append(name)
            rest &= ~bit
    if rest:
        words.append(f"0x{rest:x}")
    return " ".join(words)


def reason_number(name: str, isa: int | None = None, tables: ExitTables | None = None) -> tuple[int, int] | None:
    """``(isa, reason)`` of a printed name, flags included, or None if no table has it.

    A number (``0x23``), which the kernel prints for a reason it has no name for, needs *isa*.
    """
    known_tables = tables or builtin()
    for table in known_tables.isas.values() if isa is None else _one(known_tables, isa):
        number = table.numbers.get(name)
        if number is None:
            number = _with_flags(name, table, accept_numbers=isa is not None)
        if number is not None:
            return table.number, number
    return None


def known(isa: int, reason: int, tables: ExitTables | None = None) -> bool:
    """Whether the basic reason (flags aside) is in the tables."""
    table = (tables or builtin()).isas.get(isa)
    return table is not None and (reason & _FIELD & table.mask) in table.names


def userspace_reason(reason: int, tables: ExitTables | None = None) -> str:
    """The name of a kvm_userspace_exit reason (``KVM_EXIT_IO``), its number in decimal if unknown."""
    return (tables or builtin()).userspace.get(reason, str(reason))


def isa_name(isa: int, tables: ExitTables | None = None) -> str:
    """``"VMX"``, ``"SVM"``, or ``"isa 7"`` where no table says."""
    table = (tables or builtin()).isas.get(isa)
    return table.name if table else f"isa {isa}"


def _one(tables: ExitTables, isa: int) -> tuple[IsaTable, ...]:
    table = tables.isas.get(isa)
    if table is None:
        return (IsaTable(isa, f"isa {isa}", _FIELD, {}, {}, {}),)
    return (table,)


def _with_flags(name: str, table: IsaTable, *, accept_numbers: bool) -> int | None:
    """The number of ``NAME FLAG FLAG``, hexadecimal words allowed if *accept_numbers*."""
    by_name = {flag: bit for bit, flag in table.flags.items()}
    whole = 0
    for place, word in enumerate(name.split()):
        value = by_name.get(word) if place else table.numbers.get(word)
        if value is None and re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}", word) and (place or accept_numbers):
            value = int(word, 16)
        if value is None:
            return None
        whole |= value
    return whole if name.split() else None


def _parse(text: str, where: str, base: ExitTables) -> ExitTables:
    import tomllib

    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is not a TOML file: {error}") from None
    read = _Reader(text, where)
    read.only(document, ("isa", "userspace"), "the file")
    isas = dict(base.isas)
    for key, entry in read.table(document, "isa").items():
        if not key.isdecimal() or int(key) > _FIELD:
            raise read.wrong(
                f"isa.{key}", f"[isa.{key}]: the part after the point is the number in kvm_exit's isa field"
            )
        isas[int(key)] = _isa(int(key), entry, isas.get(int(key)), read)
    spoken = read.table(document, "userspace")
    read.only(spoken, ("source", "reasons"), "[userspace]")
    userspace = dict(base.userspace) | {n: name for name, n in read.numbers(spoken, "reasons", "userspace").items()}
    return ExitTables(MappingProxyType(isas), MappingProxyType(userspace))


def _isa(number: int, entry: Any, base: IsaTable | None, read: _Reader) -> IsaTable:
    here = f"isa.{number}"
    if not isinstance(entry, dict):
        raise read.wrong(here, f"{here} must be a table")
    read.only(entry, ("name", "mask", "source", *_NUMBERED), f"[{here}]")
    flags, reasons, unprinted, aliases = (read.numbers(entry, part, here) for part in _NUMBERED)
    base = base or IsaTable(number, f"isa {number}", _FIELD, {}, {}, {})
    mask = entry.get("mask", base.mask)
    read.number(mask, "mask")
    named = {n: name for name, n in (unprinted | reasons).items()}
    for name, n in (reasons | unprinted | aliases).items():
        if n & ~mask:
            raise read.wrong(name, f"{name} = {n:#x} has bits outside the mask {mask:#x} of [{here}]")
    for name, bit in flags.items():
        if bit & mask:
            raise read.wrong(name, f"flag {name} = {bit:#x} lies inside the mask {mask:#x} of [{here}]")
    for part in ("name", "source"):
        if not isinstance(entry.get(part, ""), str):
            raise read.wrong(part, f"{part} of [{here}] must be a string")
    return replace(
        base,
        name=entry.get("name", base.name),
        mask=mask,
        source=entry.get("source", base.source),
        names=MappingProxyType(dict(base.names) | named),
        numbers=MappingProxyType(dict(base.numbers) | aliases | unprinted | reasons),
        flags=MappingProxyType(dict(base.flags) | {bit: name for name, bit in flags.items()}),
    )


class _Reader:
    """Checks the shape of a table file and says on which line it is wrong."""

    def __init__(self, text: str, where: str) -> None:
        self._lines = text.splitlines()
        self._where = where

    def wrong(self, key: str, message: str) -> UsageError:
        pattern = re.compile(r"\s*\[?\s*[\"']?" + re.escape(key) + r"[\"']?\s*[\]=.]")
        line = next((n for n, content in enumerate(self._lines, 1) if pattern.match(content)), None)
        place = self._where if line is None else f"{self._where}, line {line}"
        return UsageError(f"{place}: {printable(message)}; the form is that of worldswitch/x86/exits.toml")

    def only(self, entry: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
        for key in entry:
            if key not in allowed:
                raise self.wrong(key, f"{place} has no entry {key!r}, only {', '.join(allowed)}")

    def table(self, entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = entry.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"{key} must be a table")
        return value

    def number(self, value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _FIELD:
            raise self.wrong(key, f"{key} must be a whole number of at most 32 bits")
        return value

    def numbers(self, entry: Mapping[str, Any], part: str, place: str) -> dict[str, int]:
        given = entry.get(part, {})
        if not isinstance(given, dict):
            raise self.wrong(part, f"[{place}.{part}] must be a table of name = number")
        return {name: self.number(value, name) for name, value in given.items()}
