"""How often the verdict errs, by simulation: nothing is called slower or faster that is not, and a real change is seen.

Bounds are binomial: a rate of exactly 5 % passes each with a chance of at least 99.9 %.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from worldswitch.record.result import Cell, Metric, Provenance, Result
from worldswitch.stats.compare import Time, Verdict, compare

TOLD = (Verdict.SLOWER, Verdict.FASTER)
Sides = Callable[[np.random.Generator], tuple[Metric, Metric]]


def verdict(a: Metric, b: Metric, **options: float) -> Time:
    sides = [
        Result((Cell({"on": "kvm", "program": "p"}, metrics=(one,)),), Provenance("1", parameters={"session": "s"}))
        for one in (a, b)
    ]
    return compare(*sides, **options).pairs[0].times[0]


def rate(sides: Sides, trials: int, told: Callable[[Time], bool], **options: float) -> float:
    random = np.random.default_rng(20261201)
    return sum(told(verdict(*sides(random), **options)) for _ in range(trials)) / trials


def at_most(share: float, trials: int) -> float:
    return float(stats.binom.ppf(0.999, trials, share)) / trials


def metric(values: np.ndarray, **more: tuple[int, ...]) -> Metric:
    return Metric("time", "ns", tuple(values.tolist()), **more)


def skewed(random: np.random.Generator, n: int, factor: float = 1.0, spread: float = 0.02) -> np.ndarray:
    """Times as runs have them: most near the least, a few much longer."""
    return 1000 * factor * random.lognormal(0, spread, n) + 50 * (random.random(n) < 0.1) * random.random(n)


def resembling(random: np.random.Generator, n: int, factor: float = 1.0) -> np.ndarray:
    """Latencies of a trace, each like the one before: an autoregressive series with correlation 0.95."""
    noise = random.normal(0, 20, n)
    series = np.empty(n)
    last = 0.0
    for place, step in enumerate(noise):
        last = 0.95 * last + step
        series[place] = last
    return 1000 * factor + series


def drifting(random: np.random.Generator, n: int, factor: float = 1.0) -> tuple[Metric, Metric]:
    """A B B A ...: the host grows slower all the while, by far more than what is looked for."""
    turns = [(4 * i, 4 * i + 1) if j == 0 else (4 * i + 3, 4 * i + 2) for i in range(n // 2) for j in range(2)]
    slope = 1 + 0.01 * np.arange(2 * n)
    sides = []
    for side, f in ((0, 1.0), (1, factor)):
        order = [turn[side] for turn in turns]
        sides.append(metric(skewed(random, n, f, 0.005) * slope[order], turns=tuple(order)))
    return sides[0], sides[1]


@pytest.mark.parametrize(
    ("sides", "trials"),
    [
        pytest.param(lambda r: (metric(skewed(r, 8)), metric(skewed(r, 8))), 1500, id="eight runs"),
        pytest.param(lambda r: (metric(skewed(r, 20, spread=0.2)), metric(skewed(r, 20, spread=0.2))), 600, id="wide"),
        pytest.param(lambda r: (metric(skewed(r, 9).round(-1)), metric(skewed(r, 9).round(-1))), 600, id="with ties"),
        pytest.param(
            lambda r: (metric(resembling(r, 3000)), metric(resembling(r, 3000))), 300, id="each like the last one"
        ),
        pytest.param(lambda r: drifting(r, 12), 600, id="drifting, in turns"),
    ],
)
def test_the_same_twice_is_told_apart_in_at_most_a_twentieth(sides: Sides, trials: int) -> None:
    found = rate(sides, trials, lambda time: time.verdict in TOLD, margin=0, at_least=0)
    assert found <= at_most(0.05, trials)


@pytest.mark.parametrize(
    ("sides", "trials"),
    [
        pytest.param(lambda r: (metric(skewed(r, 12)), metric(skewed(r, 12, 1.05))), 300, id="twelve runs"),
        pytest.param(lambda r: (metric(resembling(r, 20_000)), metric(resembling(r, 20_000, 1.05))), 30, id="a series"),
        pytest.param(lambda r: drifting(r, 12, 1.05), 200, id="drifting, in turns"),
    ],
)
def test_five_percent_are_seen_in_nine_of_ten(sides: Sides, trials: int) -> None:
    assert rate(sides, trials, lambda time: time.verdict is Verdict.SLOWER) >= 0.9


def test_without_turns_a_drift_is_taken_for_no_difference_but_hides_one() -> None:
    """What the noise gate is for: A differs from itself as much as B from A."""
    random = np.random.default_rng(4)
    a, b = drifting(random, 12)
    alone = [Metric(one.name, one.unit, one.values) for one in (a, b)]
    assert verdict(*alone).verdict is Verdict.NOT_TOLD_APART


def test_equal_is_said_of_what_differs_by_more_than_the_margin_in_at_most_a_twentieth() -> None:
    trials = 400
    found = rate(
        lambda r: (metric(skewed(r, 30, spread=0.01)), metric(skewed(r, 30, 1.012, 0.01))),
        trials,
        lambda time: time.verdict is Verdict.EQUAL,
    )
    assert found <= at_most(0.05, trials)
