from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scripts import batch, event
from worldswitch.record.order import TimeOrder, concatenate
from worldswitch.record.trace import Batch


def made(stamps: list[int], name: str = "kvm_entry", first: int = 0) -> Batch:
    """Events whose vcpu_id counts on from *first*, so that each can be told."""
    return batch([event(time, name, vcpu_id=first + i) for i, time in enumerate(stamps)])


def times(batches: list[Batch]) -> list[int]:
    return [int(time) for one in batches for time in one.time]


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=8), max_size=6), st.data())
def test_everything_comes_out_once_and_sorted_within_what_the_watermarks_allow(parts, data) -> None:
    order = TimeOrder()
    given_out: list[Batch] = []
    seen = 0
    for stamps in parts:
        order.add(made(stamps, first=seen))
        seen += len(stamps)
        watermark = data.draw(st.integers(-1, 60))
        ready = list(order.up_to(watermark))
        assert all(time <= watermark for time in times(ready))
        given_out += ready
    given_out += order.rest()
    assert sorted(times(given_out)) == sorted(time for stamps in parts for time in stamps)
    rows = [int(v) for one in given_out for v in one.table("kvm_entry")["vcpu_id"]]
    assert sorted(rows) == list(range(seen))
    for one in given_out:
        assert (np.diff(one.time) >= 0).all()
    if times(given_out) == sorted(times(given_out)):
        assert order.out_of_order == 0


def test_equal_times_keep_the_order_of_arrival() -> None:
    order = TimeOrder()
    order.add(made([5, 3], first=0))
    order.add(made([3, 5], first=2))
    (out,) = order.rest()
    assert out.table("kvm_entry")["vcpu_id"].tolist() == [1, 2, 0, 3]


def test_what_comes_later_than_promised_is_counted() -> None:
    order = TimeOrder()
    order.add(made([100, 200]))
    assert times(list(order.up_to(200))) == [100, 200]
    order.add(made([150, 300]))
    assert times(list(order.rest())) == [150, 300]
    assert order.out_of_order == 1


def test_nothing_is_looked_at_while_nothing_can_be_ready() -> None:
    order = TimeOrder()
    for _ in range(3):
        order.add(made([30, 20]))
        assert list(order.up_to(10)) == []
    assert len(order._pending) == 3


def test_batches_of_different_events_become_one() -> None:
    whole = concatenate([made([1, 2], "kvm_entry"), made([3], "kvm_exit", 7), made([4], "kvm_entry", 9)])
    assert [whole.events[i] for i in whole.order] == ["kvm_entry", "kvm_entry", "kvm_exit", "kvm_entry"]
    assert whole.table("kvm_entry")["vcpu_id"].tolist() == [0, 1, 9]
    assert whole.table("kvm_exit")["vcpu_id"].tolist() == [7]


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12), st.data())
def test_take_and_cut_keep_rows_with_their_events(kinds, data) -> None:
    whole = batch([event(i, name, vcpu_id=i) for i, name in enumerate(kinds)])
    head, tail = whole.cut(data.draw(st.integers(0, len(kinds))))
    for part in (head, tail, whole.take(np.array(data.draw(st.permutations(range(len(kinds)))), np.intp))):
        for name in set(kinds):
            table = part.table(name)
            assert table["time"].tolist() == table["vcpu_id"].tolist()
    assert times([head]) + times([tail]) == list(range(len(kinds)))
