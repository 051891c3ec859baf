from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import TraceFormatError
from worldswitch.trace.ahead import ahead


@given(st.lists(st.integers(), max_size=30))
def test_everything_comes_in_order(items: list[int]) -> None:
    assert list(ahead(iter(items))) == items


def test_an_error_is_raised_where_it_belongs() -> None:
    def broken():
        yield 1
        yield 2
        raise TraceFormatError("the third is damaged")

    got = []
    with pytest.raises(TraceFormatError, match="third"):
        for item in ahead(broken()):
            got.append(item)
    assert got == [1, 2]


def test_the_thread_ends_when_the_consumer_stops() -> None:
    def endless():
        while True:
            yield 0

    before = threading.active_count()
    items = ahead(endless())
    next(items)
    items.close()
    assert threading.active_count() == before


def test_it_runs_only_a_few_ahead() -> None:
    made = []

    def noted():
        for i in range(100):
            made.append(i)
            yield i

    items = ahead(noted())
    next(items)
    time.sleep(0.1)
    assert len(made) < 10
    items.close()
