"""What the fields of programs and operations may hold, read from their classes: no second list of them exists."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple


class FieldKind(NamedTuple):
    """One field of a class of ``operations`` or ``program``.

    Attributes:
        kind: ``int``, ``bool``, ``str``, an enum or a dataclass.
        many: ``tuple`` or ``frozenset`` where the field holds several of them, else None.
        optional: Whether None is allowed.
        default: ``dataclasses.MISSING`` where there is none.
    """

    kind: type
    many: type | None
    optional: bool
    default: Any

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is MISSING


def field_kinds(owner: type) -> Mapping[str, FieldKind]:
    """The fields of the dataclass *owner* by name, in order."""
    key: Any = owner
    return _fields_of(key)


@cache
def _fields_of(owner: Any) -> dict[str, FieldKind]:
    hints = typing.get_type_hints(owner)
    return {f.name: _kind(hints[f.name], _default(f)) for f in fields(owner)}


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _kind(hint: Any, default: Any) -> FieldKind:
    optional = isinstance(hint, types.UnionType) and type(None) in hint.__args__
    if optional:
        hint = next(part for part in hint.__args__ if part is not type(None))
    many = typing.get_origin(hint)
    if many is not None:
        hint = typing.get_args(hint)[0]
    return FieldKind(hint, many, optional, default)


def describe(kind: type) -> str:
    """What a field of this kind takes, in words."""
    if kind is int:
        return "a whole number"
    if kind is bool:
        return "true or false"
    if kind is str:
        return "a text"
    if issubclass(kind, enum.Enum):
        return " or ".join(f'"{member.value}"' for member in kind)
    return "a table" if is_dataclass(kind) else kind.__name__


def holds(kind: type, value: Any) -> bool:
    """Whether *value* is of this kind; a truth value is not a number."""
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def misfit(owner: Any) -> str | None:
    """What is wrong with the types of the fields of *owner*, a dataclass instance; None if nothing is."""
    for name, field in field_kinds(type(owner)).items():
        value = getattr(owner, name)
        if value is None and field.optional:
            continue
        if field.many is None:
            if not holds(field.kind, value):
                return f"{name} must be {describe(field.kind)}, not {value!r}"
            continue
        if not isinstance(value, tuple | frozenset) or not isinstance(value, field.many):
            return f"{name} must be a {field.many.__name__}, not {type(value).__name__}"
        if not all(holds(field.kind, item) for item in value):
            what = "an operation" if field.kind.__name__ == "Operation" else describe(field.kind)
            return f"each item of {name} must be {what}"
    return None
