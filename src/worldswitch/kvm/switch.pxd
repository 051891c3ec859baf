cimport cython
from libc.stdint cimport uint64_t
from worldswitch.kvm.backing cimport Backing
from worldswitch.kvm.shadow cimport Shadow
from worldswitch.kvm.tdp cimport Tdp
from worldswitch.x86.memory cimport Memory
from worldswitch.x86.tlb cimport Tlb
from worldswitch.x86.verdicts cimport Verdicts

cdef int _RELOAD, _FLUSH, _SYNC, _GUEST, _CURRENT
cdef uint64_t _WP, _LA57, _SMEP, _SMAP, _PKE, _NXE

@cython.final
cdef class Noted:
    cdef uint64_t _flushes, _calls
    cdef readonly int entered
    cdef readonly bint simple, unloaded, reset, flushed
    cdef readonly int requests

    cdef int asks(self, int bit) except -1
    cdef int unloads(self, bint reset) except -1
    cdef int enters(self, Switch m) except -1
    cdef int has_entered(self, Switch m) except -1
    cpdef ends(self, Switch m)

@cython.final
cdef class RoleThen:
    cdef uint64_t cr0, cr3, cr4, efer
    cdef object role

cdef class Switch:
    cdef readonly object policy, host, vm, retries
    cdef readonly Shadow shadow
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
    cdef readonly object reaching
    cdef readonly list effects, events
    cdef readonly int asked
    cdef public Noted noted
    cdef long long _flushes, _loads, _unloads, _resets, _remote
    cdef list _roles
    cdef Verdicts _guest, _hardware
    cdef dict _modes, _answers
    cdef list _recent
    cdef uint64_t _recent_pkru
    cdef object _permissions

    cpdef mode_changed(self)
    @cython.locals(bits=int)
    cdef int _find_mode(self) except -1
    cdef bint _loaded(self) except -1
    @cython.locals(requests=int)
    cdef _serve(self)
    cdef int _flush_now(self) except -1
    cdef _load(self)
    @cython.locals(then=RoleThen)
    cdef _role(self, rule)
    @cython.locals(bit=int)
    cpdef request(self, what)
    cpdef unload(self, bint reset=*)
    cpdef Noted note(self)
    cpdef repeat_noted(self, Noted noted)
    @cython.locals(noted=Noted)
    cpdef enter(self)
    cpdef exit(self, reason, info1=*, info2=*)
    cpdef event(self, name, row)
    cpdef settle(self)
