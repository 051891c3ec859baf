cimport cython
from libc.stdint cimport int64_t

@cython.locals(n=Py_ssize_t, i=Py_ssize_t, who=int64_t)
cpdef find(const int64_t[::1] thread, const int64_t[::1] cr, const int64_t[::1] page, int64_t[::1] writes,
           int64_t[::1] registers, int64_t[::1] last_fault, int64_t[::1] out)
