"""Runs pieces and keeps what is finished: what was kept before is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from worldswitch.errors import UsageError, printable
from worldswitch.fleet.folder import PIECES, Folder
from worldswitch.fleet.pieces import Item, Piece, Say, Work

FORMAT = "worldswitch-fleet"
VERSION = 1
"""Raised when the files of a run mean something else than before, or are made otherwise."""
MANIFEST = "manifest.json"
SUFFIX = ".parquet"


class Pool(Protocol):
    """What does the work."""

    def results(self, work: Work[Item], pieces: Sequence[Piece[Item]]) -> Iterator[tuple[Piece[Item], bytes]]:
        """The file of each piece, in any order.

        Raises:
            MissingError: The workers are gone.
        """


class Here:
    """Does the work in this process, one piece after the other."""

    def results(self, work: Work[Item], pieces: Sequence[Piece[Item]]) -> Iterator[tuple[Piece[Item], bytes]]:
        """See :class:`Pool`."""
        for piece in pieces:
            yield piece, work.pack(work.rows(piece.items))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is of.

    Attributes:
        verb: ``analyze``, ``sweep``, ``doctor``.
        parameters: What decides results, besides the items; JSON.
        pieces: All of them, each with the place of its file under the folder.
    """

    verb: str
    parameters: Mapping[str, Any]
    pieces: Sequence[tuple[str, Piece[Any]]]

    def manifest(self, complete: bool) -> bytes:
        """The document that says what the folder holds, or is to hold."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "verb": self.verb,
            "parameters": dict(self.parameters),
            "complete": complete,
            "items": sum(len(piece.items) for _, piece in self.pieces),
            "pieces": [{"file": file, "items": len(piece.items)} for file, piece in self.pieces],
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def place_of(piece: Piece[Any]) -> str:
    """The file of a piece that belongs to no partition."""
    return f"{PIECES}/{piece.name}{SUFFIX}"


def kept(plan: Plan, folder: Folder) -> set[str]:
    """The files of *plan* that are there already.

    Raises:
        UsageError: The folder holds a run of something else.
    """
    _insist_on_same(plan, folder)
    found: set[str] = set()
    for inside in sorted({file.rpartition("/")[0] for file, _ in plan.pieces}):
        found |= {f"{inside}/{name}" for name in folder.names(inside)}
    return found & {file for file, _ in plan.pieces}


def run(plan: Plan, work: Work[Any], folder: Folder, pool: Pool, say: Say, again: Sequence[str] = ()) -> int:
    """Do what is left of *plan*; how many pieces that were.

    Args:
        plan: What to do.
        work: How.
        folder: Where to; held by the caller.
        pool: Who does it.
        say: Told how far it is.
        again: Files to make anew though they are there.

    Raises:
        UsageError: The folder holds a run of something else.
        MissingError: The workers are gone, or the folder cannot be written. What is finished stays.
    """
    have = kept(plan, folder) - set(again)
    folder.write(MANIFEST, plan.manifest(complete=False))
    todo = {piece.name: (file, piece) for file, piece in plan.pieces if file not in have}
    meter = _Meter(len(plan.pieces), len(have), sum(len(piece.items) for _, piece in todo.values()))
    for piece, data in pool.results(work, [piece for _, piece in todo.values()]):
        folder.write(todo[piece.name][0], data)
        meter.add(len(piece.items))
        say(meter.text)
    return len(todo)


def close(plan: Plan, folder: Folder) -> None:
    """Say that everything is there, and take away what an earlier run with other inputs left."""
    mine = {file for file, _ in plan.pieces}
    if any(file.startswith(f"{PIECES}/") for file in mine):
        for name in sorted(folder.names(PIECES)):
            if f"{PIECES}/{name}" not in mine:
                folder.remove(f"{PIECES}/{name}")
    folder.write(MANIFEST, plan.manifest(complete=True))


def _insist_on_same(plan: Plan, folder: Folder) -> None:
    data = folder.read(MANIFEST)
    if data is None:
        return
    where = printable(folder.url)
    try:
        before = json.loads(data)
        same = before["format"] == FORMAT
    except (ValueError, TypeError, KeyError):
        same = False
    if not same:
        raise UsageError(f"{where}/{MANIFEST} is not of wsw fleet; say -o elsewhere")
    if before.get("version") != VERSION:
        raise UsageError(
            f"{where} was begun by another version of wsw fleet ({before.get('version')}); say -o elsewhere"
        )
    if before.get("verb") != plan.verb:
        raise UsageError(f"{where} holds a wsw fleet {printable(str(before.get('verb')))}; say -o elsewhere")
    asked = json.loads(json.dumps(dict(plan.parameters)))
    if before.get("parameters") != asked:
        had = before.get("parameters")
        names = (
            sorted(name for name in {*asked, *had} if asked.get(name) != had.get(name)) if isinstance(had, dict) else []
        )
        differ = f" ({printable(', '.join(names))} differ)" if names else ""
        raise UsageError(
            f"{where} holds a run that was asked for otherwise{differ}; ask the same to go on, or say -o elsewhere"
        )


class _Meter:
    """How far it is, how fast, and how long it will take."""

    def __init__(self, pieces: int, done: int, items: int) -> None:
        self._pieces, self._done, self._left = pieces, done, items
        self._seen = 0
        self._start = time.monotonic()

    def add(self, items: int) -> None:
        self._done += 1
        self._seen += items
        self._left -= items

    def text(self) -> str:
        seconds = time.monotonic() - self._start
        rate = self._seen / seconds if seconds else 0.0
        left = f", {_clock(self._left / rate)} left" if rate else ""
        return f"{self._done:,} of {self._pieces:,} pieces, {rate:,.0f} a second{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
