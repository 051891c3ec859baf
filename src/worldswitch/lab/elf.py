"""Which shared libraries programs need, as their files say (System V ABI, dynamic section); no loader is run."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from worldswitch.errors import MissingError, printable

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5
FOLDERS = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib")


def needed(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """The loader and the libraries that an x86-64 ELF file names; nothing of a file that is no such thing.

    Raises:
        MissingError: It is an ELF file, and cut short.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None, ()
    try:
        return _needed(data)
    except (struct.error, ValueError) as error:
        raise MissingError(f"{printable(str(path))} is a damaged program; fetch it again") from error


def closure(root: Path, programs: Iterable[str]) -> tuple[str, ...]:
    """*programs* and every loader and library they need, as paths within *root*, each once.

    A library behind a symbolic link is named by the link and by its target; linked folders, such as ``lib64`` where it
    is ``usr/lib64``, are not named: loaders are looked for through them, so whoever copies makes them too.

    Raises:
        MissingError: A program or library is not in *root*.
    """
    done: dict[str, None] = {}
    todo = [(name.lstrip("/"), "") for name in programs]
    while todo:
        name, by = todo.pop()
        if name in done:
            continue
        for step in _links(root, name, by):
            done[step] = None
            last = step
        loader, libraries = needed(root / last)
        if loader:
            todo.append((loader.lstrip("/"), name))
        todo += [(_library(root, library, name), name) for library in libraries]
    return tuple(done)


def _needed(data: bytes) -> tuple[str | None, tuple[str, ...]]:
    header = _HEADER.unpack_from(data)
    start, size, count = header[4], header[8], header[9]
    segments = [_SEGMENT.unpack_from(data, start + size * number) for number in range(count)]
    loader = None
    libraries: list[int] = []
    strings = 0
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind == _PT_INTERP:
            loader = _text(data, offset)
        elif kind == _PT_DYNAMIC:
            for tag, value in _DYNAMIC.iter_unpack(data[offset : offset + length]):
                if tag == _DT_NEEDED:
                    libraries.append(value)
                elif tag == _DT_STRTAB:
                    strings = value
                elif not tag:
                    break
    table = _file_offset(segments, strings) if libraries else 0
    return loader, tuple(_text(data, table + offset) for offset in libraries)


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, virtual, _, length, _, _ in segments:
        if kind == _PT_LOAD and virtual <= address < virtual + length:
            return offset + address - virtual
    raise ValueError("an address outside of the file")


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode("utf-8", "surrogateescape")


def _library(root: Path, name: str, by: str) -> str:
    for folder in FOLDERS:
        if (root / folder / name).exists():
            return f"{folder}/{name}"
    raise MissingError(f"library {printable(name)}, which {printable(by)} needs, is not in {root}; fetch it again")


def _links(root: Path, name: str, by: str) -> list[str]:
    """*name* and what it links to, one step after the other, none of them through a linked folder."""
    steps = [_direct(root, name)]
    while (root / steps[-1]).is_symlink():
        target = (root / steps[-1]).readlink()
        inner = str(target).lstrip("/") if target.is_absolute() else f"{Path(steps[-1]).parent}/{target}"
        steps.append(_direct(root, inner))
        if len(steps) > 40:
            raise MissingError(f"{printable(name)} in {root} links to itself; fetch it again")
    if not (root / steps[-1]).is_file():
        needs = f", which {printable(by)} needs," if by else ""
        raise MissingError(f"{printable(name)}{needs} is not in {root}; fetch it again")
    return steps


def _direct(root: Path, name: str) -> str:
    """The same file's path within *root* with all folders' links followed."""
    path = root / name
    folder = path.parent.resolve()
    inside = root.resolve()
    if not folder.is_relative_to(inside):
        raise MissingError(f"{printable(name)} in {root} leads outside of it; fetch it again")
    return str(folder.relative_to(inside) / path.name)
