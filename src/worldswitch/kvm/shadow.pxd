cimport cython
from libc.stdint cimport uint64_t
from worldswitch.kvm.backing cimport Backing
from worldswitch.kvm.roots cimport Root, Roots, new_root
from worldswitch.kvm.shadow_pages cimport Pages
from worldswitch.kvm.shadow_table cimport Leaf, Page, index_of
from worldswitch.x86.memory cimport Memory

cdef int _LONG, _W_RIGHT, _X_RIGHT, _GROUP
cdef uint64_t _FRAME

@cython.final
cdef class Shadow:
    cdef object _policy, _walker
    cdef Backing _backing
    cdef Memory _memory
    cdef bint _nx
    cdef readonly Pages pages
    cdef readonly Roots roots

    @cython.locals(page=Page)
    cpdef load(self, uint64_t cr3, role, tuple pdptes=*)
    cpdef sync(self)
    @cython.locals(page=Page)
    cpdef Page last(self, uint64_t va)
    cpdef tuple fault(self, uint64_t va, int code)
    @cython.locals(page=Page, level=int, index=int, disallowed=bint, whole=bint, goal=int, first=uint64_t)
    cdef _fetch(self, uint64_t va, int code, found, bint small)
    @cython.locals(page=Page, index=int, below=int)
    cdef Page _guest_levels(self, uint64_t va, found)
    cdef bint _fits(self, child, uint64_t gfn, role) except -1
    @cython.locals(made=Page)
    cdef Page _direct_below(self, Page page, int index, uint64_t first, int rights, bint split)
    @cython.locals(level=int, gfn=uint64_t, rights=int, protected=bint, old=Leaf, before=Leaf, leaf=Leaf, same=bint)
    cdef _map(self, Page page, int index, found, int code)
    @cython.locals(old=Leaf)
    cdef tuple _granted(self, Page page, int index, uint64_t gfn, int rights, bint prefetch)
    @cython.locals(gfn=uint64_t)
    cdef bint _all_writable(self, uint64_t first, uint64_t count, bint prefetch) except -1
    cdef bint _maps_own_table(self, found, int code, walker) except -1
    cdef _clear_floods(self, uint64_t va)
    @cython.locals(first=int, neighbour=int)
    cdef _prefetch(self, Page page, int index)
    cpdef bint map_neighbour(self, Page page, int index) except -1
    cpdef _map_ahead(self, Page page, int index, uint64_t gfn, int rights)
    cpdef invalidate(self, uint64_t va, bint previous=*)
    @cython.locals(index=int)
    cdef _invalidate(self, Page page, uint64_t va)
