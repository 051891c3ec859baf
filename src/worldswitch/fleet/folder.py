"""The folder of a run, here or on any file system that fsspec knows: files in it are whole or not there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.record.whole import write_whole

PIECES = "pieces"
REMOTE = "://"


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL such as ``s3://bucket/traces``, and the path in it.

    Raises:
        MissingError: fsspec, or what it needs for this kind of URL, is not installed.
        UsageError: Nobody knows this kind of URL.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingError(f"{printable(url)} needs fsspec: pip install 'worldswitch[fleet]'") from None
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise MissingError(f"{printable(url)}: {printable(str(error))}") from None
    except ValueError as error:
        raise UsageError(f"{printable(url)}: {printable(str(error))}") from None
    return system, str(path)


class Folder:
    """Where a run keeps its pieces and puts its tables.

    Args:
        url: A path, or a URL of fsspec's.
    """

    def __init__(self, url: str) -> None:
        if not url:
            raise UsageError("-o needs the name of a folder")
        self.url = url.rstrip("/") or "/"
        self._system: Any = None
        if REMOTE in url:
            self._system, self._root = file_system(self.url)
        else:
            self._root = self.url

    @contextmanager
    def held(self) -> Iterator[None]:
        """Made if it is not there, swept of what a killed run left half written, and kept from a second run.

        Raises:
            MissingError: It cannot be made or written, or another run has it.
        """
        if self._system is not None:
            yield  # what was written in part is not there, in an object store
            return
        place = Path(self._root)
        try:
            place.mkdir(parents=True, exist_ok=True)
            handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._cannot(error) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MissingError(
                    f"another run is at work in {printable(self.url)}; wait for it, or say -o elsewhere"
                ) from None
            for draft in place.rglob(".*.tmp"):
                with suppress(OSError):
                    draft.unlink()
            yield
        finally:
            os.close(handle)

    def names(self, inside: str) -> set[str]:
        """Names of the files in a folder of it."""
        if self._system is None:
            place = Path(self._root) / inside
            return {one.name for one in os.scandir(place)} if place.is_dir() else set()
        try:
            return {str(one).rpartition("/")[2] for one in self._system.ls(f"{self._root}/{inside}", detail=False)}
        except FileNotFoundError:
            return set()

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None if it is not there."""
        try:
            if self._system is None:
                return (Path(self._root) / name).read_bytes()
            return bytes(self._system.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._cannot(error, name) from None

    def write(self, name: str, data: bytes) -> None:
        """Put *data* there, whole, and so that it stays.

        Raises:
            MissingError: It cannot be written.
        """
        try:
            if self._system is None:
                place = Path(self._root) / name
                place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(place, data)
            else:
                self._system.pipe_file(f"{self._root}/{name}", data)
        except OSError as error:
            raise self._cannot(error, name) from None

    def remove(self, name: str) -> None:
        """Take a file away."""
        with suppress(FileNotFoundError):
            if self._system is None:
                (Path(self._root) / name).unlink()
            else:
                self._system.rm_file(f"{self._root}/{name}")

    def _cannot(self, error: OSError, name: str = "") -> MissingError:
        where = f"{self.url}/{name}" if name else self.url
        return MissingError(
            f"{printable(where)}: {printable(error.strerror or str(error))}; say -o elsewhere, or mend that"
        )
