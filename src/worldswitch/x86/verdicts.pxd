cimport cython
from libc.stdint cimport uint8_t, uint64_t

cdef int _ASK

@cython.final
cdef class Verdicts:
    cdef readonly object controls
    cdef uint8_t[::1] _known
    cdef uint64_t[::1] _reserved

    @cython.locals(answers=int)
    cpdef bint lets(self, int rights, int access) except -1
    cpdef uint64_t reserved(self, int level, uint64_t entry) except? 1
    cdef int _ask(self, int rights) except -1
