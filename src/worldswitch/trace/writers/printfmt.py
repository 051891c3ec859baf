"""The line the kernel prints for an event: its ``print fmt`` as a function of the columns.

A ``print fmt`` is a printf format and C expressions over the fields (``REC->x``), with
``__print_symbolic``, ``__print_flags``, ``__print_hex``, ``__get_str`` and casts. It is translated, token
by token, to a Python expression that is compiled once per event. A format that goes beyond this (some call
C functions) is printed ``name=value``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worldswitch.errors import printable
from worldswitch.record.formats import EventFormat, Kind
from worldswitch.record.trace import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

Printer = Callable[[Columns, int], list[str]]
"""Columns and their length -> the text of each event."""

_TOKEN = re.compile(
    r'\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)[uUlL]*|(?P<string>"(?:[^"\\]|\\.)*")|(?P<char>\'(?:[^\'\\]|\\.)\')'
    r"|(?P<field>REC\s*->\s*\w+)|(?P<name>\w+)|(?P<op>&&|\|\||<<|>>|[=!<>]=|[-+*/%&|^~!<>?:(),{}\[\]]))"
)
_CONVERSION = re.compile(
    r"%(?:(?P<flags>[-+ 0#]*)(?P<width>\d*)(?:\.(?P<precision>\d+))?"
    r"(?P<length>hh|h|ll|l|z|t|L)?(?P<kind>[diuxXocsp])|%)"
)
_BINARY = tuple(level.split() for level in ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %"))
_PYTHON = {"||": "or", "&&": "and", "/": "//"}
_WIDEST = 64
_LONGEST = 1 << 16
_CAST = re.compile(r"(?:unsigned|signed|int|long|short|char|(?:__)?[us](?:8|16|32|64)|bool|\w+_t)\Z")


# Events of MMU pages print through a GNU statement expression: the role word taken apart, then trace_seq_printf.
_STATEMENT = re.compile(
    r"\(\{[^;]*;\s*static const char \*access_str\[\] = \{(?P<names>[^}]*)\};\s*union kvm_mmu_page_role role;"
    r"\s*role\.word = REC->role;\s*trace_seq_printf\(p, (?P<call>[^;]*)\);\s*saved_ptr;\s*\}\)"
)
_ROLE = {"level": (0, 4), "has_4_byte_gpte": (4, 1), "quadrant": (5, 2), "direct": (7, 1), "access": (8, 3)} | {
    "invalid": (11, 1),
    "efer_nx": (12, 1),
    "cr0_wp": (13, 1),
    "ad_disabled": (16, 1),
}
"""Lowest bit and width in union kvm_mmu_page_role (arch/x86/include/asm/kvm_host.h) of 5.10 to 6.12."""
_NEWER_ROLE = _ROLE | {"access": (8, 4), "invalid": (12, 1), "efer_nx": (13, 1), "cr0_wp": (14, 1)}
"""The same since access has a fourth bit, for reading (7.2)."""
_OLDER_ROLE = {"gpte_is_8_bytes": "has_4_byte_gpte", "nxe": "efer_nx"}
"""Names of 5.10 for bits at the same place."""


class _Unknown(Exception):
    """The format goes beyond what is translated."""


def printer(event: EventFormat) -> Printer:
    """A function that prints *event*'s columns as the kernel would."""
    _, found, text = event.text.partition("print fmt:")
    if found and len(text) < _LONGEST:
        try:
            return _Translation(event, _STATEMENT.sub(_page, text)).printer()
        except (_Unknown, RecursionError, SyntaxError, ValueError, MemoryError):
            pass
    return plain_printer


def plain_printer(columns: Columns, n: int) -> list[str]:
    """``name=value`` of every column; a column called ``text`` alone is the text."""
    if list(columns) == ["text"]:
        return [printable(str(text)) for text in columns["text"]]
    shown = [[f"{name}={_shown(value)}" for value in _values(column)] for name, column in columns.items()]
    return [" ".join(row) for row in zip(*shown, strict=True)] if shown else [""] * n


def _page(found: re.Match[str]) -> str:
    """The statement expression as a call of the pseudo-function ``__printf``."""
    names = re.findall(r'"([^"]*)"', found["names"])
    role = _NEWER_ROLE if len(names) > 8 else _ROLE
    places = {name: f"((REC->role >> {bit}) & {(1 << width) - 1})" for name, (bit, width) in role.items()}
    places |= {old: places[new] for old, new in _OLDER_ROLE.items()}
    table = ", ".join(f'{{ {number}, "{name}" }}' for number, name in enumerate(names))
    call = re.sub(r"access_str\[(role\.access)\]", rf"__print_symbolic(\1, {table})", found["call"])
    call = re.sub(r"role\.(\w+)", lambda member: places.get(member[1], "?"), call)
    return f"__printf({call})"


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):
        return str(int(value))  # a bool as 0 or 1
    return printable(str(value))


