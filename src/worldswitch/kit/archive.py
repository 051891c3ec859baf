"""The kit's one file: modules and images in a zip archive that Python runs. The same contents give the same bytes."""

from __future__ import annotations

import ast
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PACKAGE = "worldswitch"
START = f"{PACKAGE}.kit.__main__"
INDEX = f"{PACKAGE}/kit/images.json"
"""Where the archive says what it holds: a document of ``version`` and ``programs``."""
IMAGES = f"{PACKAGE}/kit/images/"

DOCUMENTS = ("kvm/facts.toml",)
"""What modules of the kit read through :mod:`worldswitch.shipped`, below the folder of the package."""

_SHEBANG = b"#!/usr/bin/env python3\n"
# Read by whatever python3 a host has: an older one must get as far as the sentence.
_MAIN = f"""\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("wsw: the field kit needs python3 3.9 or newer, and %s is %s; name another, such as python3.11\\n"
                     % (sys.executable, ".".join(map(str, sys.version_info[:3]))))
    sys.exit(3)

from {START} import main

sys.exit(main())
"""
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16


def modules(root: Path) -> dict[str, bytes]:
    """Path in the archive -> source, of every module the kit imports, at its head or inside a function.

    Args:
        root: The folder of the package.
    """
    found: dict[str, bytes] = {}
    waiting = [START]
    while waiting:
        name = waiting.pop()
        path = _source(root, name)
        if path is None or (key := path.relative_to(root.parent).as_posix()) in found:
            continue
        found[key] = path.read_bytes()
        waiting.append(name.rpartition(".")[0])
        waiting.extend(imports(ast.parse(found[key])))
    return found


def documents(root: Path) -> dict[str, bytes]:
    """Path in the archive -> JSON, of every one of :data:`DOCUMENTS`.

    Args:
        root: The folder of the package.
    """
    import tomllib

    found = {}
    for name in DOCUMENTS:
        text = (root / name).read_text(encoding="utf-8")
        data = json.dumps(tomllib.loads(text), separators=(",", ":")).encode()
        found[f"{PACKAGE}/{Path(name).with_suffix('.json').as_posix()}"] = data
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """Names the module imports (for ``from a import b`` both a and a.b), but not those only types need."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from imports(ast.Module(node.orelse, []))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node)


def pack(sources: Mapping[str, bytes], images: Mapping[str, bytes], index: Mapping[str, Any]) -> bytes:
    """The archive.

    Args:
        sources: From :func:`modules` and :func:`documents`.
        images: Program, as the command line spells it -> its image.
        index: What :data:`INDEX` says; ``programs`` maps each of *images* to the name of its file and what it is.
    """
    files = dict(sources)
    files["__main__.py"] = _MAIN.encode()
    files[INDEX] = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
    files.update({f"{IMAGES}{index['programs'][name]['file']}": data for name, data in images.items()})
    out = io.BytesIO()
    out.write(_SHEBANG)
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = _REGULAR_FILE
            # An image is compressed already.
            entry.compress_type = zipfile.ZIP_STORED if name.startswith(IMAGES) else zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=9)
    return out.getvalue()


def _source(root: Path, name: str) -> Path | None:
    if name.partition(".")[0] != PACKAGE:
        return None
    path = root.joinpath(*name.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None
