# cython: annotation_typing=False, auto_pickle=False
"""The answers of :mod:`~worldswitch.x86.access`, kept: what one setting of the bits that decide makes of each access.

The rules are asked once for each combination of rights, then looked up: an access that a translation allows costs an
index into a table.
"""

from __future__ import annotations

from worldswitch.x86.access import Controls, Kind, page_fault, reserved_bits
from worldswitch.x86.paging import KEY_SHIFT, NO_EXECUTE, PAGE_SIZE, PRESENT, USER, WRITABLE

READ, WRITE, FETCH = 0, 1, 2
"""Kinds of access, as the numbers that hot code calls them by."""
KINDS = (Kind.READ, Kind.WRITE, Kind.FETCH)
FROM_USER = 3
"""Added to the kind for an access from CPL 3."""

W_BIT, U_BIT, X_BIT, D_BIT, H_BIT, KEY_AT = 1, 2, 4, 8, 16, 5
"""Rights in one number: writable, user, executable, dirty, executable by the second dimension; then the key."""
LEVELS = 6
_COMBINATIONS = 1 << KEY_AT + 4
_UNKNOWN = 0xFF


class Verdicts:
    """All answers under *controls*."""

    __slots__ = ("_known", "_reserved", "controls")

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self._known = memoryview(bytearray([_UNKNOWN]) * _COMBINATIONS)
        masks = bytearray(16 * LEVELS)
        self._reserved = memoryview(masks).cast("Q")
        for level in range(1, LEVELS):
            for large in (0, 1):
                entry = PRESENT | (PAGE_SIZE if large else 0)
                self._reserved[2 * level + large] = reserved_bits(level, entry, controls)

    def lets(self, rights: int, access: int) -> bool:
        """Whether a remembered translation with these *rights* is enough for an access; if not, one walks again."""
        answers = self._known[rights]
        if answers == _ASK:
            answers = self._ask(rights)
        return answers >> access & 1 != 0

    def reserved(self, level: int, entry: int) -> int:
        """The bits of a present entry of *level* that must be clear."""
        return self._reserved[2 * level + (entry >> 7 & 1)]

    def _ask(self, rights: int) -> int:
        entry = PRESENT | (WRITABLE if rights & W_BIT else 0) | (USER if rights & U_BIT else 0)
        entry |= (0 if rights & X_BIT else NO_EXECUTE) | rights >> KEY_AT << KEY_SHIFT
        answers = 0
        for kind in (READ, WRITE, FETCH):
            # A write through a clean translation walks again, as does a fetch that the second dimension forbids.
            if (kind == WRITE and not rights & D_BIT) or (kind == FETCH and not rights & H_BIT):
                continue
            for user in (False, True):
                if page_fault([entry], KINDS[kind], user, self.controls, 1) is None:
                    answers |= 1 << kind + (FROM_USER if user else 0)
        self._known[rights] = answers
        return answers


_ASK = _UNKNOWN
