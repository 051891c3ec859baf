from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from worldswitch.cli import COMMANDS, wsw
from worldswitch.cli.options import make_filter, parse_time, print_json
from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.trace.account import Filter


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (None, (None, None)), ("36.2:36.3", (36_200_000_000, 36_300_000_000)), ("1ms:", (1_000_000, None)),
        (":5us", (None, 5000)), (":", (None, None)), ("3:3", (3 * 10**9, 3 * 10**9)),
    ],
)  # fmt: skip
def test_times(text: str | None, limits: tuple[int | None, int | None]) -> None:
    assert parse_time(text) == limits


@pytest.mark.parametrize("text", ["5", "a:b", "5:4", "1:2:3", "-1:2"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time(text)


def test_options_that_limit_nothing_make_no_filter() -> None:
    assert make_filter(None, None, None, None, (), None, None) is None


def test_all_limits_together() -> None:
    made = make_filter(1, 2, 3, "1:2", ("CR_ACCESS", "npf"), "1ms", None)
    assert made == Filter((10**9, 2 * 10**9), 1, 3, 2, frozenset([(1, 28), (2, 0x400)]), 10**6)


def test_an_unknown_reason_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="CR_ACCESS"):
        make_filter(None, None, None, None, ("CR_ACESS",), None, None)


@pytest.mark.parametrize(
    "command", [[], *([name] for name in sorted(COMMANDS))], ids=lambda command: " ".join(command) or "wsw"
)
def test_every_command_has_help(command: list[str]) -> None:
    done = CliRunner().invoke(wsw, [*command, "--help"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage:")


def test_a_mistyped_command_is_told_with_the_nearest() -> None:
    done = CliRunner().invoke(wsw, ["analyse"])
    assert done.exit_code == 2
    assert "did you mean analyze?" in done.output


def test_the_version_says_whether_the_loops_are_compiled() -> None:
    done = CliRunner().invoke(wsw, ["--version"])
    assert done.exit_code == 0
    assert "compiled" in done.output


def test_json_is_printed_row_by_row() -> None:
    document = {"meta": {"a": [1, "\x1b"]}, "rows": [{"n": n} for n in range(2500)], "none": [], "one": 1.5}
    printed = CliRunner().invoke(click.command()(lambda: print_json(document))).output
    assert json.loads(printed) == document
    assert len(printed.splitlines()) == 2500 + 7
    assert printed.replace("\n", "").isprintable()


def test_dataclasses_are_rows() -> None:
    rows = [Filter(vm=n, time=(n, None)) for n in range(3)]
    printed = CliRunner().invoke(click.command()(lambda: print_json({"rows": rows}))).output
    assert json.loads(printed)["rows"][2] == {
        "time": [2, None], "vcpu": None, "vm": 2, "tid": None, "reasons": None, "longer_than": None,
    }  # fmt: skip


def test_an_empty_document_is_one() -> None:
    assert json.loads(CliRunner().invoke(click.command()(lambda: print_json({}))).output) == {}
