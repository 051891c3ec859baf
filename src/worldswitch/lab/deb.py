"""Debian binary packages: what one says of itself, and its files (deb(5), deb-control(5)).

Read here and not by dpkg, so that a folder of packages is enough on a host that has no Debian tools.
"""

from __future__ import annotations

import io
import lzma
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from worldswitch.errors import MissingError, printable

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60


def control(package: Path) -> dict[str, str]:
    """The fields of the package's control file; continuation lines are joined by a space.

    Raises:
        MissingError: It is not a Debian package, or a damaged one.
    """
    with _member(package, "control.tar") as archive:
        for member in archive:
            if member.name.removeprefix("./") == "control" and member.isfile():
                source = archive.extractfile(member)
                if source is not None:
                    return parse_stanza(source.read().decode("utf-8", "replace"))
    raise MissingError(f"{printable(str(package))} is not a Debian package: it has no control file")


def parse_stanza(text: str) -> dict[str, str]:
    """``Name: value`` lines; a line that starts with a blank goes on with the value before it."""
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line[:1] in (" ", "\t"):
            if name:
                fields[name] += " " + line.strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields


def relations(fields: Mapping[str, str]) -> list[list[str]]:
    """What Pre-Depends and Depends ask for: for each, the names of which one is enough."""
    both = f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}"
    return [_names(group.replace("|", ",")) for group in both.split(",") if group.strip()]


def provides(fields: Mapping[str, str]) -> list[str]:
    """The names a package stands for besides its own."""
    return _names(fields.get("Provides", ""))


def _names(text: str) -> list[str]:
    parts = (re.match(r"\s*([a-z0-9][a-z0-9+.-]*)", part) for part in text.split(","))
    return [found[1] for found in parts if found]


def unpack(package: Path, into: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Write the package's files below *into*; owners, devices and high mode bits are left out.

    Args:
        package: The ``.deb`` file.
        into: An existing folder; nothing is written outside of it.
        wanted: Says of a path, such as ``"boot/vmlinuz-6.1"``, whether it is.

    Raises:
        MissingError: It is not a Debian package, a damaged one, or one that would write elsewhere.
    """
    with _member(package, "data.tar") as archive:
        for member in archive:
            name = member.name.removeprefix("./").strip("/")
            if name in ("", ".") or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                continue
            if not member.isdir() and not wanted(name):
                continue
            member.name = name
            if member.islnk():
                member.linkname = member.linkname.removeprefix("./").lstrip("/")
            _extract(archive, member, into, package)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path, package: Path) -> None:
    target = into / member.name
    inside = into.resolve()
    for path in (target.parent, into / member.linkname if member.islnk() else target.parent):
        if not path.resolve().is_relative_to(inside):
            raise MissingError(f"{printable(package.name)} would write outside of its folder: {printable(member.name)}")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        target.hardlink_to(into / member.linkname)
    else:
        source = archive.extractfile(member)
        if source is not None:
            with target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        target.chmod(0o755 if member.mode & 0o111 else 0o644)


@contextmanager
def _member(package: Path, prefix: str) -> Iterator[tarfile.TarFile]:
    """The tar archive of that name in the package, whatever compresses it."""
    try:
        with package.open("rb") as source:
            name, data = _find(source, prefix)
            with _decompressed(name, data) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
                yield archive
    except (ValueError, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, KeyError) as error:
        what, why = printable(str(package)), printable(str(error))
        raise MissingError(f"{what} is not a Debian package, or a damaged one ({why}); fetch it again") from error


def _find(source: IO[bytes], prefix: str) -> tuple[str, io.BufferedReader]:
    if source.read(len(_AR_MAGIC)) != _AR_MAGIC:
        raise ValueError("no ar archive")
    while header := source.read(_AR_HEADER):
        if len(header) < _AR_HEADER or header[58:] != b"`\n":
            raise ValueError("it ends early")
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        size = int(header[48:58])
        if name.startswith(prefix):
            return name, io.BufferedReader(_Part(source, size), 1 << 18)
        source.seek(size + size % 2, 1)
    raise ValueError(f"it has no {prefix}")


class _Part(io.RawIOBase):
    """The next *size* bytes of a file."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source, self._left = source, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._source.read(min(len(view), self._left))
        if self._left and not data and len(view) > 0:
            raise EOFError("it ends early")
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _decompressed(name: str, data: io.BufferedReader) -> IO[bytes]:
    suffix = name.rpartition(".")[2]
    if suffix == "xz":
        return lzma.open(data, "rb")
    if suffix == "zst":
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(data)
    if suffix == "gz":
        import gzip

        return gzip.open(data, "rb")  # type: ignore[return-value]
    if suffix == "tar":
        return data
    raise ValueError(f"compressed as {suffix}, which is not known here")
