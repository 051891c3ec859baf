"""The compiled walk over perf records: from a buffer to one index row per sample.

The buffer is seen as little-endian u32 words. Kernel records (types below 64) and ends of rounds are walked here;
the tool's other records (pipe-mode headers, compressed data) end the walk, since they change how to go on.
Source: include/uapi/linux/perf_event.h, enum perf_event_type.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

STATE = 8
"""Words of the *state* array: position, events, stop, others, malformed, latest time, latest time when perf's last
round ended, and the watermark: the same of the round before, up to which no earlier event can follow."""

NEED_DATA, FULL, TOOL_RECORD, UNALIGNED, NONSENSE = range(5)
"""Why a walk stopped."""

LAYOUT = 9
"""Columns of the *layouts* table: the words at which a sample holds tid, time, cpu and id (-1: not at all), the word
behind the parts of fixed size, and whether a READ block, of which read_format, a call chain and a raw record follow."""

FIRST_TOOL_RECORD, FINISHED_ROUND = 64, 68
COUNT_ONLY = 0xFFFF
UNKNOWN = 0xFFFE
FIRST_ATTR_CODE = 0x10000

# The same names as C integers (see the .pxd), for the loop that runs without the GIL.
_POSITION, _EVENTS, _STOP, _OTHERS, _MALFORMED, _LATEST, _ROUND, _WATERMARK = range(8)
_NEED_DATA, _FULL, _TOOL_RECORD, _UNALIGNED, _NONSENSE = range(5)
_AT_TID, _AT_TIME, _AT_CPU, _AT_ID, _AT_TAIL, _HAS_READ, _READ_FORMAT, _HAS_CALLCHAIN, _HAS_RAW = range(9)
_SAMPLE, _FIRST_TOOL_RECORD, _UNKNOWN, _FIRST_ATTR_CODE = 9, 64, 0xFFFE, 0x10000
_FINISHED_ROUND, _NOT_SAID = 68, 0xFFFFFFFF


def walk(  # type: ignore[no-untyped-def]
    words,
    end,
    layouts,
    ids,
    id_attrs,
    slots,
    sizes,
    counts,
    order,
    time,
    tid,
    pid,
    cpu,
    starts,
    others,
    state,
):
    """Walk records from ``state[0]`` to word *end*, or until a table is full or a tool record comes.

    Args:
        words: The buffer, u32.
        end: Words of it that hold data.
        layouts: Where a sample's parts lie, int32 of shape (attributes, LAYOUT).
        ids: Sorted sample ids, uint64 of shape (ids,); empty where all attributes share one layout and are tracepoints.
        id_attrs: The attribute of each id, int32 of shape (ids,).
        slots: Event code -> index in the batch's events, COUNT_ONLY or UNKNOWN; uint16. An event code is the
            tracepoint's id, or FIRST_ATTR_CODE + attribute for samples that are no tracepoints.
        sizes: Event code -> bytes its payload must have; int32.
        counts: Event code -> samples seen; int64, added to.
        order, time, tid, pid, cpu, starts: One row per selected sample; filled from ``state[1]`` on. tid, pid and cpu
        are
            uint32, all ones for -1; *starts* is the payload's first word.
        others: First words of records that are no samples; int64, filled from ``state[3]`` on.
        state: See STATE; read and written.
    """
    position = state[_POSITION]
    n = state[_EVENTS]
    n_others = state[_OTHERS]
    latest = state[_LATEST]
    round_latest = state[_ROUND]
    watermark = state[_WATERMARK]
    bad = 0
    capacity = len(order)
    others_capacity = len(others)
    n_ids = len(ids)
    last_hit = 0
    stop = _NEED_DATA
    with cython.nogil:
        while position + 2 <= end:
            kind = words[position]
            size = words[position + 1] >> 16
            if size < 8:
                stop = _NONSENSE
                break
            if kind >= _FIRST_TOOL_RECORD and (kind != _FINISHED_ROUND or size != 8):
                stop = _TOOL_RECORD
                break
            if size & 3:
                stop = _UNALIGNED
                break
            record_end = position + (size >> 2)
            if record_end > end:
                break
            if kind == _FINISHED_ROUND:
                watermark = round_latest
                round_latest = latest
                position = record_end
                continue
            if kind != _SAMPLE:
                if n_others == others_capacity:
                    stop = _FULL
                    break
                others[n_others] = position
                n_others += 1
                position = record_end
                continue
            if n == capacity:
                stop = _FULL
                break
            attr = 0
            if n_ids:
                at = position + layouts[0, _AT_ID]
                if at + 2 > record_end:
                    bad += 1
                    position = record_end
                    continue
                low = words[at]
                high = words[at + 1]
                sample_id = low | (high << 32)
                if ids[last_hit] != sample_id:
                    first = 0
                    last = n_ids
                    while first < last:
                        middle = (first + last) >> 1
                        if ids[middle] < sample_id:
                            first = middle + 1
                        else:
                            last = middle
                    if first == n_ids or ids[first] != sample_id:
                        bad += 1
                        position = record_end
                        continue
                    last_hit = first
                attr = id_attrs[last_hit]
            at = position + layouts[attr, _AT_TAIL]
            if at > record_end:
                bad += 1
                position = record_end
                continue
            payload = at
            code = _FIRST_ATTR_CODE + attr
            if layouts[attr, _HAS_RAW]:
                if layouts[attr, _HAS_READ]:
                    at = _after_read(words, at, record_end, layouts[attr, _READ_FORMAT])
                if layouts[attr, _HAS_CALLCHAIN] and at < record_end:
                    depth = words[at]
                    at += 2 + 2 * depth
                if at + 2 > record_end or record_end - at < 1 + (words[at] >> 2) or words[at] < 8:
                    bad += 1
                    position = record_end
                    continue
                payload = at + 1
                code = words[payload] & 0xFFFF
                counts[code] += 1
                if slots[code] >= _UNKNOWN:
                    if slots[code] == _UNKNOWN:
                        bad += 1
                    position = record_end
                    continue
                if words[at] < sizes[code]:
                    bad += 1
                    position = record_end
                    continue
            else:
                counts[code] += 1
                if slots[code] >= _UNKNOWN:
                    position = record_end
                    continue
            order[n] = slots[code]
            starts[n] = payload
            at = layouts[attr, _AT_TIME]
            if at >= 0:
                low = words[position + at]
                high = words[position + at + 1]
                stamp = low | ((high & 0x7FFFFFFF) << 32)
            else:
                stamp = max(latest, 0)
            time[n] = stamp
            latest = max(stamp, latest)
            at = layouts[attr, _AT_TID]
            if at >= 0:
                pid[n] = words[position + at]
                tid[n] = words[position + at + 1]
            else:
                pid[n] = _NOT_SAID
                tid[n] = _NOT_SAID
            at = layouts[attr, _AT_CPU]
            cpu[n] = words[position + at] if at >= 0 else _NOT_SAID
            n += 1
            position = record_end
    state[_POSITION] = position
    state[_EVENTS] = n
    state[_STOP] = stop
    state[_OTHERS] = n_others
    state[_MALFORMED] += bad
    state[_LATEST] = latest
    state[_ROUND] = round_latest
    state[_WATERMARK] = watermark


def _after_read(words, at, end, read_format):  # type: ignore[no-untyped-def]
    """Word behind a PERF_SAMPLE_READ block (TOTAL_TIME_* 1|2, ID 4, GROUP 8, LOST 16)."""
    if at + 2 > end:
        return end
    per_value = 1 + (read_format >> 2 & 1) + (read_format >> 4 & 1)
    times = (read_format & 1) + (read_format >> 1 & 1)
    if read_format & 8:
        number = words[at]
        return at + 2 * (1 + times + number * per_value)
    return at + 2 * (per_value + times)
