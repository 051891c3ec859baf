"""A sweep as a TOML file: axes whose values are combined, all of them or a sample, and where programs may come from.

The cells of a sweep are numbered, and a cell's values follow from its number and the seed alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from worldswitch.errors import MissingError, UnknownNameError, UsageError, printable
from worldswitch.fleet.pieces import Piece, digest

Value: TypeAlias = "str | int | float | bool"
AXES = ("program", "kernel", "cpu", "mmu", "n", "costs", "smp")
"""Names of axes; besides them ``set.NAME`` and ``program.PARAMETER``."""
_KEYS = ("on", "seed", "sample", "partition", "roots", "axes", "cells_per_piece")
_SET, _PARAMETER = "set.", "program."
MODEL = "model"
MACHINES = (MODEL, "lab")
_MOST_CELLS = 1 << 32
_PER_PIECE = 256
_FILES = (".toml", ".img")


@dataclass(frozen=True, slots=True)
class Drawn:
    """An axis whose value is drawn for each cell.

    Attributes:
        kind: ``integers`` (both ends included), ``uniform`` or ``log``.
    """

    kind: str
    low: float
    high: float

    def value(self, seed: int, cell: int, name: str) -> Value:
        """The value of the cell with that number."""
        source = random.Random(f"{seed} {cell} {name}")  # of text: the same on every machine and version
        if self.kind == "integers":
            return source.randint(int(self.low), int(self.high))
        if self.kind == "log":
            return math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        return source.uniform(self.low, self.high)


Axis: TypeAlias = "tuple[Value, ...] | Drawn"


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be swept.

    Attributes:
        on: The machines.
        axes: Name -> values, or what draws them; in the order of the file, the last changes fastest.
        sample: How many cells are drawn of all combinations; 0 takes all.
        partition: Axes whose values name folders of the dataset.
        folder: Where the spec is; names of files are relative to it.
    """

    on: tuple[str, ...]
    axes: Mapping[str, Axis]
    seed: int = 1
    sample: int = 0
    partition: tuple[str, ...] = ("on", "kernel")
    per_piece: int = _PER_PIECE
    folder: str = field(default=".", compare=False)

    @property
    def combinations(self) -> int:
        """How many cells the listed values make."""
        return len(self.on) * math.prod(len(axis) for axis in self.axes.values() if not isinstance(axis, Drawn))

    def numbers(self) -> Sequence[int]:
        """The numbers of the cells to run, ascending."""
        if not self.sample:
            return range(self.combinations)
        if any(isinstance(axis, Drawn) for axis in self.axes.values()):
            return range(self.sample)
        return sorted(random.Random(f"{self.seed} cells").sample(range(self.combinations), self.sample))

    def cell(self, number: int) -> dict[str, Value]:
        """The values of the cell with that *number*, by axis, ``on`` first."""
        place = number
        if self.sample and any(isinstance(axis, Drawn) for axis in self.axes.values()):
            place = random.Random(f"{self.seed} {number} place").randrange(self.combinations)
        found: dict[str, Value] = {}
        for name, axis in reversed(list(self.axes.items())):
            if isinstance(axis, Drawn):
                found[name] = axis.value(self.seed, number, name)
            else:
                place, which = divmod(place, len(axis))
                found[name] = axis[which]
        return {"on": self.on[place], **dict(reversed(found.items()))}

    def document(self) -> dict[str, Any]:
        """What decides the results, as JSON."""
        axes = {
            name: {axis.kind: [axis.low, axis.high]} if isinstance(axis, Drawn) else list(axis)
            for name, axis in self.axes.items()
        }
        return {
            "on": list(self.on), "seed": self.seed, "sample": self.sample, "partition": list(self.partition),
            "cells_per_piece": self.per_piece, "axes": axes, "order": list(self.axes),
        }  # fmt: skip

    def pieces(self) -> Iterator[tuple[str, Piece[int]]]:
        """The cells in pieces, each with the place of its file: folders named by the partition's values."""
        parts: dict[tuple[str, ...], list[int]] = {}
        for number in self.numbers():
            cell = self.cell(number)
            parts.setdefault(tuple(_folder_name(cell.get(name)) for name in self.partition), []).append(number)
        what = self.document()
        for folders, numbers in sorted(parts.items()):
            for begin in range(0, len(numbers), self.per_piece):
                some = tuple(numbers[begin : begin + self.per_piece])
                piece = Piece(digest([what, some]), some)
                yield "/".join(("cells", *folders, f"{piece.name}.parquet")), piece