def _values(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = [row.tobytes() for row in column] if column.ndim == 2 else column.tolist()
    return values


def _repeated(function: Callable[..., list[str]], n: int, lists: list[list[Any]]) -> list[str]:
    """*function* of all rows, each distinct row printed once where rows repeat, as in loops they do."""
    rows = list(zip(*lists, strict=True))
    distinct = dict.fromkeys(rows)
    if 2 * len(distinct) > n or not rows:
        return function(n, *lists)
    lines = function(len(distinct), *(list(column) for column in zip(*distinct, strict=True)))
    return list(map(dict(zip(distinct, lines, strict=True)).__getitem__, rows))


class _Translation:
    """One ``print fmt`` on its way to Python."""

    def __init__(self, event: EventFormat, text: str) -> None:
        self._event = event
        self._text = text
        self._at = 0
        self._used: dict[str, str] = {}
        self._constants: dict[str, Any] = {"symbolic": _symbolic, "flags": _flags, "shown": _shown}
        self._token: tuple[str, str] = ("", "")
        self._next()

    def printer(self) -> Printer:
        source = self._printf()
        if self._token[0] != "end":
            raise _Unknown
        names = tuple(self._used)
        variables = "".join(f"{variable}, " for variable in self._used.values())
        listing = f"[{source} for {variables} in zip({variables})]" if names else f"[{source}] * n"
        # Nothing of the file's text is in the source: only variables, numbers and operators made here.
        scope = {"__builtins__": {"zip": zip, "chr": chr, "len": len}} | self._constants
        function = eval(f"lambda n, {variables}: {listing}", scope)

        def printed(columns: Columns, n: int) -> list[str]:
            zeros = [0] * n
            lists = [_values(columns[name]) if name in columns else zeros for name in names]
            try:
                return _repeated(function, n, lists)
            except (TypeError, ValueError, IndexError, OverflowError):
                return plain_printer(columns, n)

        return printed

    def _printf(self) -> str:
        """A format and its arguments."""
        format_text = self._string()
        arguments = []
        while self._take(","):
            arguments.append(self._ternary())
        return f"({_python_format(format_text)!r} % ({_arguments(format_text, arguments)}))"

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            if self._text[self._at :].strip():
                raise _Unknown
            self._token = ("end", "")
            return
        self._at = found.end()
        kind = str(found.lastgroup)
        self._token = (kind, found[kind])

    def _take(self, op: str) -> bool:
        if self._token == ("op", op):
            self._next()
            return True
        return False

    def _expect(self, op: str) -> None:
        if not self._take(op):
            raise _Unknown

    def _string(self) -> str:
        """One or more literals that stand together."""
        parts = []
        while self._token[0] == "string":
            parts.append(re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), self._token[1][1:-1]))
            self._next()
        if not parts:
            raise _Unknown
        return "".join(parts)

    def _ternary(self) -> str:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        if_true = self._ternary()
        self._expect(":")
        return f"({if_true} if {condition} else {self._ternary()})"

    def _binary(self, level: int) -> str:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self._token[0] == "op" and self._token[1] in _BINARY[level]:
            op = self._token[1]
            self._next()
            right = self._binary(level + 1)
            if op in ("<<", ">>"):
                right = f"({right} & 63)"
            if op in ("/", "%"):
                right = f"({right} or 1)"
            left = f"({left} {_PYTHON.get(op, op)} {right})"
        return left

    def _unary(self) -> str:
        if self._take("!"):
            return f"(not {self._unary()})"
        if self._take("~"):
            return f"(~{self._unary()})"
        if self._take("-"):
            return f"(-{self._unary()})"
        if self._take("("):
            cast = self._cast()
            if cast:
                return self._unary()
            inner = self._ternary()
            self._expect(")")
            return inner
        return self._primary()

    def _cast(self) -> bool:
        """Skip a cast whose opening parenthesis is taken; the fields' own types say enough."""
        before = self._at, self._token
        words = 0
        while self._token[0] == "name" and _CAST.match(self._token[1]):
            words += 1
            self._next()
        if words and self._take(")"):
            return True
        self._at, self._token = before
        return False

    def _primary(self) -> str:
        kind, text = self._token
        if kind == "string":
            return self._constant(self._string())
        self._next()
        if kind == "number":
            return str(int(text, 16) if text[:2] in ("0x", "0X") else int(text))
        if kind == "char":
            return str(ord(text[-2]))
        if kind == "field":
            return self._field(text.split("->")[1].strip())
        if kind == "name" and self._take("("):
            return self._call(text)
        raise _Unknown

    def _field(self, name: str) -> str:
        field = self._event.field(name)
        if field is None and name != "common_pid":
            raise _Unknown
        variable = self._used.setdefault(name, f"v{len(self._used)}")
        if self._take("["):
            index = self._ternary()
            self._expect("]")
            return f"{variable}[{index} % len({variable})]" if field and field.kind is Kind.BYTES else "0"
        if field is not None and field.kind in (Kind.TEXT, Kind.DYNAMIC, Kind.RELATIVE):
            return f"shown({variable})"
        return variable

    def _call(self, name: str) -> str:
        if name == "__get_str":
            _, field = self._token
            self._next()
            self._expect(")")
            return self._field(field)
        if name == "__printf":
            line = self._printf()
            self._expect(")")
            return line
        value = self._ternary()
        if name in ("__print_symbolic", "__print_flags"):
            delimiter = ""
            if name == "__print_flags":
                self._expect(",")
                delimiter = self._string()
            table: dict[int, str] = {}
            while self._take(","):
                self._expect("{")
                number = self._number()
                self._expect(",")
                text = self._string()
                self._expect("}")
                if number is not None:
                    table[number] = text
            self._expect(")")
            if name == "__print_symbolic":
                return f"symbolic({value}, {self._constant(table)})"
            return f"flags({value}, {self._constant(delimiter)}, {self._constant(table)})"
        if name == "__print_hex" and self._take(","):
            length = self._ternary()
            self._expect(")")
            return f"{value}[:{length}].hex(' ')"
        raise _Unknown

    def _number(self) -> int | None:
        """A constant of a table; None where it is an enumerator, whose number the file does not say."""
        before = self._at, self._token
        try:
            value = self._ternary()
        except _Unknown:
            value = ""
            self._at, self._token = before
            while self._token[0] != "end" and self._token != ("op", ","):
                self._next()
        if not re.fullmatch(r"[0-9\s()+\-~&|<>]+", value) or len(value) > 200:
            return None
        return int(eval(value, {"__builtins__": {}}))

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name


