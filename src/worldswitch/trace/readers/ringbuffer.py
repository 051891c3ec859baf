"""The records of ftrace ring-buffer pages: the loop that every event of a trace.dat passes.

A page (sub-buffer) is a u64 time stamp, a long ``commit`` and the records. A record is one u32 header, five
bits ``type_len`` and 27 bits of time since the record before, then its payload. Source: the kernel's
include/linux/ring_buffer.h (``struct ring_buffer_event``), kernel/trace/ring_buffer.c (``rb_event_length``,
``RB_MISSED_EVENTS``, ``RB_MISSED_STORED``, ``rb_fix_abs_ts``). Where the kernel's own reader and trace-cmd's
libtraceevent differ (whether a discarded record's time counts), the latter is followed: these are its files.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

LOST, UNCOUNTED, BAD_PAGES, MALFORMED, FIRST, LAST = range(6)
"""Indices into *stats* of :func:`walk`: events lost by count, gaps whose size the page does not tell, pages
that contradict themselves, records too short or of unknown type, first and last time of any event."""

STATS = 6
TIME_MASK = (1 << 63) - 1


def walk(  # type: ignore[no-untyped-def]
    words,
    n_words,
    first,
    page_words,
    data_words,
    slots,
    least,
    n_selected,
    counts,
    stats,
    slot,
    time,
    tid,
    start,
):
    """Index the records of consecutive pages.

    Args:
        words: The buffer as little-endian u32.
        n_words: How many there are from *first* on; the last page may be incomplete.
        first: The word where the first page begins.
        page_words: Size of a page in words.
        data_words: Words before a page's first record: 4 where the kernel's long has 8 bytes, 3 where 4.
        slots: Event type -> slot, shape (65536,). Slots below *n_selected* are indexed, others counted; the
            last one of *counts* is for types that the file does not describe.
        least: Words a payload of each slot must have.
        n_selected: See *slots*.
        counts: Records per slot, added to.
        stats: Shape (STATS,), added to; the times are raw (before any conversion).
        slot, time, tid, start: Filled: slot, time stamp (63 bits), common_pid, and word of the payload of
            each record indexed. They hold at least ``n_words / 3`` records.

    Returns:
        The number of records indexed.
    """
    stored = 0
    unknown = len(counts) - 1
    all_end = first + n_words
    page = first
    lost = 0
    uncounted = 0
    bad = 0
    malformed = 0
    earliest = stats[FIRST]
    latest = stats[LAST]
    mask = TIME_MASK  # typed by the .pxd; a literal of this size would be a Python object in the loop
    word = (mask << 1) | 1  # 64 bits, which times wrap at
    wrap = 1 << 32
    with cython.nogil:
        while page + data_words <= all_end:
            low = words[page]
            high = words[page + 1]
            now = low | (high << 32)
            commit = words[page + 2]
            at = page + data_words
            end = at + (((commit & 0x07FFFFFF) + 3) >> 2)
            page += page_words
            limit = page if page < all_end else all_end
            if commit >> 31 & 1:
                if commit >> 30 & 1 and end + data_words - 2 <= limit:
                    low = words[end]
                    lost += low if low < 0x7FFFFFFF else 1
                else:
                    uncounted += 1
            broken = 0
            if end > limit:
                broken = 1
                if limit == page:
                    bad += 1
                    continue
                # The file ends within this page: its records up to there are whole.
                end = limit
            while at < end:
                head = words[at]
                at += 1
                kind = head & 31
                now += head >> 5
                if 0 < kind < 29:
                    n = kind
                elif at >= end:
                    if kind != 29:
                        broken = 1
                    break
                else:
                    low = words[at]
                    if kind == 29:
                        if head >> 5 == 0:
                            break
                        at += (low + 3) >> 2
                        continue
                    at += 1
                    if kind == 30:
                        now += low << 27
                        continue
                    if kind == 31:
                        # The stamp has 59 bits; the rest is the time so far, one more where they wrapped.
                        before = (now - (head >> 5)) & word
                        high = before >> 59
                        now = (low << 27) | (head >> 5) | (high << 59)
                        if high and now < before:
                            now = ((high + 1) << 59) | (low << 27) | (head >> 5)
                        continue
                    if low < 4:
                        broken = 1
                        break
                    n = (low - 1) >> 2
                if at + n > end:
                    broken = 1
                    break
                if n < 2:
                    malformed += 1
                    at += n
                    continue
                which = slots[words[at] & 0xFFFF]
                if which >= n_selected:
                    counts[which] += 1
                    if which == unknown:
                        malformed += 1
                elif n < least[which]:
                    malformed += 1
                else:
                    counts[which] += 1
                    slot[stored] = which
                    time[stored] = now & mask
                    pid = words[at + 1]
                    tid[stored] = pid if pid <= 0x7FFFFFFF else pid - wrap
                    start[stored] = at
                    stored += 1
                moment = now & mask
                earliest = min(earliest, moment)
                latest = max(latest, moment)
                at += n
            bad += broken
    stats[LOST] += lost
    stats[UNCOUNTED] += uncounted
    stats[BAD_PAGES] += bad
    stats[MALFORMED] += malformed
    stats[FIRST] = earliest
    stats[LAST] = latest
    return stored
