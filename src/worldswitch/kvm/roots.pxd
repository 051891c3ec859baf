cimport cython

from libc.stdint cimport uint64_t

@cython.final
@cython.freelist(16)
cdef class Root:
    cdef readonly uint64_t pgd
    cdef readonly object page

@cython.locals(one=Root)
cpdef Root new_root(uint64_t pgd, page)

cdef int _PREVIOUS

@cython.final
cdef class Roots:
    cdef object _free, _policy
    cdef public Root current
    cdef public list previous

    cpdef bint switch(self, usable) except -1
    cpdef free_current(self)
    cpdef free_previous(self, which)
    @cython.locals(one=Root, place=int)
    cpdef free_all(self)
