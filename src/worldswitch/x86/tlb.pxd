cimport cython
from libc.stdint cimport uint64_t

cdef int _LAST, _RECENT

@cython.final
@cython.freelist(256)
cdef class Translation:
    cdef readonly uint64_t page
    cdef readonly int rights
    cdef readonly int span
    cdef readonly bint may_be_global
    cdef uint64_t linear
    cdef uint64_t generation

@cython.locals(one=Translation)
cpdef Translation translation(uint64_t page, int rights, int span, bint may_be_global)

@cython.final
cdef class Tlb:
    cdef dict _now
    cdef list _recent
    cdef int _used
    cdef readonly uint64_t generation, flushes
    cdef list _front
    cdef object _pcid
    cdef dict _by_pcid

    @cython.locals(one=Translation, place=int)
    cpdef Translation find(self, uint64_t linear)
    cpdef keep(self, uint64_t linear, Translation one)
    cpdef int add(self, uint64_t linear, Translation one) except -1
    @cython.locals(one=Translation, place=int)
    cdef int _order(self) except -1
    cpdef drop(self, uint64_t linear)
    cpdef int flush_all(self) except -1
