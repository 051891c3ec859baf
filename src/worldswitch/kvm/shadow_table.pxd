cimport cython
from libc.stdint cimport uint64_t

cdef int _W_RIGHT

@cython.final
@cython.freelist(64)
cdef class Leaf:
    cdef readonly uint64_t gfn
    cdef readonly int rights
    cdef readonly bint accessed, dirty

    cpdef Leaf used(self, bint write)
    cpdef Leaf read_only(self)

@cython.final
cdef class Page:
    cdef readonly uint64_t gfn
    cdef readonly object role
    cdef readonly int level
    cdef readonly bint direct
    cdef readonly dict entries
    cdef readonly list slots
    cdef readonly set parents
    cdef public bint unsync, valid, split
    cdef public int users, floods

    cpdef put(self, int index, entry)
    cpdef take(self, int index)
    cpdef Leaf leaf(self, int index)

cpdef int index_of(uint64_t va, int level) noexcept
