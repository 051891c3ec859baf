"""The bootstrap against scipy's, normal theory and the known variance of an autoregressive series."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from worldswitch.stats import bootstrap


def width(interval: bootstrap.Interval) -> float:
    return interval.high - interval.low


def independent(n: int) -> np.ndarray:
    return np.random.default_rng(5).gamma(2, 1000, n)


@pytest.mark.parametrize("n", [60, 5000])
def test_it_is_scipys_on_independent_values(n: int) -> None:
    values = independent(n)
    theirs = stats.bootstrap(
        (values,),
        lambda drawn, axis: drawn.sum(axis=axis),
        method="percentile",
        n_resamples=4000,
        batch=100,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert width(bootstrap.total(values)) == pytest.approx(theirs.high - theirs.low, rel=0.12)


def test_it_covers_as_often_as_it_says() -> None:
    """95 % of intervals hold the true sum; of 400 that is within 4 standard errors (1.1 %)."""
    random = np.random.default_rng(2)
    true = 1000 * 2 * 600
    inside = [low <= true <= high for low, _, high in (bootstrap.total(random.gamma(2, 1000, 600)) for _ in range(400))]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.044)


def test_autocorrelated_values_have_the_wider_interval_they_need() -> None:
    """The sum of an AR(1) series with coefficient a varies (1 + a) / (1 - a) times as much as its values alone say."""
    a, n = 0.9, 100_000
    noise = np.random.default_rng(3).normal(size=n)
    values = np.empty(n)
    values[0] = 0
    for i in range(1, n):
        values[i] = a * values[i - 1] + noise[i]
    naive = 2 * 1.96 * values.std(ddof=1) * math.sqrt(n)
    assert width(bootstrap.total(1000 + values)) / naive == pytest.approx(math.sqrt((1 + a) / (1 - a)), rel=0.12)


@given(st.lists(st.integers(0, 1 << 40), max_size=200))
def test_the_sum_is_inside_and_exact(values: list[int]) -> None:
    low, mid, high = bootstrap.total(values)
    assert low <= mid <= high
    assert mid == sum(values)


def test_it_is_deterministic() -> None:
    values = independent(1000)
    assert bootstrap.total(values) == bootstrap.total(values)
    assert bootstrap.total(values) != bootstrap.total(values, seed=2)


@pytest.mark.parametrize("values", [[], [5]])
def test_what_cannot_be_resampled_has_no_width(values: list[int]) -> None:
    assert bootstrap.total(values) == (sum(values),) * 3


def test_more_confidence_is_wider() -> None:
    values = independent(500)
    assert width(bootstrap.total(values, confidence=0.99)) > width(bootstrap.total(values, confidence=0.9))


@pytest.mark.parametrize("n", [2, 49, 50, 999, 100_000, 3_000_001])
def test_blocks_leave_enough_to_draw_from_and_bound_the_work(n: int) -> None:
    assert min(n, 50) <= n // bootstrap.block_length(n) <= 500
