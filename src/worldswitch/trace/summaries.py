"""What is no exit: the ioctls strace saw, and the rows of other tools' tables."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.stats.percentile import nearest_rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from worldswitch.record.trace import Batch, Columns

TABLES = ("ioctl", "perf_kvm_stat", "kvm_stat", "kvm_unit_tests")
"""Events of the readers of strace and of tools' tables; their rows are kept whole."""

_IOCTL = "ioctl"
_MOST_ROWS = 1 << 20


class Summaries:
    """Collects the rows of :data:`TABLES` as batches come."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Columns]] = {}
        self._rows = 0

    def add(self, batch: Batch) -> None:
        """Keep what *batch* holds of them."""
        for index, name in enumerate(batch.events):
            if name in TABLES and self._rows < _MOST_ROWS:
                self._parts.setdefault(name, []).append(batch.tables[index])
                self._rows += int(np.count_nonzero(batch.order == index))

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Table name -> rows; ioctls as one row per request."""
        result = {}
        for name, parts in self._parts.items():
            columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
            result[name] = _ioctls(columns) if name == _IOCTL else _plain(columns)
        return result


def _plain(columns: Columns) -> list[dict[str, Any]]:
    """Rows with None for what the table did not say (NaN, or -1 in a column of whole numbers)."""
    lists = {name: [_said(value) for value in column.tolist()] for name, column in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _said(value: Any) -> Any:
    if isinstance(value, float):
        return None if isnan(value) else value
    return None if isinstance(value, int) and value == -1 else value


def _ioctls(columns: Columns) -> list[dict[str, Any]]:
    """Count, failures and durations (ns; percentiles by nearest rank) of each request, the costliest first."""
    rows = []
    requests = columns["request"]
    for request in sorted(set(requests.tolist())):
        mine = requests == request
        durations = np.sort(columns["duration_ns"][mine])
        durations = durations[durations >= 0]
        errno = columns["errno"][mine]
        names, counts = np.unique(errno[errno != ""].astype(str), return_counts=True)
        rows.append(
            {
                "request": request,
                "count": int(np.count_nonzero(mine)),
                "failed": int(np.count_nonzero(errno != "")),
                "errors": ", ".join(f"{name} {n}" for name, n in zip(names.tolist(), counts.tolist(), strict=True)),
                "total_ns": int(durations.sum()),
                **{key: _rank(durations, percent) for key, percent in _PERCENTS},
            }
        )
    return sorted(rows, key=lambda row: (-row["total_ns"], row["request"]))


_PERCENTS = (("min_ns", 0), ("p50_ns", 50), ("p95_ns", 95), ("p99_ns", 99), ("max_ns", 100))


def _rank(durations: NDArray[np.int64], percent: int) -> int | None:
    if not len(durations):
        return None
    return int(durations[nearest_rank(len(durations), percent)])
