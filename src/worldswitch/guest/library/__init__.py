"""The guest programs that ship, by name.

A *spec* is a name with parameters, ``name`` or ``name:key=value,...``, or the path of a TOML file.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.guest.library.registry import SHIPPED, Parameter, Shipped, Value, parse_argument
from worldswitch.guest.program import Program

_FAMILIES = ("toggles", "instructions", "memory", "switches", "recorded", "access")


def names() -> list[str]:
    """Names of the shipped programs, sorted."""
    return sorted(_known())


def program(spec: str) -> Program:
    """The program that *spec* means, such as ``cr0-wp``, ``page-touch:size=2M,pages=8`` or ``mine.toml``.

    Raises:
        UnknownNameError: No such program or parameter; names the nearest.
        UsageError: A parameter has a value it cannot have.
        ProgramError: The file holds no program.
        MissingError: The file cannot be read.
    """
    if is_file(spec):
        from worldswitch.guest.toml import load

        return load(spec)
    name, arguments = parse(spec)
    return find(name).make(**arguments)


def parse(spec: str) -> tuple[str, dict[str, Value]]:
    """The name in *spec* and the parameters it gives, with their values.

    Raises:
        UnknownNameError, UsageError: As :func:`program`.
    """
    name, colon, rest = spec.partition(":")
    if is_file(name):
        raise UsageError(f"{printable(name)}: a program in a file has no parameters; change the file")
    chosen = find(name.strip())
    known = {parameter.name: parameter for parameter in chosen.parameters}
    arguments: dict[str, Value] = {}
    for part in rest.split(",") if colon else []:
        key, equals, text = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"{chosen.name}: {printable(part)!r} is no parameter; write name:key=value,key=value")
        if key not in known:
            remedy = f"It has {', '.join(known)}" if known else "It has none"
            raise UnknownNameError(f"parameter of {chosen.name}", key, known, remedy)
        arguments[key] = parse_argument(known[key], text, chosen.name)
    return chosen.name, arguments


def is_file(spec: str) -> bool:
    """Whether *spec* is the path of a TOML file."""
    return spec.endswith(".toml")


def find(name: str) -> Shipped:
    """The shipped program of that name.

    Raises:
        UnknownNameError: There is none; names the nearest.
    """
    known = _known()
    chosen = known.get(name) or next((each for each in known.values() if name in each.also), None)
    if chosen is None:
        raise UnknownNameError("program", name, known, "wsw programs lists them; a path of one's own ends in .toml")
    return chosen


def parameters(name: str) -> tuple[Parameter, ...]:
    """The parameters of a shipped program with their defaults. Raises UnknownNameError."""
    return find(name).parameters


def describe(name: str) -> str:
    """What a shipped program does, what to expect of it and where it comes from. Raises UnknownNameError."""
    chosen = find(name)
    return f"{chosen.summary}\n\nExpect: {chosen.expect}\n\nSource: {chosen.source}"


@cache
def _known() -> dict[str, Shipped]:
    for family in _FAMILIES:
        import_module(f"{__name__}.{family}")
    return SHIPPED
