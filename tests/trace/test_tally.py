from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.trace.tally import Tally

keys = st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 1 << 63, (1 << 64) - 1]), st.integers(0, 2))
calls = st.lists(st.lists(st.tuples(keys, st.integers(-100, 1 << 40)), min_size=1, max_size=30), max_size=6)


def added(tally: Tally, rows) -> np.ndarray:
    a, b, c = (np.array([key[i] for key, _ in rows], np.uint64) for i in range(3))
    return tally.add(a, b, c, np.array([amount for _, amount in rows], np.int64))


@settings(max_examples=60, deadline=None)
@given(calls)
def test_counts_and_totals_are_those_of_a_dict(parts) -> None:
    tally = Tally()
    counts, totals = Counter(), Counter()
    for rows in parts:
        index = added(tally, rows)
        for (key, amount), at in zip(rows, index.tolist(), strict=True):
            counts[key] += 1
            totals[key] += amount
            assert tuple(tally.keys[at].tolist()) == key
    assert {tuple(k): n for k, n in zip(tally.keys.tolist(), tally.counts.tolist(), strict=True)} == counts
    assert {tuple(k): n for k, n in zip(tally.keys.tolist(), tally.totals.tolist(), strict=True)} == totals
    assert tally.dropped == 0


def test_keys_come_in_order_of_appearance() -> None:
    tally = Tally()
    tally.add(np.array([9, 4, 9, 2], np.uint64), None, None, None)
    assert tally.keys[:, 0].tolist() == [9, 4, 2]
    assert tally.counts.tolist() == [2, 1, 1]


def test_a_tally_grows_and_keeps_its_keys() -> None:
    tally = Tally()
    many = np.arange(5000, dtype=np.uint64)
    for _ in range(2):
        tally.add(many * np.uint64(1 << 40), many, None, None)
    assert len(tally) == 5000
    assert set(tally.counts.tolist()) == {2}


def test_beyond_the_limit_additions_are_counted_under_no_key() -> None:
    tally = Tally(limit=3)
    index = tally.add(np.array([1, 2, 3, 4, 1, 5], np.uint64), None, None, None)
    assert index.tolist() == [0, 1, 2, -1, 0, -1]
    assert len(tally) == 3
    assert tally.dropped == 2


def test_narrow_and_signed_keys_are_widened() -> None:
    tally = Tally()
    tally.add(np.array([7, 7], np.uint32), np.array([-1, -1], np.int64), np.array([1, 1], np.int32), None)
    assert tally.keys.tolist() == [[7, (1 << 64) - 1, 1]]
