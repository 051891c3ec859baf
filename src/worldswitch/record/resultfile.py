"""Results as files: written whole or not at all, read with every value checked. Standard library only, Python 3.9."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldswitch.errors import MissingError, TraceFormatError, printable
from worldswitch.record.result import (
    BY_REASON,
    FORMAT,
    VERSION,
    Cell,
    Environment,
    FaultSeen,
    Metric,
    Provenance,
    Result,
    Spread,
)
from worldswitch.record.whole import write_whole

if TYPE_CHECKING:
    from worldswitch.record.result import Number

MAX_BYTES = 256 << 20
"""No document is longer; a file that is, is something else."""


class ResultFormatError(TraceFormatError):
    """The file is not a Result, is damaged, or was written by a newer version."""


def dumps(result: Result) -> str:
    """The document as text.

    Raises:
        ValueError: A number in it is not finite.
    """
    return json.dumps(result.to_run_json(), indent=1, allow_nan=False) + "\n"


def save(result: Result, path: str | os.PathLike[str]) -> None:
    """Write *result* to *path*, whole or not at all: an interrupted or failed save leaves what was there before.

    Raises:
        MissingError: It cannot be written there.
    """
    data = dumps(result).encode("ascii")
    try:
        write_whole(path, data)
    except (OSError, RuntimeError, ValueError) as error:  # also a loop of links, a NUL in the name
        why = getattr(error, "strerror", None) or str(error)
        name = printable(str(path))
        raise MissingError(f"the result cannot be written to {name} ({why}); name another file") from None


def load(path: str | os.PathLike[str]) -> Result:
    """The Result in a file.

    Raises:
        MissingError: The file cannot be read.
        ResultFormatError: It holds no Result, a damaged one, or one of a newer version.
    """
    name = printable(str(path))
    try:
        with Path(path).open("rb") as source:
            data = source.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MissingError(f"{name} cannot be read ({why}); wsw run --save FILE writes a result") from None
    try:
        return loads(data)
    except ResultFormatError as error:
        raise ResultFormatError(f"{name}: {error}") from None


def loads(text: str | bytes) -> Result:
    """The Result in a document. Keys nobody knows are passed over.

    Raises:
        ResultFormatError: It is none, is damaged, or of a newer version.
    """
    if len(text) > MAX_BYTES:
        raise ResultFormatError(f"longer than any result ({MAX_BYTES >> 20} MiB); wsw run --save writes results")
    try:
        document = json.loads(text, parse_constant=_no_number, object_pairs_hook=_object)
    except ResultFormatError:
        raise
    except RecursionError:
        raise ResultFormatError("not a result: it nests too deeply") from None
    except ValueError as error:  # bad JSON, bad UTF-8, or digits without end
        raise ResultFormatError(
            f"not JSON, or cut off ({printable(str(error))}); wsw run --save writes results"
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ResultFormatError(f"not a result: its format is not {FORMAT!r}; wsw run --save writes results")
    version: Any = document.get("version")
    if not _is_whole(version) or version < 1:
        raise ResultFormatError(f"damaged: version is {_shown(version)}, not a number from 1 on")
    if version > VERSION:
        raise ResultFormatError(
            f"a result of version {version}, newer than {VERSION}, which this wsw reads; update wsw"
        )
    return _Reading(document, "").result()


def _no_number(text: str) -> None:
    raise ResultFormatError(f"damaged: {text} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ResultFormatError(f"damaged: {_shown(twice)} is in one object twice")
    return made


_REQUIRED: Any = object()
_LARGEST = 1 << 64


class _Reading:
    """An object of the document being read: its values, checked, with a place to name in errors."""

    def __init__(self, values: Any, place: str) -> None:
        self._place = place
        self._values: dict[str, Any] = self._checked(values, dict, "an object", place)

    def result(self) -> Result:
        return Result(
            tuple(_Reading(*item).cell() for item in self._items("results", _REQUIRED)),
            self._inner("provenance").provenance(),
            self._inner("environment").environment(),
        )

    def provenance(self) -> Provenance:
        argv = tuple(self._checked(value, str, "a text", place) for value, place in self._items("argv"))
        parameters: dict[str, Any] = self._get("parameters", dict, "an object", {})
        return Provenance(
            self._text("tool_version"),
            argv,
            parameters,
            self._get("seed", int, "a whole number", None),
            self._text("started", None),
            self._text("finished", None),
            self._texts("costs"),
        )

    def environment(self) -> Environment:
        return Environment(
            self._text("cpu_model", None),
            self._text("kernel", None),
            self._text("kernel_version", None),
            self._text("vendor_module", None),
            self._texts("parameters"),
            self._texts("machine"),
        )

    def cell(self) -> Cell:
        spread, created, elsewhere = (self._values.get(name) for name in ("time_ns", "create_vm_ns", "environment"))
        return Cell(
            dimensions=self._inner("dimensions").dimensions(),
            n=self._count("n", 0),
            unit=self._text("unit", "") or "",
            counters=self._inner("counters", {}).counts(),
            per_op=self._inner("per_op", {}).counts(),
            time_ns=None if spread is None else self._inner("time_ns").spread(),
            create_vm_ns=None if created is None else tuple(_whole(*item) for item in self._items("create_vm_ns")),
            metrics=tuple(_Reading(*item).metric() for item in self._items("metrics")),
            faults=tuple(_Reading(*item).fault() for item in self._items("faults")),
            faults_total=self._count("faults_total", 0),
            values=self._inner("values", {})._each(_whole),
            steady=self._get("steady", bool, "true or false", True),
            notes=tuple(self._checked(value, str, "a text", place) for value, place in self._items("notes")),
            environment=None if elsewhere is None else self._inner("environment").environment(),
        )

    def dimensions(self) -> dict[str, Any]:
        for name in ("on", "program"):
            self._text(name)
        return {
            name: _Reading(value, self._at(name))._each(_scalar)
            if isinstance(value, dict)
            else _scalar(value, self._at(name))
            for name, value in self._values.items()
        }

    def counts(self) -> dict[str, Any]:
        return {
            name: _Reading(value, self._at(name))._each(_number)
            if name == BY_REASON
            else _number(value, self._at(name))
            for name, value in self._values.items()
        }

    def spread(self) -> Spread:
        low, mid, high = (_number(self._values.get(name), self._at(name)) for name in ("low", "mid", "high"))
        if not low <= mid <= high:
            raise ResultFormatError(f"damaged: {self._place} is not in order (low {low}, mid {mid}, high {high})")
        return Spread(low, mid, high)

    def metric(self) -> Metric:
        return Metric(
            self._text("name"),
            self._text("unit"),
            tuple(_number(*item) for item in self._items("values", _REQUIRED)),
            tuple(_number(*item) for item in self._items("warmups")),
            self._get("exact", bool, "true or false", False),
            self._get("lower_is_better", bool, "true or false", True),
            max(1, self._count("together", 1)),
            tuple(_whole(*item) for item in self._items("turns")),
        )

    def fault(self) -> FaultSeen:
        vector, code, cr2, rip = (self._count(name, _REQUIRED) for name in ("vector", "error_code", "cr2", "rip"))
        return FaultSeen(self._text("operation"), vector, code, cr2, rip, self._count("count", 1))

    def _at(self, name: str) -> str:
        shown = printable(name)
        return f"{self._place}.{shown}" if self._place else shown

    @staticmethod
    def _checked(value: Any, kind: type, what: str, place: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ResultFormatError(f"damaged: {place or 'the document'} is {_shown(value)}, not {what}")
        return value

    def _get(self, name: str, kind: type, what: str, default: Any) -> Any:
        if name not in self._values:
            if default is _REQUIRED:
                raise ResultFormatError(f"damaged: {self._at(name)} is missing; it should be {what}")
            return default
        value = self._values[name]
        return None if value is None and default is None else self._checked(value, kind, what, self._at(name))

    def _text(self, name: str, default: Any = _REQUIRED) -> Any:
        return self._get(name, str, "a text", default)

    def _count(self, name: str, default: Any) -> int:
        return _whole(self._get(name, int, "a whole number", default), self._at(name))

    def _inner(self, name: str, default: Any = _REQUIRED) -> _Reading:
        return _Reading(self._get(name, dict, "an object", default), self._at(name))

    def _items(self, name: str, default: Any = ()) -> list[tuple[Any, str]]:
        values = self._get(name, list, "a list", default)
        return [(value, f"{self._at(name)}[{place}]") for place, value in enumerate(values)]

    def _each(self, check: Any) -> dict[str, Any]:
        return {name: check(value, self._at(name)) for name, value in self._values.items()}

    def _texts(self, name: str) -> dict[str, str]:
        inner = self._inner(name, {})
        return inner._each(lambda value, place: self._checked(value, str, "a text", place))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: Any, place: str) -> int:
    if not _is_whole(value) or not 0 <= value < _LARGEST:
        raise ResultFormatError(f"damaged: {place} is {_shown(value)}, not a whole number from 0 to 2^64 - 1")
    return int(value)


def _number(value: Any, place: str) -> Number:
    if not (_is_whole(value) or isinstance(value, float)) or not -float(_LARGEST) <= value <= float(_LARGEST):
        raise ResultFormatError(f"damaged: {place} is {_shown(value)}, not a number")
    return int(value) if isinstance(value, int) else float(value)


def _scalar(value: Any, place: str) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    return _number(value, place)


_NATURES = ((dict, "an object"), (list, "a list"), (type(None), "null"))


def _shown(value: Any) -> str:
    for kind, what in _NATURES:
        if isinstance(value, kind):
            return what
    text = printable(repr(value))
    return text if len(text) <= 40 else f"{text[:37]}..."
