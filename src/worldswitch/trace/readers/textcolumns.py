"""From the values a template found to an event's columns, with the kernel's field names and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from worldswitch.record.trace import Columns
from worldswitch.trace.readers.texttemplates import Template

if TYPE_CHECKING:
    from numpy.typing import NDArray

Values: TypeAlias = "NDArray[np.uint64]"

_FAILED_VMENTRY = 0x80000000
_WITH_ERROR_CODE = (8, 10, 11, 12, 13, 14, 17, 21, 29, 30)
"""Exceptions that push an error code: Intel SDM volume 3, table 6-1; AMD APM volume 2, table 8-1."""


def column_names(template: Template, shown: int) -> tuple[str, ...]:
    """The columns an event has, given which values (bit *slot* of *shown*) its text has shown so far."""
    return tuple(
        name
        for name, _, optional in template.columns
        if not optional or (name in template.slots and shown >> template.slots.index(name) & 1)
    )


def columns(template: Template, names: Sequence[str], values: Values, starts: NDArray[np.int64]) -> Columns:
    """The columns *names* of the events whose values begin at *starts*; 0 where the text said nothing."""
    dtypes = {name: dtype for name, dtype, _ in template.columns}
    return {name: _column(template, name, dtypes[name], values, starts) for name in names}


def _column(template: Template, name: str, dtype: str, values: Values, starts: NDArray[np.int64]) -> NDArray[Any]:
    slots = template.slots

    def value(slot: str) -> Values:
        if slot not in slots:
            return np.zeros(len(starts), np.uint64)
        return values[starts + slots.index(slot)]

    if dtype == "bytes":
        pair = np.stack([value(name), value(name + ".high")], axis=1)
        return np.ascontiguousarray(pair.astype("<u8").view(np.uint8)[:, :15])
    kind = template.kinds.get(name)
    if kind == "reason":
        reason = value(name) & np.uint64(0xFFFFFFFF) | value("flags")
        return (reason | value("failed") * np.uint64(_FAILED_VMENTRY)).astype(dtype)
    if name == "isa" and name not in slots:
        packed = next((slot for slot in slots if template.kinds.get(slot) == "reason"), "")
        return (value(packed) >> np.uint64(32)).astype(dtype)
    if kind == "rwxu":
        return (value(name) & np.uint64(0xFF)).astype(dtype)
    if name == "len" and "insn.count" in slots:
        return value("insn.count").astype(dtype)
    if name in ("r", "x", "u") and "rwxu" in slots:
        return _permission(name, value("rwxu"), dtype)
    if name == "efer_nx":
        return np.equal(value("nxe_off"), 0)
    found = value(name)
    if name == "has_error":
        found = found * np.isin(value("exception"), _WITH_ERROR_CODE)
    return found != 0 if dtype == "bool" else found.astype(dtype)


def _permission(name: str, letters: Values, dtype: str) -> NDArray[Any]:
    """r, x and u of kvm_mmu_set_spte; three letters: EPT, which knows no user pages (u is -1)."""
    bit = {"r": 8, "x": 1, "u": 4}[name]
    has: NDArray[np.bool_] = (letters & np.uint64(bit)) != 0
    if name != "u":
        return has
    return np.where(letters >> np.uint64(8) == 3, -1, has.astype(np.int8)).astype(dtype)


def known_vcpus(vcpu: NDArray[np.int64], tid: NDArray[np.int32], earlier: dict[int, int]) -> NDArray[np.int64]:
    """*vcpu* (in time order; -1: not told) filled with what the same thread told last, else next, else 0.

    Args:
        vcpu: vCPU of kvm_entry and kvm_exit events, shape (n,).
        tid: Their threads, shape (n,).
        earlier: Thread to the vCPU it ran last in earlier batches; brought up to date.
    """
    n = len(vcpu)
    by_thread = np.lexsort((np.arange(n), tid))
    told, threads = vcpu[by_thread], tid[by_thread]
    place = np.arange(n)
    last = np.maximum.accumulate(np.where(told >= 0, place, -1))
    following = np.minimum.accumulate(np.where(told >= 0, place, n)[::-1])[::-1]
    filled = np.zeros(n, np.int64)
    has_next = (following < n) & (threads[np.minimum(following, n - 1)] == threads)
    filled[has_next] = told[following[has_next]]
    has_last = (last >= 0) & (threads[last] == threads)
    for row in np.flatnonzero(~has_last & np.isin(threads, np.fromiter(earlier, np.int64, len(earlier)))):
        filled[row] = earlier[int(threads[row])]
    filled[has_last] = told[last[has_last]]
    final = np.append(threads[1:] != threads[:-1], True) & has_last
    earlier.update(zip(threads[final].tolist(), filled[final].tolist(), strict=True))
    whole = np.empty(n, np.int64)
    whole[by_thread] = filled
    return whole
