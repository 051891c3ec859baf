"""``wsw tables``: its text, its JSON, its exit status."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from worldswitch.cli import DONE, FOUND, USAGE, main, wsw
from worldswitch.costs import published as module
from worldswitch.costs.published import Miss, published


def run(*words: str) -> Result:
    return CliRunner().invoke(wsw, ["tables", *words], catch_exceptions=False, standalone_mode=False)


def document(*words: str) -> dict[str, Any]:
    done = run("--json", *words)
    assert done.return_value == DONE
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_json_has_the_keys_that_tools_rely_on() -> None:
    found = document()
    assert {"tables", "held_out"} <= found.keys()
    assert {"cells", "ratio_error_max", "null_ratio_error_max"} <= found["held_out"].keys()
    cells = [cell for table in found["tables"] for cell in table["cells"]]
    keys = {"row", "column", "published_s", "model_s", "null_s", "error", "used_for_fit"}
    assert all(keys <= cell.keys() for cell in cells)
    assert sum(cell["used_for_fit"] for cell in cells) + found["held_out"]["cells"] == len(cells)


def test_costs_are_told_for_both_numbers_of_steps() -> None:
    for cost in document()["costs"]:
        assert cost["ns"]["100000"] == pytest.approx(cost["seconds"] * 1e9 / 100_000)
        assert cost["ns"]["500000"] == pytest.approx(cost["seconds"] * 1e9 / 500_000)


def test_one_table_has_the_predictions_it_has_among_all() -> None:
    (one,) = document("cet-2025")["tables"]
    assert one == next(table for table in document()["tables"] if table["id"] == "cet-2025")


def test_text_marks_fitted_cells_and_says_what_misses_and_what_cannot_be_told() -> None:
    text = run().stdout
    rows = [line.split() for line in text.splitlines()]
    assert ["before", "TDP", "88.7*"] in [row[:3] for row in rows]
    assert ["before", "TDP", "66.1"] in [row[:3] for row in rows]
    assert "What misses" in text and "What these tables cannot tell" in text
    assert max(map(len, text.splitlines())) <= 100


def test_check_is_silent_where_all_is_as_told() -> None:
    done = run("--check")
    assert done.return_value == DONE
    assert done.stderr == ""


def test_check_fails_by_status_1_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    less = dataclasses.replace(published(), misses=(*published().misses[1:], Miss("cell x/y/z", "none")))
    monkeypatch.setattr(module, "published", lambda: less)
    done = run("--check")
    assert done.return_value == FOUND
    assert f"{published().misses[0].what} is wrong, and no reason is given" in done.stderr
    assert "cell x/y/z is listed as a miss, and is none" in done.stderr
    assert run().return_value == DONE


def test_an_unknown_table_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tables", "cet"])
    assert stopped.value.code == USAGE
    assert "nearest: cet-2025" in capsys.readouterr().err


def test_python_prints_what_does_the_same() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(run("--python").stdout, {})
    lines = printed.getvalue().splitlines()
    assert len(lines) == 52 + 1
    assert lines[0].startswith("next-2023-03/before/legacy 8.43 ")