def _folder_name(value: Value | None) -> str:
    text = "none" if value is None else str(value)
    return "".join(sign if sign.isalnum() or sign in "._+-" else "_" for sign in text).lstrip(".") or "_"


def load(path: str, roots: Sequence[str] = ()) -> Sweep:
    """The sweep in a TOML file.

    Args:
        path: The file.
        roots: Folders besides the file's own that its programs and costs may be in.

    Raises:
        MissingError: The file cannot be read.
        UsageError: It is no sweep, or names a file outside the folders it may.
        UnknownNameError: A key, an axis or a machine nobody knows.
    """
    import tomllib

    where = printable(path)
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingError(f"cannot read {where}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is not TOML: {printable(str(error))}") from None
    for key in given:
        if key not in _KEYS:
            raise UnknownNameError(f"key of a sweep in {where}:", key, _KEYS, f"There are {', '.join(_KEYS)}.")
    axes = {name: _axis(where, name, values) for name, values in _axes(where, given.get("axes"))}
    sweep = Sweep(
        _machines(where, given.get("on", ["model"])),
        axes,
        _whole(where, given, "seed", 1, 0),
        _whole(where, given, "sample", 0, 1),
        _partition(where, given.get("partition"), axes),
        _whole(where, given, "cells_per_piece", _PER_PIECE, 1),
        str(Path(path).resolve().parent),
    )
    _insist_on_size(where, sweep)
    _insist_on_roots(where, sweep, [sweep.folder, *_roots(where, sweep.folder, given.get("roots", [])), *roots])
    return sweep


def _axes(where: str, given: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(given, dict) or not given:
        raise UsageError(f'{where} has no table [axes]; write one with a line such as program = ["cr0-wp"]')
    for name, values in given.items():
        # set.nx_huge_pages = [...] without quotes is a table in TOML
        if name in ("set",) or (name == "program" and isinstance(values, dict) and not _is_range(values)):
            if not isinstance(values, dict):
                raise UsageError(f'{where}: axes.{name} is no table; write "{name}.NAME" = [...]')
            for inner, of in _flattened(values):
                yield f"{name}.{inner}", of
        else:
            yield name, values


def _flattened(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and not _is_range(value):
            yield from ((f"{name}.{inner}", of) for inner, of in _flattened(value))
        else:
            yield name, value


_RANGES = ("integers", "uniform", "log")


def _is_range(value: Mapping[str, Any]) -> bool:
    return bool(value) and set(value) <= {*_RANGES, "from", "to", "step"}


def _axis(where: str, name: str, values: Any) -> Axis:
    if name not in AXES and not name.startswith((_SET, _PARAMETER)):
        known = (*AXES, "set.NAME", "program.PARAMETER")
        raise UnknownNameError(f"axis in {where}:", name, known, f"There are {', '.join(known)}.")
    label = f"{where}: axes.{printable(name)}"
    if isinstance(values, dict):
        return _range(label, values)
    found = values if isinstance(values, list) else [values]
    if not found:
        raise UsageError(f"{label} has no values")
    for value in found:
        if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise UsageError(f"{label}: {printable(str(value))} is neither text nor a number")
    if name in ("program", "kernel", "cpu", "mmu", "costs"):
        found = [_text(label, value) for value in found]
    if name in ("n", "smp"):
        for value in found:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{label}: {printable(str(value))} is not a whole number of 1 or more")
    if len({str(value) for value in found}) < len(found):
        raise UsageError(f"{label} has a value twice")
    return tuple(found)


def _text(label: str, value: Value) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{label}: write {value} in quotes (6.10 is no number, but a name)")
    return value


def _range(label: str, given: Mapping[str, Any]) -> Axis:
    if "from" in given or "to" in given:
        first, last, step = given.get("from"), given.get("to"), given.get("step", 1)
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in (first, last, step)) or step < 1:
            raise UsageError(f"{label}: write from, to and step as whole numbers, with a step of 1 or more")
        assert isinstance(first, int)
        assert isinstance(last, int)
        found = range(first, last + 1, step)
        if not 0 < len(found) <= 1 << 20:
            raise UsageError(f"{label} has {len(found):,} values; at least one and at most {1 << 20:,} make an axis")
        return tuple(found)
    if len(given) != 1 or (kind := next(iter(given))) not in _RANGES:
        raise UsageError(f"{label}: write a list, {{from, to, step}}, or one of {', '.join(_RANGES)}")
    ends = given[kind]
    if (
        not isinstance(ends, list)
        or len(ends) != 2
        or not all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in ends)
        or ends[0] > ends[1]
    ):
        raise UsageError(f"{label}: {kind} takes the lowest and the highest, as in {kind} = [1, 100]")
    if kind == "log" and ends[0] <= 0:
        raise UsageError(f"{label}: a logarithm needs a lowest above 0")
    if kind == "integers" and not all(isinstance(one, int) for one in ends):
        raise UsageError(f"{label}: integers takes whole numbers")
    return Drawn(kind, *ends)


