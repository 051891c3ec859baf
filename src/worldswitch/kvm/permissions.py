"""The permission bitmap by which KVM judges guest accesses it has to walk for.

An entry for each kind of access, indexed by bits 4:1 of the error code (W, U, and F; the place of RSVD says instead
that SMAP does not apply); in each entry a bit for each combination of rights of the page-table entry. 8 bits with the
rights X, W, U up to the kernels without MBEC, 16 bits with R, W, U, X since then.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.kvm.policy import Policy
from worldswitch.kvm.rules import rule
from worldswitch.x86.exceptions import ERROR_BITS

P, W, U, RSVD, F, PK = (1 << ERROR_BITS[name] for name in ("P", "W", "U", "RSVD", "I", "PK"))
X_RIGHT, W_RIGHT, U_RIGHT = 1, 2, 4
"""Rights as the MMU has them in a walk, and as the index of a bit in the 8-bit form."""
ALL_RIGHTS = X_RIGHT | W_RIGHT | U_RIGHT


class Controls(NamedTuple):
    """The bits of the CPU role that the bitmap is made of."""

    wp: bool
    smep: bool
    smap: bool
    nx: bool


class NestedEpt(NamedTuple):
    """What the bitmap for L1's EPT tables is made of: no control register counts.

    Attributes:
        mbec: L1 has mode-based execute control on; kernels that do not know it ignore it.
    """

    mbec: bool = False


@rule(
    id="permission-bitmap",
    sentence="KVM precomputes which accesses fault for which rights; entries have 8 bits, or 16 where it knows MBEC.",
    depends=("mbec-gmet",),
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "KVM judges the accesses it walks guest tables for. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_permissions.py::test_check_vectors",
)
def bitmap(policy: Policy, controls: Controls | NestedEpt) -> tuple[int, ...]:
    """The 16 entries for a guest's page tables, or for the EPT tables it has for a guest of its own.

    With those the rights are to read, write and execute (mmu.c, update_permission_bitmask).
    """
    wide = policy.has("mbec-gmet")
    if isinstance(controls, NestedEpt):
        return tuple(_ept_entry(index << 1, wide, controls.mbec) for index in range(16))
    return tuple(_entry(index << 1, controls, wide) for index in range(16))


def _entry(code: int, controls: Controls, wide: bool) -> int:
    entry = 0
    for place in range(16 if wide else 8):
        rights = (place & (W_RIGHT | U_RIGHT)) | (place >> 3 if wide else place & X_RIGHT)
        readable = bool(place & 1) or not wide
        entry |= _faults(code, rights, readable, controls) << place
    return entry


def _faults(code: int, rights: int, readable: bool, controls: Controls) -> bool:
    user, fetch, writes = bool(code & U), bool(code & F), bool(code & W)
    if writes and not rights & W_RIGHT and (user or controls.wp):
        return True
    if user and not rights & U_RIGHT:
        return True
    if fetch and controls.nx and not rights & X_RIGHT:
        return True
    if not user and rights & U_RIGHT:
        if fetch and controls.smep:
            return True
        if controls.smap and not fetch and not code & RSVD:
            return True
    return not readable and not writes and not fetch


def _ept_entry(code: int, wide: bool, mbec: bool) -> int:
    """In the 8-bit form the place of U says R, and reads are asked for as accesses with U."""
    entry = 0
    for place in range(16 if wide else 8):
        executable = place & (U_RIGHT if mbec and code & U else 8) if wide else place & X_RIGHT
        readable = place & 1 or code & (W | F) if wide else place & U_RIGHT or not code & U
        faults = (code & W and not place & W_RIGHT) or (code & F and not executable) or not readable
        entry |= bool(faults) << place
    return entry


@rule(
    id="pkru-mask",
    sentence="Protection keys deny data accesses to user pages: AD all of them, WD writes, those of the supervisor "
    "only with CR0.WP.",
    source='Since Linux commit 2d344105f57c ("KVM, pkeys: introduce pkru_mask to cache conditions") (v4.6), KVM keeps '
    "a mask of the PKRU bits that count for an access. Before that, guests had no protection keys.",
    since="5.4",
    tested="tests/kvm/test_permissions.py::test_the_pkru_mask",
)
def pkru_mask(wp: bool) -> int:
    """Two bits, AD and WD, at the place given by the error code with P clear and "user page" instead of RSVD."""
    mask = 0
    for code in range(0, 32, 2):
        data_of_user_page = bool(code & RSVD) and not code & F
        writes = data_of_user_page and bool(code & W) and (bool(code & U) or wp)
        mask |= (data_of_user_page | writes << 1) << code
    return mask


class Permissions(NamedTuple):
    """What KVM judges an access by, made anew whenever the CPU role changes; *pkru_mask* is 0 without PKE."""

    entries: tuple[int, ...]
    pkru_mask: int
    wide: bool

    @classmethod
    def of(cls, policy: Policy, controls: Controls, pke: bool) -> Permissions:
        """Those of a CPU role."""
        return cls(bitmap(policy, controls), pkru_mask(controls.wp) if pke else 0, policy.has("mbec-gmet"))

    def fault(self, rights: int, key: int, code: int, pkru: int, smap_off: bool) -> int:
        """The error code's P and PK bits of an access that faults, 0 for one that does not (mmu.h, permission_fault).

        Args:
            rights: X, W, U of the entries, combined.
            key: Protection key of the leaf.
            code: W, U and F of the access.
            smap_off: RFLAGS.AC is set and the access is explicit.
        """
        place = rights
        if self.wide:
            place = 1 | (rights & (W_RIGHT | U_RIGHT)) | (rights & X_RIGHT) << 3
        index = (code & (W | U | F) | (RSVD if smap_off else 0)) >> 1
        denied = 0
        if self.pkru_mask:
            where = code & (W | U | F) | (RSVD if rights & U_RIGHT else 0)
            denied = self.pkru_mask >> where & pkru >> 2 * key & 3
        if self.entries[index] >> place & 1 or denied:
            return P | (PK if denied else 0)
        return 0
