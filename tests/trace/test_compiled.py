"""The hot modules are one source that runs compiled or not: both must say the same."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import uncompiled
from worldswitch.trace import pairing, refaults, tally
from worldswitch.trace.readers import gather, perfwalk

HOT = (pairing, tally, refaults, gather, perfwalk)
many = settings(max_examples=40, deadline=None)


PURE = {module.__name__: uncompiled.load(module) for module in HOT}


def both(module: ModuleType, name: str, arrays: list, *rest) -> None:
    """Call *name* compiled and not, on copies of *arrays*; they must return and write the same.

    Memoryviews are passed, as the callers do: numpy's integers would overflow where Python's do not.
    """
    results = []
    for chosen in (module, PURE[module.__name__]):
        copies = [array.copy() for array in arrays]
        returned = getattr(chosen, name)(*map(memoryview, copies), *rest)
        results.append((returned, copies))
    (one, written), (other, written_too) = results
    assert one == other
    for mine, theirs in zip(written, written_too, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("module", HOT, ids=lambda module: module.__name__)
def test_the_sources_are_what_they_are_called(module: ModuleType) -> None:
    assert PURE[module.__name__].__file__.endswith(".py")


def array(dtype, *shape, **limits):
    elements = st.integers(**limits) if limits else None
    return npst.arrays(dtype, shape, elements=elements)


@many
@given(st.data())
def test_gather_integers(data: st.DataObject) -> None:
    words = data.draw(array(np.uint32, 40))
    starts = data.draw(npst.arrays(np.int64, st.integers(0, 8), elements=st.integers(0, 20)))
    offset = data.draw(st.integers(0, 60))
    size = data.draw(st.sampled_from([1, 2, 4]))
    for chosen in (gather, PURE[gather.__name__]):
        out8, out4 = np.zeros(len(starts), np.uint64), np.zeros(len(starts), np.uint32)
        chosen.gather_8(memoryview(words), memoryview(starts), offset, memoryview(out8))
        chosen.gather_4(memoryview(words), memoryview(starts), offset, size, memoryview(out4))
        raw = words.tobytes()
        places = [start * 4 + offset for start in starts.tolist()]
        assert out8.tolist() == [int.from_bytes(raw[at : at + 8], "little") for at in places]
        assert out4.tolist() == [int.from_bytes(raw[at : at + size], "little") for at in places]


@many
@given(
    array(np.uint32, 40),
    npst.arrays(np.int64, st.integers(0, 8), elements=st.integers(0, 20)),
    st.integers(0, 30),
    st.integers(1, 40),
)
def test_gather_bytes(words, starts, offset: int, count: int) -> None:
    for chosen in (gather, PURE[gather.__name__]):
        out = np.zeros((len(starts), count), np.uint8)
        chosen.gather_bytes(memoryview(words), memoryview(starts), offset, count, memoryview(out))
        raw = words.tobytes()
        assert [row.tobytes() for row in out] == [raw[s * 4 + offset : s * 4 + offset + count] for s in starts.tolist()]


@many
@given(npst.arrays(np.uint16, st.integers(0, 30), elements=st.integers(0, 4)))
def test_split_groups_in_order(order) -> None:
    starts = np.arange(len(order), dtype=np.int64) * 7
    for chosen in (gather, PURE[gather.__name__]):
        begins, out = np.full(6, -9, np.int64), np.zeros(len(order), np.int64)
        chosen.split(memoryview(order), 5, memoryview(starts), memoryview(begins), memoryview(out))
        for event in range(5):
            np.testing.assert_array_equal(out[begins[event] : begins[event + 1]], starts[order == event])


@many
@given(st.data())
def test_tally_add(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 40))
    few = st.sampled_from([0, 1, 2, 1 << 32, (1 << 64) - 1])
    a, b, c = (data.draw(npst.arrays(np.uint64, n, elements=few)) for _ in range(3))
    large = st.integers(-(1 << 40), 1 << 40)
    amounts = [data.draw(npst.arrays(np.int64, n, elements=large)) for _ in range(3)]
    limit = data.draw(st.integers(0, 40))
    tables = [np.zeros(128, np.int64), np.zeros((64, 3), np.uint64), np.zeros((64, 4), np.int64), np.zeros(2, np.int64)]
    written = []
    for chosen in (tally, PURE[tally.__name__]):
        made = [table.copy() for table in tables]
        index = np.zeros(n, np.int64)
        chosen.add(*map(memoryview, (a, b, c, *amounts, *made)), limit, memoryview(index))
        written.append((*made, index))
    for mine, theirs in zip(*written, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@many
@given(st.data())
def test_refaults_find(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 40))
    thread = data.draw(npst.arrays(np.int64, n, elements=st.integers(0, 3)))
    cr = data.draw(npst.arrays(np.int64, n, elements=st.sampled_from([-1, 0, 3, 4, 8])))
    page = data.draw(npst.arrays(np.int64, n, elements=st.integers(-1, 5)))
    missing = data.draw(npst.arrays(np.bool_, n)).astype(np.uint8)
    epoch = np.sort(data.draw(npst.arrays(np.int64, n, elements=st.integers(0, 2))))
    tables = [np.zeros((4, 3), np.int64), np.zeros((6, 4), np.int64), np.zeros(n, np.int64)]
    both(refaults, "find", [thread, cr, page, missing, epoch, *tables])


@many
@given(st.data())
def test_pairing(data: st.DataObject) -> None:
    """Any events in any order: the roles, values and threads are drawn freely."""
    n = data.draw(st.integers(1, 60))
    roles = np.arange(11, dtype=np.uint8) % 10
    order = data.draw(npst.arrays(np.uint16, n, elements=st.integers(0, 10)))
    lengths = np.bincount(order, minlength=11)
    bases = np.concatenate([[0], np.cumsum(lengths)[:-1], [0]]).astype(np.int64)
    values = st.sampled_from([0, 1, 2, 3, 4, 8, 13, 28, 0x10, 0x65, 0xFF, 0x400, 0x80010033])
    exits = int(lengths[1]) + 1
    arrays = [
        order,
        data.draw(npst.arrays(np.int64, n, elements=st.integers(0, 1000))),
        data.draw(npst.arrays(np.uint32, n, elements=st.sampled_from([1, 2, 0xFFFFFFFF]))),
        data.draw(npst.arrays(np.uint32, n, elements=st.sampled_from([1, 0xFFFFFFFF]))),
        np.append(roles, 0).astype(np.uint8),
        np.arange(12, dtype=np.uint32),
        bases,
        np.zeros(12, np.int64),
        data.draw(npst.arrays(np.uint64, n + 1, elements=values)),
        data.draw(npst.arrays(np.uint32, n + 1, elements=values)),
        data.draw(npst.arrays(np.uint32, n + 1, elements=st.integers(0, 2))),
        data.draw(npst.arrays(np.uint32, exits, elements=st.integers(0, 3))),
        data.draw(npst.arrays(np.uint64, exits, elements=values)),
        data.draw(npst.arrays(np.uint64, exits, elements=values)),
        np.zeros(32, np.int64),
        np.zeros((data.draw(st.integers(2, 8)), pairing.STATE), np.uint64),
        np.zeros(2, np.int64),
        np.zeros((pairing.ROW_64, n), np.uint64),
        np.zeros((pairing.ROW_32, n), np.uint32),
    ]
    both(pairing, "pair", arrays, 0)


@many
@given(st.data())
def test_perfwalk(data: st.DataObject) -> None:
    """Words that look like records as often as they do not."""
    word = st.one_of(
        st.sampled_from([9, 9, 9, 2, 3, 68, 81, 8 << 16, 24 << 16, 40 << 16, 64 << 16, 0, 8, 16]),
        st.integers(0, 0xFFFFFFFF),
    )
    words = data.draw(npst.arrays(np.uint32, 120, elements=word))
    layout = [4, 6, 10, 2, 12, *(data.draw(st.integers(0, 1)) for _ in range(1)), data.draw(st.integers(0, 31))]
    layout += [data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))]
    layouts = np.array([layout, layout], np.int32)
    ids = np.array(data.draw(st.sampled_from([[], [8, 16]])), np.uint64)
    codes = perfwalk.FIRST_ATTR_CODE + 2
    slots = np.full(codes, perfwalk.UNKNOWN, np.uint16)
    slots[[0, 8, 9, 16, perfwalk.FIRST_ATTR_CODE]] = [0, 1, perfwalk.COUNT_ONLY, 2, 3]
    rows = [np.zeros(4, kind) for kind in (np.uint16, np.int64, np.uint32, np.uint32, np.uint32, np.int64)]
    state = np.zeros(perfwalk.STATE, np.int64)
    state[5:] = -1
    before = [words]
    results = []
    for chosen in (perfwalk, PURE[perfwalk.__name__]):
        counts, others = np.zeros(codes, np.int64), np.zeros(3, np.int64)
        written = [*(row.copy() for row in rows), others, state.copy()]
        fixed = [*before, layouts, ids, np.array([0, 1][: len(ids)], np.int32), slots, np.full(codes, 8, np.int32)]
        first, *tables = map(memoryview, fixed)
        chosen.walk(first, 120, *tables, memoryview(counts), *map(memoryview, written))
        results.append([counts, *written])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)
