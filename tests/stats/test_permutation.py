"""Permutation tests, held against scipy and against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worldswitch.stats.permutation import holm, least, least_paired, paired, two_sided

FEW = st.lists(st.integers(-4, 4), min_size=2, max_size=6)


def rank_sum(x: np.ndarray, y: np.ndarray) -> float:
    ranks = stats.rankdata(np.concatenate((x, y)))
    return abs(float(ranks[: len(x)].sum()) - len(x) * (len(ranks) + 1) / 2)


@settings(max_examples=40)
@given(FEW, FEW)
def test_all_ways_counted_ties_and_all_as_scipy_counts_them(a: list[int], b: list[int]) -> None:
    expected = stats.permutation_test(
        (a, b), rank_sum, permutation_type="independent", n_resamples=math.inf, alternative="greater"
    ).pvalue
    assert two_sided(a, b) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (12, 9), (30, 30), (50, 50)])
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5])
def test_without_ties_it_is_mann_and_whitneys_exact_test(n: int, m: int, shift: float) -> None:
    random = np.random.default_rng(n * m)
    a, b = random.normal(size=n), random.normal(shift, size=m)
    expected = stats.mannwhitneyu(a, b, method="exact").pvalue
    assert two_sided(a, b) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rounded", [False, True])
def test_many_values_have_the_normal_distribution_with_ties_in_it(rounded: bool) -> None:
    random = np.random.default_rng(5)
    a, b = random.normal(size=400), random.normal(0.15, size=300)
    if rounded:
        a, b = a.round(), b.round()
    expected = stats.mannwhitneyu(a, b, method="asymptotic").pvalue
    assert two_sided(a, b) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=40)
@given(st.lists(st.integers(-5, 5).filter(bool), min_size=2, max_size=8))
def test_pairs_as_scipy_flips_their_signs(differences: list[int]) -> None:
    def lean(x: np.ndarray) -> float:
        ranks = stats.rankdata(np.abs(x))
        return abs(float((ranks * np.sign(x)).sum()))

    expected = stats.permutation_test(
        (differences,), lean, permutation_type="samples", n_resamples=math.inf, alternative="greater"
    ).pvalue
    assert paired(differences) == pytest.approx(expected)


@pytest.mark.parametrize("n", [8, 40])
def test_pairs_without_ties_are_wilcoxons_exact_test(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.4, size=n)
    assert paired(differences) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue, rel=1e-9)


def test_many_pairs_have_the_normal_distribution() -> None:
    differences = np.random.default_rng(3).normal(0.1, size=300)
    expected = stats.wilcoxon(differences, method="asymptotic", correction=True).pvalue
    assert paired(differences) == pytest.approx(expected, rel=1e-6)


def test_pairs_without_a_difference_say_nothing() -> None:
    assert paired([0, 0, 3]) == paired([3]) == 1
    assert paired([0, 0]) == paired([]) == two_sided([], [1]) == 1


def test_four_against_four_wholly_apart() -> None:
    """Two of the 70 ways to deal eight values out set them so far apart."""
    assert two_sided([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert least(4, 4) == pytest.approx(2 / 70)
    assert paired([1, 2, 3, 4, 5]) == least_paired(5) == 2 / 32


def test_the_example_of_holm() -> None:
    """The chances 0.01, 0.04, 0.03: three times the least, twice the next, never less than the one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
