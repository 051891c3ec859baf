# cython: boundscheck=False
"""Counting by key: a compiled hash table of (a, b, c) -> how often, and how much in all."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from worldswitch.purepython import views

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIMIT = 1 << 21
"""Keys a tally holds; what comes after is added up in one row without a key, so memory stays bounded."""

# Odd constants of splitmix64 and xxHash, which spread close keys over the table.
_MIX_B, _MIX_C, _MIX, _ALL = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xBF58476D1CE4E5B9, 0xFFFFFFFFFFFFFFFF


Key: TypeAlias = "NDArray[Any]"


class Tally:
    """Counts and sums by a key of three u64.

    Attributes:
        dropped: Additions after :data:`LIMIT` different keys, which were counted under no key.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._table = np.zeros(1 << 10, np.int64)
        self._keys = np.zeros((1 << 9, 3), np.uint64)
        self._sums = np.zeros((1 << 9, 4), np.int64)
        self._used = np.zeros(2, np.int64)
        self._zeros = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return int(self._used[0])

    @property
    def dropped(self) -> int:
        return int(self._used[1])

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Shape (len, 3), in order of first appearance."""
        return self._keys[: len(self)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Shape (len,)."""
        return self._sums[: len(self), 0]

    @property
    def totals(self) -> NDArray[np.int64]:
        """Sums of the first amounts, shape (len,)."""
        return self._sums[: len(self), 1]

    @property
    def sums(self) -> NDArray[np.int64]:
        """Counts and the sums of all three amounts, shape (len, 4)."""
        return self._sums[: len(self)]

    def add(self, a: Key, b: Key | None, c: Key | None, *amounts: NDArray[Any] | None) -> NDArray[np.int64]:
        """Count each row's key once and add its amounts; the key's index per row (-1: beyond the limit).

        Args:
            a, b, c: Keys, shape (n,); any integer type. None stands for zeros.
            amounts: Up to three, shape (n,); None stands for zeros.
        """
        n = len(a)
        self._reserve(min(len(self) + n, self._limit))
        index = np.empty(n, np.int64)
        if n > len(self._zeros):
            self._zeros = np.zeros(n, np.uint64)
        zeros = self._zeros[:n]
        keys = (zeros if key is None else _as(np.uint64, key) for key in (a, b, c))
        three = (*amounts, None, None, None)[:3]
        added = (zeros.view(np.int64) if amount is None else _as(np.int64, amount) for amount in three)
        tables = (self._table, self._keys, self._sums, self._used)
        add(*[*views(*keys, *added, *tables), self._limit, *views(index)])
        return index

    def _reserve(self, keys: int) -> None:
        size = len(self._keys)
        if keys <= size:
            return
        while size < keys:
            size *= 2
        for name in ("_keys", "_sums"):
            old = getattr(self, name)
            new = np.zeros((size, old.shape[1]), old.dtype)
            new[: len(self)] = old[: len(self)]
            setattr(self, name, new)
        self._table = np.zeros(2 * size, np.int64)
        keys_view, table_view = views(self._keys, self._table)
        rehash(keys_view, len(self), table_view)


def _as(kind: Any, array: NDArray[Any]) -> NDArray[Any]:
    """*array* as contiguous 64-bit integers; without a copy where only the sign's meaning differs."""
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu":
        return np.ascontiguousarray(array).view(kind)
    return np.ascontiguousarray(array, kind)


def add(a, b, c, x, y, z, table, keys, sums, used, limit, index):  # type: ignore[no-untyped-def]
    """The loop of :meth:`Tally.add`."""
    n = len(index)
    mask = len(table) - 1
    last = -1
    with cython.nogil:
        for i in range(n):
            # Runs of one key are the rule in a trace.
            if last >= 0 and keys[last, 0] == a[i] and keys[last, 1] == b[i] and keys[last, 2] == c[i]:
                k = last
            else:
                at = _find(a[i], b[i], c[i], table, mask, keys)
                k = table[at] - 1
                if k < 0:
                    if used[0] >= limit:
                        used[1] += 1
                        index[i] = -1
                        continue
                    k = used[0]
                    used[0] += 1
                    keys[k, 0] = a[i]
                    keys[k, 1] = b[i]
                    keys[k, 2] = c[i]
                    table[at] = k + 1
                last = k
            sums[k, 0] += 1
            sums[k, 1] += x[i]
            sums[k, 2] += y[i]
            sums[k, 3] += z[i]
            index[i] = k


def rehash(keys, used, table):  # type: ignore[no-untyped-def]
    """Fill an empty *table* with the first *used* keys."""
    mask = len(table) - 1
    for k in range(used):
        table[_find(keys[k, 0], keys[k, 1], keys[k, 2], table, mask, keys)] = k + 1


def _find(a, b, c, table, mask, keys):  # type: ignore[no-untyped-def]
    """Place of a key in the table, or the free place where it belongs."""
    mixed = (a ^ (b * _MIX_B) ^ (c * _MIX_C)) & _ALL
    mixed = ((mixed ^ (mixed >> 29)) * _MIX) & _ALL
    at = (mixed ^ (mixed >> 32)) & mask
    while table[at]:
        k = table[at] - 1
        if keys[k, 0] == a and keys[k, 1] == b and keys[k, 2] == c:
            return at
        at = (at + 1) & mask
    return at
