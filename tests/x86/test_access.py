"""The processor's answer to a memory access. Expected: Intel SDM volume 3, sections 4.6 and 4.7, rule by rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.x86.access import Controls, Kind, page_fault, reserved_bits

P, W, U, PS, NX = 1, 2, 4, 0x80, 1 << 63
ALL = P | W | U
READ, WRITE, FETCH = Kind.READ, Kind.WRITE, Kind.FETCH
EC_P, EC_W, EC_U, EC_RSVD, EC_I, EC_PK = 1, 2, 4, 8, 16, 32


def walk(leaf: int, upper: int = ALL) -> tuple[int, ...]:
    return (upper, ALL, ALL, leaf)


def key(number: int) -> int:
    return number << 59


@pytest.mark.parametrize(
    ("leaf", "kind", "user", "controls", "code"),
    [
        # 4.6.1, supervisor-mode accesses: data may be read from any supervisor-mode address.
        (P, READ, False, Controls(), None),
        # "If CR0.WP = 0, data may be written to any supervisor-mode address."
        (P, WRITE, False, Controls(wp=False), None),
        # "If CR0.WP = 1, data may be written ... with a translation for which the R/W flag is 1 in every entry."
        (P, WRITE, False, Controls(wp=True), EC_P | EC_W),
        (P | W, WRITE, False, Controls(wp=True), None),
        # User-mode addresses: "If CR4.SMAP = 0, data may be read from any user-mode address".
        (P | U, READ, False, Controls(), None),
        # "If CR4.SMAP = 1 ... EFLAGS.AC = 1 and the access is explicit: allowed; AC = 0 or implicit: not."
        (P | U, READ, False, Controls(smap=True, ac=True), None),
        (P | U, READ, False, Controls(smap=True, ac=False), EC_P),
        # The same for writes with WP = 0: SMAP decides although the page's R/W would not.
        (P | U, WRITE, False, Controls(wp=False), None),
        (P | U, WRITE, False, Controls(wp=False, smap=True), EC_P | EC_W),
        (P | U, WRITE, False, Controls(wp=False, smap=True, ac=True), None),
        (ALL, WRITE, False, Controls(smap=True, ac=True), None),
        (P | U, WRITE, False, Controls(smap=True, ac=True), EC_P | EC_W),
        # Fetches from supervisor-mode addresses: XD must be 0 if NXE = 1.
        (P, FETCH, False, Controls(), None),
        (P | NX, FETCH, False, Controls(), EC_P | EC_I),
        # Fetches from user-mode addresses: SMEP = 1 forbids all of them, SMAP none.
        (P | U, FETCH, False, Controls(), None),
        (P | U, FETCH, False, Controls(smap=True), None),
        (P | U, FETCH, False, Controls(smep=True), EC_P | EC_I),
        # User-mode accesses: supervisor-mode addresses never; R/W for writes whatever WP says; XD for fetches.
        (P | W, READ, True, Controls(), EC_P | EC_U),
        (P | W, WRITE, True, Controls(wp=False), EC_P | EC_W | EC_U),
        (P | W, FETCH, True, Controls(), EC_P | EC_U | EC_I),
        (P | U, READ, True, Controls(smap=True), None),
        (P | U, WRITE, True, Controls(wp=False), EC_P | EC_W | EC_U),
        (ALL, WRITE, True, Controls(), None),
        (P | U, FETCH, True, Controls(smep=True), None),
        (P | U | NX, FETCH, True, Controls(), EC_P | EC_U | EC_I),
        # 4.7: I/D only "if CR4.SMEP = 1 or EFER.NXE = 1".
        (P | W, FETCH, True, Controls(nxe=False), EC_P | EC_U),
        (P | W, FETCH, True, Controls(nxe=False, smep=True), EC_P | EC_U | EC_I),
        # 4.7: P is 0 if a P flag was 0, whatever else is wrong.
        (0, READ, False, Controls(), 0),
        (0, WRITE, False, Controls(), EC_W),
        (W | U, FETCH, True, Controls(), EC_U | EC_I),
        # 4.5 and 4.7: a reserved bit in a present entry is RSVD, before any right counts.
        (ALL | NX, READ, False, Controls(nxe=False), EC_P | EC_RSVD),
        (ALL | 1 << 51, WRITE, True, Controls(), EC_P | EC_W | EC_U | EC_RSVD),
        (ALL | 1 << 51, READ, True, Controls(maxphyaddr=52), None),
        (W | U | 1 << 51, READ, True, Controls(), EC_U),
        # 4.6.2: AD forbids data accesses to user-mode addresses with that key, of the supervisor too.
        (ALL | key(1), READ, True, Controls(pke=True, pkru=0b0100), EC_P | EC_U | EC_PK),
        (ALL | key(1), READ, False, Controls(pke=True, pkru=0b0100), EC_P | EC_PK),
        (ALL | key(1), READ, True, Controls(pke=False, pkru=0b0100), None),
        (ALL | key(2), READ, True, Controls(pke=True, pkru=0b0100), None),
        (P | W | key(1), READ, False, Controls(pke=True, pkru=0b0100), None),
        (ALL | key(1), FETCH, True, Controls(pke=True, pkru=0b0100), None),
        # WD forbids writes: of the user always, of the supervisor if WP = 1.
        (ALL | key(1), WRITE, True, Controls(pke=True, wp=False, pkru=0b1000), EC_P | EC_W | EC_U | EC_PK),
        (ALL | key(1), WRITE, False, Controls(pke=True, wp=True, pkru=0b1000), EC_P | EC_W | EC_PK),
        (ALL | key(1), WRITE, False, Controls(pke=True, wp=False, pkru=0b1000), None),
        (ALL | key(1), READ, True, Controls(pke=True, pkru=0b1000), None),
        # The highest key has the highest bits.
        (ALL | key(15), READ, True, Controls(pke=True, pkru=1 << 30), EC_P | EC_U | EC_PK),
        # PK is told also where another right is missing (4.7 lists its conditions, and that is none).
        (P | U | key(1), WRITE, True, Controls(pke=True, pkru=0b0100), EC_P | EC_W | EC_U | EC_PK),
    ],
)  # fmt: skip
def test_the_rules_one_by_one(leaf: int, kind: Kind, user: bool, controls: Controls, code: int | None) -> None:
    assert page_fault(walk(leaf), kind, user, controls) == code


@pytest.mark.parametrize(
    ("upper", "kind", "user", "code"),
    [
        (P | W, READ, True, EC_P | EC_U),  # no U above: a supervisor-mode address
        (P | U, WRITE, True, EC_P | EC_W | EC_U),
        (P | U, WRITE, False, EC_P | EC_W),
        (ALL | NX, FETCH, True, EC_P | EC_U | EC_I),
        (0, READ, True, EC_U),
        (ALL | 1 << 50, READ, True, EC_P | EC_U | EC_RSVD),
        (ALL | PS, READ, True, EC_P | EC_U | EC_RSVD),  # bit 7 of a PML4E is reserved
    ],
)
def test_rights_are_those_of_every_entry_of_the_walk(upper: int, kind: Kind, user: bool, code: int) -> None:
    assert page_fault(walk(ALL, upper), kind, user, Controls()) == code


def test_an_entry_without_p_or_with_a_reserved_bit_hides_those_below_it() -> None:
    assert page_fault((ALL, 0, 0xDEAD), READ, False, Controls()) == 0
    assert page_fault((ALL, ALL | 1 << 51, 0), READ, False, Controls()) == EC_P | EC_RSVD


def test_large_pages_end_the_walk_and_reserve_the_bits_below_their_size() -> None:
    assert page_fault((ALL, ALL, ALL | PS), WRITE, True, Controls()) is None
    assert page_fault((ALL, ALL, ALL | PS | 1 << 13), WRITE, True, Controls()) == EC_P | EC_W | EC_U | EC_RSVD
    assert page_fault((ALL, ALL, ALL | PS | 1 << 12), WRITE, True, Controls()) is None  # PAT
    assert page_fault((ALL, ALL | PS), READ, True, Controls()) is None
    assert page_fault((ALL, ALL | PS | 1 << 29), READ, True, Controls()) == EC_P | EC_U | EC_RSVD
    assert page_fault((ALL, ALL | PS), READ, True, Controls(gigabyte_pages=False)) == EC_P | EC_U | EC_RSVD
    assert reserved_bits(1, ALL | PS, Controls()) == 0xF << 48  # PAT at level 1, not PS


def test_other_paging_modes() -> None:
    assert page_fault((ALL, *walk(ALL)), READ, True, Controls(), levels=5) is None
    assert page_fault((ALL, ALL), WRITE, True, Controls(keys=False), levels=2) is None
    assert page_fault((ALL, ALL | 1 << 59), READ, True, Controls(keys=False), levels=2) == EC_P | EC_U | EC_RSVD


def test_implicit_accesses_are_the_supervisors_and_ac_does_not_help_them() -> None:
    controls = Controls(smap=True, ac=True)
    assert page_fault(walk(ALL), READ, True, controls, implicit=True) == EC_P
    assert page_fault(walk(P | W), READ, True, controls, implicit=True) is None


def test_a_walk_that_ends_before_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="do not reach a page"):
        page_fault((ALL, ALL), READ, False, Controls())


ENTRIES = st.sampled_from((P, P | W, P | U, ALL, ALL | NX, P | NX, 0, ALL | 1 << 51, ALL | key(1), P | U | key(1)))
CONTROLS = st.builds(
    Controls, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from((0, 0b0100, 0b1000)), st.just(48), st.just(True), st.just(True),
)  # fmt: skip


@given(st.tuples(*[ENTRIES] * 4), st.sampled_from(Kind), st.booleans(), CONTROLS)
def test_the_error_code_says_of_the_access_what_it_was(
    entries: tuple[int, ...], kind: Kind, user: bool, c: Controls
) -> None:
    code = page_fault(entries, kind, user, c)
    if code is None:
        assert all(entry & P for entry in entries)
        return
    assert bool(code & EC_W) == (kind is WRITE)
    assert bool(code & EC_U) == user
    assert bool(code & EC_I) == (kind is FETCH and (c.nxe or c.smep))
    assert code & EC_P or not code & (EC_RSVD | EC_PK)
    assert not code & EC_PK or (c.pke and kind is not FETCH and c.pkru)


@given(st.tuples(*[ENTRIES] * 4), st.sampled_from(Kind), st.booleans(), CONTROLS)
def test_a_protection_switched_on_never_allows_more(
    entries: tuple[int, ...], kind: Kind, user: bool, c: Controls
) -> None:
    bare = c._replace(wp=False, smep=False, smap=False, pke=False)
    if page_fault(entries, kind, user, bare) is not None:
        assert page_fault(entries, kind, user, c) is not None
    if page_fault(entries, kind, user, c) is None:
        assert page_fault(entries, kind, user, c._replace(ac=True, pkru=0)) is None
