"""The page as a file: nothing from elsewhere, texts escaped, a strict policy, small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_inputs import DATA, hostile
from worldswitch.report.build import report
from worldswitch.report.html import html, shown, to_data

_ELSEWHERE = ("src", "href", "srcset", "action", "data", "poster", "formaction", "xlink:href")


class Elements(HTMLParser):
    """All elements with their attributes, and the texts of style and script elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self._inside: tuple[str, dict[str, str | None]] | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag in ("style", "script"):
            self._inside = (tag, dict(attrs))

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside:
            self.raw.append(({"tag": self._inside[0], **self._inside[1]}, data))


@pytest.fixture
def page(churn_page: Path) -> str:
    return churn_page.read_text(encoding="utf-8")


def test_nothing_in_it_points_elsewhere(mixed_page: Path) -> None:
    for tag, attributes in Elements(mixed_page.read_text(encoding="utf-8")).found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img")
        for name in _ELSEWHERE:
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)


def test_no_element_has_a_style_or_a_handler(mixed_page: Path) -> None:
    for _, attributes in Elements(mixed_page.read_text(encoding="utf-8")).found:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]


def test_its_policy_lets_in_its_own_style_and_script_and_nothing_else(page: str) -> None:
    elements = Elements(page)
    policy = next(a["content"] or "" for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (text,) = (data for a, data in elements.raw if a["tag"] == kind and "type" not in a)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


def test_ids_are_unique_and_every_link_has_its_place(mixed_page: Path) -> None:
    found = Elements(mixed_page.read_text(encoding="utf-8")).found
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(a["href"] or "")[1:] for tag, a in found if tag == "a"} <= set(ids)


def test_it_is_under_2_mb_with_one_input_of_each_kind(mixed_page: Path) -> None:
    assert mixed_page.stat().st_size < 2_000_000


def test_hostile_names_are_text(tmp_path: Path) -> None:
    made = html(report(hostile(tmp_path)))
    assert "<img" not in made
    assert "window.hacked=1</script>" not in made
    assert "\x1b" not in made
    elements = Elements(made)
    assert len([1 for tag, a in elements.found if tag == "script" and "type" not in a]) == 1
    assert "&lt;img src=x onerror=window.hacked=1&gt;" in made


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "\u2028\u2029", "]]>", "&lt;", '"\\'])
def test_data_cannot_end_its_element(text: str) -> None:
    written = str(to_data({text: [text]}))
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {text: [text]}


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1234567, "count", "1,234,567"),
        (81_500, "ns", "81.5 µs"),
        (0.401, "share", "40.1 %"),
        (0x101A, "hex", "0x101a"),
        (None, "ns", "–"),
        (True, "text", "yes"),
        (119, "number", "119"),
        (2.006, "number", "2.006"),
        (70.3, "seconds", "70.3 s"),
    ],
)
def test_values_have_units(value: object, kind: str, expected: str) -> None:
    assert shown(value, kind) == expected


def test_every_figure_says_where_it_is_from(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(figures) >= 8
    for figure in figures:
        assert re.search(r'<p class="origin">.*wp\.trace\.dat.*<code>wsw ', figure, re.DOTALL)


def test_every_picture_has_a_table(page: str) -> None:
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        assert "<table>" in figure or "data-timeline" in figure


def test_the_same_input_gives_the_same_page(churn_page: Path, page: str) -> None:
    from worldswitch.report.study import Question

    assert html(report([str(DATA / "svm-5.10-npt-tdpmmu" / "wp.trace.dat")], Question(("6.12",)))) == page
