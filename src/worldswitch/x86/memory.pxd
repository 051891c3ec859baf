cimport cython
from libc.stdint cimport uint8_t, uint64_t

cdef uint64_t _ALL_BITS
cdef uint64_t _ALIGNED

@cython.final
cdef class Memory:
    cdef readonly uint64_t size
    cdef uint64_t[::1] _words
    cdef uint8_t[::1] _stored
    cdef object _bytes
    cdef list _lines
    cdef set _loaded

    cpdef uint64_t word(self, uint64_t gpa) except? 1
    cpdef set_word(self, uint64_t gpa, uint64_t value)
    @cython.locals(base=uint64_t, shift=int, value=uint64_t)
    cpdef uint64_t read(self, uint64_t gpa, int size) except? 1
    @cython.locals(base=uint64_t, shift=int, mask=uint64_t, low=uint64_t, high=uint64_t)
    cpdef write(self, uint64_t gpa, uint64_t value, int size)
