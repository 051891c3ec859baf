# cython: boundscheck=False
"""The compiled loop that pairs each VM-exit with the next VM-entry of its thread.

Counting follows ``perf kvm stat`` (tools/perf/builtin-kvm.c): an exit counts from the thread's first entry on, lasts
until the thread's next entry, userspace included, and an exit that another exit follows is not counted. What perf
drops silently comes out here too, flagged as open.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

NOTHING, EXIT, ENTRY, USERSPACE_EXIT, FPU, CR, EXCEPTION, NESTED, EMULATE, DETAIL = range(10)
"""What an event means for the pairing."""

FIRST, OVERWRITTEN, UNFINISHED, NEGATIVE = 1, 2, 4, 8
"""Why an exit is open: before the thread's first entry, followed by another exit, by the end, by an earlier entry."""
OPEN = FIRST | OVERWRITTEN | UNFINISHED | NEGATIVE
FROM_L2, TO_USERSPACE, CR_KNOWN, CR_FIRST, FAULTED, NO_EXIT, CR_SILENT, DETAILED = (1 << i for i in range(4, 12))
"""Other flags of a row: the exit came from a nested guest; it went to userspace; a CR write whose previous value is
known,
or that is the first one; the instruction faulted, so the write did not happen; a CR write outside an exit; a CR write
whose value is not in the trace; the row has a detail."""

STATE = 30
"""Columns of the per-thread state."""
ROW_64 = 13
"""Rows of the 64-bit table, one column per exit: start, duration, user, guest (ns), rip, info1, info2, detail, cr
value, cr changed; and what tells kinds of exits apart: isa << 32 | reason, thread slot << 32 | vcpu + 1, and
cr + 1 << 32 | flags."""
ROW_32 = 7
"""Rows of the 32-bit table: thread slot, vcpu + 1, reason, isa, flags, detail kind, cr + 1."""

if not cython.compiled:
    # The same names are C constants in the .pxd, for the loop that runs without the GIL.
    _EXIT, _ENTRY, _USERSPACE_EXIT, _FPU, _CR, _EXCEPTION, _NESTED, _EMULATE, _DETAIL = range(1, 10)
    _FIRST, _OVERWRITTEN, _NEGATIVE = 1, 2, 8
    _FROM_L2, _TO_USERSPACE, _CR_KNOWN, _CR_FIRST, _FAULTED, _NO_EXIT, _CR_SILENT, _DETAILED = (
        1 << i for i in range(4, 12)
    )
    (_TID, _PID, _VCPU, _ENTERED, _ENTRY_TIME, _IS_OPEN, _START, _REASON, _ISA, _RIP, _INFO1, _INFO2, _USER_SINCE,
     _IN_USER, _USER, _FLAGS, _GUEST, _KIND, _VALUE, _CR_NUMBER, _CR_VALUE, _CR_CHANGED,
     _KNOWN, _PREVIOUS) = range(24)  # fmt: skip
    _NOT_A_CR = 4
    _WHO = 29
    _VMX, _SVM = 1, 2
    _CR_ACCESS, _CR0_SEL_WRITE, _NPF = 28, 0x65, 0x400
    _ADDRESS = 4  # Detail.ADDRESS in exits.py
    _GENERAL_PROTECTION = 13
    _NOBODY = 0xFF


