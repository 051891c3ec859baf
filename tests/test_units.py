from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import UsageError
from worldswitch.units import format_ns, format_size, parse_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1ms", 10**6), ("250us", 250_000), ("2.5µs", 2500), ("2s", 2 * 10**9), ("0.25", 250_000_000), (" 7 ns ", 7),
        ("1m", 60 * 10**9), ("1min", 60 * 10**9), ("1h", 3600 * 10**9), ("1e3ns", 1000), (".5us", 500), ("0", 0),
    ],
)  # fmt: skip
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text", ["", "fast", "1 fortnight", "-1s", "1.2.3s", "nan", "inf", "1e999", "9" * 400 + "h", "٣s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        assert 0 <= parse_duration(text) < 1 << 63
    except UsageError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"), (0, "0 ns"), (999, "999 ns"), (1000, "1.00 µs"), (81_515, "81.5 µs"), (999_499, "999 µs"),
        (999_500, "1.00 ms"), (9_994_999, "9.99 ms"), (9_995_000, "10.0 ms"), (26_867_404_270, "26.9 s"),
        (3.6e12, "3,600 s"), (-1500, "-1.50 µs"),
    ],
)  # fmt: skip
def test_durations_are_shown_to_three_digits(ns: float | None, text: str) -> None:
    assert format_ns(ns) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 40, "3072.0 GiB")])
def test_sizes(size: int, text: str) -> None:
    assert format_size(size) == text
