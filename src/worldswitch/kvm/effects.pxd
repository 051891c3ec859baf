cimport cython
from libc.stdint cimport uint64_t
from worldswitch.kvm.switch cimport Noted, Switch

@cython.final
cdef class Registers:
    cdef readonly uint64_t cr0, cr2, cr3, cr4, cr8, efer, pkru, believed_cr0, believed_cr4
    cdef readonly bint ac, delivered, dr_given
    cdef readonly dict msrs

    cdef bint are(self, Switch m, uint64_t believed_cr0, uint64_t believed_cr4) noexcept

@cython.final
cdef class Before:
    cdef readonly Registers registers
    cdef uint64_t _calls, _generation, _flushes
    cdef Noted _noted
    cdef object _reasons, _stats, _userspace

    @cython.locals(noted=Noted)
    cpdef Effect effect(self, Switch m, uint64_t believed_cr0, uint64_t believed_cr4)

@cython.final
cdef class Effect:
    cdef readonly Registers before
    cdef readonly Registers after
    cdef bint same_mode
    cdef tuple _counted
    cdef Noted _noted
    cdef long long _times

    @cython.locals(after=Registers)
    cdef int again(self, Switch m) except -1
    cpdef settle(self, Switch m)
