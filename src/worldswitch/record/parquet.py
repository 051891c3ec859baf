"""A trace as a folder: one Parquet file per event, and ``meta.json``.

Each file has ``seq`` (the event's place in the whole trace), the common columns, and the event's own fields
under the kernel's names; a field that has the name of one of those is called ``event.NAME``. ``meta.json``
says what else there is to know: :class:`~worldswitch.record.trace.Meta`, the format texts, every column's
type.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from worldswitch.errors import MissingError, TraceFormatError, UsageError, printable
from worldswitch.record.formats import EventFormat, parse_format
from worldswitch.record.trace import COMMON, Batch, Columns, EventSource, Meta, Trace

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

KIND = "worldswitch trace"
VERSION = 1
_META = "meta.json"
_RESERVED = ("seq", *COMMON)
_SPILL = 1 << 20  # events held before they are written out
_BATCH = 1 << 16
_NO_BYTES = "bytes:0"  # a column with nothing to store
_LARGEST_META = 256 << 20


def frame(columns: Columns) -> pl.DataFrame:
    """*columns* as a Polars frame: byte arrays of shape (n, count) as ``Array(UInt8, count)``, texts as
    String.
    """
    import polars as pl

    return pl.DataFrame([_series(name, column) for name, column in columns.items()])


def check_place(path: Path) -> None:
    """Refuse what :func:`save` would not replace.

    Raises:
        UsageError: *path* exists and is no saved trace.
    """
    if path.exists() and not _is_ours(path):
        raise UsageError(f"{printable(str(path))} exists and is no saved trace; give another name or remove it")


def save(source: EventSource, path: str | Path) -> int:
    """Write all events of *source* as the folder *path*, which appears only when it is whole; how many they were.

    A folder written before is replaced. Memory is bounded: events are spilled, and each event's pieces
    merged at the end.

    Raises:
        UsageError: *path* exists and is something else.
        MissingError: It cannot be written.
    """
    target = Path(path)
    name = printable(str(path))
    check_place(target)
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=f".{target.name[:100]}.") as work:
            whole = Path(work) / "whole"
            whole.mkdir()
            events = _Folder(whole, Path(work)).write(source)
            if target.exists():
                target.rename(Path(work) / "old")
            whole.rename(target)
    except OSError as error:
        raise MissingError(f"cannot write {name}: {error.strerror or error}") from None
    return events


def load(path: str | Path) -> Trace:
    """The trace that :func:`save` wrote.

    Raises:
        MissingError: There is no such folder.
        TraceFormatError: It is not a saved trace, or it is damaged; says where.
    """
    folder = Path(path)
    name = printable(str(path))
    if not folder.exists():
        raise MissingError(f"{name} does not exist")
    document = _document(folder, name)
    try:
        meta = Meta.from_json(document["meta"])
        formats = {
            key: _format(entry["system"], entry["name"], entry["id"], entry["text"])
            for key, entry in document["formats"].items()
        }
        events = [(entry["event"], entry["rows"], dict(entry["columns"])) for entry in document["events"]]
        tables = []
        for place, (entry, (event, rows, types)) in enumerate(zip(document["events"], events, strict=True)):
            file = folder / _file_name(event, place)
            _check(file, entry["crc32"])
            tables.append(_read(file, rows, types))
        whole = _joined([event for event, _, _ in events], tables)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise TraceFormatError(f"{name} is a damaged trace folder: {printable(str(error))}") from None
    return Trace(list(_pieces(whole)), meta, formats)


def _is_ours(folder: Path) -> bool:
    try:
        _document(folder, str(folder))
    except (TraceFormatError, MissingError):
        return False
    return True


def _document(folder: Path, name: str) -> dict[str, Any]:
    where = folder / _META
    try:
        if where.stat().st_size > _LARGEST_META:
            raise TraceFormatError(f"{name} is a damaged trace folder: {_META} is too large to be true")
        document = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, TraceFormatError):
            raise
        raise TraceFormatError(f"{name} is not a saved trace: {_META}: {printable(str(error))}") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise TraceFormatError(f"{name} is not a saved trace: {_META} is of another kind")
    if document.get("version") != VERSION:
        version = printable(repr(document.get("version")))[:40]
        raise TraceFormatError(f"{name} was saved in version {version} of the format; this worldswitch reads {VERSION}")
    return document


class _Folder:
    """A folder being written."""

    def __init__(self, folder: Path, work: Path) -> None:
        self._folder = folder
        self._work = work
        self._held: list[tuple[int, Batch]] = []
        self._events: dict[str, dict[str, str]] = {}
        self._rows: dict[str, int] = {}
        self._parts: dict[str, list[Path]] = {}
        self._pieces = 0

    def write(self, source: EventSource) -> int:
        first = held = 0
        for batch in source.batches():
            self._held.append((first, batch))
            first += len(batch)
            held += len(batch)
            if held >= _SPILL:
                self._spill()
                held = 0
        self._spill()
        for place, event in enumerate(self._events):
            self._merge(event, self._folder / _file_name(event, place))
        document = {
            "kind": KIND,
            "version": VERSION,
            "meta": source.meta.as_json(),
            "events": [
                {
                    "event": event,
                    "rows": self._rows[event],
                    "columns": list(types.items()),
                    "crc32": _crc32(self._folder / _file_name(event, place)),
                }
                for place, (event, types) in enumerate(self._events.items())
            ],
            "formats": {
                key: {"system": form.system, "name": form.name, "id": form.id, "text": form.text}
                for key, form in source.formats.items()
            },
        }
        (self._folder / _META).write_text(json.dumps(document, indent=1), encoding="utf-8")
        return first

    def _spill(self) -> None:
        for event in dict.fromkeys(name for _, batch in self._held for name in batch.events):
            parts = [_rows_of(batch, event, first) for first, batch in self._held if event in batch.events]
            parts = [part for part in parts if len(part["seq"])]
            if not parts:
                continue
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            self._events.setdefault(event, {name: _type(column) for name, column in columns.items()})
            self._rows[event] = self._rows.get(event, 0) + len(columns["seq"])
            pieces = self._parts.setdefault(event, [])
            pieces.append(self._work / f"{self._pieces}.parquet")
            self._pieces += 1
            stored = {name: column for name, column in columns.items() if _type(column) != _NO_BYTES}
            frame(stored).write_parquet(pieces[-1], compression="zstd", compression_level=3)
        self._held.clear()

    def _merge(self, event: str, target: Path) -> None:
        import polars as pl

        parts = self._parts[event]
        if len(parts) == 1:
            parts[0].rename(target)
        else:
            pl.scan_parquet(parts, glob=False).sink_parquet(target, compression="zstd", compression_level=3)


def _rows_of(batch: Batch, event: str, first: int) -> Columns:
    """The rows of *event* under the names they have in its file."""
    index = batch.events.index(event)
    rows = np.flatnonzero(batch.order == index)
    columns: Columns = {"seq": (rows + first).astype(np.uint64)}
    columns |= {name: getattr(batch, name)[rows] for name in COMMON}
    for name, column in batch.tables[index].items():
        columns[f"event.{name}" if name in _RESERVED else name] = column
    return columns


def _series(name: str, column: NDArray[Any]) -> pl.Series:
    import polars as pl

    if column.ndim == 2:
        return pl.Series(name, column, dtype=pl.Array(pl.UInt8, column.shape[1]))
    if column.dtype == object:
        texts = [None if text is None else _UNSTORABLE.sub(_escape, str(text)) for text in column]
        return pl.Series(name, texts, dtype=pl.String)
    return pl.Series(name, np.ascontiguousarray(column))


# UTF-8 has no lone surrogates. They are written as a noncharacter and four hex digits; so is that character.
_UNSTORABLE = re.compile("[\ud800-\udfff\ufdd0]")
_ESCAPED = re.compile("\ufdd0([0-9a-f]{4})")


def _escape(found: re.Match[str]) -> str:
    return f"\ufdd0{ord(found[0]):04x}"


def _unescape(text: str | None) -> str | None:
    if text is None or "\ufdd0" not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _type(column: NDArray[Any]) -> str:
    if column.ndim == 2:
        return f"bytes:{column.shape[1]}"
    return "str" if column.dtype == object else column.dtype.str.lstrip("<>|=")


def _column(series: pl.Series, kind: str) -> NDArray[Any]:
    if kind == "str":
        texts = np.empty(len(series), object)
        texts[:] = [_unescape(text) for text in series.cast(str).to_list()]
        return texts
    if series.null_count():
        raise ValueError(f"column {series.name} has gaps")
    if kind.startswith("bytes:"):
        shape = (len(series), int(kind[6:]))
        return np.ascontiguousarray(series.to_numpy()).astype(np.uint8, casting="safe").reshape(shape)
    return series.to_numpy().astype(kind, casting="safe")


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            crc = zlib.crc32(piece, crc)
    return crc


def _check(path: Path, crc32: object) -> None:
    """Polars panics, on stderr, on some damaged files; so none gets that far."""
    try:
        if _crc32(path) != crc32:
            raise ValueError(f"{path.name} is not as it was written (its checksum differs)")
    except OSError as error:
        raise ValueError(f"{path.name}: {error.strerror or error}") from None


def _read(path: Path, rows: int, types: dict[str, str]) -> Columns:
    """One event's columns, checked against what ``meta.json`` says of them."""
    import polars as pl

    stored = [name for name, kind in types.items() if kind != _NO_BYTES]
    try:
        table = pl.read_parquet(path, glob=False, columns=stored)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(f"{path.name}: {str(error)[:200]}") from None
    if table.height != rows:
        raise ValueError(f"{path.name} has {table.height} rows, {_META} says {rows}")
    try:
        columns = {name: _column(table[name], kind) for name, kind in types.items() if kind != _NO_BYTES}
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path.name} does not fit {_META}: {str(error)[:200]}") from None
    none = np.empty((rows, 0), np.uint8)
    return {name: columns.get(name, none) for name in types}


