"""An input as a file of this machine, whatever holds it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldswitch.errors import MissingError, TraceFormatError, printable
from worldswitch.fleet.folder import REMOTE, file_system
from worldswitch.fleet.pieces import Input
from worldswitch.units import format_size


def without_path(text: str, path: str, folder: str) -> str:
    """What an error says, without the path it begins with, from *folder* or not: that stands beside it."""
    for where in map(printable, (os.path.join(folder, path), path)):  # noqa: PTH118
        for before in (f"{where}: ", f"{where} "):
            text = text.removeprefix(before)
    return text


@contextmanager
def as_file(one: Input, most: int, folder: str = "") -> Iterator[Path]:
    """The path of *one*, or of a copy of it for as long as it is needed.

    Args:
        one: The input.
        most: The size at which it is too large, bytes.
        folder: Where a relative path begins; a worker may have another folder than who asked.

    Raises:
        MissingError: It is gone, no file, or cannot be read.
        TraceFormatError: It is empty, or too large.
    """
    if REMOTE not in one.path:
        path = os.path.join(folder, one.path)  # noqa: PTH118
        _insist_on_file(path)
        _insist_on_size(one, most)
        yield Path(path)
        return
    _insist_on_size(one, most)
    system, remote = file_system(one.path)
    suffix = "".join(Path(one.path).suffixes[-2:])
    with tempfile.TemporaryDirectory(prefix="wsw-fleet-") as passing:
        copy = Path(passing) / f"input{suffix}"
        try:
            system.get_file(remote, str(copy))
        except OSError as error:
            raise MissingError(f"{printable(one.path)}: {printable(error.strerror or str(error))}") from None
        yield copy


def _insist_on_size(one: Input, most: int) -> None:
    if one.size == 0:
        raise TraceFormatError(f"{printable(one.path)} is empty")
    if one.size > most:
        raise TraceFormatError(
            f"{printable(one.path)} has {format_size(one.size)}, and more than {format_size(most)} are not read here; "
            "raise --largest, or read it alone"
        )


def _insist_on_file(path: str) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError as error:
        raise MissingError(f"{printable(path)}: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        # A FIFO would wait for somebody to write into it.
        raise MissingError(f"{printable(path)} is no file")
