cimport cython
from libc.stdint cimport uint64_t
from worldswitch.kvm.backing cimport Backing
from worldswitch.kvm.tdp cimport Tdp
from worldswitch.x86.memory cimport Memory
from worldswitch.x86.tlb cimport Tlb
from worldswitch.x86.verdicts cimport Verdicts

cdef uint64_t _WP, _LA57, _SMEP, _SMAP, _PKE, _NXE

cdef class Switch:
    cdef readonly object policy, host, shadow, vm, retries
    cdef readonly int number
    cdef readonly bint flat, pae
    cdef readonly tuple pdptes
    cdef readonly Backing backing
    cdef readonly Memory memory
    cdef readonly Tdp tdp
    cdef readonly Tlb tlb
    cdef public uint64_t cr0, cr2, cr3, cr4, cr8, efer, pkru, rip, mmu_calls
    cdef public bint ac, dr_given, emulating, injects_again, delivered
    cdef public dict msrs, judged
    cdef public object reasons, stats, userspace
    cdef readonly list effects, events
    cdef set _requests
    cdef Verdicts _guest, _hardware
    cdef dict _modes, _answers
    cdef list _recent
    cdef uint64_t _recent_pkru
    cdef object _permissions

    cpdef mode_changed(self)
    @cython.locals(bits=int)
    cdef int _find_mode(self) except -1
    cdef bint _loaded(self) except -1
    cpdef enter(self)
    cpdef exit(self, reason, info1=*, info2=*)
    cpdef event(self, name, row)
    cpdef settle(self)
