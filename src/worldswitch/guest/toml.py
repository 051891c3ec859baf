"""Guest programs as TOML, written and read field by field from the classes themselves.

One operation a line, an inline table with ``op`` first; blocks nest as arrays. Addresses and register values are
hexadecimal; fields that have their default are left out. Register values may also be given as lists of bit names,
bits to change as a mask, and MSRs by name. What is read back from what was written is equal.

Source of the form: TOML 1.0, https://toml.io/en/v1.0.0.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from worldswitch.errors import MissingError, UnknownNameError, WorldswitchError, printable
from worldswitch.guest import operations as ops
from worldswitch.guest.check import MAX_DEPTH
from worldswitch.guest.fields import FieldKind, describe, field_kinds, holds
from worldswitch.guest.operations import FLAGS, OPERATIONS, Operation
from worldswitch.guest.program import Handler, Layout, Mode, Pages, Program, ProgramError, Space, State, Vcpu
from worldswitch.x86.msrs import msr_name, msr_number
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask, bit_names

MAX_BYTES = 1 << 20
"""Size of the largest file that is read."""
_HEXADECIMAL = frozenset(
    {"va", "pa", "stride", "value", "memory", "code", "tables", "cr0", "cr4", "efer", "port", "leaf", "nr", "args"}
)
"""Fields whose numbers are written in hexadecimal."""
_STATE_REGISTERS = {"cr0": CR0, "cr4": CR4, "efer": EFER}
_SHORT = re.compile(r"[A-Za-z0-9_-]+")
_LINE = 100


def dumps(program: Program) -> str:
    """*program* as TOML; :func:`loads` gives an equal one back."""
    lines: list[str] = []
    for name, field in field_kinds(Program).items():
        value = getattr(program, name)
        if name in ("vcpus", "spaces", "state", "layout") or (
            value == field.default and name not in ("mode", "memory")
        ):
            continue
        lines.append(f"{name} = {_value(name, value)}")
    lines += ["", "[state]"]
    lines += [f"{name} = {_value(name, getattr(program.state, name))}" for name in field_kinds(State)]
    if program.layout is not None:
        lines += ["", "[layout]"]
        lines += [f"{name} = {_value(name, getattr(program.layout, name))}" for name in field_kinds(Layout)]
    for space in program.spaces:
        lines += ["", "[[spaces]]", f"name = {_text(space.name)}", *_block("pages", space.pages)]
    if not program.spaces:
        lines.insert(0, "spaces = []")
    for vcpu in program.vcpus:
        lines += ["", "[[vcpus]]"]
        for name in ("setup", "body", "end"):
            lines += _block(name, getattr(vcpu, name))
        for handler in vcpu.handlers:
            lines += ["", "[[vcpus.handlers]]", f"vector = {handler.vector}"]
            lines += ["retry = true"] * handler.retry + _block("fix", handler.fix)
    return "\n".join(lines) + "\n"


def _block(name: str, items: Iterable[Operation | Pages]) -> list[str]:
    items = list(items)
    return (
        [f"{name} = [", *(f"    {line}" for item in items for line in _inline(item).splitlines()), "]"] if items else []
    )


def _inline(item: Operation | Pages) -> str:
    parts = [f"op = {_text(item.word)}"] if isinstance(item, Operation) else []
    for name, field in field_kinds(type(item)).items():
        value = getattr(item, name)
        if value == field.default:
            continue
        if field.kind is Operation:
            inner = "".join(f"    {line}\n" for each in value for line in _inline(each).splitlines())
            parts.append(f"{name} = [\n{inner}]")
        elif name == "msr":
            known = msr_name(value)
            parts.append(f"{name} = {known if known.startswith('0x') else _text(known)}")
        else:
            parts.append(f"{name} = {_value(name, value)}")
    return "{ " + ", ".join(parts) + " },"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # TOML has no hexadecimal numbers below zero.
        return f"{value:#x}" if name in _HEXADECIMAL and value >= 0 else str(value)
    if isinstance(value, enum.Enum):
        return _text(value.value)
    if isinstance(value, str):
        return _text(value)
    items = sorted(value) if isinstance(value, frozenset) else value
    return f"[{', '.join(_value(name, item) for item in items)}]"


def _text(text: str) -> str:
    """A basic string; a long one in lines, folded where one space stands alone."""
    plain = "".join(_escaped(c) for c in text)
    if len(plain) <= _LINE:
        return f'"{plain}"'
    # Space at the beginning of a folded string is not part of it.
    plain = plain.replace(" ", "\\u0020", 1) if plain[0] == " " else plain
    lines, line = [], ""
    for word in re.split(r"(?<=[^ ] )(?=[^ ])", plain):
        if line and len(line) + len(word) > _LINE:
            lines.append(line)
            line = ""
        line += word
    return '"""\\\n' + "".join(f"    {part}\\\n" for part in (*lines, line)) + '    """'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}"


def load(path: str | Path) -> Program:
    """The program in the TOML file *path*.

    Raises:
        MissingError: The file cannot be read.
        ProgramError: It is no program; says where and what.
    """
    where = printable(str(path))
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise MissingError(f"cannot read {where}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ProgramError(f"{where} has more than {MAX_BYTES >> 20} MiB, so it is no guest program")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProgramError(f"{where} is not UTF-8 text (byte {error.start}), so no guest program") from None
    return loads(text, where)


def loads(text: str, where: str = "program") -> Program:
    """The program that *text*, TOML, describes; *where* it comes from starts each error message.

    Raises:
        ProgramError: It is not TOML, or no program; says where and what.
    """
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProgramError(f"{where} is not TOML: {printable(str(error))}") from None
    except RecursionError:
        raise ProgramError(f"{where}: it nests too deeply") from None
    except ValueError as error:
        raise ProgramError(f"{where}: a number or a date in it cannot be: {printable(str(error))}") from None
    try:
        return _program(document)
    except (_Misplaced, ProgramError) as error:
        raise ProgramError(f"{where}: {error}") from None


class _Misplaced(WorldswitchError):
    """What is wrong, and in which table."""


def _fail(place: str, problem: str) -> NoReturn:
    raise _Misplaced(f"{place}: {problem}" if place else problem)


def _program(document: Mapping[str, Any]) -> Program:
    read = _fields(document, Program, "")
    return Program(**read)


def _fields(table: Any, owner: type, place: str) -> dict[str, Any]:
    """The arguments of *owner* that *table* gives."""
    if not isinstance(table, Mapping):
        _fail(place, f"it must be a table, not {_what(table)}")
    kinds = field_kinds(owner)
    for name in table:
        if name not in kinds and not (name == "op" and issubclass(owner, Operation)):
            _fail(place, str(UnknownNameError("field", name, kinds, f"It has {', '.join(kinds) or 'none'}")))
    missing = [name for name, field in kinds.items() if field.required and name not in table]
    if missing:
        _fail(place, f"field {missing[0]} is missing")
    return {name: _read(table[name], kinds[name], name, owner, table, place) for name in kinds if name in table}


def _read(value: Any, field: FieldKind, name: str, owner: type, table: Mapping[str, Any], place: str) -> Any:
    if name in _STATE_REGISTERS and owner is State:
        return _register_value(value, _STATE_REGISTERS[name], name, place)
    if name == "value" and owner in (ops.WriteCr, ops.WriteMsr):
        return _register_value(value, _register_of(table), name, place)
    if name == "msr":
        return _msr(value, place)
    if name in ("set", "clear", "toggle"):
        return _bits(value, table, owner, name, place)
    if field.many is not None:
        if not isinstance(value, list):
            _fail(place, f"{name} must be an array, not {_what(value)}")
        return field.many(_item(item, field.kind, name, i, place) for i, item in enumerate(value))
    return _item(value, field.kind, name, None, place)


def _item(value: Any, kind: type, name: str, index: int | None, place: str) -> Any:
    where = _place(place, name, index, value)
    if kind is Operation:
        return _operation(value, where)
    if kind in (Vcpu, Space, Pages, Handler, State, Layout):
        return kind(**_fields(value, kind, where))
    if kind is Mode:
        if value not in list(Mode):
            _fail(place, str(UnknownNameError("mode", str(value), [m.value for m in Mode], f"It is {describe(Mode)}")))
        return Mode(value)
    if not holds(kind, value):
        _fail(place, f"{name} must be {describe(kind)}, not {_what(value)}")
    return value


def _place(place: str, name: str, index: int | None, value: Any) -> str:
    """``vcpu 0``, ``vcpu 0 body 2``, ``vcpu 0 body 2.1``, ``space main, pages 0``, ``vcpu 0 handler 14 fix 0``."""
    if index is None:
        return name
    if name == "vcpus":
        return f"vcpu {index}"
    if name == "spaces":
        given = value.get("name") if isinstance(value, Mapping) else None
        return f"space {printable(given) if isinstance(given, str) else index}"
    if name == "pages":
        return f"{place}, pages {index}"
    if name == "handlers":
        vector = value.get("vector") if isinstance(value, Mapping) else None
        return f"{place} handler {vector if holds(int, vector) else index}"
    return f"{place}.{index}" if _IN_BLOCK.search(place) else f"{place} {name} {index}"


_IN_BLOCK = re.compile(r"(setup|body|end|fix) [0-9.]+$")


def _operation(table: Any, place: str) -> Operation:
    if place.count(".") > MAX_DEPTH:
        _fail(place, f"blocks are nested deeper than {MAX_DEPTH}")
    if not isinstance(table, Mapping):
        _fail(place, f'an operation is a table such as {{ op = "cpuid" }}, not {_what(table)}')
    if "op" not in table:
        _fail(place, "field op is missing; it names the operation")
    word = table["op"]
    if not isinstance(word, str):
        _fail(place, f"op must be a text, not {_what(word)}")
    if word not in OPERATIONS:
        _fail(place, str(UnknownNameError("operation", word, OPERATIONS)))
    kind = OPERATIONS[word]
    return kind(**_fields(table, kind, place))


def _register_of(table: Mapping[str, Any]) -> int | None:
    """The register a write goes to; None if its bits have no names."""
    if table.get("op") == ops.WriteMsr.word:
        msr = table.get("msr")
        return EFER if msr == EFER or (isinstance(msr, str) and _msr_or_none(msr) == EFER) else None
    cr = table.get("cr")
    return cr if holds(int, cr) and cr in (CR0, CR4) else None


def _msr_or_none(name: str) -> int | None:
    try:
        return msr_number(name)
    except UnknownNameError:
        return None


def _register_value(value: Any, register: int | None, name: str, place: str) -> int:
    if holds(int, value):
        return int(value)
    if register is None or not _is_names(value):
        names = "" if register is None else " or an array of names of bits"
        _fail(place, f"{name} must be a whole number{names}, not {_what(value)}")
    try:
        return bit_mask(register, *value)
    except UnknownNameError as error:
        _fail(place, f"{name}: {error}")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _msr(value: Any, place: str) -> int:
    if holds(int, value):
        return int(value)
    if not isinstance(value, str):
        _fail(place, f"msr must be a name or a number, not {_what(value)}")
    try:
        return msr_number(value)
    except UnknownNameError as error:
        _fail(place, str(error))


def _bits(value: Any, table: Mapping[str, Any], owner: type, name: str, place: str) -> tuple[str, ...]:
    if _is_names(value):
        return tuple(value)
    if not holds(int, value) or not 0 <= value < 1 << 64:
        _fail(place, f"{name} must be an array of names of bits, or a mask of 64 bits, not {_what(value)}")
    if owner is ops.WriteCr:
        return bit_names(_register_of(table) or 0, value)
    return tuple(_flag_names(value, name, place))


def _flag_names(mask: int, name: str, place: str) -> Iterator[str]:
    for flag, bit in FLAGS.items():
        if mask & bit:
            yield flag
            mask &= ~bit
    if mask:
        _fail(place, f"{name}: {mask:#x} are no flags of a page-table entry")


def _what(value: Any) -> str:
    """*value* in words that fit a line."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "an array"
    shown = printable(str(value))
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    if isinstance(value, bool):
        return shown.lower()
    return f"the text {shown!r}" if isinstance(value, str) else shown
