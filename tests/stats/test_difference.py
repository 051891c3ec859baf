"""The difference of two sides: its interval, and the gates it has to pass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from worldswitch.stats.blocks import blocks, mean_of, quantile_of, resemblance
from worldswitch.stats.difference import Difference, Gate, between, gate, halves_apart, of_pairs
from worldswitch.stats.permutation import least, least_paired, pairs_needed
from worldswitch.stats.shift import Shift


@pytest.mark.parametrize("n", [60, 61])
def test_the_interval_is_the_bootstraps(n: int) -> None:
    """scipy draws values; here the places of medians are drawn. Both are one distribution."""
    random = np.random.default_rng(n)
    a, b = random.normal(100, 10, n), random.normal(105, 10, n)
    expected = stats.bootstrap(
        (a, b),
        lambda x, y, axis: np.median(y, axis=axis) - np.median(x, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = between(a, b).shift
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.5)
    assert found.mid == np.median(b) - np.median(a)


def test_few_values_widen_it_to_what_holds_exactly() -> None:
    """Moses' limits of five against five at 95 % are the third smallest and third largest of all differences."""
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.5, 13.0, 14.5, 16.0]
    differences = sorted(y - x for x in a for y in b)
    found = between(a, b).shift
    assert found is not None
    assert found.low <= differences[2]
    assert found.high >= differences[-3]


def test_it_holds_the_true_difference_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        found = between(random.normal(10, 1, 10), random.normal(11, 1, 10)).shift
        held += found is not None and found.low <= 1 <= found.high
    assert held >= stats.binom.ppf(0.001, 400, 0.95)


def test_too_few_values_give_none() -> None:
    assert between([1, 2, 3], [4, 5, 6]).shift is None
    assert of_pairs([1, 2, 3], [4, 5, 6]).shift is None
    assert between([], []).shift is None


def test_pairs_see_what_is_hidden_in_what_both_share() -> None:
    shared = np.arange(12) * 100.0
    a, b = shared, shared + 5 + np.linspace(-1, 1, 12)
    assert between(a, b).chance > 0.5
    found = of_pairs(a, b)
    assert found.pairs == 12
    assert found.chance == 2 / 2**12
    assert found.shift is not None
    assert found.shift.low > 3.9


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"shift": None}, Gate.FEW),
        ({"chance": 0.05}, Gate.CHANCE),
        ({"counts": 10.0}, Gate.SMALL),
        ({"noise": 10.0}, Gate.NOISE),
    ],
    ids=str,
)
def test_each_gate(change: dict[str, float | None], expected: Gate | None) -> None:
    given = {"shift": Shift(8, 10, 12), "chance": 0.01, "counts": 9.0, "noise": 9.0, **change}
    found = Difference(given["shift"], given["chance"], 0.0, given["noise"])
    assert gate(found, given["chance"], 0.05, given["counts"]) is expected


def test_halves_in_the_order_measured() -> None:
    assert halves_apart([1, 1, 1, 4, 4, 4]) == 3
    assert halves_apart([1, 4, 1, 4]) == 0
    assert halves_apart([1]) == 0


def test_the_fewest_that_can_tell() -> None:
    """Of 20 ways to deal three and three out two are outermost; of 32 signs of five differences two."""
    assert least(3, 3) == pytest.approx(0.1)
    assert least_paired(6) == pytest.approx(2 / 64)
    assert pairs_needed(0.05) == 6


def test_values_that_do_not_resemble_each_other_are_short_blocks() -> None:
    found = blocks(np.random.default_rng(3).normal(size=6400))
    assert (found.size, len(found.values), found.settled) == (100, 64, True)


def test_blocks_grow_until_neighbours_differ() -> None:
    """Phases of 400 values: blocks of 100 lie in them, blocks of 800 do not resemble each other."""
    random = np.random.default_rng(2)
    series = np.repeat(random.normal(size=16), 400) + random.normal(0, 0.1, 6400)
    found = blocks(series)
    assert found.size >= 200
    assert found.settled


def test_a_trend_never_settles() -> None:
    found = blocks(np.arange(6400))
    assert not found.settled
    assert len(found.values) == 8


def test_blocks_by_mean_and_by_quantile() -> None:
    series = np.tile([0.0, 0.0, 0.0, 100.0], 1600)
    assert set(blocks(series, mean_of).values) == {25.0}
    assert set(blocks(series, quantile_of(0.9)).values) == {100.0}
    assert resemblance([1, 1, 1]) == 0
