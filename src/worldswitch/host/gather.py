"""Read what the allow-list names from a host's files; what can't be read is said, and never stops the rest."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from worldswitch.host import fs
from worldswitch.host.allowed import ALLOWED, DEVICES, FOLDERS, RELEASE, Allowed
from worldswitch.host.facts import Host, Unreadable

_MOST_MATCHES = 2_000


class _Reading:
    """What was read so far."""

    def __init__(self, files: fs.HostFs) -> None:
        self.fs = files
        self.files: dict[str, str] = {}
        self.devices: dict[str, fs.Device] = {}
        self.folders: dict[str, tuple[str, ...]] = {}
        self.failed: dict[str, str] = {}

    def all(self) -> None:
        """Everything the allow-list names."""
        told = self.fs.told() or {}
        for one in ALLOWED:
            for path in self._paths(one):
                self._file(path, one, told)
        for path in DEVICES:
            try:
                self.devices[path] = self.fs.device(path)
            except fs.NotRead as error:
                self._fail(path, told.get(path, str(error)))
        for folder, known in FOLDERS.items():
            self.folders[folder] = tuple(name for name in self._names(folder, told) if known.fullmatch(name))

    def _paths(self, one: Allowed) -> Iterator[str]:
        release = self.files.get(RELEASE, "").strip()
        pattern = one.pattern
        if "{release}" in pattern:
            if not release or "/" in release or release.startswith("."):
                return
            pattern = pattern.replace("{release}", release)
        yield from self._expand("", pattern.split("/")[1:], one, first=True)

    def _expand(self, before: str, parts: list[str], one: Allowed, *, first: bool) -> Iterator[str]:
        """Paths that fit; ``*`` stands for every name, but the first one only for those that are known."""
        while parts and parts[0] != "*":
            before, parts = f"{before}/{parts[0]}", parts[1:]
        if not parts:
            yield before
            return
        names = [
            name for name in self._names(before, {}) if not (first and one.known and not one.known.fullmatch(name))
        ]
        if len(names) > _MOST_MATCHES:
            self._fail(before, f"{len(names):,} names, of which the first {_MOST_MATCHES:,} were looked at")
        for name in names[:_MOST_MATCHES]:
            yield from self._expand(f"{before}/{name}", parts[1:], one, first=False)

    def _names(self, folder: str, told: dict[str, str]) -> tuple[str, ...]:
        try:
            return self.fs.names(folder)
        except fs.NotRead as error:
            self._fail(folder, told.get(folder, str(error)))
            return ()

    def _file(self, path: str, one: Allowed, told: dict[str, str]) -> None:
        try:
            data = self.fs.read(path, fs.CONFIG_LIMIT if "config" in path else fs.READ_LIMIT)
            text = (_gunzipped(data) if path.endswith(".gz") else data).decode("utf-8", "backslashreplace")
        except fs.NotRead as error:
            self._fail(path, told.get(path, str(error)))
            return
        if one.keep is not None:
            text = one.keep(text)
            if not text.strip() and path.count("/") > 3:
                return  # one of many that match, such as a file of modprobe.d that is not about KVM
        self.files[path] = text

    def _fail(self, path: str, why: str) -> None:
        self.failed.setdefault(path, why)


def _gunzipped(data: bytes) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data  # a snapshot holds what was kept of it, as text
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(data, fs.CONFIG_LIMIT)
    except zlib.error:
        raise fs.NotRead("damaged: it cannot be decompressed") from None
    if inflate.unconsumed_tail:
        raise fs.NotRead(f"larger than {fs.CONFIG_LIMIT:,} bytes when decompressed")
    return text


def gather(files: fs.HostFs) -> Host:
    """What the allow-list names of a host, as far as it could be read."""
    reading = _Reading(files)
    reading.all()
    told = files.told()
    if told is not None:
        # What an earlier reading could not read is still unread, and what it found nothing in is not missing now.
        failed = {path: why for path, why in reading.failed.items() if path in told or why != fs.ABSENT}
        kept = {path: why for path, why in told.items() if path not in reading.files and path not in reading.devices}
        reading.failed = {**failed, **kept}
    unreadable = tuple(Unreadable(path, why) for path, why in sorted(reading.failed.items()))
    return Host(files.name, reading.files, reading.devices, reading.folders, unreadable, files.notes)
