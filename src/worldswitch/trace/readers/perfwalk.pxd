cimport cython
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef int _POSITION, _EVENTS, _STOP, _OTHERS, _MALFORMED, _LATEST, _ROUND, _WATERMARK
cdef int _NEED_DATA, _FULL, _TOOL_RECORD, _UNALIGNED, _NONSENSE
cdef int _AT_TID, _AT_TIME, _AT_CPU, _AT_ID, _AT_TAIL, _HAS_READ, _READ_FORMAT, _HAS_CALLCHAIN, _HAS_RAW
cdef uint32_t _SAMPLE, _FIRST_TOOL_RECORD, _UNKNOWN, _FIRST_ATTR_CODE, _FINISHED_ROUND, _NOT_SAID

@cython.locals(position=int64_t, n=int64_t, n_others=int64_t, latest=int64_t, round_latest=int64_t, watermark=int64_t, bad=int64_t, capacity=int64_t,
               others_capacity=int64_t, n_ids=int64_t, last_hit=int64_t, stop=int, kind=uint32_t, size=uint32_t,
               record_end=int64_t, attr=int32_t, at=int64_t, low=uint64_t, high=uint64_t, sample_id=uint64_t,
               first=int64_t, last=int64_t, middle=int64_t, payload=int64_t, code=int64_t, depth=int64_t,
               stamp=int64_t)
cpdef walk(const uint32_t[::1] words, int64_t end, const int32_t[:, ::1] layouts, const uint64_t[::1] ids,
           const int32_t[::1] id_attrs, const uint16_t[::1] slots, const int32_t[::1] sizes, int64_t[::1] counts,
           uint16_t[::1] order, int64_t[::1] time, uint32_t[::1] tid, uint32_t[::1] pid, uint32_t[::1] cpu,
           int64_t[::1] starts, int64_t[::1] others, int64_t[::1] state)

@cython.locals(per_value=int64_t, times=int64_t, number=int64_t)
cdef int64_t _after_read(const uint32_t[::1] words, int64_t at, int64_t end, int32_t read_format) except? -1 nogil
