"""docs/formats.md names a test for every case; each must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
DOCUMENT = (TESTS.parent / "docs/formats.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", DOCUMENT)))


@pytest.mark.parametrize(("path", "test"), NAMED, ids=[test for _, test in NAMED])
def test_the_test_of_each_case_exists(path: str, test: str) -> None:
    assert re.search(rf"^def {test}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_case_names_a_test() -> None:
    rows = [
        line
        for line in DOCUMENT.splitlines()
        if line.startswith("|") and not re.match(r"\|(?:---| case | format )", line)
    ]
    assert len(rows) > 80
    assert [row for row in rows if "::" not in row and "the same" not in row] == []
