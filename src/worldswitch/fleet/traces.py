"""One trace of many: what is kept of it, as a row that merges with others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.errors import NotTold, UsageError, WorldswitchError
from worldswitch.fleet.fetched import as_file, without_path
from worldswitch.fleet.pieces import Input, Row
from worldswitch.fleet.schema import as_parquet, trace_rows
from worldswitch.fleet.sketch import bins
from worldswitch.trace.exits import UNCOUNTED
from worldswitch.x86.exits import isa_name, reason_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from worldswitch.record.trace import Meta
    from worldswitch.trace.account import Account
    from worldswitch.trace.exits import ExitRows

    Array = NDArray[np.int64]

LARGEST = 2 << 30
"""Bytes of a trace beyond which it is named and left, unless it is asked for."""
UNKNOWN = "?"
_NOBODY = frozenset({None, "", "(none)", "localhost", "localhost.localdomain"})
"""What hosts are called that nobody gave a name."""
_MOST_PARTS = 32


@dataclass(frozen=True, slots=True)
class TraceWork:
    """Accounts for one trace at a time; see :class:`worldswitch.fleet.pieces.Work`.

    Attributes:
        to, from_, settings: A question to :func:`worldswitch.trace.whatif.whatif`; none is asked if both *to* and
            *settings* are empty.
        names: A regular expression of paths whose groups ``host`` and ``class`` name the trace's; empty: the file says
            the host, and the path is the host where it does not.
        largest: Bytes beyond which a trace is not read.
        folder: Where relative paths begin; empty: where the worker is.
    """

    to: str | None = None
    from_: str | None = None
    settings: tuple[str, ...] = ()
    names: str = ""
    largest: int = LARGEST
    folder: str = ""

    def parameters(self) -> dict[str, Any]:
        """What decides the rows, as JSON."""
        return {
            "to": self.to, "from": self.from_, "set": list(self.settings), "names": self.names, "largest": self.largest,
        }  # fmt: skip

    def rows(self, items: Sequence[Input]) -> list[Row]:
        """The row of each trace."""
        return [self._row(item) for item in items]

    def _row(self, item: Input) -> Row:
        try:
            with as_file(item, self.largest, self.folder) as path:
                return self._read(item, str(path))
        except WorldswitchError as error:
            return self.lost(item, without_path(str(error), item.path, self.folder))
        except (OSError, MemoryError, RecursionError) as error:
            return self.lost(item, f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}")

    def lost(self, item: Input, why: str) -> Row:
        """The row of a trace that was not read, and why."""
        host, kind = self._named(item.path)
        return {"path": item.path, "size": item.size, "host": host or item.path, "class": kind, "error": why}

    def pack(self, rows: Iterable[Row]) -> bytes:
        """The rows as Parquet."""
        return as_parquet(trace_rows(rows))

    def _named(self, path: str) -> tuple[str, str]:
        found = re.search(self.names, path) if self.names else None
        groups = found.groupdict() if found else {}
        return groups.get("host") or "", groups.get("class") or ""

    def _read(self, item: Input, path: str) -> Row:
        from worldswitch.trace.account import Bookkeeper
        from worldswitch.trace.ahead import ahead
        from worldswitch.trace.exits import EVENTS
        from worldswitch.trace.readers import open_source

        source = open_source(path)
        book, spread = Bookkeeper(None, ("reason",)), _Spread()
        for batch in ahead(source.batches(EVENTS)):
            rows = book.pairs.feed(batch)
            book.add(rows)
            spread.add(rows)
        names: dict[tuple[int, int], str] = getattr(source, "reason_names", None) or {}
        account = book.close(source.meta, None, names, hot=0)
        if not account.exits:
            raise UsageError(f"it holds no exits ({source.meta.format})")
        return {
            **self._about(item, source.meta),
            **_counted(account),
            "bins": spread.bins(lambda isa, reason: names.get((isa, reason)) or reason_name(isa, reason)),
            "whatif": self._whatif(path),
        }

    def _about(self, item: Input, meta: Meta) -> Row:
        from worldswitch.kvm.distributions import kernel_of

        host, kind = self._named(item.path)
        told = kernel_of(meta.kernel) if meta.kernel else None
        version = told.version if told is not None else None
        return {
            "path": item.path,
            "size": item.size,
            "host": host or (item.path if meta.host in _NOBODY else meta.host),
            "class": kind,
            "error": None,
            "release": (meta.kernel or "").split(" ", 1)[0] or None,
            "kernel": None if version is None else str(version),
            "line": UNKNOWN if version is None else ".".join(str(version).split(".")[:2]),
            "cpu_model": meta.cpu_model,
            "format": meta.format,
            "span_ns": None if meta.first_ns is None or meta.last_ns is None else meta.last_ns - meta.first_ns,
            "lost": meta.lost,
            "complete": meta.complete,
        }

    def _whatif(self, path: str) -> Row | None:
        if self.to is None and not self.settings:
            return None
        from worldswitch.trace.readers import open_source
        from worldswitch.trace.whatif import whatif

        try:
            found = whatif(open_source(path), self.to, self.from_, self.settings)
        except (NotTold, UsageError) as error:
            return {"cannot": str(error).replace(path, "it")}
        low, mid, high = found.saving_ns
        return {
            "method": found.method,
            "low_ns": round(low),
            "mid_ns": round(mid),
            "high_ns": round(high),
            "removed": sum(one.count for one in found.removed),
            "cannot": None,
        }


class _Spread:
    """The durations of the exits that count, by reason."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[Array, Array]]] = {}

    def add(self, rows: ExitRows) -> None:
        """Take what :class:`~worldswitch.trace.account.Bookkeeper` counts of *rows*."""
        counts = (rows.flags & UNCOUNTED) == 0
        number, duration = rows.number[counts], rows.duration[counts]
        for one in np.unique(number).tolist():
            parts = self._parts.setdefault(one, [])
            parts.append(np.unique(duration[number == one], return_counts=True))
            if len(parts) >= _MOST_PARTS:
                parts[:] = [_joined(parts)]

    def bins(self, name: Callable[[int, int], str]) -> list[Row]:
        """Rows of isa, reason, key and count."""
        found: dict[tuple[str, str, int], int] = {}
        for number, parts in self._parts.items():
            isa, reason = isa_name(number >> 32), name(number >> 32, number & 0xFFFFFFFF)
            for key, count in zip(*bins(*_joined(parts)), strict=True):
                place = isa, reason, key
                found[place] = found.get(place, 0) + count
        return [
            {"isa": isa, "reason": reason, "key": key, "count": count}
            for (isa, reason, key), count in sorted(found.items())
        ]


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    if len(parts) == 1:
        return parts[0]
    values, place = np.unique(np.concatenate([values for values, _ in parts]), return_inverse=True)
    counts = np.zeros(len(values), np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return values, counts


def _counted(account: Account) -> Row:
    vcpus = account.vcpus
    isas = {row.isa_name for row in account.exits}
    return {
        "vendor": {"VMX": "intel", "SVM": "amd"}.get(isas.pop().upper(), UNKNOWN) if len(isas) == 1 else UNKNOWN,
        "vms": len({one.vm for one in vcpus}),
        "vcpus": len(vcpus),
        "guest_ns": sum(one.guest_ns for one in vcpus),
        "exits": account.count,
        "total_ns": account.total_ns,
        "user_ns": sum(row.user_ns for row in account.exits),
        "open": sum(row.open for row in account.exits),
        "reasons": [
            {
                "isa": row.isa_name,
                "reason": row.reason,
                "count": row.count,
                "total_ns": row.total_ns,
                "min_ns": row.min_ns,
                "max_ns": row.max_ns,
                "open": row.open,
                "user_ns": row.user_ns,
            }
            for row in sorted(account.exits, key=lambda row: (row.isa, row.reason or ""))
        ],
        "cr_writes": [
            {
                "cr": row.cr,
                "changed": None if row.changed is None else "+".join(row.changed) or "nothing",
                "count": row.count,
                "total_ns": row.total_ns,
            }
            for row in account.cr_writes
        ],
        "detections": [{"id": one.id, "count": one.count} for one in account.detections],
    }
