cimport cython
from libc.stdint cimport int64_t, uint64_t

@cython.final
cdef class Step:
    cdef readonly object operation, path
    cdef object do
    cdef readonly tuple code, user_code, body
    cdef readonly int kind
    cdef readonly uint64_t rip, va, stride, value, clear, set, toggle
    cdef int64_t last
    cdef readonly int size, cr
    cdef int tries
    cdef readonly bint user, keep, has_value
    cdef list effects
    cdef uint64_t fetched

    cpdef uint64_t address(self, int64_t index)
