"""KVM's walk of guest tables. Expected: Intel SDM volume 3, sections 4.5 to 4.8, as worldswitch.x86.access has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worldswitch.kvm.guest_walk import Walk, Walker, walk
from worldswitch.kvm.permissions import Controls as Bits
from worldswitch.kvm.permissions import F, Permissions, U, W
from worldswitch.kvm.policy import Policy
from worldswitch.x86.access import Controls, Kind, page_fault
from worldswitch.x86.memory import Memory
from worldswitch.x86.paging import ACCESSED, DIRTY, NO_EXECUTE, PAGE_SIZE, PRESENT, USER, WRITABLE

ROOT, VA = 0x1000, 0x0000_1234_5678_9ABC & 0x7FFF_FFFF_FFFF
FLAGS = [PRESENT, WRITABLE, USER, NO_EXECUTE, ACCESSED, DIRTY, PAGE_SIZE, 1 << 13, 1 << 51, 1 << 59]
KINDS = {Kind.READ: 0, Kind.WRITE: W, Kind.FETCH: F}

entries = st.lists(st.sets(st.sampled_from(FLAGS)), min_size=4, max_size=4)


def _tables(flags: list[set[int]]) -> tuple[Memory, list[int], list[int]]:
    memory, table, places, values = Memory(1 << 20), ROOT, [], []
    for level, chosen in zip((4, 3, 2, 1), flags, strict=True):
        place = table + 8 * (VA >> 12 + 9 * (level - 1) & 511)
        table += 0x1000
        value = sum({PRESENT, WRITABLE, USER} ^ chosen & {PRESENT, WRITABLE, USER} | chosen - {PRESENT, WRITABLE, USER})
        if not value & PAGE_SIZE or level > 3:
            # Bit 13 is reserved in a large page, and part of the address here.
            value = value & ~(1 << 13) | table
        memory.set_word(place, value)
        places.append(place)
        values.append(value)
    return memory, places, values


def _walker(kernel: str, wp: bool, smep: bool, smap: bool, ac: bool, nxe: bool, pkru: int) -> Walker:
    permissions = Permissions.of(Policy.of(kernel), Bits(wp, smep, smap, nxe), pke=True)
    controls = Controls(wp, smep, smap, True, nxe, ac, pkru)
    return Walker(ROOT, 4, controls, permissions, nxe or smep)


@given(
    flags=entries,
    kernel=st.sampled_from(["5.10", "6.12", "7.2"]),
    bits=st.tuples(*[st.booleans()] * 5),
    pkru=st.sampled_from([0, 0b0100, 0b1000]),
    kind=st.sampled_from(list(Kind)),
    user=st.booleans(),
)
def test_every_case_faults_as_the_processor_says(
    flags: list[set[int]], kernel: str, bits: tuple[bool, ...], pkru: int, kind: Kind, user: bool
) -> None:
    """Rule guest-walk."""
    memory, places, values = _tables(flags)
    walker = _walker(kernel, *bits, pkru)
    expected = page_fault(values, kind, user, walker.controls)
    found = walk(memory, walker, VA, KINDS[kind] | (U if user else 0))
    if expected is not None:
        assert found == expected
        assert [memory.word(place) for place in places] == values, "a fault sets neither A nor D"
        return
    assert isinstance(found, Walk)
    walked = 4 - found.level + 1
    after = [memory.word(place) for place in places[:walked]]
    assert all(entry & ACCESSED for entry in after)
    assert bool(after[-1] & DIRTY) == bool(values[walked - 1] & DIRTY or kind is Kind.WRITE)
    if not after[-1] & DIRTY:
        assert not found.rights & 2, "a clean page is not writable, so that the write sets D"


def test_where_a_large_page_leads() -> None:
    memory = Memory(1 << 30)
    for place, value in ((0x1000, 0x2007), (0x2000, 0x3007), (0x3000 + 8 * 3, 0x0060_0087)):
        memory.set_word(place, value)
    found = walk(memory, _walker("6.1", True, False, False, False, True, 0), 3 << 21 | 0x5123, 0)
    assert isinstance(found, Walk)
    assert (found.gfn, found.level, found.tables) == (0x605, 2, {4: 1, 3: 2, 2: 3})


def test_a_table_outside_of_memory_is_absent() -> None:
    memory = Memory(0x3000)
    memory.set_word(0x1000, 0x10_0007)
    assert walk(memory, _walker("6.1", True, False, False, False, True, 0), 0, W | U) == W | U
