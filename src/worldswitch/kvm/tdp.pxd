cimport cython
from worldswitch.kvm.backing cimport Backing
from libc.stdint cimport uint64_t

cdef int _KEY, _LAST

@cython.final
cdef class Tree:
    cdef public set tables
    cdef public set small
    cdef public dict large
    cdef public set split
    cdef public int users
    cdef public uint64_t version

    cpdef bint allows(self, uint64_t gfn, bint fetch) except -1

@cython.final
cdef class Trees:
    cdef object _mmu
    cdef public dict by_role

@cython.final
cdef class Tdp:
    cdef Backing _backing
    cdef object _host
    cdef bint _nx
    cdef object _policy
    cdef object _role
    cdef Trees _trees
    cdef public Tree tree
    cdef Tree _seen
    cdef uint64_t[::1] _front
    cdef uint64_t _stamp, _version

    @cython.locals(tree=Tree, key=uint64_t)
    cpdef bint reaches(self, uint64_t gfn, bint fetch) except -1
    cdef int _restamp(self) except -1
    @cython.locals(tree=Tree)
    cpdef load(self, role)
    @cython.locals(tree=Tree, held=bint)
    cpdef bint unload(self) except -1