def pair(  # type: ignore[no-untyped-def]
    order, time, tid, pid, roles, kinds, bases, cursors, wide, narrow, extra, exit_vcpu, exit_info1, exit_info2,
    table, state, used, rows_64, rows_32, begin
):  # fmt: skip
    """Pair the events of one batch from index *begin* on, until its end or until no slot is free; rows written.

    Indices are trusted: the caller makes all tables large enough.

    Args:
        order, time, tid, pid: The batch's columns; tid and pid as uint32.
        roles: Role of each of the batch's events, uint8.
        kinds: Detail kind of each of the batch's events, uint32.
        bases: Where each event's values start in *wide*, *narrow* and *extra*; int64.
        cursors: Rows of each event seen so far; int64, written.
        wide: rip of exits, value of CR writes and details; uint64.
        narrow: reason of exits, vcpu of entries, number of CR writes, vector of exceptions, kvm_fpu's load; uint32.
        extra: isa of exits, rw of CR accesses; uint32.
        exit_vcpu, exit_info1, exit_info2: One per exit; vcpu + 1, 0 where not known.
        table: Hash table tid -> slot + 1, a power of two in size and at most half full; int64.
        state: Per-thread state, uint64 of shape (slots, STATE).
        used: Slots in use and the event to go on with, int64 of shape (2,); written.
        rows_64, rows_32: Room for one row per event; see ROW_64 and ROW_32.
        begin: First event.
    """
    n = len(order)
    mask = len(table) - 1
    capacity = len(state)
    rows = 0
    slot = -1
    used[1] = n
    with cython.nogil:
        for i in range(begin, n):
            if used[0] == capacity:
                used[1] = i
                break
            event = order[i]
            role = roles[event]
            at = bases[event] + cursors[event]
            row = cursors[event]
            cursors[event] += 1
            if role == 0:
                continue
            if slot < 0 or state[slot, _TID] != tid[i]:
                slot = _slot(table, mask, state, used, tid[i], pid[i])
            now = time[i]
            if role == _EXIT:
                if state[slot, _IS_OPEN]:
                    _emit(
                        state,
                        slot,
                        now,
                        _OVERWRITTEN if state[slot, _ENTERED] else _FIRST,
                        rows_64,
                        rows_32,
                        rows,
                    )
                    rows += 1
                    state[slot, _GUEST] = 0
                elif state[slot, _ENTERED] and now > state[slot, _ENTRY_TIME]:
                    state[slot, _GUEST] = now - state[slot, _ENTRY_TIME]
                else:
                    state[slot, _GUEST] = 0
                state[slot, _IS_OPEN] = 1
                state[slot, _START] = now
                state[slot, _REASON] = narrow[at]
                state[slot, _ISA] = extra[at]
                state[slot, _RIP] = wide[at]
                state[slot, _INFO1] = exit_info1[row]
                state[slot, _INFO2] = exit_info2[row]
                if exit_vcpu[row]:
                    state[slot, _VCPU] = exit_vcpu[row]
                state[slot, _IN_USER] = 0
                state[slot, _USER] = 0
                state[slot, _FLAGS] = 0
                state[slot, _CR_NUMBER] = _register_written(extra[at], narrow[at], exit_info1[row])
                state[slot, _CR_VALUE] = 0
                state[slot, _CR_CHANGED] = 0
                # A nested page fault without a kvm_page_fault event: EXITINFO2 has the address (APM 15.25.6).
                state[slot, _KIND] = _ADDRESS if extra[at] == _SVM and narrow[at] == _NPF else 0
                state[slot, _VALUE] = exit_info2[row] if state[slot, _KIND] else 0
            elif role == _ENTRY:
                state[slot, _VCPU] = narrow[at]
                if state[slot, _IS_OPEN]:
                    why = 0
                    if not state[slot, _ENTERED]:
                        why = _FIRST
                    elif now < state[slot, _START]:
                        why = _NEGATIVE
                    if state[slot, _IN_USER] and now > state[slot, _USER_SINCE]:
                        state[slot, _USER] += now - state[slot, _USER_SINCE]
                    if state[slot, _CR_NUMBER] and not state[slot, _FLAGS] & _FAULTED:
                        _remember(state, slot)
                    _emit(state, slot, now, why, rows_64, rows_32, rows)
                    rows += 1
                    state[slot, _IS_OPEN] = 0
                state[slot, _ENTERED] = 1
                state[slot, _ENTRY_TIME] = now
            elif role == _CR:
                if extra[at]:
                    _cr_write(state, slot, narrow[at], wide[at])
                    if not state[slot, _IS_OPEN]:
                        state[slot, _FLAGS] |= _NO_EXIT
                        state[slot, _START] = now
                        _remember(state, slot)
                        _emit(state, slot, now, 0, rows_64, rows_32, rows)
                        rows += 1
                        state[slot, _CR_NUMBER] = 0
            elif not state[slot, _IS_OPEN]:
                continue
            elif role == _USERSPACE_EXIT:
                if not state[slot, _IN_USER]:
                    state[slot, _IN_USER] = 1
                    state[slot, _USER_SINCE] = now
                    state[slot, _FLAGS] |= _TO_USERSPACE
            elif role == _FPU:
                # Loading the guest's FPU is the first thing KVM_RUN does: userspace ends here.
                if state[slot, _IN_USER] and narrow[at]:
                    if now > state[slot, _USER_SINCE]:
                        state[slot, _USER] += now - state[slot, _USER_SINCE]
                    state[slot, _IN_USER] = 0
            elif role == _EXCEPTION:
                if narrow[at] == _GENERAL_PROTECTION:
                    state[slot, _FLAGS] |= _FAULTED
            elif role == _NESTED:
                state[slot, _FLAGS] |= _FROM_L2
            elif role == _EMULATE:
                if narrow[at] != _NOBODY and not state[slot, _CR_NUMBER]:
                    state[slot, _CR_NUMBER] = narrow[at] + 1
                    state[slot, _CR_VALUE] = 0
                    state[slot, _CR_CHANGED] = 0
            elif role == _DETAIL and not state[slot, _KIND]:
                state[slot, _KIND] = kinds[event]
                state[slot, _VALUE] = wide[at]
    return rows


