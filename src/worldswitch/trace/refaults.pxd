cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, who=int64_t, at=int64_t, code=int64_t)
cpdef find(const int64_t[::1] thread, const int64_t[::1] cr, const int64_t[::1] page, const uint8_t[::1] missing,
           const int64_t[::1] epoch, int64_t[:, ::1] writes, int64_t[:, ::1] pages, int64_t[::1] out)

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, who=int64_t, cr=int64_t)
cpdef note_writes(const int64_t[::1] thread, const uint64_t[::1] marks, int64_t[:, ::1] writes)
