"""KVM's permission bitmap. Expected: the entries computed by the kernel's own functions (update_permission_bitmask and
update_pkru_bitmask of 6.12 and 7.3), and, for every input, what the manuals ask of a processor."""

from __future__ import annotations

from itertools import product

import pytest

from worldswitch.kvm.permissions import PK, Controls, F, NestedEpt, P, Permissions, U, W, bitmap, pkru_mask
from worldswitch.kvm.policy import Policy
from worldswitch.x86 import access
from worldswitch.x86.paging import KEY_SHIFT, NO_EXECUTE, PRESENT, USER, WRITABLE

# WP SMEP SMAP NX -> entries 0 to 15.
NARROW = {
    "0001": "00 00 0f 3f 00 00 0f 3f 55 55 5f 7f 55 55 5f 7f",
    "1001": "00 33 0f 3f 00 33 0f 3f 55 77 5f 7f 55 77 5f 7f",
    "0101": "00 00 0f 3f 00 00 0f 3f f5 f5 5f 7f f5 f5 5f 7f",
    "1101": "00 33 0f 3f 00 33 0f 3f f5 f7 5f 7f f5 f7 5f 7f",
    "1111": "f0 f3 0f 3f 00 33 0f 3f f5 f7 5f 7f f5 f7 5f 7f",
    "0111": "f0 f0 0f 3f 00 00 0f 3f f5 f5 5f 7f f5 f5 5f 7f",
    "0000": "00 00 0f 3f 00 00 0f 3f 00 00 0f 3f 00 00 0f 3f",
}
WIDE = {
    "0001": "5555 0000 5f5f 3f3f 5555 0000 5f5f 3f3f 00ff 00ff 0fff 3fff 00ff 00ff 0fff 3fff",
    "1001": "5555 3333 5f5f 3f3f 5555 3333 5f5f 3f3f 00ff 33ff 0fff 3fff 00ff 33ff 0fff 3fff",
    "1111": "f5f5 f3f3 5f5f 3f3f 5555 3333 5f5f 3f3f f0ff f3ff 0fff 3fff f0ff f3ff 0fff 3fff",
}
VECTORS = [(k, bits, text) for k in ("5.10", "6.1", "6.12") for bits, text in NARROW.items()]
VECTORS += [(k, bits, text) for k in ("7.2", "7.3") for bits, text in WIDE.items()]


def _controls(bits: str) -> Controls:
    return Controls(*(bit == "1" for bit in bits))


@pytest.mark.parametrize(("kernel", "bits", "expected"), VECTORS)
def test_check_vectors(kernel: str, bits: str, expected: str) -> None:
    """Rule permission-bitmap."""
    assert bitmap(Policy.of(kernel), _controls(bits)) == tuple(int(word, 16) for word in expected.split())


EPT_NARROW = "00 33 0f 3f 00 33 0f 3f 55 77 5f 7f 55 77 5f 7f"
EPT_WIDE = "5555 3333 5555 3333 5555 3333 5555 3333 00ff 33ff 00ff 33ff 00ff 33ff 00ff 33ff"
# Fetches with U are judged by bit 2 (XU), those without by bit 3 (XS); all else is as without MBEC.
EPT_MBEC = "5555 3333 5555 3333 5555 3333 5555 3333 00ff 33ff 0f0f 3f3f 00ff 33ff 0f0f 3f3f"


@pytest.mark.parametrize(
    ("kernel", "mbec", "expected"),
    [(k, mbec, EPT_NARROW) for k in ("5.10", "6.1", "6.12") for mbec in (False, True)]
    + [(k, False, EPT_WIDE) for k in ("7.2", "7.3")]
    + [(k, True, EPT_MBEC) for k in ("7.2", "7.3")],
)
def test_check_vectors_of_nested_ept(kernel: str, mbec: bool, expected: str) -> None:
    """Rule permission-bitmap. The 8-bit form is that of a guest with WP and NX alone, U standing for R."""
    assert bitmap(Policy.of(kernel), NestedEpt(mbec)) == tuple(int(word, 16) for word in expected.split())


def test_the_pkru_mask() -> None:
    """Rule pkru-mask."""
    assert pkru_mask(wp=False) == 0x0000D500
    assert pkru_mask(wp=True) == 0x0000DD00


INPUTS = [(k, bits) for k in ("5.10", "6.1", "6.12", "7.2", "7.3", "6.6") for bits in product("01", repeat=4)]


@pytest.mark.parametrize(("kernel", "bits"), INPUTS, ids="".join)
def test_all_96_inputs_decide_as_a_processor_does(kernel: str, bits: tuple[str, ...]) -> None:
    """Every kind of access to every kind of page with every PKRU setting: P, PK or nothing, as in SDM volume 3, 4.6."""
    controls = _controls("".join(bits))
    kinds = [(access.Kind.READ, 0), (access.Kind.WRITE, W), (access.Kind.FETCH, F)]
    for pke, pkru, ac in product((False, True), (0, 0b0100, 0b1000), (False, True)):
        ours = Permissions.of(Policy.of(kernel), controls, pke)
        processor = access.Controls(controls.wp, controls.smep, controls.smap, pke, controls.nx, ac, pkru)
        for rights, (kind, code), user in product(range(8), kinds, (False, True)):
            if not controls.nx and not rights & 1:
                continue  # without NXE the bit is reserved, and the walk ends before rights are judged
            entry = PRESENT | (WRITABLE if rights & 2 else 0) | (USER if rights & 4 else 0) | 1 << KEY_SHIFT
            entry |= 0 if rights & 1 else NO_EXECUTE
            expected = access.page_fault([entry], kind, user, processor, 1)
            got = ours.fault(rights, 1, code | (U if user else 0), pkru, ac)
            assert got == (0 if expected is None else expected & (P | PK)), (kind, user, rights, pkru, ac)
