from __future__ import annotations

import io

import pytest

from scripts import entry, exit_, trace
from worldswitch.cli import progress
from worldswitch.trace.account import account


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def made():
    return trace([e for t in range(0, 400, 10) for e in (entry(t), exit_(t + 4))], split=4)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_a_quick_read_says_nothing(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    assert account(progress.watched(made(), "x")).count == account(made()).count
    assert screen.getvalue() == ""


def slow(monkeypatch: pytest.MonkeyPatch, terminal: bool, name: str = "x") -> str:
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    source = progress.watched(made(), name)
    assert sum(len(batch) for batch in source.batches()) == 80
    return screen.getvalue()


def test_a_long_read_draws_one_line_and_wipes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = slow(monkeypatch, terminal=True)
    assert "events" in drawn
    assert "\n" not in drawn
    assert drawn.endswith("\r\x1b[K")


def test_a_long_read_into_a_file_writes_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = slow(monkeypatch, terminal=False).splitlines()
    assert 2 < len(lines) < 20
    assert all("events" in line and line.isprintable() for line in lines)


def test_a_hostile_name_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31m" not in slow(monkeypatch, terminal=True, name="\x1b[31m")


def test_what_the_source_knows_is_passed_on() -> None:
    source = made()
    watched = progress.watched(source, "x")
    assert watched.meta is source.meta
    assert watched.formats is source.formats


def test_what_is_told_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even in the first second, when nothing of how far it is is shown."""
    from worldswitch.cli.progress import Line

    err = io.StringIO()
    monkeypatch.setattr("sys.stderr", err)
    line = Line()
    line.say(lambda: "half")
    line.tell("kept")
    line.clear()
    assert err.getvalue() == "kept\n"
