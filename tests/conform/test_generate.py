"""Random programs: the same for the same seed, within their bounds, and such that a guest could run them."""

from __future__ import annotations

from collections import Counter

import pytest

from worldswitch.conform import bounds
from worldswitch.conform.generate import USED, program
from worldswitch.guest import operations as ops
from worldswitch.guest.assemble import assemble
from worldswitch.guest.check import features
from worldswitch.guest.paths import places
from worldswitch.guest.toml import loads
from worldswitch.x86.registers import EFER, bit_mask

MANY = range(150)
AMD = frozenset(("smep", "smap", "fsgsbase"))


def test_the_same_seed_and_number_give_the_same_program() -> None:
    assert str(program(7, 3, USED)) == str(program(7, 3, USED))
    assert program(7, 3, USED) != program(7, 4, USED)
    assert program(7, 3, USED) != program(8, 3, USED)


def test_programs_survive_as_toml() -> None:
    for number in MANY:
        one = program(1, number, USED)
        assert loads(str(one)) == one


@pytest.mark.parametrize("there", [frozenset(), AMD, USED], ids=["none", "amd", "all"])
def test_programs_need_no_feature_that_is_not_there(there: frozenset[str]) -> None:
    for number in MANY:
        assert features(program(1, number, there)) - {"nx"} <= there


def test_features_that_nobody_uses_change_nothing() -> None:
    assert program(1, 5, AMD) == program(1, 5, AMD | {"rdtscp"})


def test_every_operation_a_program_may_use_appears() -> None:
    seen = Counter(place.operation.word for number in MANY for place in places(program(1, number, USED)))
    absent = {kind.word for kind in ops.OPERATIONS.values()} - seen.keys()
    assert absent == {ops.Meet.word}  # one vCPU meets nobody


def test_sizes_are_within_the_bounds() -> None:
    for number in MANY:
        one = program(1, number, USED)
        (vcpu,) = one.vcpus
        assert bounds.PASSES[0] <= one.default_n <= bounds.PASSES[1]
        assert 1 <= len(one.spaces) <= bounds.SPACES
        assert one.memory == bounds.MEMORY
        assert not one.huge
        assert len(vcpu.body) >= bounds.GROUPS[0]


def test_stores_never_reach_where_code_may_be_fetched() -> None:
    for number in MANY:
        for place in places(program(1, number, USED)):
            one = place.operation
            if isinstance(one, ops.Store) and not place.path.startswith("vcpu 0 end"):
                first = one.va & 0xFFF
                in_table = one.value & 1 and one.size == 8 and first % 8 == 0
                assert in_table or first + one.size <= bounds.CODE_START or first > 0xFF0
            elif isinstance(one, ops.Fetch):
                assert bounds.CODE_START <= one.va & 0xFFF <= 0xFF0


def test_only_one_space_is_loaded_with_a_pcid_and_0_never_without_a_flush() -> None:
    kept = 0
    for number in MANY:
        spaces: dict[int, set[str]] = {}
        for place in places(program(1, number, USED)):
            one = place.operation
            if isinstance(one, ops.SwitchSpace):
                spaces.setdefault(one.pcid, set()).add(one.space)
                assert one.pcid or not one.noflush
                kept += one.noflush
        assert all(len(some) == 1 for pcid, some in spaces.items() if pcid)
    assert kept > 10


def test_few_programs_have_reserved_bits_in_entries() -> None:
    """NX is one where EFER.NXE may be off: at first, or by a write."""
    found = 0
    for number in range(400):
        one = program(1, number, AMD)
        every = [place.operation for place in places(one)]
        efers = [one.state.efer, *(w.value for w in every if isinstance(w, ops.WriteMsr) and w.msr == EFER)]
        entries = [w for w in every if isinstance(w, ops.WriteEntry)]
        nx = any("NX" in pages.flags for space in one.spaces for pages in space.pages)
        nx = nx or any("NX" in (*w.set, *w.toggle) for w in entries)
        address = any(w.pa is not None and w.pa & bounds.RESERVED_PA for w in entries)
        found += address or (nx and not all(value & bit_mask(EFER, "NXE") for value in efers))
    assert 4 <= found <= 36


def test_page_tables_lie_where_programs_believe() -> None:
    # Entries that a program points at page tables must be pointed at what the image has there.
    found = 0
    for number in MANY:
        one = program(1, number, USED)
        image = assemble(one)
        there = {segment.gpa for segment in image.segments}
        for place in places(one):
            write = place.operation
            if isinstance(write, ops.WriteEntry) and write.pa is not None and write.pa < 2 << 20:
                assert write.pa in there
                found += 1
    assert found > 10