def _slot(table, mask, state, used, tid, pid):  # type: ignore[no-untyped-def]
    """The slot of a thread, made if new."""
    at = _place(tid) & mask
    while table[at]:
        slot = table[at] - 1
        if state[slot, _TID] == tid:
            return slot
        at = (at + 1) & mask
    slot = used[0]
    used[0] += 1
    table[at] = slot + 1
    state[slot, _TID] = tid
    state[slot, _PID] = pid
    state[slot, _WHO] = slot << 32
    return slot


def _register_written(isa, reason, info1):  # type: ignore[no-untyped-def]
    """1 + the control register that an exit says was written, 0 if none (SDM 28.2.1; APM 15.8, appendix C)."""
    if isa == _SVM:
        if reason == _CR0_SEL_WRITE:
            return 1
        if reason >> 4 == 1 or (reason >> 4 == 9):
            return 1 + (reason & 15)
        return 0
    if isa == _VMX and reason & 0xFFFF == _CR_ACCESS:
        kind = info1 >> 4 & 3
        if kind == 0:
            return 1 + (info1 & 15)
        # CLTS and LMSW
        return 1 if kind >= 2 else 0
    return 0


def rehash(table, state, used):  # type: ignore[no-untyped-def]
    """Fill an empty *table* with the first *used* slots."""
    mask = len(table) - 1
    for slot in range(used):
        at = _place(state[slot, _TID]) & mask
        while table[at]:
            at = (at + 1) & mask
        table[at] = slot + 1


def _place(tid):  # type: ignore[no-untyped-def]
    """Where a thread's place in the hash table is looked for first; tids come in runs."""
    mixed = (tid ^ (tid >> 15)) * 40503
    return mixed ^ (mixed >> 16)


def _cr_index(number):  # type: ignore[no-untyped-def]
    """Where a control register's previous value is kept."""
    if number == 0:
        return 0
    if number == 3:
        return 1
    if number == 4:
        return 2
    return 3 if number == 8 else _NOT_A_CR


