cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from worldswitch.trace.readers.textmatch cimport Matcher

cdef int END, FULL, NEW_EVENT, ODD, TAKEN, OTHER, NOT_WANTED, EVENTS
cdef uint64_t MASK64
cdef int64_t LONGEST_US
cdef Py_ssize_t TID_SLOTS, BODY_ROOM

@cython.final
cdef class Scanner(Matcher):
    cdef public Py_ssize_t size, at, next_line, line_end, n, n_others, n_comms
    cdef public bint last_block, headed
    cdef public int64_t first, last, raw_times, systems, processes
    cdef uint16_t[::1] order
    cdef int64_t[::1] time, body_from, body_to, row_at, counts, other_from, other_to, comm_from, comm_to
    cdef int32_t[::1] cpu, tid, pid, tid_seen, comm_tid
    cdef int64_t line_time
    cdef int32_t line_cpu, line_tid, line_pid, digits_value
    cdef int line_raw, line_system
    cdef Py_ssize_t name_from, name_to, body, comm_begin, comm_end

    cpdef object head(self)
    cpdef int scan(self) except -9
    @cython.locals(begin=Py_ssize_t, end=Py_ssize_t, what=int)
    cdef int _scan(self) except -9 nogil
    @cython.locals(what=int, event=Py_ssize_t, program=int, n=Py_ssize_t)
    cdef int _line(self, Py_ssize_t begin, Py_ssize_t end) except -9 nogil
    @cython.locals(slot=Py_ssize_t)
    cdef int _note(self, Py_ssize_t event) except -9 nogil
    @cython.locals(i=Py_ssize_t, left=Py_ssize_t, what=int)
    cdef int _find_time(self, Py_ssize_t begin, Py_ssize_t end) except -9 nogil
    @cython.locals(i=Py_ssize_t, left=Py_ssize_t, c=int)
    cdef int _find_latency(self, Py_ssize_t begin, Py_ssize_t end) except -9 nogil
    @cython.locals(i=Py_ssize_t, k=Py_ssize_t, whole=int64_t, fraction=int64_t, digits=int, scale=int, dot=bint, c=int)
    cdef Py_ssize_t _number_before(self, Py_ssize_t colon, Py_ssize_t begin) except -9 nogil
    @cython.locals(k=Py_ssize_t, name=Py_ssize_t, c=int)
    cdef bint _find_event(self, Py_ssize_t i, Py_ssize_t end) except? -9 nogil
    @cython.locals(k=Py_ssize_t, left=Py_ssize_t, cpu=int32_t)
    cdef int _find_who(self, Py_ssize_t begin, Py_ssize_t end) except -9 nogil
    @cython.locals(i=Py_ssize_t, pid=int32_t)
    cdef Py_ssize_t _nobody(self, Py_ssize_t left, Py_ssize_t begin) except -9 nogil
    @cython.locals(i=Py_ssize_t, j=Py_ssize_t, cpu=int32_t)
    cdef Py_ssize_t _before_flags(self, Py_ssize_t k, Py_ssize_t begin) except -9 nogil
    @cython.locals(i=Py_ssize_t, j=Py_ssize_t, dots=bint)
    cdef bint _is_number(self, Py_ssize_t k, Py_ssize_t begin) except? -9 nogil
    @cython.locals(j=Py_ssize_t)
    cdef bint _dash_number(self, Py_ssize_t k, Py_ssize_t i) except? -9 nogil
    @cython.locals(left=Py_ssize_t)
    cdef Py_ssize_t _read_cpu(self, Py_ssize_t bracket, Py_ssize_t begin) except -9 nogil
    @cython.locals(k=Py_ssize_t)
    cdef Py_ssize_t _read_tgid(self, Py_ssize_t bracket, Py_ssize_t begin) except -9 nogil
    @cython.locals(i=Py_ssize_t, value=int64_t, scale=int64_t)
    cdef Py_ssize_t _digits(self, Py_ssize_t k, Py_ssize_t begin) except -9 nogil
    cdef Py_ssize_t _trim(self, Py_ssize_t k, Py_ssize_t begin) except -9 nogil
    @cython.locals(i=Py_ssize_t)
    cdef bint _mentions_kvm(self, Py_ssize_t begin, Py_ssize_t end) except? -9 nogil
    cdef Py_ssize_t _newline(self, const uint8_t[::1] text, Py_ssize_t i, Py_ssize_t end) except -9 nogil
    cdef Py_ssize_t _time_colon(self, const uint8_t[::1] text, Py_ssize_t i, Py_ssize_t end) except -9 nogil
