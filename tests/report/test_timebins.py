"""Exits in bins: nothing is left out, whatever the width."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.report.timebins import SHARED, DurationBins, TimeBins
from worldswitch.trace import pairing


def rows(exits, flags=0):
    """What the bins look at of ExitRows; *exits* are (who, number, start, duration)."""
    columns = list(zip(*exits, strict=True)) or [(), (), (), ()]
    one = SimpleNamespace(
        who=np.array(columns[0], np.uint64),
        number=np.array(columns[1], np.uint64),
        start=np.array(columns[2], np.int64),
        duration=np.array(columns[3], np.int64),
        flags=np.full(len(columns[0]), flags, np.uint32),
    )
    return _Rows(one)


class _Rows:
    def __init__(self, columns):
        self.__dict__.update(columns.__dict__)

    def __len__(self):
        return len(self.start)

    def any(self, flags):
        return bool((self.flags & flags).any())

    def take(self, where):
        return _Rows(SimpleNamespace(**{name: column[where] for name, column in self.__dict__.items()}))


EXITS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 1 << 40), st.integers(0, 1 << 30)), max_size=60
)


@settings(max_examples=60)
@given(st.lists(EXITS, max_size=4), st.integers(2, 300), st.integers(0, 7), st.integers(1, 40), st.integers(1, 60))
def test_each_exit_is_in_the_bin_it_starts_in_and_none_is_lost(batches, held, own, most_bins, most_cells) -> None:
    bins = TimeBins(held)
    for batch in batches:
        bins.add(rows(batch))
    cells = bins.cells(own, most_bins, most_cells)
    told = set(cells.who.tolist()) - {SHARED}
    assert len(told) <= own
    expected: Counter = Counter()
    for who, number, start, duration in [one for batch in batches for one in batch]:
        slot = start // cells.width_ns
        key = (who if who in told else SHARED, number, slot)
        expected[(*key, "count")] += 1
        expected[(*key, "ns")] += duration
    found: Counter = Counter()
    columns = (cells.who, cells.number, cells.slot, cells.count, cells.ns)
    for who, number, slot, count, ns in zip(*(column.tolist() for column in columns), strict=True):
        key = (who, number, slot + cells.first_ns // cells.width_ns)
        found[(*key, "count")] += count
        found[(*key, "ns")] += ns
    assert found == expected
    assert cells.bins <= most_bins


def test_bins_are_as_fine_as_there_is_room() -> None:
    bins = TimeBins()
    bins.add(rows([(1, 1, place * 5000, 10) for place in range(100)]))
    # 495 µs in at most 100 bins: 4.096 µs gives 121, 8.192 µs gives 61.
    assert bins.cells(9, 100, 1000).width_ns == 8192


def test_the_vcpus_with_least_time_share_their_bins() -> None:
    bins = TimeBins()
    bins.add(rows([(who, 1, 0, 100 * who) for who in range(1, 6)]))
    cells = bins.cells(2, 10, 100)
    assert dict(zip(cells.who.tolist(), cells.ns.tolist(), strict=True)) == {5: 500, 4: 400, SHARED: 600}
    assert bins.sharing == 3


def test_many_vcpus_leave_the_bins_fine() -> None:
    """A thousand vCPUs with one exit in each of a thousand bins do not fit; those with most time keep theirs."""
    bins = TimeBins(most=1 << 16)
    for who in range(1000):
        bins.add(rows([(who, 1, slot << 10, 1 + (who < 3)) for slot in range(1000)]))
    cells = bins.cells(3, 1024, 1 << 16)
    assert cells.bins >= 200
    assert int(cells.count.sum()) == 1_000_000
    assert set(cells.who.tolist()) == {0, 1, 2, SHARED}


def test_open_exits_are_in_no_bin() -> None:
    bins, durations = TimeBins(), DurationBins()
    for one in (bins, durations):
        one.add(rows([(1, 1, 0, 10)], flags=pairing.OPEN))
    assert len(bins.cells(9, 10, 10).slot) == 0
    assert durations.of(1) == []


@given(st.lists(st.integers(1, 1 << 50), min_size=1, max_size=50))
def test_a_duration_is_within_the_edges_of_its_bin(durations) -> None:
    bins = DurationBins()
    bins.add(rows([(1, 7, 0, duration) for duration in durations]))
    found = bins.of(7)
    assert sum(count for _, _, count in found) == len(durations)
    for low, high, count in found:
        assert sum(low <= duration < high for duration in durations) == count
        assert high / low <= 1.125


@pytest.mark.parametrize(("low", "high"), [(1024.0, 1152.0), (1152.0, 1280.0), (1920.0, 2048.0)])
def test_there_are_eight_bins_from_a_power_of_two_to_the_next(low, high) -> None:
    bins = DurationBins()
    bins.add(rows([(1, 7, 0, int(low))]))
    assert bins.of(7) == [(low, high, 1)]
