"""A report as one HTML file that needs nothing else: no network, no other file, no plug-in.

The page's Content-Security-Policy lets in one style sheet and one script, by their hashes, and nothing at all from
elsewhere; what the script draws from is data, never code. Texts are escaped by Jinja, and JSON so that no text in it
can end its element.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from worldswitch.errors import printable
from worldswitch.units import format_ns

if TYPE_CHECKING:
    from jinja2 import Environment

    from worldswitch.report.document import Report

_NUMBERS = frozenset(("count", "number", "ns", "seconds", "share", "hex"))
_LINE_ENDS = {0x2028: "\\u2028", 0x2029: "\\u2029", ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def html(report: Report) -> str:
    """The page."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action "
        "'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = _environment().get_template("page.html.j2")
    return page.render(report=report, policy=policy, style=style, script=script)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (pkgutil.get_data(__package__, f"assets/{name}") or b"").decode()


@cache
def _environment() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    names = ("page.html.j2", "finding.html.j2", "figure.html.j2", "advice.html.j2")
    templates = {name: (pkgutil.get_data(__package__, f"templates/{name}") or b"").decode() for name in names}
    made = Environment(
        loader=DictLoader(templates), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "data": to_data,
        "cell": shown,
        "key": sort_key,
        "clean": printable,
        "grouped": _grouped,
        "lines": _lines,
    }
    made.tests["numeric"] = _NUMBERS.__contains__
    return made


def to_data(value: Any) -> Any:
    """*value* as JSON that may stand in a script element: no character in it can end the element or a line."""
    from markupsafe import Markup

    return Markup(json.dumps(value, ensure_ascii=True, separators=(",", ":")).translate(_LINE_ENDS))


def shown(value: Any, kind: str) -> str:
    """A table's value as it is read."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, kind)
    return printable(str(value))


def _number(value: float, kind: str) -> str:
    if kind == "ns":
        return format_ns(value)
    if kind == "hex":
        return f"{int(value):#x}"
    if kind == "share":
        return f"{100 * value:.1f} %" if abs(value) >= 0.001 or not value else f"{100 * value:.2g} %"
    if kind == "seconds":
        return f"{value:.3g} s"
    if isinstance(value, int):
        return f"{value:,}" if kind == "count" else str(value)
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def sort_key(value: Any) -> str:
    """What a table's value is sorted by; empty for what nobody knows."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return repr(value) if isinstance(value, int | float) else printable(str(value))


def _lines(text: str) -> str:
    """*text* with its line breaks, and all else that does not show written out: what is copied is what is seen."""
    return "\n".join(map(printable, text.split("\n")))


def _grouped(value: int) -> str:
    return f"{value:,}"
