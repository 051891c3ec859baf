"""Quantiles of merged sketches, against numpy's of all values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.fleet.sketch import ACCURACY, bins, quantiles

values = st.lists(st.integers(0, 10**12), min_size=1, max_size=300)


def of(some):
    return bins(*np.unique(np.array(some, np.int64), return_counts=True))


def added(*sketches):
    whole = {}
    for keys, counts in sketches:
        for key, count in zip(keys, counts, strict=True):
            whole[key] = whole.get(key, 0) + count
    return sorted(whole), [whole[key] for key in sorted(whole)]


@given(values)
def test_a_quantile_is_within_the_stated_error_of_the_value_of_its_rank(some):
    for at in (0.0, 0.5, 0.95, 0.99, 1.0):
        (found,) = quantiles(*of(some), [at])
        exact = float(np.quantile(some, at, method="lower"))
        assert abs(found - exact) <= ACCURACY * exact * (1 + 1e-9)


@given(values, values)
def test_merged_sketches_are_the_sketch_of_all(some, others):
    assert added(of(some), of(others)) == of([*some, *others]) == added(of(others), of(some))


def test_no_values_have_no_quantiles():
    with pytest.raises(ValueError, match="no values"):
        quantiles([], [], [0.5])
