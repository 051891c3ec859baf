"""What the processor forgets. Expected: Intel SDM volume 3, section 4.10.4."""

from __future__ import annotations

import pytest

from worldswitch.x86.tlb import Tlb, Translation
from worldswitch.x86.verdicts import D_BIT, W_BIT, X_BIT

RIGHTS = W_BIT | X_BIT | D_BIT


def _filled() -> Tlb:
    tlb = Tlb()
    for page in (1, 2):
        tlb.keep(page, Translation(page, RIGHTS))
    tlb.keep(3, Translation(3, RIGHTS, may_be_global=True))
    for page in (512, 513):
        tlb.keep(page, Translation(page, RIGHTS, span=21))
    return tlb


def _found(tlb: Tlb) -> set[int]:
    return {page for page in range(1024) if tlb.find(page) is not None}


@pytest.mark.parametrize(("va", "left"), [(0x1FFF, {2, 3, 512, 513}), (0x200000, {1, 2, 3}), (0x3FF000, {1, 2, 3})])
def test_invlpg_forgets_the_page_it_lies_in(va: int, left: set[int]) -> None:
    tlb = _filled()
    tlb.forget(va)
    assert _found(tlb) == left


def test_a_load_of_cr3_keeps_global_translations_if_they_are_enabled() -> None:
    for enabled, left in ((True, {3}), (False, set())):
        tlb = _filled()
        tlb.load(0, keep=False, global_pages=enabled)
        assert _found(tlb) == left


def test_translations_belong_to_their_pcid() -> None:
    tlb = _filled()
    tlb.load(5, keep=True, global_pages=False)
    assert not _found(tlb)
    tlb.keep(7, Translation(7, RIGHTS))
    tlb.load(0, keep=True, global_pages=False)
    assert _found(tlb) == {1, 2, 3, 512, 513}
    tlb.load(5, keep=False, global_pages=False)
    assert not _found(tlb)


def test_invpcid() -> None:
    tlb = _filled()
    tlb.load(5, keep=True, global_pages=False)
    tlb.keep(1, Translation(1, RIGHTS))
    tlb.keep(3, Translation(3, RIGHTS, may_be_global=True))
    tlb.forget_va(0x1000, 0)
    tlb.forget_pcid(5)
    assert _found(tlb) == {3}
    tlb.load(0, keep=True, global_pages=False)
    assert _found(tlb) == {2, 3, 512, 513}


def test_equal_states_are_equal() -> None:
    one, other = _filled(), _filled()
    assert one.state() == other.state()
    other.forget(0x1000)
    assert one.state() != other.state()
    other.flush_all()
    assert other.state() == Tlb().state()
