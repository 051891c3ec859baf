"""Verdicts as JUnit XML: read by an XML parser, held against the elements that Jenkins' schema allows."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from worldswitch.report.junit import Case, Suite, junit

ALLOWED = {
    "testsuites": (set(), {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped"}, {"testcase"}),
    "testcase": ({"name", "classname"}, {"skipped", "failure", "system-out"}),
    "skipped": ({"message"}, set()),
    "failure": ({"message", "type"}, set()),
    "system-out": (set(), set()),
}
"""Element -> attributes and children, of junit-10.xsd in jenkinsci/xunit-plugin."""


def parsed(*suites: Suite) -> ElementTree.Element:
    root = ElementTree.fromstring(junit(suites))
    for element in root.iter():
        attributes, children = ALLOWED[element.tag]
        assert set(element.attrib) <= attributes
        assert {child.tag for child in element} <= children
    for case in root.iter("testcase"):
        order = [child.tag for child in case]
        assert order == sorted(order, key=["skipped", "failure", "system-out"].index)
    return root


def test_a_regression_a_doubt_and_a_pass() -> None:
    suite = parsed(
        Suite("s", (Case("a", "slower", failed=True), Case("b", "-", skipped="too few runs"), Case("c", "equal")))
    )[0]
    assert suite.attrib == {"name": "s", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    failure = suite[0].find("failure")
    assert failure is not None
    assert (failure.text, failure.attrib["message"]) == ("slower", "slower")
    skipped = suite[1].find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"] == "too few runs"
    assert [child.tag for child in suite[2]] == ["system-out"]


@given(st.text(), st.text(), st.text(), st.booleans())
def test_any_name_is_well_formed(suite: str, name: str, said: str, failed: bool) -> None:
    case = parsed(Suite(suite, (Case(name, said, failed),)))[0][0]
    assert "<" not in case.attrib["name"] or "<" in name


def test_markup_in_a_name_is_a_name() -> None:
    name = "</testcase><!-- ]]> & \" ' \x00\x1b￿"
    case = parsed(Suite(name, (Case(name, name, True),)))[0][0]
    assert case.attrib["name"] == case.attrib["classname"]
    assert case.attrib["name"].startswith("</testcase><!-- ]]> & \" ' \\x00\\x1b")
