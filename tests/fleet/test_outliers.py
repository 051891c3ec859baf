"""Hosts unlike the others, by a score worked out by hand."""

import math

import polars as pl
import pytest

from worldswitch.fleet.outliers import outliers


def hosts(rates, line="6.1"):
    n = len(rates)
    return pl.DataFrame(
        {
            "host": [f"h{number}" for number in range(n)], "line": [line] * n, "vendor": ["intel"] * n,
            "class": [""] * n, "exits_per_vcpu_second": rates, "outside": [0.5] * n,
        }
    )  # fmt: skip


def test_the_score_is_that_of_iglewicz_and_hoaglin():
    # Logarithms to base e of e^1 .. e^8 and e^20: median 5, absolute deviations 4 3 2 1 0 1 2 3 15, their median 2.
    rates = [math.exp(one) for one in (1, 2, 3, 4, 5, 6, 7, 8, 20)]
    (found,) = outliers(hosts(rates))
    assert (found.host, found.metric) == ("h8", "exits_per_vcpu_second")
    assert found.score == pytest.approx(0.6745 * 15 / 2)
    assert found.median == pytest.approx(math.exp(5))


def test_equal_hosts_are_no_outliers():
    assert outliers(hosts([1000.0] * 20)) == []


def test_one_that_differs_among_equal_ones_is():
    assert [one.host for one in outliers(hosts([1000.0] * 20 + [9000.0]))] == ["h20"]


def test_few_hosts_have_none():
    assert outliers(hosts([1.0, 1.0, 1.0, 1.0, 1e9])) == []


def test_groups_are_apart():
    both = pl.concat([hosts([1000.0 + one for one in range(10)]), hosts([9e6 + one for one in range(10)], "5.10")])
    assert outliers(both) == []
