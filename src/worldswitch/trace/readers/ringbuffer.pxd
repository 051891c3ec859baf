cimport cython
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

@cython.locals(stored=Py_ssize_t, unknown=Py_ssize_t, all_end=Py_ssize_t, page=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t,
               limit=Py_ssize_t, lost=int64_t, uncounted=int64_t, bad=int64_t, broken=int64_t, malformed=int64_t, earliest=int64_t,
               latest=int64_t, low=uint64_t, high=uint64_t, now=uint64_t, before=uint64_t, commit=uint64_t,
               head=uint64_t, kind=uint64_t, n=Py_ssize_t, which=Py_ssize_t, pid=int64_t, moment=int64_t,
               mask=uint64_t, word=uint64_t, wrap=int64_t)
cpdef walk(const uint32_t[::1] words, Py_ssize_t n_words, Py_ssize_t first, Py_ssize_t page_words,
           Py_ssize_t data_words, const uint16_t[::1] slots, const int32_t[::1] least, Py_ssize_t n_selected,
           int64_t[::1] counts, int64_t[::1] stats, uint16_t[::1] slot, int64_t[::1] time, int32_t[::1] tid,
           int64_t[::1] start)
