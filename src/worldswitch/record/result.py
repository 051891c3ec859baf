"""The Result: what was measured or computed, under which conditions, and how it came about.

Its document is what ``wsw run --json`` prints and ``--save`` keeps (:mod:`worldswitch.record.resultfile`). Standard
library only, Python 3.9: the field kit writes it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    Number = int | float
    Scalar = str | int | float | bool | None
    Counts = Mapping[str, Number | Mapping[str, Number]]

FORMAT = "worldswitch-result"
VERSION = 1
"""Raised when a document means something else than before; new keys alone do not raise it."""
BY_REASON = "exits_by_reason"
"""The counter that has a number per exit reason."""
NOT_TOLD = "not told apart"
"""Stands among the reasons for exits whose reason is not known."""


class Spread(NamedTuple):
    """A quantity with the limits of its interval, in the unit of the quantity."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class Metric:
    """One quantity, run by run.

    Attributes:
        unit: ``"ns"``, ``"cycles"``, ``"exits"`` ...
        values: One for each run, in the order measured.
        warmups: The runs before, which do not count.
        exact: A count, the same whenever the same is run; else a time, which has a spread.
        together: How many values in a row were measured at the same moment, and so are no independent runs.
        turns: When each value was measured, where programs or machines took turns: 0, 1, 2 ... over all of them.
    """

    name: str
    unit: str
    values: tuple[Number, ...]
    warmups: tuple[Number, ...] = ()
    exact: bool = False
    lower_is_better: bool = True
    together: int = 1
    turns: tuple[int, ...] = ()


@dataclass(frozen=True)
class FaultSeen:
    """An exception a guest met, and how often with exactly these values.

    Attributes:
        operation: Path of the operation in the program, such as ``"vcpu 0 body 2"``.
    """

    operation: str
    vector: int
    error_code: int
    cr2: int
    rip: int
    count: int = 1


@dataclass(frozen=True)
class Environment:
    """What a cell was found on, as far as it is known.

    Attributes:
        kernel: ``uname -r``; *kernel_version* is ``uname -v``.
        vendor_module: The module that answered, such as ``kvm_intel``.
        parameters: Module parameters by full name, such as ``kvm.nx_huge_pages``.
        machine: What an emulated or modelled machine was: ``emulator``, ``restored`` and others; none for hardware.
    """

    cpu_model: str | None = None
    kernel: str | None = None
    kernel_version: str | None = None
    vendor_module: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """How a Result came about; enough to make it again.

    Attributes:
        parameters: Everything that was asked for, defaults included; any JSON.
        started, finished: UTC, ISO 8601.
        costs: Name of each cost used -> where its value is from.
    """

    tool_version: str
    argv: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    started: str | None = None
    finished: str | None = None
    costs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One program under one set of conditions.

    Attributes:
        dimensions: The conditions, which comparisons go along: ``on`` and ``program`` always; ``kernel``, ``cpu``,
            ``mmu``, ``module`` and others as far as they are known. A value may be a mapping of scalars, as
            ``parameters`` is.
        n: Passes of the program's body; *unit* is what one is (``"pair"``).
        counters: Counts over the whole run; ``exits_by_reason`` is a mapping. What cannot be counted is absent.
        per_op: The same, those of a run with n = 0 subtracted, divided by n.
        time_ns: Time of one unit.
        create_vm_ns: Latencies of KVM_CREATE_VM, in the order measured.
        faults: The faults logged, distinct ones in the order first seen; *faults_total* counts all.
        values: Path of each operation that keeps a value -> the value.
        steady: Counts repeated exactly and times settled; a cell that is not tells less.
        notes: Sentences a reader needs.
        environment: What this cell was found on, where that is not the Result's.
    """

    dimensions: Mapping[str, Scalar | Mapping[str, Scalar]]
    n: int = 0
    unit: str = ""
    counters: Counts = field(default_factory=dict)
    per_op: Counts = field(default_factory=dict)
    time_ns: Spread | None = None
    create_vm_ns: tuple[int, ...] | None = None
    metrics: tuple[Metric, ...] = ()
    faults: tuple[FaultSeen, ...] = ()
    faults_total: int = 0
    values: Mapping[str, int] = field(default_factory=dict)
    steady: bool = True
    notes: tuple[str, ...] = ()
    environment: Environment | None = None

    def flat_dimensions(self) -> dict[str, Scalar]:
        """The dimensions with those of mappings named ``parameters.x``."""
        return dict(_flat(self.dimensions))


@dataclass(frozen=True)
class Result:
    """Cells, and how they came about."""

    cells: tuple[Cell, ...]
    provenance: Provenance
    environment: Environment = field(default_factory=Environment)

    def environment_of(self, cell: Cell) -> Environment:
        """What *cell* was found on."""
        return cell.environment or self.environment

    def to_run_json(self) -> dict[str, Any]:
        """The document: ``results`` (the cells), ``differences`` between them, provenance and environment."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "results": [_cell_document(cell) for cell in self.cells],
            "differences": differences(self.cells),
            "provenance": _document(self.provenance),
            "environment": _document(self.environment),
        }


def flat_counts(counts: Counts) -> dict[str, Number]:
    """Counts by name, those by reason as ``exits_by_reason.HLT``."""
    return dict(_flat(counts))


def _flat(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            for inner, what in value.items():
                yield f"{name}.{inner}", what
        else:
            yield name, value


def differences(cells: tuple[Cell, ...]) -> list[dict[str, Any]]:
    """The counts per operation in which cells of the same program and parameters differ.

    One row for each: the program, the counter, and its value in each cell that has it (``cell`` is its place in
    ``results``).
    """
    groups: dict[str, list[int]] = {}
    for place, cell in enumerate(cells):
        same = [cell.dimensions.get(name) for name in ("program", "parameters")]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(place)
    rows = []
    for places in groups.values():
        counts = _comparable({place: cells[place].per_op for place in places})
        for name in dict.fromkeys(name for one in counts.values() for name in one):
            have = {place: counts[place][name] for place in places if name in counts[place]}
            if len(set(have.values())) > 1:
                row = {"program": cells[places[0]].dimensions.get("program"), "counter": name}
                rows.append({**row, "per_op": [{"cell": place, "value": value} for place, value in have.items()]})
    return rows


def _comparable(counts: Mapping[int, Counts]) -> dict[int, dict[str, Number]]:
    """Flat counts, in which a reason that others have is 0 where every exit has a reason."""
    told: dict[int, Mapping[str, Number]] = {}
    for place, one in counts.items():
        by_reason = one.get(BY_REASON)
        if isinstance(by_reason, Mapping):
            told[place] = by_reason
    reasons = dict.fromkeys((f"{BY_REASON}.{name}" for one in told.values() for name in one if name != NOT_TOLD), 0)
    known = {place for place, one in told.items() if NOT_TOLD not in one}
    flat = {place: flat_counts(one) for place, one in counts.items()}
    return {place: {**one, **reasons, **one} if place in known else one for place, one in flat.items()}


_SHOWN = ("on", "kernel", "cpu", "mmu", "program")
"""Dimensions that every row of ``results`` also has at its top, for those who read the JSON."""


def _cell_document(cell: Cell) -> dict[str, Any]:
    top = {name: cell.dimensions.get(name) for name in _SHOWN}
    return {**top, **_document(cell)}


def _document(value: Any) -> Any:
    """*value* as JSON types; named tuples and dataclasses become objects."""
    if hasattr(value, "__dataclass_fields__"):
        return {one.name: _document(getattr(value, one.name)) for one in fields(value)}
    if hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, (list, tuple)):
        return [_document(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _document(item) for name, item in value.items()}
    return value