def _joined(events: list[str], tables: list[Columns]) -> Batch:
    """All events in the order ``seq`` gives."""
    total = sum(len(table["seq"]) for table in tables)
    order = np.empty(total, np.uint16)
    time = np.empty(total, np.int64)
    cpu, tid, pid = (np.empty(total, np.int32) for _ in range(3))
    seen = np.zeros(total, bool)
    for index, table in enumerate(tables):
        places = table["seq"]
        if (places >= total).any() or (places[1:] <= places[:-1]).any():
            raise ValueError(f"the seq column of {events[index]} does not number the events")
        seen[places] = True
        order[places] = index
        time[places], cpu[places] = table["time"], table["cpu"]
        tid[places], pid[places] = table["tid"], table["pid"]
    if not seen.all():
        raise ValueError("the seq columns do not number the events without a gap")
    own = [
        {name.removeprefix("event."): column for name, column in table.items() if name not in _RESERVED}
        for table in tables
    ]
    return Batch(tuple(events), order, time, cpu, tid, pid, tuple(own))


def _pieces(whole: Batch) -> Iterator[Batch]:
    while len(whole) > _BATCH:
        first, whole = whole.cut(_BATCH)
        yield first
    yield whole


def _file_name(event: str, place: int) -> str:
    """A name any file system takes; *place* tells apart what shortening or ignoring case makes equal."""
    safe = quote(event, safe="", errors="surrogatepass")
    plain = safe == event and event.islower() and len(event) < 100
    return f"{event}.parquet" if plain else f"{safe[:100]}-{place}.parquet"


def _format(system: str, name: str, number: int, text: str) -> EventFormat:
    if not all(isinstance(value, str) for value in (system, name, text)) or not isinstance(number, int):
        raise TypeError("an event format of the wrong type")
    if not text:
        return EventFormat(system, name, number, (), "")
    parsed = parse_format(text, system)
    return EventFormat(system, name, number, parsed.fields, text)
