from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import flat, traces
from worldswitch.record.slicing import Limits, Sliced
from worldswitch.record.trace import Batch, Trace

NAMES = ("kvm_exit", "kvm_entry", "kvm_cr")


def trace(rows: list[tuple[str, int, int, int, int | None]]) -> Trace:
    """Of rows (event, time, tid, pid, vcpu_id)."""
    order = np.array([NAMES.index(row[0]) for row in rows], np.uint16)
    vcpus = {name: [row[4] for row in rows if row[0] == name] for name in NAMES[:2]}
    tables = (*({"vcpu_id": np.array(vcpus[name], "u4")} for name in NAMES[:2]), {})
    time, tid, pid = (np.array([row[i] for row in rows]) for i in (1, 2, 3))
    cpu = np.zeros(len(rows), np.int32)
    return Trace([Batch(NAMES, order, time, cpu, tid.astype("i4"), pid.astype("i4"), tables)])


TWO_VMS = [
    ("kvm_entry", 10, 101, 100, 0),
    ("kvm_exit", 20, 101, 100, 0),
    ("kvm_cr", 25, 101, 100, None),
    ("kvm_exit", 30, 102, 100, 1),
    ("kvm_exit", 40, 201, -1, 0),
    ("kvm_cr", 50, 201, -1, None),
]


def times(sliced: Trace) -> list[int]:
    return [event[1] for event in flat(sliced)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [10, 20, 25, 30, 40, 50]),
        ({"time": (20, 30)}, [20, 25, 30]),
        ({"time": (None, 20)}, [10, 20]),
        ({"time": (40, None)}, [40, 50]),
        ({"vcpu": 0}, [10, 20, 25, 40, 50]),
        ({"vcpu": 1}, [30]),
        ({"vcpu": 7}, []),
        ({"vm": 100}, [10, 20, 25, 30]),
        ({"vm": 201}, [40, 50]),
        ({"vm": 201, "vcpu": 0}, [40, 50]),
        ({"vm": 101}, []),
        ({"tid": 102}, [30]),
        ({"tid": 2**40}, []),
        ({"vcpu": 2**70}, []),
        ({"time": (2**80, None)}, []),
    ],
)
def test_slice_keeps_what_matches_all_limits(limits: dict[str, object], expected: list[int]) -> None:
    assert times(trace(TWO_VMS).slice(**limits)) == expected  # type: ignore[arg-type]


@given(traces(), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_streamed_and_held_slices_agree(whole: Trace, first: int, last: int) -> None:
    streamed = Trace.read(Sliced(whole, Limits(first, last)))
    assert flat(streamed) == flat(whole.slice(time=(first, last)))
    assert sum(streamed.meta.events.values()) == len(streamed)
    assert flat(streamed) == [event for event in flat(whole) if first <= event[1] <= last]
