"""The walk over ring-buffer pages, compiled and uncompiled.

Expected values follow from the kernel's include/linux/ring_buffer.h and kernel/trace/ring_buffer.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracedat_build as build
import uncompiled
from worldswitch.trace.readers import ringbuffer

TYPES = (build.ALPHA, build.BETA, build.GAMMA)

WALKS = {"as installed": ringbuffer.walk, "uncompiled": uncompiled.load(ringbuffer).walk}
IS_COMPILED = not ringbuffer.__file__.endswith(".py")


@dataclass
class Found:
    events: list[tuple[int, int, int, int]]
    counts: list[int]
    stats: list[int]


def run(walk, data: bytes, page_size: int = 4096, long: int = 8, selected: int = 3) -> Found:
    """Slot, time, tid and start of all records; slots 0, 1, 2 are alpha, beta, gamma and 3 all else."""
    array = np.zeros(len(data) // 4 + 8, np.uint32)
    array.view(np.uint8)[: len(data) // 4 * 4] = np.frombuffer(data[: len(data) // 4 * 4], np.uint8)
    slots = np.full(1 << 16, 3, np.uint16)
    slots[list(TYPES)] = range(3)
    least = np.array([6, 3, 3], np.int32)
    counts, stats = np.zeros(4, np.int64), np.zeros(ringbuffer.STATS, np.int64)
    stats[ringbuffer.FIRST], stats[ringbuffer.LAST] = ringbuffer.TIME_MASK, -1
    room = len(data) // 12 + 1
    columns = [np.zeros(room, kind) for kind in (np.uint16, np.int64, np.int32, np.int64)]
    n = walk(
        memoryview(array),
        len(data) // 4,
        0,
        page_size // 4,
        2 + long // 4,
        slots,
        least,
        selected,
        counts,
        stats,
        *columns,
    )
    events = list(zip(*(column[:n].tolist() for column in columns), strict=True))
    return Found(events, counts.tolist(), stats.tolist())


@pytest.fixture(params=WALKS.values(), ids=WALKS.keys())
def walk(request):
    return request.param


def times(found: Found) -> list[int]:
    return [time for _, time, _, _ in found.events]


def test_time_is_the_pages_plus_the_deltas_so_far(walk):
    data = build.page(1000, build.record(build.alpha(), 5), build.record(build.gamma(), 7))
    assert times(run(walk, data)) == [1005, 1012]


def test_slot_thread_and_payload_of_a_record(walk):
    found = run(walk, build.page(0, build.record(build.beta(tid=99))))
    assert [(slot, tid, start) for slot, _, tid, start in found.events] == [(1, 99, 5)]


def test_a_negative_thread_keeps_its_sign(walk):
    assert run(walk, build.page(0, build.record(build.gamma(tid=-1)))).events[0][2] == -1


@pytest.mark.parametrize("words", range(6, 29))
def test_short_records_have_their_length_in_the_header(walk, words):
    data = build.alpha() + b"\0" * (words * 4 - 24)
    found = run(walk, build.page(0, build.record(data), build.record(build.gamma())))
    assert [slot for slot, *_ in found.events] == [0, 2]


@pytest.mark.parametrize("size", [24, 26, 29, 31, 116, 3000])
def test_long_records_have_their_length_in_the_next_word(walk, size):
    record = struct.pack("<II", 3 << 5, size + 4) + build.alpha() + b"\0" * (-(-size // 4) * 4 - 24)
    found = run(walk, build.page(10, record, build.record(build.gamma(), 1)))
    assert [(slot, time) for slot, time, *_ in found.events] == [(0, 13), (2, 14)]


def test_time_extend_adds_59_bits(walk):
    data = build.page(1, build.extend(1 << 40 | 5), build.record(build.gamma(), 2))
    assert times(run(walk, data)) == [1 + (1 << 40 | 5) + 2]


def test_absolute_stamp_replaces_the_time(walk):
    data = build.page(10**12, build.absolute(5 * 10**12), build.record(build.gamma(), 2))
    assert times(run(walk, data)) == [5 * 10**12 + 2]


def test_absolute_stamp_takes_the_upper_five_bits_from_the_time_so_far(walk):
    base = 3 << 59
    data = build.page(base + 10, build.absolute(500), build.record(build.gamma()))
    assert times(run(walk, data)) == [base + 500]


def test_absolute_stamp_that_wrapped_goes_forward(walk):
    base = 3 << 59
    data = build.page(base + (1 << 58), build.absolute(500), build.record(build.gamma()))
    assert times(run(walk, data)) == [(4 << 59) + 500]


def test_discarded_record_is_skipped_and_its_time_counts(walk):
    # As libtraceevent's kbuffer-parse.c does; the kernel's own reader leaves the time out.
    data = build.page(0, build.discarded(20, 4), build.record(build.gamma(), 3))
    assert times(run(walk, data)) == [7]


def test_padding_without_time_ends_the_page(walk):
    data = build.page(0, build.record(build.gamma()), build.NULL, build.record(build.gamma()))
    found = run(walk, data + build.page(50, build.record(build.gamma())))
    assert times(found) == [0, 50]
    assert found.stats[ringbuffer.BAD_PAGES] == 0


def test_stored_number_of_lost_events(walk):
    found = run(walk, build.page(0, build.record(build.gamma()), lost=1234))
    assert found.stats[ringbuffer.LOST] == 1234
    assert found.stats[ringbuffer.UNCOUNTED] == 0


def test_gap_of_unknown_size(walk):
    found = run(walk, build.page(0, build.record(build.gamma()), lost="unknown"))
    assert found.stats[ringbuffer.LOST] == 0
    assert found.stats[ringbuffer.UNCOUNTED] == 1


def test_number_of_lost_events_behind_a_full_page_is_not_there(walk):
    full = b"".join(build.record(build.gamma()) for _ in range(4080 // 16))
    data = bytearray(build.page(0, full))
    struct.pack_into("<Q", data, 8, len(full) | 3 << 30)
    assert run(walk, bytes(data)).stats[ringbuffer.UNCOUNTED] == 1


def test_kernel_with_a_long_of_four_bytes(walk):
    data = build.page(9, build.record(build.gamma(), 1), lost=5, long=4)
    found = run(walk, data, long=4)
    assert times(found) == [10]
    assert found.stats[ringbuffer.LOST] == 5


def test_sub_buffers_larger_than_a_page(walk):
    many = [build.record(build.alpha(), 1) for _ in range(500)]
    data = b"".join(build.page(k * 1000, *many, size=16384) for k in range(2))
    assert len(run(walk, data, page_size=16384).events) == 1000


def test_a_page_that_claims_more_than_it_can_hold_is_skipped(walk):
    bad = build.page(0, build.record(build.gamma()), commit=5000)
    found = run(walk, bad + build.page(70, build.record(build.gamma())))
    assert times(found) == [70]
    assert found.stats[ringbuffer.BAD_PAGES] == 1


def test_a_record_that_crosses_the_end_of_its_page_ends_it(walk):
    bad = build.page(0, build.record(build.gamma()), struct.pack("<I", 20))
    found = run(walk, bad + build.page(70, build.record(build.gamma())))
    assert times(found) == [0, 70]
    assert found.stats[ringbuffer.BAD_PAGES] == 1


def test_the_last_page_may_be_cut(walk):
    data = build.page(0, *[build.record(build.gamma(), 1)] * 10)
    found = run(walk, data[: 16 + 16 * 4 + 9])
    assert times(found) == [1, 2, 3, 4]
    assert found.stats[ringbuffer.BAD_PAGES] == 1


def test_records_shorter_than_their_format_are_malformed(walk):
    found = run(walk, build.page(0, build.record(build.payload(build.ALPHA, 1)), build.record(b"\1\0\0\0")))
    assert found.events == []
    assert found.stats[ringbuffer.MALFORMED] == 2


def test_types_without_a_format_are_malformed_and_counted(walk):
    found = run(walk, build.page(0, build.record(build.payload(999, 1))))
    assert found.counts == [0, 0, 0, 1]
    assert found.stats[ringbuffer.MALFORMED] == 1


def test_events_not_selected_are_counted(walk):
    data = build.page(0, build.record(build.alpha()), build.record(build.gamma(), 3), build.record(build.gamma(), 4))
    found = run(walk, data, selected=1)
    assert [slot for slot, *_ in found.events] == [0]
    assert found.counts == [1, 0, 2, 0]


def test_first_and_last_time_are_those_of_all_events(walk):
    data = build.page(
        10, build.record(build.gamma(), 1), build.record(build.alpha(), 2), build.record(build.gamma(), 3)
    )
    found = run(walk, data, selected=1)
    assert found.stats[ringbuffer.FIRST : ringbuffer.LAST + 1] == [11, 16]


def test_times_wrap_at_64_bits(walk):
    """A delta carries the page's time over 2^64; the absolute stamp after it has nothing above bit 58 to add."""
    passing = build.record(build.alpha(), 0x4000000)
    data = build.page((1 << 64) - 0x3FFFFFF, passing, build.absolute(0), build.record(build.alpha(), 1))
    assert [time for _, time, *_ in run(walk, data).events] == [1, 1]


