"""How a function becomes a shipped program: its docstring and its parameters are the program's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from worldswitch.errors import UnknownNameError, UsageError, printable
from worldswitch.guest.program import Program

Value = int | bool | str


class Parameter(NamedTuple):
    """A parameter of a shipped program; its kind is that of its default."""

    name: str
    default: Value


class Shipped(NamedTuple):
    """A shipped program.

    Attributes:
        make: From keyword arguments to the program.
        also: Other names it goes by.
        summary, expect, source: What the docstring says of it.
    """

    name: str
    make: Callable[..., Program]
    also: tuple[str, ...]
    summary: str
    expect: str
    source: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its parameters in order."""
        return tuple(Parameter(p.name, p.default) for p in inspect.signature(self.make).parameters.values())


SHIPPED: dict[str, Shipped] = {}
"""Name -> program, other names left out."""


def shipped(name: str, *also: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., Program]]:
    """Register a function that returns the arguments of :class:`Program` but for name and texts.

    Its docstring is three parts with an empty line between: what it does, ``Expect: ...`` and ``Source: ...``. The
    function that comes out returns the program.
    """

    def register(parts: Callable[..., dict[str, Any]]) -> Callable[..., Program]:
        summary, expect, source = _texts(parts)
        defaults = {p.name: p.default for p in inspect.signature(parts).parameters.values()}

        @functools.wraps(parts)
        def make(**given: Value) -> Program:
            texts = {"summary": summary, "expect": expect, "source": source}
            arguments = {key: value for key, value in given.items() if value != defaults[key]}
            return Program(**{"name": spec(name, arguments), **texts, **parts(**given)})

        SHIPPED[name] = Shipped(name, make, also, summary, expect, source)
        return make

    return register


def _texts(function: Callable[..., Any]) -> tuple[str, str, str]:
    summary, expect, source = (" ".join(part.split()) for part in (function.__doc__ or "").strip().split("\n\n"))
    return summary, expect.removeprefix("Expect: "), source.removeprefix("Source: ")


def spec(name: str, arguments: dict[str, Value]) -> str:
    """``cr0-wp`` or ``cr0-wp:single=true``."""
    words = ",".join(f"{key}={shown(value)}" for key, value in arguments.items())
    return f"{name}:{words}" if words else name


def shown(value: Value) -> str:
    """*value* as it is written in a spec."""
    if isinstance(value, bool):
        return str(value).lower()
    # Numbers this large are addresses and register values.
    return f"{value:#x}" if isinstance(value, int) and value >= 1 << 20 else str(value)


def parse_argument(parameter: Parameter, text: str, program: str) -> Value:
    """The value that *text* means for *parameter*.

    Raises:
        UsageError: It means none.
    """
    word = text.strip()
    if isinstance(parameter.default, bool):
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if word.lower() in known:
            return known[word.lower()]
        raise UsageError(f"{program}: {parameter.name} is true or false, not {printable(word)!r}")
    if isinstance(parameter.default, str):
        return word
    try:
        return int(word, 0)
    except ValueError:
        raise UsageError(f"{program}: {parameter.name} is a whole number, not {printable(word)[:40]!r}") from None


def limited(name: str, value: int, low: int, high: int) -> int:
    """*value*, which is from *low* to *high*.

    Raises:
        UsageError: It is not.
    """
    if not low <= value <= high:
        raise UsageError(f"{name} {value} is not from {low} to {high}")
    return value


def power_of_two(name: str, value: int, high: int) -> int:
    """*value*, which is a power of two up to *high*.

    Raises:
        UsageError: It is not.
    """
    if limited(name, value, 1, high) & (value - 1):
        raise UsageError(f"{name} {value} is not a power of two; {1 << value.bit_length()} is the next")
    return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """*value*, which is one of *known*.

    Raises:
        UnknownNameError: It is not; names the nearest.
    """
    if value not in known:
        raise UnknownNameError(name, value, known, f"It is {' or '.join(known)}")
    return value
