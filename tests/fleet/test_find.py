"""What paths, folders, patterns and URLs name."""

import fsspec
import pytest

from worldswitch.errors import MissingError
from worldswitch.fleet.find import find


@pytest.fixture
def tree(tmp_path):
    for name in ("a/one.data", "a/b/two.data", "a/.hidden", "three.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def names(tree, found):
    return [one.path.removeprefix(f"{tree}/") for one in found]


def test_a_folder_is_all_files_under_it(tree):
    assert names(tree, find([str(tree)])) == ["a/b/two.data", "a/one.data", "three.txt"]


def test_a_pattern_reaches_into_folders(tree):
    assert names(tree, find([f"{tree}/**/*.data"])) == ["a/b/two.data", "a/one.data"]


def test_a_file_named_twice_is_one(tree):
    assert names(tree, find([f"{tree}/three.txt", str(tree / "three.txt")])) == ["three.txt"]


def test_a_name_with_brackets_is_a_file_first(tree):
    (tree / "x[1].data").write_text("x")
    assert names(tree, find([f"{tree}/x[1].data"])) == ["x[1].data"]


def test_a_saved_trace_is_one_input(tree):
    (tree / "saved").mkdir()
    (tree / "saved" / "meta.json").write_text("{}")
    assert names(tree, find([f"{tree}/saved"])) == ["saved"]


def test_nothing_is_named(tree):
    with pytest.raises(MissingError, match=r"none\.data: no such file, folder or pattern"):
        find([f"{tree}/none.data"])
    (tree / "empty").mkdir()
    with pytest.raises(MissingError, match="empty: no file is in it"):
        find([f"{tree}/empty"])


def test_a_link_that_leads_nowhere_is_an_input_that_will_be_named(tree):
    (tree / "link").symlink_to(tree / "gone")
    assert [(one.path, one.size) for one in find([f"{tree}/link"])] == [(f"{tree}/link", -1)]


def test_urls_are_found_by_their_file_system():
    system = fsspec.filesystem("memory")
    system.pipe({"/found/a.data": b"12", "/found/b/c.data": b"3"})
    assert [(one.path, one.size) for one in find(["memory://found"])] == [
        ("memory://found/a.data", 2), ("memory://found/b/c.data", 1),
    ]  # fmt: skip
    assert [one.path for one in find(["memory://found/*.data"])] == ["memory://found/a.data"]
