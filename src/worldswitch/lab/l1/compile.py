"""``compile.py FROM TO``, run by the guest's interpreter: compile a folder, or a zip archive, of Python for it.

Each ``.py`` becomes a ``.pyc`` that is never checked against a source (PEP 552); everything else is copied. A program
keeps its docstrings and assertions, the standard library does not.
"""

from __future__ import annotations

import importlib.util
import marshal
import struct
import sys
import zipfile
from pathlib import Path

_UNCHECKED_HASH = struct.pack("<IQ", 1, 0)


def compiled(source: bytes, name: str, optimize: int) -> bytes:
    """The content of a .pyc."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + marshal.dumps(code)


def library(origin: Path, target: Path) -> None:
    """Compile a folder into another."""
    for path in origin.rglob("*"):
        if path.is_file():
            name = str(path.relative_to(origin))
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                place.with_suffix(".pyc").write_bytes(compiled(path.read_bytes(), name, 2))
            else:
                place.write_bytes(path.read_bytes())


def program(origin: Path, target: Path) -> None:
    """Compile a zip archive into another."""
    with zipfile.ZipFile(origin) as source, zipfile.ZipFile(target, "w") as zipped:
        for name in source.namelist():
            data = source.read(name)
            python = name.endswith(".py")
            place = zipfile.ZipInfo(name + "c" if python else name)
            zipped.writestr(place, compiled(data, name, 0) if python else data)


if __name__ == "__main__":
    here, there = map(Path, sys.argv[1:])
    (library if here.is_dir() else program)(here, there)