def _symbolic(value: int, names: dict[int, str]) -> str:
    found = names.get(value)
    return f"0x{value & 0xFFFFFFFFFFFFFFFF:x}" if found is None else found


def _flags(value: int, delimiter: str, names: dict[int, str]) -> str:
    words = []
    for bit, name in names.items():
        if bit and value & bit == bit:
            words.append(name)
            value &= ~bit
    if value:
        words.append(f"0x{value & 0xFFFFFFFFFFFFFFFF:x}")
    return delimiter.join(words)


def _python_format(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        kind = found["kind"]
        if kind is None:
            return "%%"
        if int(found["width"] or 0) > _WIDEST or int(found["precision"] or 0) > _WIDEST:
            raise _Unknown
        precision = f".{found['precision']}" if found["precision"] else ""
        prefix = "0x" if kind == "p" else ""
        python = {"i": "d", "u": "d", "p": "x", "c": "s"}.get(kind, kind)
        return f"{prefix}%{found['flags']}{found['width']}{precision}{python}"

    if "%" in _CONVERSION.sub("", text):
        raise _Unknown
    return _CONVERSION.sub(one, text)


def _arguments(text: str, arguments: list[str]) -> str:
    """The arguments, each brought to the C type its conversion reads."""
    kinds = [(found["kind"], found["length"]) for found in _CONVERSION.finditer(text) if found["kind"]]
    if len(kinds) != len(arguments):
        raise _Unknown
    made = []
    for (kind, length), argument in zip(kinds, arguments, strict=True):
        bits = 64 if length in ("l", "ll", "z", "t", "L") or kind == "p" else 32
        if kind == "s":
            made.append(argument)
        elif kind == "c":
            made.append(f"(chr({argument} & 127) if {argument} else '')")
        elif kind in ("d", "i"):
            made.append(f"((({argument}) + {1 << (bits - 1)} & {(1 << bits) - 1}) - {1 << (bits - 1)})")
        else:
            made.append(f"({argument}) & {(1 << bits) - 1}")
    return "".join(f"{argument}, " for argument in made)
