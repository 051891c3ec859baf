"""Sweeps as TOML."""

from itertools import product

import pytest

from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.fleet.spec import load

BASE = """
on = ["model"]
[axes]
program = ["cr0-wp", "cr4-pge"]
kernel = ["5.10", "6.10"]
n = {from = 10, to = 30, step = 10}
set.nx_huge_pages = ["never", "off"]
"""


def spec(tmp_path, text, name="sweep.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_cells_are_all_combinations(tmp_path):
    sweep = load(spec(tmp_path, BASE))
    found = [tuple(sweep.cell(number).values()) for number in sweep.numbers()]
    assert found == list(product(["model"], ["cr0-wp", "cr4-pge"], ["5.10", "6.10"], [10, 20, 30], ["never", "off"]))


def test_a_sample_has_no_cell_twice_and_is_always_the_same(tmp_path):
    sweep = load(spec(tmp_path, "sample = 9\nseed = 3\n" + BASE))
    again = load(spec(tmp_path, "sample = 9\nseed = 3\n" + BASE, "again.toml"))
    numbers = list(sweep.numbers())
    assert len(set(numbers)) == 9
    assert numbers == list(again.numbers())
    assert [sweep.cell(number) for number in numbers] == [again.cell(number) for number in numbers]
    assert numbers != list(load(spec(tmp_path, "sample = 9\nseed = 4\n" + BASE, "other.toml")).numbers())


def test_drawn_values_lie_between_their_ends(tmp_path):
    sweep = load(spec(tmp_path, "sample = 200\n" + BASE + '"program.pairs" = {integers = [3, 5]}\n'))
    drawn = [sweep.cell(number)["program.pairs"] for number in sweep.numbers()]
    assert set(drawn) == {3, 4, 5}


def test_every_cell_is_in_one_piece_in_the_folder_of_its_values(tmp_path):
    sweep = load(spec(tmp_path, "cells_per_piece = 4\npartition = ['kernel', 'n']\n" + BASE))
    seen = []
    for file, piece in sweep.pieces():
        assert len(piece.items) <= 4
        for number in piece.items:
            cell = sweep.cell(number)
            assert file.startswith(f"cells/{cell['kernel']}/{cell['n']}/")
            seen.append(number)
    assert sorted(seen) == list(sweep.numbers())


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[axes", UsageError, "is not TOML"),
        ("axis = 1", UnknownNameError, "unknown key of a sweep"),
        ("seed = 1", UsageError, r"has no table \[axes\]"),
        ("[axes]\nkernel = ['6.1']", UsageError, "names no program"),
        ("[axes]\nprogram = ['cr0-wp']", UsageError, "names no kernel"),
        ("[axes]\nprogram = ['cr0-wp']\nkernel = [6.10]", UsageError, "write 6.1 in quotes"),
        ("[axes]\nprogram = ['cr0-wp']\nkernle = ['6.1']", UnknownNameError, "nearest: kernel"),
        ("on = 'kvm'\n[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']", UnknownNameError, "model, lab or both"),
        ("[axes]\nprogram = []\nkernel = ['6.1']", UsageError, "has no values"),
        ("[axes]\nprogram = ['a', 'a']\nkernel = ['6.1']", UsageError, "has a value twice"),
        ("[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']\nn = [0]", UsageError, "whole number of 1 or more"),
        ("[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']\nn = {log = [0, 1]}", UsageError, "lowest above 0"),
        ("[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']\nn = {log = [1, 9]}", UsageError, "say how many cells"),
        ("sample = 5\n[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']", UsageError, "only 1 combinations"),
        ("seed = true\n[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']", UsageError, "seed = True"),
        (
            "partition = ['cpu']\n[axes]\nprogram = ['cr0-wp']\nkernel = ['6.1']",
            UnknownNameError,
            "axis to partition by",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, error, says):
    with pytest.raises(error, match=says):
        load(spec(tmp_path, text))


def test_a_spec_that_is_not_there():
    with pytest.raises(MissingError, match="cannot read /nowhere"):
        load("/nowhere/sweep.toml")


class TestRoots:
    def program(self, path):
        return f"[axes]\nprogram = ['{path}']\nkernel = ['6.1']\n"

    def test_a_file_beside_the_spec(self, tmp_path):
        assert load(spec(tmp_path, self.program("mine.toml"))).axes["program"] == ("mine.toml",)

    @pytest.mark.parametrize("path", ["../mine.toml", "/etc/mine.toml", "a/../../mine.toml", "link/mine.toml"])
    def test_a_file_elsewhere_is_refused(self, tmp_path, path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "link").symlink_to("/usr")
        with pytest.raises(UsageError, match="leads out of the folders it may be in"):
            load(spec(tmp_path / "in", self.program(path)))

    def test_the_command_line_may_allow_it(self, tmp_path):
        (tmp_path / "in").mkdir()
        load(spec(tmp_path / "in", self.program("../mine.toml")), [str(tmp_path)])

    def test_the_spec_may_not(self, tmp_path):
        (tmp_path / "in").mkdir()
        with pytest.raises(UsageError, match=r"the root '\.\.' leads out of"):
            load(spec(tmp_path / "in", "roots = ['..']\n" + self.program("../mine.toml")))

    def test_costs_too(self, tmp_path):
        with pytest.raises(UsageError, match=r"costs '/etc/costs\.toml' leads out"):
            load(spec(tmp_path, self.program("mine.toml") + "costs = ['/etc/costs.toml']\n"))
