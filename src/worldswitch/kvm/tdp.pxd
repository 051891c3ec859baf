cimport cython
from worldswitch.kvm.backing cimport Backing
from libc.stdint cimport uint64_t

@cython.final
cdef class Tree:
    cdef public set tables
    cdef public set small
    cdef public dict large
    cdef public set split
    cdef public int users

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
