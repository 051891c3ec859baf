"""Least squares: what went in comes out, and what cannot be told is said."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.costs.fit import Observed, least_squares
from worldswitch.errors import NotTold

POSITIVE = st.floats(0.01, 100)
NONE: frozenset[str] = frozenset()


@given(POSITIVE, POSITIVE, POSITIVE, st.floats(0.2, 5))
def test_exact_times_give_back_costs_and_speeds(step: float, cr: float, root: float, speed: float) -> None:
    def took(crs: float, roots: float) -> float:
        return step + crs * cr + roots * root

    a = [
        ({"step": 1.0, "cr": 8.0}, took(8, 0)),
        ({"step": 1.0}, took(0, 0)),
        ({"step": 1.0, "root": 12.0}, took(0, 12)),
    ]
    seen = [Observed(time, counts, "A") for counts, time in a]
    seen.append(Observed(speed * (step + 3 * cr) + 2 * root, {"step": 1.0, "cr": 3.0, "root": 2.0}, "B"))
    fit = least_squares(seen, "A", frozenset({"root"}), 0.01)
    assert fit.costs == pytest.approx({"step": step, "cr": cr, "root": root}, rel=1e-4)
    assert fit.scales == pytest.approx({"A": 1.0, "B": speed}, rel=1e-3)
    assert fit.parameters == 4
    for one in seen:
        assert fit.predict(one.counts, one.group, frozenset({"root"})) == pytest.approx(one.value, rel=1e-6)


def test_of_two_that_contradict_the_geometric_mean_is_taken() -> None:
    fit = least_squares([Observed(2.0, {"step": 1.0}, "A"), Observed(8.0, {"step": 1.0}, "A")], "A", NONE, 0.01)
    assert fit.costs["step"] == pytest.approx(4.0)


def test_the_spread_is_what_noise_does_to_the_fit() -> None:
    """1,000 fits of noisy times spread as the one fit says."""
    counts = [{"step": 1.0}, {"step": 1.0, "cr": 8.0}, {"step": 1.0, "cr": 20.0}]
    true = [sum(c * {"step": 3.0, "cr": 0.2}[n] for n, c in one.items()) for one in counts]
    random.seed(5)

    def fitted(noise: float) -> dict[str, float]:
        seen = [Observed(t * math.exp(random.gauss(0, noise)), c, "A") for t, c in zip(true, counts, strict=True)]
        return dict(least_squares(seen, "A", NONE, 0.01).costs)

    exact = least_squares([Observed(t, c, "A") for t, c in zip(true, counts, strict=True)], "A", NONE, 0.01)
    many = [fitted(0.01) for _ in range(1000)]
    for name in ("step", "cr"):
        assert np.std([math.log(one[name]) for one in many]) == pytest.approx(exact.spread[name], rel=0.1)


def test_fewer_times_than_unknowns_tell_nothing() -> None:
    with pytest.raises(NotTold, match="1 observations cannot tell 2 unknowns: cr, step"):
        least_squares([Observed(1.0, {"step": 1.0, "cr": 8.0}, "A")], "A", NONE, 0.01)


def test_what_always_happens_together_cannot_be_told_apart() -> None:
    seen = [Observed(value, {"a": 1.0, "b": 2.0}, "A") for value in (1.0, 1.1, 0.9)]
    with pytest.raises(NotTold, match="do not tell a, b apart"):
        least_squares(seen, "A", NONE, 0.01)


def test_what_was_not_fitted_has_no_time() -> None:
    fit = least_squares([Observed(1.0, {"step": 1.0}, "A")], "A", NONE, 0.01)
    with pytest.raises(NotTold, match="event cr"):
        fit.predict({"cr": 1.0}, "A")
    with pytest.raises(NotTold, match="group of hosts B"):
        fit.predict({"step": 1.0}, "B")
