"""The Python the guest gets, made by the guest's own interpreter, which runs this: ``library.py LIBRARY OUT [KIT]``.

Of its standard library only what small programs and the field kit import, so that little is loaded inside an emulator;
all compiled, as ``.pyc`` files that are never checked against a source (PEP 552). The kit keeps its docstrings and
assertions, the standard library does not. Standard library only.
"""

from __future__ import annotations

import ast
import importlib.util
import marshal
import struct
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

KIT = "wsw.pyz"
_UNCHECKED_HASH = struct.pack("<IQ", 1, 0)

ALWAYS = """
    argparse array base64 bisect collections contextlib copy csv ctypes dataclasses datetime encodings enum errno
    fcntl functools gzip hashlib heapq io itertools json math mmap operator os pathlib platform queue random re
    resource runpy select selectors shlex shutil signal socket stat statistics string struct subprocess sys tarfile
    tempfile termios textwrap threading time traceback types typing warnings weakref zipfile zlib
"""
"""Modules any small program may import."""

WITHOUT = """
    asyncio concurrent curses dbm distutils doctest email encodings.mbcs ensurepip html http idlelib lib2to3 logging
    multiprocessing pdb plistlib pydoc readline sqlite3 ssl test tkinter tracemalloc turtle unittest urllib.request
    urllib.error venv webbrowser xml xmlrpc _pydecimal _pyio _strptime _aix_support _osx_support _bz2 _lzma _hashlib
    nturl2path
"""
"""Modules left out although something names them: for other systems, for the network, large and
unlikely, or in need of a library; their importers do without."""

_LEFT_OUT = frozenset(WITHOUT.split())

ENCODINGS = ("aliases", "ascii", "latin_1", "utf_8", "unicode_escape", "cp437")


def select(library: Path, extra: Iterable[str] = ()) -> list[Path]:
    """Paths, relative to *library*, of :data:`ALWAYS` and *extra* modules and of all they import anywhere in them.

    Args:
        library: ``usr/lib/python3.11`` of the guest's root; extension modules lie in its ``lib-dynload``.
        extra: Names of further modules; those that are not there (built in, not standard) are left out.
    """
    found: dict[str, Path | None] = {}
    waiting = [*ALWAYS.split(), *extra, *(f"encodings.{name}" for name in ENCODINGS)]
    while waiting:
        name = waiting.pop()
        if name in found or _left_out(name):
            continue
        found[name] = path = _file(library, name)
        if path and path.suffix == ".py":
            waiting += imported((library / path).read_text("utf-8"), name, path.name == "__init__.py")
            waiting += _parents(name)
    return sorted({path for path in found.values() if path})


def imported(source: str, name: str = "", package: bool = False) -> list[str]:
    """Names of modules that *source* imports anywhere in it; what may be an attribute counts as a module."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names += [alias.name, *_parents(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = name.split(".") if package else name.split(".")[:-1]
                kept = stem[: len(stem) - node.level + 1]
                base = ".".join([*kept, *([base] if base else [])])
            names += [base, *_parents(base), *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def compiled(source: bytes, name: str, optimize: int) -> bytes:
    """The content of a .pyc."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + marshal.dumps(code)


def write_library(library: Path, target: Path, extra: Iterable[str]) -> None:
    """The modules of :func:`select`, compiled, in *target*."""
    for name in select(library, extra):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        data = (library / name).read_bytes()
        if name.suffix == ".py":
            place.with_suffix(".pyc").write_bytes(compiled(data, str(name), 2))
        else:
            place.write_bytes(data)


def write_kit(kit: Path, target: Path) -> set[str]:
    """The kit, compiled, as *target*; returns what its modules import."""
    names: set[str] = set()
    with zipfile.ZipFile(kit) as source, zipfile.ZipFile(target, "w") as sink:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith(".py"):
                names.update(imported(data.decode("utf-8"), name[:-3].replace("/", ".")))
                sink.writestr(zipfile.ZipInfo(name + "c"), compiled(data, name, 0))
            else:
                sink.writestr(zipfile.ZipInfo(name), data)
    return names


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _left_out(name: str) -> bool:
    return not _LEFT_OUT.isdisjoint((name, *_parents(name)))


def _file(library: Path, name: str) -> Path | None:
    place = Path(*name.split("."))
    for path in (place / "__init__.py", place.with_name(place.name + ".py")):
        if (library / path).is_file():
            return path
    if "." not in name:
        for extension in (library / "lib-dynload").glob(f"{name}.*.so"):
            return extension.relative_to(library)
    return None


def main(library: Path, out: Path, *kits: Path) -> None:
    """Write ``lib/`` and, of a kit, ``wsw.pyz`` below *out*."""
    extra: set[str] = set()
    for kit in kits:
        extra |= write_kit(kit, out / KIT)
    write_library(library, out / "lib", extra)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
