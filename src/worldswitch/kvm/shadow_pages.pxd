cimport cython
from libc.stdint cimport uint64_t
from worldswitch.kvm.shadow_table cimport Leaf, Page
from worldswitch.x86.memory cimport Memory

cdef int _FREE, _REFILL, _W_RIGHT

@cython.final
cdef class Pages:
    cdef object _policy
    cdef Memory _memory
    cdef dict _gfns, _maps, _tracked, _oldest
    cdef readonly object controls, flush, request, counts, trace
    cdef readonly int stale, most

    @cython.locals(page=Page)
    cpdef Page get(self, uint64_t gfn, role)
    @cython.locals(page=Page)
    cdef Page _get(self, uint64_t gfn, role)
    cdef int _use(self, Page page) except -1
    @cython.locals(flush=bint)
    cdef bint _sync_found(self, Page page) except -1
    @cython.locals(page=Page)
    cpdef list of(self, uint64_t gfn)
    cpdef bint tracked(self, uint64_t gfn) except -1
    cpdef bint forbids_large(self, uint64_t gfn) except -1
    cpdef link(self, Page page, int index, Page child)
    @cython.locals(old=Leaf)
    cpdef set_leaf(self, Page page, int index, Leaf leaf)
    cpdef bint drop(self, Page page, int index) except -1
    @cython.locals(page=Page, leaf=Leaf, index=int, changed=bint)
    cpdef bint write_protect(self, uint64_t gfn) except -1
    cpdef bint writable(self, uint64_t gfn, bint prefetch, bint may_unsync=*) except -1
    @cython.locals(page=Page, seen=set, rest=list, found=list)
    cpdef list below(self, Page root)
    @cython.locals(page=Page)
    cpdef bint out_of_step(self, Page root) except -1
    @cython.locals(page=Page)
    cpdef sync_root(self, Page root)
    @cython.locals(page=Page, flush=bint)
    cdef _sync_all(self, list stale)
    cdef _synced(self, bint lost)
    cdef _in_step(self, Page page)
    cdef bint _sync(self, Page page) except -1
    @cython.locals(leaf=Leaf, made=Leaf, wanted=int)
    cpdef bint sync_entry(self, Page page, int index) except -1
    cpdef bint made_dirty(self, old, int rights) except -1
    cpdef entry_rights(self, Page page, uint64_t entry)
    cpdef mark_unsync(self, Page page)
    @cython.locals(child=Page, parent=Page, index=int)
    cpdef zap(self, Page page)
    @cython.locals(left=int, wanted=int, before=int, page=Page)
    cpdef make_room(self)
    @cython.locals(page=Page, flush=bint, entry=uint64_t)
    cpdef written(self, uint64_t gpa, int size)
