from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from worldswitch.stats.median import median


def test_median_of_an_even_number_is_the_middle_of_two() -> None:
    assert median([4, 1, 3, 2]).mid == 2.5


@pytest.mark.parametrize(("n", "confidence"), [(1, 0.0), (2, 0.5), (5, 0.9375), (6, 0.96875)])
def test_few_values_give_the_confidence_they_can(n: int, confidence: float) -> None:
    # 1 - 2^(1-n): the median lies outside only if all values lie on one side of it.
    found = median(range(n))
    assert (found.low, found.high, found.confidence) == (0, n - 1, confidence)


@settings(deadline=None)
@given(st.integers(1, 80), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_the_narrowest_that_scipys_binomial_allows(n: int, confidence: float) -> None:
    found = median(range(n), confidence)
    k = int(found.low) + 1
    assert found.high == n - k
    assert found.confidence == pytest.approx(max(0.0, 1 - 2 * binom.cdf(k - 1, n, 0.5)), abs=1e-9)
    assert found.confidence >= confidence - 1e-12 or k == 1
    narrower = 1 - 2 * binom.cdf(k, n, 0.5)
    assert narrower < confidence + 1e-12 or k == (n + 1) // 2


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_low_mid_high_are_in_order(values: list[float]) -> None:
    found = median(values)
    assert min(values) <= found.low <= found.mid <= found.high <= max(values)
