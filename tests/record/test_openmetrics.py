"""Metrics as text, read back by the letter of the specification."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from record.openmetrics_spec import parse
from worldswitch.errors import printable
from worldswitch.record.openmetrics import COUNTER, Family, Sample, exposition, label_name


def page(*samples: Sample, name: str = "wsw_x", help_: str = "What x is.", **more: str) -> str:
    return exposition([Family(name, help_, samples, **more)])


def test_the_example_of_the_specification() -> None:
    """Section "Overall structure" has such a counter, its type before its unit before its help."""
    assert page(Sample(1.5, {"vm": "7"}), name="cpu_seconds", help_="CPU time.", kind=COUNTER, unit="seconds") == (
        "# TYPE cpu_seconds counter\n# UNIT cpu_seconds seconds\n# HELP cpu_seconds CPU time.\n"
        'cpu_seconds_total{vm="7"} 1.5\n# EOF\n'
    )


@given(st.dictionaries(st.sampled_from("abcdef"), st.text()), st.floats(), st.text())
def test_any_label_any_number_and_any_help_are_valid(labels: dict[str, str], value: float, about: str) -> None:
    (found,) = parse(page(Sample(value, labels), help_=about))
    assert found.labels == {key: printable(text) for key, text in labels.items()}
    assert found.value == value or (math.isnan(found.value) and math.isnan(value))


def test_quotes_backslashes_and_line_feeds_are_escaped() -> None:
    text = page(Sample(1, {"a": 'x"y\\z'}))
    assert 'wsw_x{a="x\\"y\\\\z"} 1\n' in text
    (found,) = parse(page(Sample(1, {"a": "x\ny"})))
    assert found.labels == {"a": "x\\ny"}, "a line feed is shown as what is not printable is"


def test_what_is_none_is_no_label_and_a_truth_is_a_number() -> None:
    assert "wsw_x 1\n" in page(Sample(True, {"a": None}))


def test_a_family_without_samples_is_left_out() -> None:
    assert page() == "# EOF\n"


@pytest.mark.parametrize(
    "family",
    [
        Family("a b", "", [Sample(1)]),
        Family("a_total", "", [Sample(1)], COUNTER),
        Family("a", "", [Sample(-1)], COUNTER),
        Family("a", "", [Sample(math.nan)], COUNTER),
        Family("a", "", [Sample(1)], "info"),
        Family("a_ns", "", [Sample(1)], unit="seconds"),
        Family("a", "", [Sample(1, {"b-c": 1})]),
        Family("a", "", [Sample(1, {"__name__": 1})]),
        Family("a", "", [Sample(1, {"b": 1}), Sample(2, {"b": "1"})]),
    ],
    ids=str,
)
def test_what_the_format_forbids_is_refused(family: Family) -> None:
    with pytest.raises(ValueError):
        exposition([family])


def test_a_family_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        exposition([Family("a", "", [Sample(1)])] * 2)


@given(st.text())
def test_any_text_makes_a_label_name(text: str) -> None:
    parse(page(Sample(1, {label_name(text): 1})))


def test_it_needs_nothing_but_the_standard_library() -> None:
    """The field kit's doctor writes it too."""
    code = (
        "import sys, worldswitch.record.openmetrics\n"
        "bad = {'numpy', 'click', 'polars', 'rich'} & sys.modules.keys()\nassert not bad, bad"
    )
    root = Path(__file__).parents[2] / "src"
    subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{code}"], check=True)
