"""The inner loop of the text readers: from bytes to events, one line after the other.

A :class:`Scanner` walks a block of text. Of each line it finds who ran where and when, looks the event's
name up, and has the body matched (:mod:`worldswitch.trace.readers.textmatch`). Where it meets a word it has
not been told of, or a line it cannot take apart, it stops, says why, and goes on from there once its caller
has dealt with it.
"""

# mypy: allow-untyped-calls, allow-untyped-defs

# ruff: noqa: PLR1714, PLR1730 - C has none of the shorter forms

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

from worldswitch.trace.readers import textcodes as codes
from worldswitch.trace.readers.textmatch import Matcher

# Copies that the .pxd makes C integers.
END = codes.END
FULL = codes.FULL
NEW_EVENT = codes.NEW_EVENT
ODD = codes.ODD
TAKEN = codes.TAKEN
OTHER = codes.OTHER
NOT_WANTED = codes.NOT_WANTED
EVENTS = codes.EVENTS
MASK64 = codes.MASK64
TID_SLOTS = codes.TID_SLOTS
BODY_ROOM = codes.BODY_ROOM
LONGEST_US = codes.LONGEST_US


class Scanner(Matcher):
    """Position in a block of text, the words and templates known, and the events found so far.

    All arrays are memoryviews of the caller's numpy arrays, so that results need no copying. See
    :class:`worldswitch.trace.readers.text.TextTrace`, the only user, for their sizes.
    """

    def __init__(self, text, tables, found):
        Matcher.__init__(self, text, tables, found[8], found[10])
        self.size = 0
        self.at = 0
        self.next_line = 0
        self.line_end = 0
        self.last_block = False
        self.headed = False
        self.order, self.time, self.cpu, self.tid, self.pid, self.body_from, self.body_to, self.row_at = found[:8]
        self.counts, self.other_from, self.other_to = found[9], found[11], found[12]
        self.tid_seen, self.comm_tid, self.comm_from, self.comm_to = found[13:]
        self.n = 0
        self.n_others = 0
        self.n_comms = 0
        self.first = MASK64 >> 1
        self.last = -(MASK64 >> 1)
        self.raw_times = 0
        self.systems = 0
        self.processes = 0
        self.line_raw = 0

    def scan(self):
        """Take lines until the block ends (:data:`~worldswitch.trace.readers.textcodes.END`), an output is
        full, or something needs the caller.

        :data:`NEW_EVENT` and :data:`NEW_REASON`: tell the word ``text[word_from:word_to]`` and call again,
        the line is read anew. :data:`ODD`: ``text[at:line_end]`` is no line this scanner understands; set
        ``at`` to ``next_line``.
        """
        with cython.nogil:
            why = self._scan()
        return why  # noqa: RET504 - the GIL is back

    def head(self):
        """Of an odd line that has a head: time, cpu, tid, pid, and where the name, the body and the comm
        begin and end.

        ``(time, cpu, tid, pid, name_from, name_to, body_from, comm_from, comm_to)``, or None if not even
        that is clear.
        """
        if not self.headed:
            return None
        who = (self.line_time, self.line_cpu, self.line_tid, self.line_pid)
        return (*who, self.name_from, self.name_to, self.body, self.comm_begin, self.comm_end)

    def _scan(self):
        while self.at < self.size:
            if self.n >= len(self.order) or self.used + BODY_ROOM > len(self.values):
                return FULL
            if self.n_others >= len(self.other_from) or self.n_comms >= len(self.comm_tid):
                return FULL
            begin = self.at
            end = self._newline(self.text, begin, self.size)
            if end == self.size and not self.last_block:
                return END
            self.next_line = end + 1
            while end > begin and self.text[end - 1] <= 32:
                end -= 1
            self.line_end = end
            what = self._line(begin, end)
            if what == OTHER:
                self.other_from[self.n_others] = begin
                self.other_to[self.n_others] = end
                self.n_others += 1
            elif what != TAKEN:
                return what
            self.at = self.next_line
        return END

    def _line(self, begin, end):
        if begin == end:
            return TAKEN
        self.headed = False
        what = self._find_time(begin, end)
        if what != TAKEN:
            return ODD if what == ODD or self._mentions_kvm(begin, end) else OTHER
        event = self._lookup(EVENTS, self.name_from, self.name_to)
        if event < 0:
            self.word_from = self.name_from
            self.word_to = self.name_to
            return OTHER if self.closed else NEW_EVENT
        program = self.programs[event]
        if program >= 0:
            what = self._match(program, self.body, end)
            if what != TAKEN:
                self.headed = what == ODD
                return what
        if program != NOT_WANTED:
            n = self.n
            self.order[n] = event
            self.time[n] = self.line_time
            self.cpu[n] = self.line_cpu
            self.tid[n] = self.line_tid
            self.pid[n] = self.line_pid
            self.body_from[n] = self.body
            self.body_to[n] = end
            self.row_at[n] = -1
            if program >= 0:
                self._keep_values(event)
                self.row_at[n] = self.used - self.values_of[event]
            self.n = n + 1
        self._note(event)
        return TAKEN

    def _note(self, event):
        """Count the line's event, and remember its thread's name if the thread is new."""
        self.counts[event] += 1
        if self.line_time < self.first:
            self.first = self.line_time
        if self.line_time > self.last:
            self.last = self.line_time
        self.raw_times += self.line_raw
        self.systems += self.line_system
        if self.line_pid >= 0:
            self.processes += 1
        slot = self.line_tid & (TID_SLOTS - 1)
        if self.line_tid >= 0 and self.tid_seen[slot] != self.line_tid and self.comm_end > self.comm_begin:
            if self.text[self.comm_begin] == 60 and self.comm_end - self.comm_begin == 5:
                return 0  # <...>: the kernel did not know either
            self.tid_seen[slot] = self.line_tid
            self.comm_tid[self.n_comms] = self.line_tid
            self.comm_from[self.n_comms] = self.comm_begin
            self.comm_to[self.n_comms] = self.comm_end
            self.n_comms += 1
        return 0

    # The head of a line

    def _find_time(self, begin, end):
        """``who [cpu] flags 12.345678: system:event: body``: all but the body, into the line_* attributes."""
        i = self._time_colon(self.text, begin + 1, end - 1)
        what = OTHER
        while i < end - 1:
            left = self._number_before(i, begin)
            if left >= 0 and self._find_event(i + 1, end):
                what = self._find_who(begin, left)
                if what != OTHER:
                    return what
            i = self._time_colon(self.text, i + 1, end - 1)
        return what if what != OTHER else self._find_latency(begin, end)

    def _find_latency(self, begin, end):
        """``who 0d..2. 5395us!: event: body``: µs and a mark for how long, as tracefs' ``latency-format`` has it."""
        i = begin + 4
        while i < end - 1:
            c = self.text[i - 4]
            if self.text[i] == 58 and self.text[i - 2] == 115 and self.text[i - 3] == 117 and 48 <= c <= 57:
                left = self._number_before(i - 3, begin)
                if left >= 0 and self.line_raw and self.line_time < LONGEST_US and self._find_event(i + 1, end):
                    self.line_time *= 1000
                    self.line_raw = 0
                    return self._find_who(begin, left)
            i += 1
        return OTHER

    # The two loops over all bytes have the text as an argument, which a compiler can keep in registers.

    def _newline(self, text, i, end):
        while i < end and text[i] != 10:
            i += 1
        return i

    def _time_colon(self, text, i, end):
        """The next colon at *i* or later with a digit before it and a blank after it; *end* or more if none is."""
        while i < end:
            if text[i] == 58 and 48 <= text[i - 1] <= 57 and text[i + 1] <= 32:
                return i
            i += 1
        return i

    def _number_before(self, colon, begin):
        """Read the time that ends at *colon*; where it begins, or -1 if that is no time."""
        i = colon
        while i > begin and (48 <= self.text[i - 1] <= 57 or self.text[i - 1] == 46):
            i -= 1
        if i > begin and self.text[i - 1] > 32:
            return -1
        whole = 0
        fraction = 0
        digits = 0
        scale = 0
        dot = False
        k = i
        while k < colon:
            c = self.text[k]
            if c == 46:
                if dot or digits == 0:
                    return -1
                dot = True
            elif dot:
                if scale < 9:
                    fraction = fraction * 10 + (c - 48)
                    scale += 1
            else:
                whole = whole * 10 + (c - 48)
                digits += 1
                if digits > 18:
                    return -1
            k += 1
        if dot:
            if digits > 9:
                return -1
            while scale < 9:
                fraction *= 10
                scale += 1
            whole = whole * 1000000000 + fraction
        self.line_time = whole
        self.line_raw = 0 if dot else 1
        return i

    def _find_event(self, i, end):
        """The event's name after the time; a time difference ``(+22)`` or a period before it is skipped."""
        i = self._skip_blanks(i, end)
        if i < end and self.text[i] == 40:
            while i < end and self.text[i] != 41:
                i += 1
            i = self._skip_blanks(i + 1, end)
        k = i
        while k < end and 48 <= self.text[k] <= 57:
            k += 1
        if k > i:
            if k == end or self.text[k] > 32:
                return False
            i = self._skip_blanks(k, end)
        name = i
        self.line_system = 0
        k = i
        while k < end and self.text[k] > 32:
            c = self.text[k]
            if c == 58:
                if k + 1 < end and self.text[k + 1] > 32:
                    name = k + 1
                    self.line_system = 1
            elif not (48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122 or c == 95 or c == 45 or c == 46):
                return False
            k += 1
        if k - 1 <= name or self.text[k - 1] != 58 or 48 <= self.text[name] <= 57:
            return False
        self.name_from = name
        self.name_to = k - 1
        self.body = self._skip_blanks(k, end)
        return True

    def _find_who(self, begin, end):
        """``comm-tid (tgid) [cpu] flags`` or ``comm pid/tid [cpu]``, read from the right: a comm may hold
        anything."""
        self.line_cpu = -1
        self.line_pid = -1
        self.comm_begin = 0
        self.comm_end = 0
        k = self._trim(end, begin)
        if k == begin:
            return ODD
        if not self._is_number(k, begin):
            k = self._before_flags(k, begin)
        if k > begin and self.text[k - 1] == 93:
            k = self._read_cpu(k - 1, begin)
            if k < 0:
                return ODD
            k = self._trim(k, begin)
            if k > begin and self.text[k - 1] == 41:
                k = self._read_tgid(k - 1, begin)
                if k < 0:
                    return ODD
                k = self._trim(k, begin)
            if k > begin and not self._is_number(k, begin):  # perf-prof puts the flags here
                cpu = self.line_cpu
                k = self._before_flags(k, begin)
                self.line_cpu = cpu
        elif self.line_raw:
            return OTHER
        left = self._digits(k, begin)
        if left < 0:
            return ODD
        self.line_tid = self.digits_value
        if self.line_tid == 1:
            left = self._nobody(left, begin)
        if left > begin and self.text[left - 1] == 47:
            left = self._digits(left - 1, begin)
            if left < 0:
                return ODD
            self.line_pid = self.digits_value
        if left > begin:
            if self.text[left - 1] == 45:
                left -= 1
                if left == begin or self.text[left - 1] == 32 or self.text[left - 1] == 9:
                    return ODD
            elif self.text[left - 1] > 32:
                return ODD
        # Blanks only: a name may hold control characters.
        while begin < left and (self.text[begin] == 32 or self.text[begin] == 9):
            begin += 1
        while left > begin and (self.text[left - 1] == 32 or self.text[left - 1] == 9):
            left -= 1
        self.comm_begin = begin
        self.comm_end = left
        return TAKEN

    def _nobody(self, left, begin):
        """perf's ``-1``, ``-1/-1`` or ``12/-1``, an ended thread: where that begins; *left* if it is thread 1."""
        i = left - 1
        if i < begin or self.text[i] != 45:
            return left
        pid = self.line_pid
        if i > begin and self.text[i - 1] == 47:
            i = self._digits(i - 1, begin)
            if i < 0:
                return left
            pid = self.digits_value
            if i > begin and self.text[i - 1] == 45:
                i -= 1
                pid = -1
        if i > begin and self.text[i - 1] != 32 and self.text[i - 1] != 9:
            return left
        self.line_tid = -1
        self.line_pid = pid
        return i

    def _before_flags(self, k, begin):
        """Where the flags that end at *k* begin, blanks before them left out; ``0d..2`` also says the CPU."""
        i = k
        while i > begin and self.text[i - 1] > 32:
            i -= 1
        if k - i > 12:
            return k
        j = i
        cpu = 0
        while j < k and 48 <= self.text[j] <= 57 and j - i < 6:
            cpu = cpu * 10 + (self.text[j] - 48)
            j += 1
        if i < j < k:
            self.line_cpu = cpu
        return self._trim(i, begin)

    def _is_number(self, k, begin):
        """Whether the word that ends at *k* is ``[cpu]``, ``comm-tid``, ``tid`` or ``pid/tid`` rather than
        flags."""
        if self.text[k - 1] == 93:
            return True
        i = k
        dots = False
        while i > begin and self.text[i - 1] > 32:
            i -= 1
            if self.text[i] == 46:
                dots = True
        if self._dash_number(k, i):
            return True
        if dots:
            return False
        j = i
        while j < k and (48 <= self.text[j] <= 57 or self.text[j] == 47):
            j += 1
        return j == k

    def _dash_number(self, k, i):
        j = k
        while j > i and 48 <= self.text[j - 1] <= 57:
            j -= 1
        return i < j < k and self.text[j - 1] == 45

    def _read_cpu(self, bracket, begin):
        left = self._digits(bracket, begin)
        if left <= begin or self.text[left - 1] != 91:
            return -1
        self.line_cpu = self.digits_value
        return left - 1

    def _read_tgid(self, bracket, begin):
        k = bracket
        while k > begin and self.text[k - 1] == 45:
            k -= 1
        if k == bracket:
            k = self._digits(bracket, begin)
            if k < 0:
                return -1
            self.line_pid = self.digits_value
        k = self._trim(k, begin)
        if k == begin or self.text[k - 1] != 40:
            return -1
        return k - 1

    def _digits(self, k, begin):
        """Read the number (below 2**31) that ends at *k*; where it begins, or -1."""
        i = k
        value = 0
        scale = 1
        while i > begin and 48 <= self.text[i - 1] <= 57:
            if k - i >= 10:
                return -1
            value += (self.text[i - 1] - 48) * scale
            scale *= 10
            i -= 1
        if i == k or value > 0x7FFFFFFF:
            return -1
        self.digits_value = value
        return i

    def _trim(self, k, begin):
        while k > begin and self.text[k - 1] <= 32:
            k -= 1
        return k

    def _mentions_kvm(self, begin, end):
        i = begin
        while i + 4 <= end:
            if self.text[i] == 107 and self.text[i + 1] == 118 and self.text[i + 2] == 109:
                if self.text[i + 3] == 95 or self.text[i + 3] == 58:
                    return True
                i += 2
            i += 1
        return False