def _machines(where: str, given: Any) -> tuple[str, ...]:
    found = given if isinstance(given, list) else [given]
    for one in found:
        if one not in MACHINES:
            raise UnknownNameError(f"machine in {where}:", str(one), MACHINES, "on takes model, lab or both.")
    if not found or len(set(found)) < len(found):
        raise UsageError(f"{where}: on names a machine twice, or none")
    return tuple(found)


def _whole(where: str, given: Mapping[str, Any], key: str, default: int, least: int) -> int:
    value = given.get(key, default)
    if key in given and (not isinstance(value, int) or isinstance(value, bool) or not least <= value < _MOST_CELLS):
        raise UsageError(f"{where}: {key} = {printable(str(value))} is not a whole number of {least} or more")
    return int(value)


def _partition(where: str, given: Any, axes: Mapping[str, Axis]) -> tuple[str, ...]:
    known = ["on", *(name for name, axis in axes.items() if not isinstance(axis, Drawn))]
    if given is None:
        return tuple(name for name in ("on", "kernel") if name in known)
    if not isinstance(given, list):
        raise UsageError(f'{where}: partition is no list; write partition = ["kernel"]')
    for name in given:
        if name not in known:
            raise UnknownNameError(
                f"axis to partition by in {where}:", str(name), known, f"There are {', '.join(known)}."
            )
    return tuple(given)


def _insist_on_size(where: str, sweep: Sweep) -> None:
    if "program" not in sweep.axes:
        raise UsageError(f'{where} names no program; write axes.program = ["cr0-wp"] (wsw programs lists them)')
    if "kernel" not in sweep.axes:
        raise UsageError(f'{where} names no kernel; write axes.kernel = ["6.12"] (wsw kernels lists them)')
    drawn = [name for name, axis in sweep.axes.items() if isinstance(axis, Drawn)]
    if drawn and not sweep.sample:
        raise UsageError(f"{where}: {printable(drawn[0])} is drawn, so say how many cells: sample = 1000")
    if sweep.combinations > _MOST_CELLS:
        raise UsageError(
            f"{where} makes {sweep.combinations:,} combinations, and at most {_MOST_CELLS:,} can be numbered"
        )
    if not drawn and sweep.sample > sweep.combinations:
        raise UsageError(f"{where}: sample = {sweep.sample:,}, but there are only {sweep.combinations:,} combinations")


def _roots(where: str, folder: str, given: Any) -> list[str]:
    """The folders a spec declares: they lie in its own, as a spec may come from anywhere."""
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise UsageError(f"{where}: roots is no list of folders")
    found = []
    for one in given:
        if not _inside(Path(folder, one), [folder]):
            raise UsageError(
                f"{where}: the root {printable(one)!r} leads out of the spec's folder; if that is wanted, say so on "
                f"the command line: --root {printable(one)}"
            )
        found.append(str(Path(folder, one)))
    return found


def _insist_on_roots(where: str, sweep: Sweep, roots: Sequence[str]) -> None:
    for name in ("program", "costs"):
        axis = sweep.axes.get(name, ())
        for value in () if isinstance(axis, Drawn) else axis:
            if is_file(name, str(value)) and not _inside(Path(sweep.folder, str(value)), roots):
                raise UsageError(
                    f"{where}: {name} {printable(str(value))!r} leads out of the folders it may be in "
                    f"({printable(', '.join(roots))}); move it there, or name its folder with --root"
                )


def is_file(axis: str, value: str) -> bool:
    """Whether a value of that axis names a file, and not something that ships."""
    return value.endswith(_FILES) or "/" in value or (axis == "costs" and "." in value)


def _inside(path: Path, roots: Sequence[str]) -> bool:
    """Whether *path*, its links followed, is in one of *roots*."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    return any(real.is_relative_to(Path(root).resolve()) for root in roots)
