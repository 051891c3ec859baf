"""The conformance table: rows replace those of the same place, and the page shows what the file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldswitch.conform import table
from worldswitch.conform.session import Outcome, Plan
from worldswitch.errors import MissingError, TraceFormatError

DOCS = Path(__file__).resolve().parents[2] / "docs"


def row(kernel: str, ran: int = 10, equal: int = 10) -> dict[str, Any]:
    return table.row(Outcome(kernel, "amd", "shadow", "qemu 7.2", ran, equal, 9, 4), Plan(10))


def test_a_later_run_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    table.save([row("6.12.117"), row("5.10.223")], path)
    table.save([row("6.12.117", 20, 19)], path)
    found = table.load(path)
    assert [(one["kernel"], one["run"]) for one in found] == [("5.10.223", 10), ("6.12.117", 20)]


def piece(first: int, programs: int, seed: int = 1, shipped: tuple[str, ...] = ()) -> dict[str, Any]:
    found = Outcome("6.12.117", "amd", "shadow", "qemu 7.2", programs, programs - 1, failed={f"{first}": "it ended"})
    return table.row(found, Plan(programs, seed, first, shipped=shipped))


def test_pieces_of_one_seed_add_up(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    for one in (piece(0, 10, shipped=("cr0-wp",)), piece(30, 5), piece(10, 20)):
        table.save([one], path)
    (found,) = table.load(path)
    assert (found["run"], found["equal"], found["random"], found["shipped"]) == (35, 32, 35, 1)
    assert found["pieces"] == [[0, 35]]
    assert found["failed"].keys() == {"0", "30", "10"}


@pytest.mark.parametrize("second", [piece(9, 20), piece(10, 20, seed=2)], ids=["same programs", "other seed"])
def test_pieces_that_do_not_add_up_take_the_place(tmp_path: Path, second: dict[str, Any]) -> None:
    path = tmp_path / "table.json"
    table.save([piece(0, 10)], path)
    table.save([second], path)
    assert table.load(path) == [second]


def test_markdown_has_a_line_for_each_row() -> None:
    lines = table.markdown([row("6.12.117")]).splitlines()
    assert len(lines) == 3
    assert lines[2] == "| 6.12.117 | amd | shadow | 10 | 10 | 0 | 0 | 0 | 0 | 4/9 | 0 |"


def test_what_a_row_did_not_count_is_no_zero() -> None:
    older = row("6.12.117")
    del older["rescued"]
    assert table.markdown([older]).splitlines()[2] == "| 6.12.117 | amd | shadow | 10 | 10 | – | 0 | 0 | 0 | 4/9 | 0 |"


@pytest.mark.parametrize("text", ["", "[]", '{"format": "x", "rows": []}', '{"format": "worldswitch-conformance"}'])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match="holds no conformance table"):
        table.load(path)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="cannot be read"):
        table.load(tmp_path / "none.json")


def test_the_page_shows_the_table_that_runs_wrote() -> None:
    assert table.markdown(table.load(DOCS / "conformance.json")) in (DOCS / "conform.md").read_text(encoding="utf-8")
