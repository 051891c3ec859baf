cimport cython
from libc.stdint cimport uint64_t
from worldswitch.kvm.shadow_table cimport Leaf, Page, index_of
from worldswitch.kvm.switch cimport Switch
from worldswitch.x86.tlb cimport Translation, translation
from worldswitch.x86.verdicts cimport Verdicts

cdef uint64_t _PGE, _LA57, _PDPT, _P, _W, _U, _NX, _A, _D, _PS, _G, _ADDRESS
cdef int _FAULTS, _KEY_SHIFT, _READ, _WRITE, _FETCH, _FROM_USER
cdef int _MAY_W, _MAY_U, _MAY_X, _IS_D, _MAY_H, _KEY_AT

@cython.final
cdef class Machine(Switch):
    @cython.locals(one=Translation, known=bint, top=uint64_t, all_set=uint64_t)
    cpdef uint64_t translate(self, uint64_t va, int kind, bint user) except? 1
    cdef uint64_t _translate_flat(self, uint64_t va, int kind) except? 1
    cdef bint _lets(self, int rights, int kind, bint user) except -1
    @cython.locals(va=uint64_t, one=Translation, enough=bint)
    cdef bint fetches(self, tuple pages) except -1
    @cython.locals(level=int, table=uint64_t, place=uint64_t, entry=uint64_t, every=uint64_t, some=uint64_t, good=bint, mode=Verdicts,
                   rights=int, access=int, span=int, below=uint64_t, gfn=uint64_t)
    cdef Translation _walk_tdp(self, uint64_t va, int kind, bint user)
    @cython.locals(pdpte=uint64_t, place=uint64_t, entry=uint64_t)
    cdef uint64_t _pdpte(self, uint64_t va, int kind, bint user) except? 1
    cpdef processor_loads_pdptes(self, uint64_t cr3)
    @cython.locals(level=int, table=uint64_t, place=uint64_t, entry=uint64_t, places=list)
    cdef list _places(self, uint64_t va)
    cdef _fault_code(self, uint64_t va, int kind, bint user)
    @cython.locals(place=uint64_t, entry=uint64_t, wanted=uint64_t)
    cdef uint64_t _mark(self, uint64_t va, bint write) except? 1
    cdef _reach(self, uint64_t gfn, uint64_t gpa, int kind, bint table, bint linear=*)
    @cython.locals(page=Page, index=int, leaf=Leaf, entry=uint64_t, rights=int, span=int)
    cdef Translation _walk_shadow(self, uint64_t va, int kind, bint user)
    cdef bint _shadow_fault(self, uint64_t va, int code, int kind, bint user) except -1
    cdef Translation _emulated(self, uint64_t va, bint user)
    @cython.locals(gpa=uint64_t, high=uint64_t, first=int)
    cpdef uint64_t load(self, uint64_t va, int size, bint user=*) except? 1
    @cython.locals(gpa=uint64_t, high=uint64_t, first=int)
    cpdef store(self, uint64_t va, uint64_t value, int size, bint user=*)
    cdef _written(self, uint64_t gpa, uint64_t value, int size, bint emulating)
    cpdef fetch(self, uint64_t va, bint user=*)

cdef int _of_spte(int rights) noexcept
