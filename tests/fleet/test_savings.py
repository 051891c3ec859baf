"""Savings of a fleet, worked out by hand."""

import polars as pl
import pytest

from worldswitch.fleet.savings import in_all, savings

SECOND = 10**9


def hosts(*rows):
    names = ("line", "vendor", "whatif_traces", "whatif_span_ns", "whatif_low_ns", "whatif_mid_ns", "whatif_high_ns")
    return pl.DataFrame([dict(zip(names, row, strict=True)) | {"whatif_removed": 7} for row in rows])


def test_a_tenth_of_a_core_is_2_4_core_hours_a_day():
    (found,) = savings(hosts(("5.10", "intel", 1, 10 * SECOND, SECOND, SECOND, SECOND)))
    assert (found.hosts, found.untold, found.removed) == (1, 0, 7)
    assert (found.low, found.mid, found.high) == pytest.approx((2.4, 2.4, 2.4))


def test_intervals_add_up_as_variances_do():
    rows = [("5.10", "intel", 1, 24 * SECOND, SECOND - 3 * SECOND // 10, SECOND, SECOND + 3 * SECOND // 10)] * 4
    (found,) = savings(hosts(*rows))
    # Four of 1 +- 0.3: 4 +- 0.6.
    assert (found.low, found.mid, found.high) == pytest.approx((3.4, 4.0, 4.6))


def test_hosts_of_which_it_cannot_be_told_are_counted_and_left_out():
    (found,) = savings(hosts(("5.10", "amd", 0, 0, 0, 0, 0), ("5.10", "amd", 1, 24 * SECOND, 0, SECOND, 2 * SECOND)))
    assert (found.hosts, found.untold) == (1, 1)
    assert found.mid == pytest.approx(1)


def test_the_whole_is_the_sum_of_the_lines():
    rows = [(line, "intel", 1, 24 * SECOND, 0, SECOND, 2 * SECOND) for line in ("5.10", "6.1")]
    found = in_all(savings(hosts(*rows)))
    assert found.mid == pytest.approx(2)
    assert found.high == pytest.approx(2 + 2**0.5)
