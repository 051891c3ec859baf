cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef int _EXIT, _ENTRY, _USERSPACE_EXIT, _FPU, _CR, _EXCEPTION, _NESTED, _EMULATE, _DETAIL
cdef int _FIRST, _OVERWRITTEN, _NEGATIVE
cdef uint64_t _FROM_L2, _TO_USERSPACE, _CR_KNOWN, _CR_FIRST, _FAULTED, _NO_EXIT
cdef int _TID, _PID, _VCPU, _ENTERED, _ENTRY_TIME, _IS_OPEN, _START, _REASON, _ISA, _RIP, _INFO1, _INFO2, _USER_SINCE, _IN_USER
cdef int _USER, _FLAGS, _GUEST, _KIND, _VALUE, _CR_NUMBER, _CR_VALUE, _CR_CHANGED, _KNOWN, _PREVIOUS
cdef int _NOT_A_CR
cdef uint32_t _GENERAL_PROTECTION, _NOBODY

@cython.locals(n=Py_ssize_t, mask=int64_t, rows=int64_t, i=Py_ssize_t, event=int, role=int, at=int64_t, row=int64_t,
               slot=int64_t, now=uint64_t, why=int)
cpdef pair(const uint16_t[::1] order, const int64_t[::1] time, const uint32_t[::1] tid, const uint32_t[::1] pid,
           const uint8_t[::1] roles, const uint32_t[::1] kinds, const int64_t[::1] bases, int64_t[::1] cursors,
           const uint64_t[::1] wide, const uint32_t[::1] narrow, const uint32_t[::1] extra,
           const uint32_t[::1] exit_vcpu, const uint64_t[::1] exit_info1, const uint64_t[::1] exit_info2, int64_t[::1] table,
           uint64_t[:, ::1] state, int64_t[::1] used, uint64_t[:, ::1] rows_64, uint32_t[:, ::1] rows_32,
           Py_ssize_t begin)

@cython.locals(at=int64_t, slot=int64_t)
cdef int64_t _slot(int64_t[::1] table, int64_t mask, uint64_t[:, ::1] state, int64_t[::1] used,
                          uint64_t tid, uint32_t pid) except? -1 nogil

@cython.locals(mask=int64_t, slot=int64_t, at=int64_t)
cpdef rehash(int64_t[::1] table, const uint64_t[:, ::1] state, int64_t used)

@cython.locals(mixed=uint64_t)
cdef uint64_t _place(uint64_t tid) noexcept nogil

cdef int _cr_index(uint64_t number) noexcept nogil

@cython.locals(index=int)
cdef int _cr_write(uint64_t[:, ::1] state, int64_t slot, uint64_t number, uint64_t value) except? -1 nogil

@cython.locals(index=int)
cdef int _remember(uint64_t[:, ::1] state, int64_t slot) except? -1 nogil

@cython.locals(start=uint64_t)
cdef int _emit(uint64_t[:, ::1] state, int64_t slot, uint64_t now, uint64_t why, uint64_t[:, ::1] rows_64,
                      uint32_t[:, ::1] rows_32, int64_t row) except? -1 nogil

@cython.locals(rows=int64_t, slot=int64_t)
cpdef unfinished(uint64_t[:, ::1] state, int64_t used, uint64_t end, uint64_t[:, ::1] rows_64,
                 uint32_t[:, ::1] rows_32)
