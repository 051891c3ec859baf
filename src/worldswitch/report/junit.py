"""Verdicts as JUnit XML, which CI systems show beside the tests they ran.

A pair of cells is a suite, a quantity a test case: failed where B is worse, skipped where nothing can be told. Elements
and attributes are those that Jenkins' schema has (jenkinsci/xunit-plugin, junit-10.xsd), in its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from xml.etree import ElementTree

from worldswitch.errors import printable

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no place for, escaped or not (production 2, Char)."""


class Case(NamedTuple):
    """One quantity.

    Attributes:
        said: What was found, a line.
        failed: It is worse.
        skipped: Why nothing was told; empty if something was.
    """

    name: str
    said: str
    failed: bool = False
    skipped: str = ""


class Suite(NamedTuple):
    """Quantities of one pair."""

    name: str
    cases: tuple[Case, ...]


def junit(suites: Iterable[Suite]) -> bytes:
    """The document, UTF-8."""
    root = ElementTree.Element("testsuites")
    for suite in suites:
        counts = {
            "tests": len(suite.cases),
            "failures": sum(case.failed for case in suite.cases),
            "errors": 0,
            "skipped": sum(bool(case.skipped) for case in suite.cases),
        }
        attributes = {"name": _text(suite.name), **{name: str(value) for name, value in counts.items()}}
        one = ElementTree.SubElement(root, "testsuite", attributes)
        for case in suite.cases:
            # What a CI system shows as a path: the suite, then the case.
            item = ElementTree.SubElement(one, "testcase", name=_text(case.name), classname=_text(suite.name))
            if case.skipped:
                ElementTree.SubElement(item, "skipped", message=_text(case.skipped))
            elif case.failed:
                failure = ElementTree.SubElement(item, "failure", message=_text(case.said), type="regression")
                failure.text = _text(case.said)
            ElementTree.SubElement(item, "system-out").text = _text(case.said)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _text(text: str) -> str:
    return _FORBIDDEN.sub("?", printable(text))
