"""Control-register writes, by register and by the bits that changed.

A write's value is in kvm_cr; what it changed is the difference from the same vCPU's previous write. For the first
write the trace holds no previous value: it is inferred where the later writes leave one answer. Where KVM went
through the emulator (AMD processors without decode assists) there is no kvm_cr, and the changed bits are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from worldswitch.trace import pairing
from worldswitch.trace.exits import UNCOUNTED, ExitRows
from worldswitch.trace.tally import Tally
from worldswitch.x86.registers import bit_names

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class CrWrites:
    """Writes of one register that changed the same bits.

    Attributes:
        cr: The register's number.
        changed: Names of the bits that changed; None where the trace does not tell.
        count: Writes.
        total_ns: Time of their exits, ns.
        inferred: How many of *count* are first writes whose change was inferred from later ones.
        faulted: How many of *count* raised #GP, so nothing changed.
        why_unknown: For ``changed`` None: ``"no value in the trace"`` or ``"first write"``.
    """

    cr: int
    changed: tuple[str, ...] | None
    count: int
    total_ns: int
    inferred: int = 0
    faulted: int = 0
    why_unknown: str | None = None


NO_VALUE, FIRST_WRITE = "no value in the trace", "first write"


class CrWriteTally:
    """Adds up control-register writes as they come."""

    def __init__(self) -> None:
        self._known = Tally(limit=1 << 24)
        self._silent: dict[tuple[int, bool], list[int]] = {}
        self._first: list[ExitRows] = []

    def add(self, rows: ExitRows) -> None:
        """Account for the writes among *rows* whose value is in the trace."""
        if rows.any(pairing.CR_KNOWN):
            known = (rows.flags & pairing.CR_KNOWN) != 0
            self._known.add(writer(rows)[known], rows.cr_changed[known], rows.rip[known], counted_ns(rows)[known])
        if rows.any(pairing.CR_FIRST):
            self._first.append(rows.take((rows.flags & pairing.CR_FIRST) != 0))

    def add_silent(self, cr: int, faulted: bool, count: int, total_ns: int) -> None:
        """Account for writes of *cr* whose value is not in the trace."""
        row = self._silent.setdefault((cr, faulted), [0, 0])
        row[0] += count
        row[1] += total_ns

    def inference(self) -> Inference:
        """What first writes changed, from all writes so far."""
        return Inference(self._known)

    def rows(self) -> list[CrWrites]:
        """One row per register and set of changed bits, the costliest first."""
        sums: dict[tuple[int, int | None, str | None], list[int]] = {}

        def put(cr: int, mask: int | None, why: str | None, *amounts: int) -> None:
            row = sums.setdefault((cr, mask, why), [0, 0, 0, 0])
            for i, amount in enumerate(amounts):
                row[i] += amount

        for (key, mask, _), count, total in _items(self._known):
            put(key & 0xFF, mask, None, count, total, 0, count if key & _FAULTED else 0)
        for (cr, did_fault), (count, total) in self._silent.items():
            put(cr, None, NO_VALUE, count, total, 0, count if did_fault else 0)
        infer = self.inference()
        for rows in self._first:
            ns = counted_ns(rows)
            for key, cr, rip, total in zip(
                writer(rows).tolist(),
                rows.cr.tolist(),
                rows.rip.tolist(),
                ns.tolist(),
                strict=True,
            ):
                faulted = int(bool(key & _FAULTED))
                mask = infer.first_write(key, rip)
                put(
                    cr,
                    mask,
                    None if mask is not None else FIRST_WRITE,
                    1,
                    total,
                    int(mask is not None),
                    faulted,
                )
        result = [
            CrWrites(cr, None if mask is None else bit_names(cr, mask), count, total, inferred, faulted, why)
            for (cr, mask, why), (count, total, inferred, faulted) in sums.items()
        ]
        return sorted(result, key=lambda w: (-w.total_ns, -w.count, w.cr, w.changed or ()))


_FAULTED = pairing.FAULTED


def writer(rows: ExitRows) -> NDArray[np.int64]:
    """Key of a write's thread, register and whether it faulted."""
    return rows.thread << 16 | (rows.flags & pairing.FAULTED).astype(np.int64) | rows.cr


def counted_ns(rows: ExitRows) -> NDArray[np.int64]:
    """Duration of each row that counts; 0 for open exits and writes without an exit."""
    return np.where(rows.flags & UNCOUNTED, 0, rows.duration) if rows.any(UNCOUNTED) else rows.duration


class Inference:
    """What a vCPU's first write of a register changed, told from its later writes."""

    def __init__(self, known: Tally) -> None:
        self._at_rip: dict[tuple[int, int], set[int]] = {}
        self._anywhere: dict[int, set[int]] = {}
        for (key, mask, rip), _, _ in _items(known):
            if not key & _FAULTED:
                self._at_rip.setdefault((key, rip), set()).add(mask)
                self._anywhere.setdefault(key, set()).add(mask)

    def first_write(self, key: int, rip: int) -> int | None:
        """The bits it changed, or None; *key* is the write's :func:`writer`.

        One answer is left if every later write from the same instruction, or else every later write at all, changed the
        same bits.
        """
        key &= ~_FAULTED
        for masks in (self._at_rip.get((key, rip)), self._anywhere.get(key)):
            if masks and len(masks) == 1:
                return next(iter(masks))
        return None


def _items(tally: Tally):  # type: ignore[no-untyped-def]
    return zip(tally.keys.tolist(), tally.counts.tolist(), tally.totals.tolist(), strict=True)
