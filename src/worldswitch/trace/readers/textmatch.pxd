cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef int ODD, TAKEN, NEW_REASON, EVENTS, REASONS, PAGE_FAULT_FLAGS, OP_END, OP_LITERAL, OP_HEX, OP_DECIMAL
cdef int OP_NEGATED, OP_WORD, OP_REASON, OP_CONSTANT, OP_OPTIONAL, OP_OPTIONAL_END, OP_SKIP_WORD, OP_BYTES
cdef int OP_LETTERS, OP_FLAGS
cdef uint64_t MASK32, MASK64, TENTH, SIXTEENTH, HASH_START, HASH_STEP

cdef class Matcher:
    cdef const uint8_t[::1] text
    cdef public Py_ssize_t word_from, word_to, used
    cdef public bint closed
    cdef const uint8_t[::1] pool
    cdef const int32_t[::1] word_at, word_size, word_class, buckets, programs, values_of, vcpu_slot, code
    cdef const uint64_t[::1] word_value
    cdef uint64_t[::1] values, shown
    cdef uint64_t matched, present

    cpdef tell(self, tables)
    @cython.final
    @cython.locals(h=uint64_t, i=Py_ssize_t, mask=uint64_t, slot=uint64_t, word=Py_ssize_t, at=Py_ssize_t)
    cdef Py_ssize_t _lookup(self, int kind, Py_ssize_t begin, Py_ssize_t end) except -9 nogil
    @cython.locals(what=int)
    cpdef int match(self, int program, Py_ssize_t event, Py_ssize_t begin, Py_ssize_t end) except -9
    @cython.final
    @cython.locals(what=int)
    cdef int _match(self, int program, Py_ssize_t begin, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(n=Py_ssize_t, slot=Py_ssize_t)
    cdef int _keep_values(self, Py_ssize_t event) except -9 nogil
    @cython.final
    @cython.locals(seen=uint64_t, seen_before=uint64_t, bit=uint64_t, retreat=Py_ssize_t, target=int, op=int, a=int,
                   b=int, done=Py_ssize_t)
    cdef int _run(self, Py_ssize_t at, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(k=Py_ssize_t, c=int)
    cdef Py_ssize_t _literal(self, Py_ssize_t at, Py_ssize_t size, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(c=int)
    cdef bint _ends(self, Py_ssize_t p, Py_ssize_t end) except? -9 nogil
    @cython.final
    cdef int _digit(self, int c) noexcept nogil
    @cython.final
    @cython.locals(value=uint64_t, begin=Py_ssize_t, digit=int)
    cdef Py_ssize_t _hex(self, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(value=uint64_t, negative=bint, begin=Py_ssize_t, digit=int)
    cdef Py_ssize_t _decimal(self, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(c=int)
    cdef Py_ssize_t _token(self, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(stop=Py_ssize_t, word=Py_ssize_t)
    cdef Py_ssize_t _word(self, int kind, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(stop=Py_ssize_t, word=Py_ssize_t, done=Py_ssize_t)
    cdef Py_ssize_t _reason(self, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(low=uint64_t, high=uint64_t, count=int, upper=int, lower=int, byte=uint64_t, at=Py_ssize_t)
    cdef Py_ssize_t _bytes(self, int slot, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(begin=Py_ssize_t, value=uint64_t, c=int)
    cdef Py_ssize_t _letters(self, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    @cython.locals(value=uint64_t, stop=Py_ssize_t, word=Py_ssize_t, done=Py_ssize_t)
    cdef Py_ssize_t _flags(self, Py_ssize_t p, Py_ssize_t end) except -9 nogil
    @cython.final
    cdef Py_ssize_t _skip_blanks(self, Py_ssize_t i, Py_ssize_t end) except -9 nogil
