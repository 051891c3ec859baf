cimport cython

@cython.final
cdef class Backing:
    cdef tuple _slots
    cdef set _resident

    @cython.locals(first=long, end=long, huge=bint)
    cpdef bint exists(self, long gfn) except -1
    @cython.locals(whole=long, first=long, end=long, huge=bint)
    cpdef bint large(self, long gfn) except -1
    cpdef bint resident(self, long gfn) except -1
    cpdef touch(self, long gfn)
