"""Kernel modules in a folder: their dependencies and parameters, as each module itself names them."""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from worldswitch.errors import MissingError, UnknownNameError, printable

_SECTION = struct.Struct("<IIQQQQ")
_HEADER = struct.Struct("<40xQ10xHHH")
_SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst")


@dataclass(frozen=True, slots=True)
class Module:
    """A module, decompressed.

    Attributes:
        name: With underscores, as the kernel lists it.
        needs: Modules to load before it, in its own order; what is built into the kernel is not among them.
        parameters: Parameters it takes.
        release: The kernel it was built for.
    """

    name: str
    data: bytes
    needs: tuple[str, ...]
    parameters: frozenset[str]
    release: str


def find(folder: Path) -> dict[str, Path]:
    """Name -> file of each module anywhere below *folder*; of two with one name, the one in ``updates``.

    Raises:
        MissingError: *folder* is not there or holds none.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.ko*"), key=lambda p: ("updates" in p.parts, p)):
        stem, dot, rest = path.name.partition(".")
        if dot + rest in _SUFFIXES:
            found[stem.replace("-", "_")] = path
    if not found:
        raise MissingError(
            f"no kernel modules below {printable(str(folder))}; name the folder that holds kernel/arch/x86/kvm"
        )
    return found


def load(path: Path) -> Module:
    """The module in *path*, decompressed.

    Raises:
        MissingError: It cannot be read, or is not a module.
    """
    name = path.name.partition(".")[0].replace("-", "_")
    try:
        data = _plain(path)
        info = _modinfo(data)
    except (OSError, lzma.LZMAError, zlib.error, EOFError, ValueError) as error:
        raise MissingError(
            f"{printable(str(path))} is not a whole kernel module ({error}); fetch its kernel again"
        ) from error
    needs = tuple(n.replace("-", "_") for n in ",".join(info.get("depends", [])).split(",") if n)
    parameters = frozenset(p.partition(":")[0] for key in ("parm", "parmtype") for p in info.get(key, []))
    release = next(iter(info.get("vermagic", [])), "").partition(" ")[0]
    return Module(name, data, needs, parameters, release)


def closure(folder: Path, wanted: Iterable[str], replaced: Mapping[str, Path] | None = None) -> list[Module]:
    """The modules *wanted* and all they need, in an order they can be loaded in.

    Args:
        folder: Where the modules lie.
        wanted: Names, with underscores.
        replaced: Files to take instead of those below *folder*, by name.

    Raises:
        MissingError: One is not below *folder*.
    """
    files = {**find(folder), **(replaced or {})}
    done: dict[str, Module] = {}

    def add(name: str, by: str) -> None:
        if name in done:
            return
        if name not in files:
            raise MissingError(
                f"kernel module {printable(name)}, which {by}, is not below {printable(str(folder))}; "
                "build or fetch the kernel with it as a module"
            )
        module = load(files[name])
        for need in module.needs:
            add(need, f"{name} needs")
        done[name] = module

    for name in wanted:
        add(name, "the lab needs")
    return list(done.values())


def owner(parameter: str, modules: Iterable[Module]) -> str:
    """``module.parameter`` of a parameter named alone or so; of several modules that have it, the first.

    Raises:
        UnknownNameError: No module takes it.
    """
    wanted_module, dot, name = parameter.rpartition(".")
    wanted_module = wanted_module.replace("-", "_")
    taken = [(module.name, p) for module in modules for p in module.parameters]
    for module in modules:
        if name in module.parameters and (not dot or module.name == wanted_module):
            return f"{module.name}.{name}"
    known = [p for _, p in taken] + [f"{m}.{p}" for m, p in taken]
    raise UnknownNameError("module parameter", parameter, known, "This kernel's modules take no such parameter.")


def _plain(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(raw)
    if path.suffix == ".gz":
        return zlib.decompress(raw, wbits=31)
    if path.suffix == ".zst":
        import zstandard

        try:
            return zstandard.ZstdDecompressor().decompressobj().decompress(raw)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
    return raw


def _modinfo(data: bytes) -> dict[str, list[str]]:
    """The ``key=value`` strings of the section .modinfo (include/linux/moduleparam.h; System V gABI, chapter 4)."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit ELF file")
    try:
        start, size, count, names_at = _HEADER.unpack_from(data)
        heads = [_SECTION.unpack_from(data, start + number * size) for number in range(count)]
        names = _content(data, heads[names_at])
    except (struct.error, IndexError) as error:
        raise ValueError("it is cut short") from error
    found: dict[str, list[str]] = {}
    for head in heads:
        if names[head[0] : names.find(b"\0", head[0])] == b".modinfo":
            for text in _content(data, head).split(b"\0"):
                key, _, value = text.decode(errors="replace").partition("=")
                found.setdefault(key, []).append(value)
    if not found:
        raise ValueError("it has no .modinfo")
    return found


def _content(data: bytes, head: tuple[int, ...]) -> bytes:
    offset, size = head[4], head[5]
    if offset + size > len(data):
        raise ValueError("it is cut short")
    return data[offset : offset + size]
