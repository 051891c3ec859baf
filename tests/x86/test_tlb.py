"""What the processor forgets. Expected: Intel SDM volume 3, section 4.10.4."""

from __future__ import annotations

import pytest

from worldswitch.x86.tlb import Tlb, Translation

SMALL = Translation(1, True, False, True, True)
LARGE = SMALL._replace(span=21)
GLOBAL = SMALL._replace(may_be_global=True)


def _filled() -> Tlb:
    tlb = Tlb()
    tlb.now.update({1: SMALL, 2: SMALL, 3: GLOBAL, 512: LARGE, 513: LARGE})
    return tlb


@pytest.mark.parametrize(("va", "left"), [(0x1FFF, {2, 3, 512, 513}), (0x200000, {1, 2, 3}), (0x3FF000, {1, 2, 3})])
def test_invlpg_forgets_the_page_it_lies_in(va: int, left: set[int]) -> None:
    tlb = _filled()
    tlb.forget(va)
    assert set(tlb.now) == left


def test_a_load_of_cr3_keeps_global_translations_if_they_are_enabled() -> None:
    for enabled, left in ((True, {3}), (False, set())):
        tlb = _filled()
        tlb.load(0, keep=False, global_pages=enabled)
        assert set(tlb.now) == left


def test_translations_belong_to_their_pcid() -> None:
    tlb = _filled()
    tlb.load(5, keep=True, global_pages=False)
    assert not tlb.now
    tlb.now[7] = SMALL
    tlb.load(0, keep=True, global_pages=False)
    assert set(tlb.now) == {1, 2, 3, 512, 513}
    tlb.load(5, keep=False, global_pages=False)
    assert not tlb.now


def test_invpcid() -> None:
    tlb = _filled()
    tlb.load(5, keep=True, global_pages=False)
    tlb.now.update({1: SMALL, 3: GLOBAL})
    tlb.forget_va(0x1000, 0)
    tlb.forget_pcid(5)
    assert set(tlb.now) == {3}
    tlb.load(0, keep=True, global_pages=False)
    assert set(tlb.now) == {2, 3, 512, 513}


def test_equal_states_are_equal() -> None:
    one, other = _filled(), _filled()
    assert one.state() == other.state()
    other.forget(0x1000)
    assert one.state() != other.state()
    other.flush_all()
    assert other.state() == Tlb().state()
