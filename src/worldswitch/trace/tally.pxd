cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef uint64_t _MIX_B, _MIX_C, _MIX, _ALL

@cython.locals(n=Py_ssize_t, mask=int64_t, last=int64_t, i=Py_ssize_t, k=int64_t, at=int64_t)
cpdef add(const uint64_t[::1] a, const uint64_t[::1] b, const uint64_t[::1] c, const int64_t[::1] x, const int64_t[::1] y, const int64_t[::1] z,
          int64_t[::1] table, uint64_t[:, ::1] keys, int64_t[:, ::1] sums, int64_t[::1] used, int64_t limit,
          int64_t[::1] index)

@cython.locals(mask=int64_t, k=int64_t)
cpdef rehash(const uint64_t[:, ::1] keys, int64_t used, int64_t[::1] table)

@cython.locals(mixed=uint64_t, at=int64_t, k=int64_t)
cdef int64_t _find(uint64_t a, uint64_t b, uint64_t c, const int64_t[::1] table, int64_t mask,
                          const uint64_t[:, ::1] keys) noexcept nogil
