"""The shift against scipy's exact rank-sum test, against its definition, and against truth in simulation."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worldswitch.stats import shift as module
from worldswitch.stats.shift import shift, values_needed

SIDES = st.lists(st.integers(-1000, 1000), min_size=1, max_size=12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 3), (4, 7), (9, 2), (8, 8)])
def test_arrangements_are_those_counted_one_by_one(n: int, m: int) -> None:
    counts = [0] * (n * m + 1)
    for places in combinations(range(n + m), n):
        counts[sum(places) - n * (n - 1) // 2] += 1
    assert module._arrangements(n, m) == counts[: n * m // 2 + 1]


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
@settings(max_examples=40)
def test_the_interval_holds_the_shifts_that_scipys_exact_test_does_not_reject(
    confidence: float, n: int, m: int, seed: int
) -> None:
    """Lower and upper limit are where the two-sided p of the shifted samples passes 1 - confidence."""
    random = np.random.default_rng(seed)
    a, b = random.normal(0, 1, n).tolist(), random.normal(0.5, 1, m).tolist()
    found = shift(a, b, confidence)

    def p(by: float) -> float:
        return float(stats.mannwhitneyu([y - by for y in b], a, method="exact").pvalue)

    level = 1 - confidence + 1e-9  # 0.1 is no float, nor is 1 - 0.9
    if found is None:
        assert p(1e6) > level
        return
    assert p(found.low - 1e-12) <= level < p(found.low + 1e-12)
    assert p(found.high + 1e-12) <= level < p(found.high - 1e-12)


@given(SIDES, SIDES)
def test_the_estimate_is_the_median_of_all_differences(a: list[int], b: list[int]) -> None:
    found = shift(a, b, 0.5)
    if found is None:
        assert min(len(a), len(b)) == 1
        return
    assert found.mid == np.median(np.subtract.outer(b, a))
    assert found.low <= found.mid <= found.high


@given(SIDES, SIDES, st.integers(-100, 100))
def test_it_moves_with_the_values_and_turns_with_the_sides(a: list[int], b: list[int], by: int) -> None:
    found = shift(a, b, 0.8)
    moved, turned = shift(a, [y + by for y in b], 0.8), shift(b, a, 0.8)
    if found is None:
        assert moved is turned is None
        return
    assert moved == tuple(value + by for value in found)
    assert turned == (-found.high, -found.mid, -found.low)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (10, 30), (60, 60)])
def test_it_covers_as_often_as_it_says(n: int, m: int) -> None:
    """Skewed values, shifted by 3: at least 95 % of intervals hold 3, up to 4 standard errors of 400 (1.1 %)."""
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(400):
        found = shift(random.exponential(10, n).tolist(), (3 + random.exponential(10, m)).tolist())
        assert found is not None
        inside += found.low <= 3 <= found.high
    assert inside / 400 >= 0.95 - 0.044


def test_for_many_values_it_is_scipys_normal_approximation() -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(0, 1, 80).tolist(), random.normal(0.2, 1, 90).tolist()
    found = shift(a, b)
    assert found is not None

    def p(by: float) -> float:
        return float(stats.mannwhitneyu([y - by for y in b], a, method="asymptotic").pvalue)

    assert p(found.low - 1e-12) <= 0.05 < p(found.low + 1e-12)
    assert p(found.high + 1e-12) <= 0.05 < p(found.high - 1e-12)


def test_the_normal_approximation_meets_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    a, b = random.normal(0, 1, 50).tolist(), random.normal(0, 1, 50).tolist()
    exact = shift(a, b)
    monkeypatch.setattr(module, "_EXACT", 0)
    assert exact is not None
    assert shift(a, b) == pytest.approx(exact, abs=0.01)


def test_equal_values_widen_it() -> None:
    found = shift([1, 1, 1, 2, 2], [1, 1, 2, 2, 2])
    assert found is not None
    assert found.low <= 0 <= found.high


def test_constant_sides_have_no_width() -> None:
    assert shift([5] * 6, [7] * 6) == (2, 2, 2)


@pytest.mark.parametrize(("confidence", "n"), [(0.9, 3), (0.95, 4), (0.99, 5), (0.999, 7)])
def test_values_needed_are_the_fewest_that_do(confidence: float, n: int) -> None:
    """2 / C(2n, n) is the least two-sided p of the rank-sum test."""
    assert values_needed(confidence) == n
    assert shift(range(n), range(n), confidence) is not None
    assert shift(range(n - 1), range(n - 1), confidence) is None


@pytest.mark.parametrize(("a", "b"), [([], []), ([1], []), ([], [1, 2])])
def test_nothing_to_compare(a: list[int], b: list[int]) -> None:
    assert shift(a, b) is None


def test_very_many_values_are_thinned_and_still_right() -> None:
    random = np.random.default_rng(5)
    found = shift(random.normal(0, 1, 5000).tolist(), random.normal(1, 1, 7000).tolist())
    assert found is not None
    assert found.low < 1 < found.high
    assert found.high - found.low < 0.3
