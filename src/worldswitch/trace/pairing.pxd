cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    _EXIT = 1
    _ENTRY = 2
    _USERSPACE_EXIT = 3
    _FPU = 4
    _CR = 5
    _EXCEPTION = 6
    _NESTED = 7
    _EMULATE = 8
    _DETAIL = 9
    _FIRST = 1
    _OVERWRITTEN = 2
    _NEGATIVE = 8
    _FROM_L2 = 16
    _TO_USERSPACE = 32
    _CR_KNOWN = 64
    _CR_FIRST = 128
    _FAULTED = 256
    _NO_EXIT = 512
    _CR_SILENT = 1024
    _DETAILED = 2048
    _NOT_A_CR = 4
    _GENERAL_PROTECTION = 13
    _NOBODY = 255
    _VMX = 1
    _SVM = 2
    _CR_ACCESS = 28
    _CR0_SEL_WRITE = 101
    _NPF = 1024
    _ADDRESS = 4
    _TID = 0
    _PID = 1
    _VCPU = 2
    _ENTERED = 3
    _ENTRY_TIME = 4
    _IS_OPEN = 5
    _START = 6
    _REASON = 7
    _ISA = 8
    _RIP = 9
    _INFO1 = 10
    _INFO2 = 11
    _USER_SINCE = 12
    _IN_USER = 13
    _USER = 14
    _FLAGS = 15
    _GUEST = 16
    _KIND = 17
    _VALUE = 18
    _CR_NUMBER = 19
    _CR_VALUE = 20
    _CR_CHANGED = 21
    _KNOWN = 22
    _PREVIOUS = 23
    _WHO = 29

@cython.locals(n=Py_ssize_t, mask=int64_t, capacity=int64_t, rows=int64_t, i=Py_ssize_t, event=int, role=int, at=int64_t, row=int64_t,
               slot=int64_t, now=uint64_t, why=int)
cpdef pair(const uint16_t[::1] order, const int64_t[::1] time, const uint32_t[::1] tid, const uint32_t[::1] pid,
           const uint8_t[::1] roles, const uint32_t[::1] kinds, const int64_t[::1] bases, int64_t[::1] cursors,
           const uint64_t[::1] wide, const uint32_t[::1] narrow, const uint32_t[::1] extra,
           const uint32_t[::1] exit_vcpu, const uint64_t[::1] exit_info1, const uint64_t[::1] exit_info2, int64_t[::1] table,
           uint64_t[:, ::1] state, int64_t[::1] used, uint64_t[:, ::1] rows_64, uint32_t[:, ::1] rows_32,
           Py_ssize_t begin)

@cython.locals(at=int64_t, slot=int64_t)
cdef int64_t _slot(int64_t[::1] table, int64_t mask, uint64_t[:, ::1] state, int64_t[::1] used,
                          uint64_t tid, uint32_t pid) noexcept nogil

@cython.locals(kind=int)
cdef int _register_written(uint32_t isa, uint32_t reason, uint64_t info1) noexcept nogil

@cython.locals(mask=int64_t, slot=int64_t, at=int64_t)
cpdef rehash(int64_t[::1] table, const uint64_t[:, ::1] state, int64_t used)

@cython.locals(mixed=uint64_t)
cdef uint64_t _place(uint64_t tid) noexcept nogil

cdef int _cr_index(uint64_t number) noexcept nogil

@cython.locals(index=int)
cdef int _cr_write(uint64_t[:, ::1] state, int64_t slot, uint64_t number, uint64_t value) noexcept nogil

@cython.locals(index=int)
cdef int _remember(uint64_t[:, ::1] state, int64_t slot) noexcept nogil

@cython.locals(start=uint64_t, flags=uint64_t)
cdef int _emit(uint64_t[:, ::1] state, int64_t slot, uint64_t now, uint64_t why, uint64_t[:, ::1] rows_64,
                      uint32_t[:, ::1] rows_32, int64_t row) noexcept nogil

@cython.locals(rows=int64_t, slot=int64_t)
cpdef unfinished(uint64_t[:, ::1] state, int64_t used, uint64_t end, uint64_t[:, ::1] rows_64,
                 uint32_t[:, ::1] rows_32)

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, j=Py_ssize_t, size=Py_ssize_t, first=uint64_t, last=uint64_t, byte=uint64_t)
cpdef pack_instructions(const uint8_t[:, ::1] insn, const uint32_t[::1] length, uint64_t[::1] low, uint64_t[::1] high)
