cimport cython
from libc.stdint cimport uint64_t

cdef int _LAST

@cython.final
cdef class Translation:
    cdef readonly uint64_t page
    cdef readonly int rights
    cdef readonly int span
    cdef readonly bint may_be_global
    cdef uint64_t linear
    cdef uint64_t generation

@cython.final
cdef class Tlb:
    cdef public dict now
    cdef readonly uint64_t generation
    cdef list _front
    cdef object _pcid
    cdef dict _by_pcid

    @cython.locals(one=Translation)
    cpdef Translation find(self, uint64_t linear)
    cpdef keep(self, uint64_t linear, Translation one)
    cpdef drop(self, uint64_t linear)
