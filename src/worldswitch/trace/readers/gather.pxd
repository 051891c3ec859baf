cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

@cython.locals(first=Py_ssize_t, shift=int, n=Py_ssize_t, i=Py_ssize_t, k=int64_t,
               low=uint64_t, high=uint64_t, top=uint64_t, value=uint64_t)
cpdef gather_8(const uint32_t[::1] words, const int64_t[::1] starts, Py_ssize_t offset, uint64_t[::1] out)

@cython.locals(first=Py_ssize_t, shift=int, straddles=bint, mask=uint64_t, n=Py_ssize_t, i=Py_ssize_t, k=int64_t,
               value=uint64_t, high=uint64_t)
cpdef gather_4(const uint32_t[::1] words, const int64_t[::1] starts, Py_ssize_t offset, int size, uint32_t[::1] out)

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, j=Py_ssize_t, at=int64_t, k=int64_t, word=uint32_t, left=int)
cpdef gather_bytes(const uint32_t[::1] words, const int64_t[::1] starts, Py_ssize_t offset, Py_ssize_t count,
                   uint8_t[:, ::1] out)

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, e=Py_ssize_t)
cpdef split(const uint16_t[::1] order, Py_ssize_t n_events, const int64_t[::1] starts, int64_t[::1] begins,
            int64_t[::1] out)
