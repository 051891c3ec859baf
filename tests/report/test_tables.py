from __future__ import annotations

import html
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.errors import printable
from worldswitch.report import tables
from worldswitch.report.tables import fields, markdown, paragraphs, table, wrapped

hostile = st.text(max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(hostile, st.integers()), max_size=5))
def test_any_string_is_safe_and_fits(rows) -> None:
    text = table(("name", "n"), rows, left=("name",))
    assert text.replace("\n", "").isprintable()
    assert all(len(line) <= 100 for line in text.splitlines())


def test_markup_is_not_interpreted() -> None:
    assert "[red]x[/red] :smile:" in table(("name",), [("[red]x[/red] :smile:",)], left=("name",))


def test_a_long_cell_is_folded_not_cut() -> None:
    text = table(("name", "n"), [("x" * 300, 1)], left=("name",))
    assert text.count("x") == 300


def test_none_is_a_dash() -> None:
    assert table(("a", "b"), [(1, None)]).splitlines()[-1].split() == ["1", "-"]


def test_a_title_stands_above() -> None:
    assert table(("a",), [(1,)], "Title").startswith("Title\n")


def test_fields_are_aligned_and_empty_ones_left_out() -> None:
    assert fields((("a", 1), ("longer", "x\ny"), ("none", None), ("empty", ""))) == "a       1\nlonger  x\\ny\n"


narrow = st.text("aZ 09[]:/µ–≠", max_size=12).map(str.strip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(narrow, narrow, st.integers()), max_size=4), st.sets(st.sampled_from(["a", "bcdef"])))
def test_a_narrow_table_is_drawn_as_rich_draws_it(rows, left: set[str]) -> None:
    columns = ("a", "bcdef", "n")
    cells = [[str(cell) for cell in row] for row in rows]
    fitting = tables._fitting(columns, cells, frozenset(left))
    assert fitting is not None
    assert fitting == tables._folded(columns, cells, frozenset(left))


def test_signs_of_unknown_width_and_wide_tables_are_left_to_rich() -> None:
    assert tables._fitting(("a",), [["日本"]], frozenset()) is None
    assert tables._fitting(("a",), [["x" * 101]], frozenset()) is None


def rendered(text: str) -> list[list[str]]:
    """The cells of a table as GitHub's specification says (section 4.10), escapes taken away."""
    rows = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", html.unescape(cell.strip())) for cell in cells])
    return rows


@given(st.lists(st.tuples(st.text(), st.text()), max_size=4))
def test_markdown_shows_any_cell_as_it_is(cells: list[tuple[str, str]]) -> None:
    with markdown():
        text = table(("a|b", "c"), cells, "T", left=("c",))
    head, rule, *rows = rendered(text)
    assert head == ["a|b", "c"]
    assert all(re.fullmatch(r":?-+:?", one) for one in rule)
    assert rows == [[printable(cell).strip() for cell in row] for row in cells]
    assert len({len(line) for line in text.splitlines()[2:]}) == 1, "the columns are aligned as plain text too"


def test_markdown_escapes_markup_and_leaves_names_alone() -> None:
    with markdown():
        assert table(("n",), [["<b>*x*</b> [a](b) `c` _d_ nx_huge_pages &lt; A & B"]]).splitlines()[2] == (
            r"| \<b\>\*x\*\</b\> \[a\](b) \`c\` \_d\_ nx_huge_pages &amp;lt; A & B |"
        )
        assert wrapped("# no heading") == r"\# no heading"
        assert wrapped("1. no item") == r"1\. no item"


def test_markdown_of_the_other_parts() -> None:
    with markdown():
        assert fields([("kernel", "6.1"), ("cpu", None), ("", "more")]) == "- kernel: 6.1\n  more\n"
        assert table(("a",), [], "T\nsource | x").startswith("**T**\n\nsource \\| x\n\n|")
        assert paragraphs("Notes", ["a|b", "word " * 40]).splitlines()[:3] == ["**Notes**", "", r"- a\|b"]
        assert paragraphs("Notes", []) == ""
        assert table(("a",), [["1"]], wrapped("*T*")).startswith("**\\*T\\***\n\n| "), "escaped once"
    assert "|" not in table(("a",), [["1"]])


def test_numbers_are_never_cut_off() -> None:
    row = ("word " * 9, "another " * 6, "0xffffffffffc1802d", "0xffffffffffc18031", "1,000,000,000", "123456789012345")
    text = table(("a", "b", "CR2", "RIP", "count", "more", "n", "m"), [(*row, *row[2:4])], left=("a", "b"))
    assert all(value in text for value in row[2:])
