from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.errors import UnknownNameError
from worldswitch.x86.features import FEATURES, CpuidEntry, has, hide, show, vendor

INTEL = CpuidEntry(0, 0, 0, 0x16, 0x756E6547, 0x6C65746E, 0x49656E69)
"""SDM volume 2, CPUID, table 3-8: EBX, EDX, ECX spell GenuineIntel."""
LEAF7 = CpuidEntry(7, 0, 1, 0, 1 << 7 | 1 << 20, 1 << 3 | 1 << 7, 1 << 20)
EXTENDED = (CpuidEntry(0x80000000, 0, 0, 0x80000008, 0, 0, 0), CpuidEntry(0x80000001, 0, 0, 0, 0, 0, 1 << 20))
ENTRIES = (INTEL, CpuidEntry(1, 0, 0, 0, 0, 1 << 17, 0), LEAF7, *EXTENDED)


@pytest.mark.parametrize("name", ["smep", "smap", "pku", "shstk", "ibt", "pcid", "nx"])
def test_features_are_where_the_manuals_have_them(name: str) -> None:
    assert has(ENTRIES, name)


@pytest.mark.parametrize("name", ["la57", "invpcid", "pdpe1gb", "umip"])
def test_what_no_leaf_shows_is_not_there(name: str) -> None:
    assert not has(ENTRIES, name)


def test_vendor_is_spelled_by_leaf_0() -> None:
    assert vendor(ENTRIES) == "GenuineIntel"
    assert vendor(()) == ""


def test_a_name_nobody_knows_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nearest: smep"):
        has(ENTRIES, "smepp")


def test_a_leaf_that_is_not_there_is_added_and_reached() -> None:
    shown = show((INTEL._replace(eax=1), *EXTENDED), ["smep"])
    assert has(shown, "smep")
    assert next(e for e in shown if e.leaf == 0).eax == 7


def test_no_two_features_share_a_bit() -> None:
    assert len({one[:4] for one in FEATURES.values()}) == len(FEATURES)


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(FEATURES))), st.sets(st.sampled_from(sorted(FEATURES))))
def test_hiding_and_showing_change_those_and_no_others(away: set[str], forced: set[str]) -> None:
    changed = show(hide(ENTRIES, away), forced - away)
    for name in FEATURES:
        assert has(changed, name) == (name in forced - away or (has(ENTRIES, name) and name not in away))
