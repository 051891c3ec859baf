"""Guest-physical memory against a plain array of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worldswitch.x86.memory import Memory

SIZE = 0x4000
places = st.integers(0, SIZE - 8)
sizes = st.sampled_from([1, 2, 3, 4, 8])
segments = st.lists(st.tuples(st.integers(0, SIZE - 40), st.binary(max_size=40)), max_size=4)
stores = st.lists(st.tuples(places, sizes, st.integers(0, 2**64 - 1)), max_size=12)


@given(segments, stores)
def test_it_is_an_array_of_bytes(loaded: list[tuple[int, bytes]], written: list[tuple[int, int, int]]) -> None:
    memory, plain = Memory(SIZE, loaded), bytearray(SIZE + 8)
    for gpa, data in loaded:
        plain[gpa : gpa + len(data)] = data
    for gpa, size, value in written:
        memory.write(gpa, value, size)
        plain[gpa : gpa + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    for gpa, size in [(gpa, size) for gpa, size, _ in written] + [(gpa, 8) for gpa in range(0, SIZE - 8, 509)]:
        assert memory.read(gpa, size) == int.from_bytes(plain[gpa : gpa + size], "little")
    assert all(memory.word(gpa) == int.from_bytes(plain[gpa : gpa + 8], "little") for gpa in range(0, SIZE, 8))


def test_the_pages_that_were_loaded() -> None:
    assert Memory(SIZE, [(0xFFF, b"ab"), (0x3000, b"c"), (0x2000, b"")]).loaded_pages() == {0, 1, 3}
