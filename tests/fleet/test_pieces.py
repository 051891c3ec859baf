"""Work cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from worldswitch.fleet.pieces import Input, cut

names = st.lists(st.text("abcdef0123/", min_size=1, max_size=12), min_size=1, max_size=200, unique=True).map(sorted)
SIZE = 1000


def inputs(paths):
    return [Input(path, SIZE, "1") for path in paths]


@given(names)
def test_every_input_is_in_one_piece_in_order(paths):
    pieces = list(cut(inputs(paths), {}))
    assert [one.path for piece in pieces for one in piece.items] == paths


@given(names, st.text("abcdef", min_size=1, max_size=8))
def test_one_more_input_changes_the_piece_it_falls_into_alone(paths, new):
    before = {piece.name for piece in cut(inputs(paths), {})}
    after = {piece.name for piece in cut(inputs(sorted({*paths, new})), {})}
    # Its piece may be cut in two where its name ends one.
    assert len(before - after) <= 1
    assert len(after - before) <= 2


def test_a_changed_file_is_another_piece():
    (one,), (other,) = (list(cut([Input("a", SIZE, tag)], {})) for tag in ("1", "2"))
    assert one.name != other.name


def test_another_question_is_another_piece():
    (one,), (other,) = (list(cut([Input("a", SIZE, "1")], {"to": to})) for to in ("6.1", "6.12"))
    assert one.name != other.name


def test_large_files_are_alone():
    assert [len(piece.items) for piece in cut([Input(name, 17 << 20, "") for name in "abc"], {})] == [1, 1, 1]
