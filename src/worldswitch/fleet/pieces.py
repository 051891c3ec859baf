"""Work cut into pieces that depend on nothing but their own items, and that have names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")
_Item_contra = TypeVar("_Item_contra", contravariant=True)
Row = dict[str, Any]
"""What comes of one item: columns by name."""

_MOST_BYTES = 16 << 20
_MOST_ITEMS = 256
_SHARE = 32
"""One in so many items ends a piece by itself."""


class Piece(NamedTuple, Generic[Item]):
    """Items that are worked on together.

    Attributes:
        name: Digest of the work and the items: the same name is the same result.
        items: In order.
    """

    name: str
    items: tuple[Item, ...]


class Work(Protocol[_Item_contra]):
    """What is done with each item, wherever it is done: it travels to workers whole."""

    def rows(self, items: Sequence[_Item_contra]) -> list[Row]:
        """What comes of each of *items*. One that is no good gives a row that says so; nothing is raised for it."""

    def lost(self, item: _Item_contra, why: str) -> Row:
        """The row of an item whose worker did not live through it."""

    def pack(self, rows: Iterable[Row]) -> bytes:
        """The file of a piece."""


class Input(NamedTuple):
    """A file to work on.

    Attributes:
        path: As found.
        size: Bytes; -1 where it is not told.
        tag: What changes if the file does.
    """

    path: str
    size: int
    tag: str


def digest(of: Any) -> str:
    """A name for what JSON can hold of *of*."""
    return blake2b(json.dumps(of, sort_keys=True, ensure_ascii=True).encode(), digest_size=16).hexdigest()


def cut(inputs: Iterable[Input], parameters: Mapping[str, Any]) -> Iterator[Piece[Input]]:
    """Cut *inputs* into pieces of many small files or one large.

    Where a piece ends is decided by the names in it, not by how many came before, so one file more changes one piece.
    """
    items: list[Input] = []
    size = 0
    for one in inputs:
        if items and size + max(one.size, 0) > _MOST_BYTES:
            yield _piece(items, parameters)
            items, size = [], 0
        items.append(one)
        size += max(one.size, 0)
        if len(items) >= _MOST_ITEMS or _ends(one.path):
            yield _piece(items, parameters)
            items, size = [], 0
    if items:
        yield _piece(items, parameters)


def _ends(path: str) -> bool:
    return blake2b(path.encode(errors="surrogateescape"), digest_size=1).digest()[0] % _SHARE == 0


def _piece(items: list[Input], parameters: Mapping[str, Any]) -> Piece[Input]:
    return Piece(digest([dict(parameters), items]), tuple(items))


Say = Callable[[Callable[[], str]], None]
"""Called with what gives a line about how far the work is."""
