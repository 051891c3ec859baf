"""Files written whole or not at all. Standard library only, Python 3.9."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write *data* to *path*, through links: an interrupted or failed write leaves what was there before.

    Into a terminal, a pipe or a device it is written as it is: there is nothing to replace.

    Raises:
        OSError: It cannot be written there, or is a loop of links (on older Pythons a RuntimeError).
        ValueError: There is a NUL in the name.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            out.write(data)
        return
    # Hidden, in the same folder as a rename must be, and of this process alone.
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as out:
            if target.exists():
                os.fchmod(out.fileno(), stat.S_IMODE(target.stat().st_mode))
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Make the new name last; a file system that cannot is no reason to fail."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
