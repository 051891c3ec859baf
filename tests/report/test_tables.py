from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.report import tables
from worldswitch.report.tables import fields, table

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