def _cr_write(state, slot, number, value):  # type: ignore[no-untyped-def]
    """Note a CR write of the open exit, and what it changes as far as the previous value is known."""
    if state[slot, _CR_NUMBER] and state[slot, _FLAGS] & (_CR_KNOWN | _CR_FIRST):
        _remember(state, slot)
    index = _cr_index(number)
    state[slot, _CR_NUMBER] = number + 1
    state[slot, _CR_VALUE] = value
    state[slot, _FLAGS] = state[slot, _FLAGS] & ~(_CR_KNOWN | _CR_FIRST)
    if state[slot, _KNOWN] >> index & 1:
        state[slot, _CR_CHANGED] = state[slot, _PREVIOUS + index] ^ value
        state[slot, _FLAGS] |= _CR_KNOWN
    else:
        state[slot, _CR_CHANGED] = 0
        state[slot, _FLAGS] |= _CR_FIRST
    return 0


def _remember(state, slot):  # type: ignore[no-untyped-def]
    """The write took effect: its value is the next one's previous value."""
    if not state[slot, _FLAGS] & (_CR_KNOWN | _CR_FIRST):
        return 0
    index = _cr_index(state[slot, _CR_NUMBER] - 1)
    state[slot, _PREVIOUS + index] = state[slot, _CR_VALUE]
    state[slot, _KNOWN] |= 1 << index
    return 0


def _emit(state, slot, now, why, rows_64, rows_32, row):  # type: ignore[no-untyped-def]
    """Write the open exit of *slot* as a row."""
    start = state[slot, _START]
    rows_64[0, row] = start
    rows_64[1, row] = now - start if now > start else 0
    rows_64[2, row] = state[slot, _USER]
    rows_64[3, row] = state[slot, _GUEST]
    rows_64[4, row] = state[slot, _RIP]
    rows_64[5, row] = state[slot, _INFO1]
    rows_64[6, row] = state[slot, _INFO2]
    rows_64[7, row] = state[slot, _VALUE]
    rows_64[8, row] = state[slot, _CR_VALUE]
    rows_64[9, row] = state[slot, _CR_CHANGED]
    rows_32[0, row] = slot
    rows_32[1, row] = state[slot, _VCPU]
    rows_32[2, row] = state[slot, _REASON]
    rows_32[3, row] = state[slot, _ISA]
    flags = state[slot, _FLAGS] | why
    if state[slot, _CR_NUMBER] and not flags & (_CR_KNOWN | _CR_FIRST):
        flags |= _CR_SILENT
    if state[slot, _KIND]:
        flags |= _DETAILED
    rows_32[4, row] = flags
    rows_32[5, row] = state[slot, _KIND]
    rows_32[6, row] = state[slot, _CR_NUMBER]
    rows_64[10, row] = state[slot, _ISA] << 32 | state[slot, _REASON]
    rows_64[11, row] = state[slot, _WHO] | state[slot, _VCPU]
    rows_64[12, row] = state[slot, _CR_NUMBER] << 32 | flags
    return 0


def pack_instructions(insn, length, low, high):  # type: ignore[no-untyped-def]
    """Instruction bytes as two numbers, so that equal ones are found fast: low has the first eight, high up to seven
    more and, on top, the length.

    Args:
        insn: uint8 of shape (n, 15); bytes beyond the length are taken as zero.
        length: uint32 of shape (n,).
        low, high: uint64 of shape (n,); written.
    """
    n = len(length)
    with cython.nogil:
        for i in range(n):
            size = length[i] if length[i] < 15 else 15
            first = 0
            last = size
            last = last << 56
            for j in range(size):
                byte = insn[i, j]
                if j < 8:
                    first |= byte << (8 * j)
                else:
                    last |= byte << (8 * (j - 8))
            low[i] = first
            high[i] = last


def unfinished(state, used, end, rows_64, rows_32):  # type: ignore[no-untyped-def]
    """Rows of the exits still open at the end of the trace (*end*, ns); how many."""
    rows = 0
    for slot in range(used):
        if state[slot, _IS_OPEN]:
            if state[slot, _CR_NUMBER] and not state[slot, _FLAGS] & _FAULTED:
                _remember(state, slot)
            _emit(state, slot, end, 4, rows_64, rows_32, rows)
            rows += 1
    return rows
