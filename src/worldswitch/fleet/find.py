"""The files that paths, folders, patterns and URLs name, each once, in one order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from worldswitch.errors import MissingError, printable
from worldswitch.fleet.folder import REMOTE, file_system
from worldswitch.fleet.pieces import Input

_MAGIC = frozenset("*?[")
_SAVED = "meta.json"
"""A folder that has it is a saved trace, and one input."""


def find(words: Iterable[str]) -> list[Input]:
    """What *words* name, by path; the content of folders, and of theirs.

    Hidden files are left out, as the shell does. A pattern may have ``**``.

    Raises:
        MissingError: A word names nothing.
    """
    found: dict[str, Input] = {}
    for word in words:
        here = list(_remote(word) if REMOTE in word else _local(word))
        if not here:
            what = "no file is in it" if os.path.isdir(word) else "no such file, folder or pattern"  # noqa: PTH112
            raise MissingError(f"{printable(word)}: {what}")
        for one in here:
            found[one.path] = one
    return [found[path] for path in sorted(found)]


def _local(word: str) -> Iterator[Input]:
    if _MAGIC & set(word) and not os.path.lexists(word):
        for name in glob.iglob(word, recursive=True):  # noqa: PTH207 - of a word as typed
            yield from _under(name)
    elif os.path.lexists(word):
        yield from _under(word)


def _under(name: str) -> Iterator[Input]:
    place = Path(name)
    if not place.is_dir() or (place / _SAVED).exists():
        yield _input(name)
        return
    with os.scandir(name) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if not entry.name.startswith("."):
                yield from _under(entry.path)


def _input(name: str) -> Input:
    """A file, or something that will be said to be none when it is its turn."""
    name = os.path.normpath(name)
    try:
        state = os.stat(name)  # noqa: PTH116
    except OSError:
        return Input(name, -1, "")
    return Input(name, state.st_size, str(state.st_mtime_ns))


def _remote(url: str) -> Iterator[Input]:
    system, path = file_system(url)
    scheme = url.partition(REMOTE)[0]
    try:
        if _MAGIC & set(path):
            found = system.glob(path, detail=True)
        elif system.isdir(path):
            found = system.find(path, detail=True)
        else:
            found = {path: system.info(path)} if system.exists(path) else {}
    except OSError as error:
        raise MissingError(f"{printable(url)}: {printable(str(error))}") from None
    for name, told in found.items():
        if told.get("type") != "directory":
            tag = next((str(told[key]) for key in ("ETag", "etag", "md5Hash", "mtime", "created") if told.get(key)), "")
            yield Input(
                f"{scheme}{REMOTE}{name.lstrip('/') if scheme != 'file' else name}", int(told.get("size") or 0), tag
            )
