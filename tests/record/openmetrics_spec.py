"""Reads a page by the letter of the OpenMetrics 1.0 text format, and refuses all that is not in it.

Written from the specification's ABNF and prose (prometheus/OpenMetrics, specification/OpenMetrics.md), independent of
what writes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
ESCAPED = r'(?:[^\n"\\]|\\["n\\])*'
DESCRIPTOR = re.compile(rf"# (?P<what>TYPE|UNIT|HELP) (?P<name>{NAME}) (?P<value>{ESCAPED})", re.DOTALL)
LABEL = rf'[a-zA-Z_][a-zA-Z0-9_]*="{ESCAPED}"'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?Inf|NaN"
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>(?:{LABEL}(?:,{LABEL})*)?)\}})? (?P<value>{NUMBER})", re.DOTALL)
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Series(NamedTuple):
    """One sample line."""

    family: str
    kind: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> list[Series]:
    """Every sample of *text*; AssertionError where it breaks a rule."""
    text.encode("utf-8")
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""], "the last line is # EOF, with a line feed"
    kinds: dict[str, str] = {}
    family, said = "", set()
    found: list[Series] = []
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for line in lines[:-2]:
        if line.startswith("#"):
            match = DESCRIPTOR.fullmatch(line)
            assert match, line
            what, name, value = match["what"], match["name"], match["value"]
            if name != family:
                assert name not in kinds, f"{name} is interleaved"
                family, said = name, set()
            assert what not in said, f"{name} has two {what}"
            assert not any(one.family == name for one in found), "descriptors come before samples"
            said.add(what)
            if what == "TYPE":
                assert value in ("gauge", "counter", "unknown", "info", "stateset")
                kinds[name] = value
            if what == "UNIT":
                assert name.endswith(f"_{value}")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        kind = kinds[family]
        assert match["name"] == (f"{family}_total" if kind == "counter" else family), line
        pairs = re.findall(rf'([a-zA-Z_][a-zA-Z0-9_]*)="({ESCAPED})"', match["labels"] or "", re.DOTALL)
        labels = {key: re.sub(r'\\["n\\]', lambda one: ESCAPES[one[0]], value) for key, value in pairs}
        assert len(labels) == len(pairs), "a label is there twice"
        series = (match["name"], frozenset(labels.items()))
        assert series not in seen, f"{series} is there twice"
        seen.add(series)
        found.append(Series(family, kind, labels, float(match["value"])))
        assert kind != "counter" or found[-1].value >= 0
    return found
