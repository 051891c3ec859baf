"""Nearest rank is numpy's method "inverted_cdf"."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.stats.percentile import nearest_rank


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.integers(0, 100))
def test_is_what_numpy_calls_inverted_cdf(values: list[int], percent: int) -> None:
    assert sorted(values)[nearest_rank(len(values), percent)] == np.percentile(values, percent, method="inverted_cdf")
