cimport cython
from libc.stdint cimport int64_t, uint64_t
from worldswitch.kvm.effects cimport Effect
from worldswitch.kvm.machine cimport Machine
from worldswitch.kvm.steps cimport Step

cdef int _LOAD, _STORE, _FETCH, _WRITE_CR, _REGISTERS, _USER_TRIP, _REPEAT, _READ, _WRITE

@cython.final
cdef class Guest:
    cdef readonly Machine m
    cdef readonly object program, image, entry, window
    cdef readonly bint bare, is_long
    cdef readonly tuple body
    cdef readonly list log
    cdef readonly dict values
    cdef readonly int64_t faults, retries, period
    cdef uint64_t believed_cr0, believed_cr4, _gdt, _idt, _stack, _word
    cdef int64_t _index, _pass
    cdef bint _whole, _in_fix, _user, _skips_soft
    cdef object _tables
    cdef readonly tuple setup, end
    cdef tuple _stubs, _records, _skips
    cdef dict _handlers, _operands

    @cython.locals(number=int64_t, whole=bint)
    cpdef passes(self, tuple steps, int64_t first, int64_t end)
    cpdef pass_begins(self, int64_t number, bint whole=*)
    cpdef pass_ends(self, bint whole=*)
    @cython.locals(step=Step)
    cdef int _run_all(self, tuple steps) except -1
    cdef int _run(self, Step step) except -1
    @cython.locals(retried=bint)
    cdef bint _attempt(self, Step step, bint user) except -1
    @cython.locals(m=Machine, address=uint64_t)
    cdef int _execute(self, Step step, bint user) except -1
    @cython.locals(va=uint64_t, value=uint64_t)
    cdef int _access(self, Step step, bint user) except -1
    @cython.locals(m=Machine, effect=Effect, seen=Effect)
    cdef _change_registers(self, Step step, bint user)
    @cython.locals(step=Step, address=uint64_t)
    cdef _round_trip(self, Step block, tuple body)
    cdef bint _handled(self, fault, Step step, bint user, bint retried) except -1
    cdef int _interrupt(self, int vector) except -1
    cdef int _descriptors(self, int selector=*) except -1
    cdef int _variables(self) except -1
    cdef int _push(self) except -1
    cdef int _pop(self) except -1
    cdef _skip(self)
    cdef _call_gate(self)
    cdef int _touch_area(self, int offset) except -1
    cpdef keep(self, Step step, value)
