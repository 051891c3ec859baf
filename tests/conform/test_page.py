"""The page on conformance says what the tool says."""

from __future__ import annotations

from pathlib import Path

from worldswitch.conform.bounds import sentences
from worldswitch.conform.named import named

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "conform.md").read_text(encoding="utf-8")


def test_the_bounds_are_those_of_the_generator() -> None:
    words = " ".join(PAGE.split())
    assert [one for one in sentences() if one not in words] == []


def test_every_named_difference_is_on_the_page() -> None:
    assert [one.id for one in named() if f"`{one.id}`" not in PAGE] == []
