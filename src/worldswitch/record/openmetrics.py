"""Metrics as text, in the part of OpenMetrics that Prometheus's older text format reads as well.

So a page may be scraped, or written for node_exporter's textfile collector. Standard library only, Python 3.9.

Sources: "OpenMetrics 1.0" (prometheus/OpenMetrics, specification/OpenMetrics.md), sections on the text format, on label
values and on counters; Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.errors import printable

if TYPE_CHECKING:
    Labels = Mapping[str, object]

GAUGE, COUNTER = "gauge", "counter"
_KINDS = (GAUGE, COUNTER)
"""Only what both formats know by the same name; OpenMetrics' info is a gauge of value 1 here."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class Sample(NamedTuple):
    """One value of a family.

    Attributes:
        labels: Name -> value; what is None is left out, others are written as ``str`` has them.
    """

    value: float
    labels: Labels = {}  # noqa: RUF012 - never written to


class Family(NamedTuple):
    """Samples of one meaning.

    Attributes:
        name: In base units (seconds, bytes); a counter's without ``_total``, which its samples get.
        help: What is counted or measured, a sentence.
        kind: :data:`GAUGE` or :data:`COUNTER`.
        unit: The last word of *name* where that is a unit, such as ``seconds``.
    """

    name: str
    help: str
    samples: Iterable[Sample]
    kind: str = GAUGE
    unit: str = ""


def exposition(families: Iterable[Family]) -> str:
    """The page: for each family that has samples its type, unit, help and samples; at the end ``# EOF``.

    Label values may be any text. What is not printable becomes an escape such as ``\\x1b``, its backslash doubled as
    the format asks.

    Raises:
        ValueError: A name is none, a series or a family is there twice, or a counter has a negative value.
    """
    lines: list[str] = []
    families_seen: set[str] = set()
    for family in families:
        _check(family)
        if family.name in families_seen:
            raise ValueError(f"the family {family.name} is there twice")
        families_seen.add(family.name)
        samples = list(_samples(family))
        if samples:
            lines += [f"# TYPE {family.name} {family.kind}"]
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            # A quote in a help is an escape in one of the two formats, and an error in the other.
            about = escaped(family.help.replace('"', "'"))
            lines += [f"# HELP {family.name} {about}", *samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def escaped(text: str) -> str:
    """*text* as it stands between the quotes of a label."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _check(family: Family) -> None:
    if family.kind not in _KINDS:
        raise ValueError(f"{family.kind!r} is no kind of family; one of {', '.join(_KINDS)}")
    if not _NAME.match(family.name):
        raise ValueError(f"{family.name!r} is no name of a family")
    if family.name.endswith("_total"):
        raise ValueError(f"{family.name}: a family's name has no _total; the samples of a counter get it")
    if family.unit and not family.name.endswith(f"_{family.unit}"):
        raise ValueError(f"{family.name} does not end in its unit, {family.unit}")


def _samples(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.kind == COUNTER else family.name
    seen: set[str] = set()
    for value, labels in family.samples:
        if family.kind == COUNTER and not value >= 0:
            raise ValueError(f"{family.name}: {value} is no count")
        text = ",".join(f'{_label(key)}="{escaped(str(one))}"' for key, one in labels.items() if one is not None)
        series = f"{name}{{{text}}}" if text else name
        if series in seen:
            raise ValueError(f"the series {series} is there twice")
        seen.add(series)
        yield f"{series} {_number(value)}"


def _label(name: str) -> str:
    # Names with two underscores at the start are Prometheus's own.
    if not _LABEL.match(name) or name.startswith("__"):
        raise ValueError(f"{name!r} is no name of a label")
    return name


def label_name(text: str) -> str:
    """A label's name made of any text: ``parameters.vms`` becomes ``parameters_vms``."""
    name = re.sub(r"[^a-zA-Z0-9]+", "_", text).strip("_")
    return name if _LABEL.match(name) else f"l_{name}"


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