records = st.one_of(
    st.integers(0, 1 << 26).map(lambda delta: build.record(build.alpha(), delta)),
    st.binary(max_size=200).map(lambda text: build.record(build.beta(text=text))),
    st.integers(0, (1 << 59) - 1).map(build.extend),
    st.integers(0, (1 << 59) - 1).map(build.absolute),
    st.integers(1, 50).map(lambda n: build.discarded(n * 4)),
    st.binary(max_size=40),
)
pages = st.builds(
    lambda time, parts, lost, commit: build.page(time, b"".join(parts)[:3000], lost=lost, commit=commit),
    st.integers(0, (1 << 64) - 1),
    st.lists(records, max_size=12),
    st.sampled_from([0, "unknown", 7]),
    st.one_of(st.just(-1), st.integers(0, 5000)),
)


@pytest.mark.skipif(not IS_COMPILED, reason="ringbuffer is not compiled here: nothing to compare")
@given(st.one_of(st.binary(max_size=400), st.lists(pages, max_size=3).map(b"".join)), st.integers(0, 300))
@settings(deadline=None)
def test_compiled_and_uncompiled_agree_on_any_bytes(data, cut):
    data = data[: len(data) - cut] if cut < len(data) else data
    found, expected = run(ringbuffer.walk, data), run(WALKS["uncompiled"], data)
    assert found == expected
