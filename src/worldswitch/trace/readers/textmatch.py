"""The inner loop of the text readers, second half: from an event's body to numbers.

A :class:`Matcher` knows words and compiled templates (:mod:`worldswitch.trace.readers.texttemplates`) and
runs them over bytes. It never allocates and never guesses.
"""

# mypy: allow-untyped-calls, allow-untyped-defs

# ruff: noqa: PLR1714, SIM109, SIM102 - C has none of the shorter forms

from __future__ import annotations

try:
    import cython
except ImportError:
    from worldswitch import purepython as cython

from worldswitch.trace.readers import textcodes as codes

# Copies that the .pxd makes C integers.
ODD = codes.ODD
TAKEN = codes.TAKEN
NEW_REASON = codes.NEW_REASON
EVENTS = codes.EVENTS
REASONS = codes.REASONS
PAGE_FAULT_FLAGS = codes.PAGE_FAULT_FLAGS
OP_END = codes.OP_END
OP_LITERAL = codes.OP_LITERAL
OP_HEX = codes.OP_HEX
OP_DECIMAL = codes.OP_DECIMAL
OP_NEGATED = codes.OP_NEGATED
OP_WORD = codes.OP_WORD
OP_REASON = codes.OP_REASON
OP_CONSTANT = codes.OP_CONSTANT
OP_OPTIONAL = codes.OP_OPTIONAL
OP_OPTIONAL_END = codes.OP_OPTIONAL_END
OP_SKIP_WORD = codes.OP_SKIP_WORD
OP_BYTES = codes.OP_BYTES
OP_LETTERS = codes.OP_LETTERS
OP_FLAGS = codes.OP_FLAGS
MASK32 = codes.MASK32
MASK64 = codes.MASK64
TENTH = MASK64 // 10
SIXTEENTH = MASK64 // 16
# FNV-1a, 32 bits.
HASH_START = codes.HASH_START
HASH_STEP = codes.HASH_STEP


class Matcher:
    """Words, templates, and the values the templates find.

    Attributes:
        text: The bytes, shape (n,), uint8.
        values: Where the values of matched events go, one after the other; *used* of them are taken.
        word_from, word_to: The word in *text* that made a match stop because nobody has told its meaning.
        closed: No new words are wanted; an unknown one just does not match.
    """

    def __init__(self, text, tables, values, shown):
        self.text = text
        self.values = values
        self.shown = shown
        self.used = 0
        self.closed = False
        self.word_from = 0
        self.word_to = 0
        self.matched = 0
        self.present = 0
        self.tell(tables)

    def tell(self, tables):
        """Take the words and templates known by now."""
        self.pool, self.word_at, self.word_size, self.word_class, self.word_value, self.buckets = tables[:6]
        self.programs, self.values_of, self.vcpu_slot, self.code = tables[6:]

    # Words

    def _lookup(self, kind, begin, end):
        """Index of the word ``text[begin:end]`` of class *kind* into word_value, or for events its number;
        -1."""
        h = HASH_START ^ kind
        i = begin
        while i < end:
            h = ((h ^ self.text[i]) * HASH_STEP) & MASK32
            i += 1
        mask = len(self.buckets) - 1
        slot = (h ^ (h >> 15)) & mask
        while True:
            word = self.buckets[slot]
            if word < 0:
                return -1
            if self.word_class[word] == kind and self.word_size[word] == end - begin:
                at = self.word_at[word]
                i = begin
                while i < end and self.pool[at + i - begin] == self.text[i]:
                    i += 1
                if i == end:
                    if kind == EVENTS:
                        return self.word_value[word] & MASK32
                    return word
            slot = (slot + 1) & mask

    # The body of a line

    def match(self, program, event, begin, end):
        """Match ``text[begin:end]`` as *event*, for the caller's own rows: TAKEN (its values were kept), ODD
        or NEW_REASON."""
        with cython.nogil:
            what = self._match(program, begin, end)
            if what == TAKEN:
                self._keep_values(event)
        return what

    def _match(self, program, begin, end):
        """Try the alternatives that begin at *program*; their values lie after ``used`` if one matches."""
        while program > 0:
            what = self._run(program + 1, begin, end)
            if what != ODD:
                return what
            program = self.code[3 * program + 1]
        return ODD

    def _keep_values(self, event):
        n = self.values_of[event]
        for slot in range(n):
            if not (self.present >> slot) & 1:
                self.values[self.used + slot] = MASK64 if slot == self.vcpu_slot[event] else 0
        self.shown[event] |= self.present
        self.used += n

    def _run(self, at, p, end):
        """Match one compiled template; TAKEN with ``present`` set, ODD, or NEW_REASON."""
        seen = 0
        seen_before = 0
        retreat = 0
        target = -1
        while True:
            op = self.code[3 * at]
            a = self.code[3 * at + 1]
            b = self.code[3 * at + 2]
            at += 1
            done = p
            if op == OP_END:
                if self._skip_blanks(p, end) == end:
                    self.present = seen
                    return TAKEN
                done = -1
            elif op == OP_LITERAL:
                done = self._literal(a, b, p, end)
            elif op == OP_HEX:
                done = self._hex(p, end)
            elif op == OP_DECIMAL or op == OP_NEGATED:
                done = self._decimal(p, end)
                if op == OP_NEGATED:
                    self.matched = ((self.matched ^ MASK64) + 1) & MASK64
            elif op == OP_WORD:
                done = self._word(b, p, end)
            elif op == OP_REASON:
                done = self._reason(p, end)
                if done == -2:
                    return NEW_REASON
            elif op == OP_CONSTANT:
                self.matched = b
            elif op == OP_OPTIONAL:
                retreat = p
                target = a
                seen_before = seen
                continue
            elif op == OP_OPTIONAL_END:
                target = -1
                continue
            elif op == OP_SKIP_WORD:
                while done < end and self.text[done] > 32:
                    done += 1
                if done == p:
                    done = -1
            elif op == OP_BYTES:
                done = self._bytes(a, p, end)
                bit = 7
                seen |= bit << a
            elif op == OP_LETTERS:
                done = self._letters(p, end)
            elif op == OP_FLAGS:
                done = self._flags(p, end)
            if done < 0:
                if target < 0:
                    return ODD
                p = retreat
                at = target
                target = -1
                seen = seen_before
                continue
            p = done
            if op != OP_LITERAL and op != OP_SKIP_WORD and op != OP_BYTES:
                self.values[self.used + a] = self.matched
                bit = 1
                seen |= bit << a

    def _literal(self, at, size, p, end):
        """Match the pool's literal; a blank in it is any run of blanks."""
        for k in range(at, at + size):
            c = self.pool[k]
            if c == 32:
                if p >= end or self.text[p] > 32:
                    return -1
                while p < end and self.text[p] <= 32:
                    p += 1
            else:
                if p >= end or self.text[p] != c:
                    return -1
                p += 1
        return p

    def _ends(self, p, end):
        """Whether no word goes on at *p*."""
        if p >= end:
            return True
        c = self.text[p]
        return not (48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122 or c == 95)

    def _digit(self, c):
        if 48 <= c <= 57:
            return c - 48
        if 97 <= c <= 102:
            return c - 87
        if 65 <= c <= 70:
            return c - 55
        return -1

    def _hex(self, p, end):
        if p + 1 < end and self.text[p] == 48 and (self.text[p + 1] == 120 or self.text[p + 1] == 88):
            p += 2
        value = 0
        begin = p
        while p < end:
            digit = self._digit(self.text[p])
            if digit < 0:
                break
            if value > SIXTEENTH:
                return -1
            value = (value << 4) | digit
            p += 1
        if p == begin or not self._ends(p, end):
            return -1
        self.matched = value
        return p

    def _decimal(self, p, end):
        value = 0
        negative = False
        if p < end and self.text[p] == 45:
            negative = True
            p += 1
        begin = p
        while p < end and 48 <= self.text[p] <= 57:
            digit = self.text[p] - 48
            if value > TENTH or (value == TENTH and digit > 5):
                return -1
            value = value * 10 + digit
            p += 1
        if p == begin or not self._ends(p, end):
            return -1
        self.matched = ((value ^ MASK64) + 1) & MASK64 if negative else value
        return p

    def _token(self, p, end):
        """Where the word at *p* ends."""
        while p < end:
            c = self.text[p]
            if c <= 32 or c == 44 or c == 40 or c == 41 or c == 124 or c == 58 or c == 59 or c == 91 or c == 93:
                break
            p += 1
        return p

    def _word(self, kind, p, end):
        stop = self._token(p, end)
        if stop == p:
            return -1
        word = self._lookup(kind, p, stop)
        if word < 0:
            return -1
        self.matched = self.word_value[word]
        return stop

    def _reason(self, p, end):
        """A reason's name, or the number the kernel prints for a reason it has no name for; -2: a new
        name."""
        stop = self._token(p, end)
        if stop == p:
            return -1
        if self.text[p] == 48 and stop > p + 1 and self.text[p + 1] == 120:
            done = self._hex(p, stop)
            if done < 0:
                return -1
            self.matched &= MASK32
            return done
        if stop + 5 <= end and self.text[stop] == 32 and self.text[stop + 1] == 101 and self.text[stop + 2] == 120:
            if self.text[stop + 3] == 99 and self.text[stop + 4] == 112:
                stop += 5  # "PF excp": the only reasons of two words
        word = self._lookup(REASONS, p, stop)
        if word < 0:
            if self.closed:
                return -1
            self.word_from = p
            self.word_to = stop
            return -2
        self.matched = self.word_value[word]
        return stop

    def _bytes(self, slot, p, end):
        """Up to 15 bytes ``0f 22 c0`` into two values, their number into a third."""
        low = 0
        high = 0
        count = 0
        at = p
        while count < 15 and at + 1 < end:
            upper = self._digit(self.text[at])
            lower = self._digit(self.text[at + 1])
            if upper < 0 or lower < 0 or not self._ends(at + 2, end):
                break
            byte = (upper << 4) | lower
            if count < 8:
                low |= byte << (8 * count)
            else:
                high |= byte << (8 * (count - 8))
            count += 1
            p = at + 2
            if p >= end or self.text[p] != 32:
                break
            at = p + 1
        if count == 0:
            return -1
        self.values[self.used + slot] = low
        self.values[self.used + slot + 1] = high
        self.values[self.used + slot + 2] = count
        return p

    def _letters(self, p, end):
        """``rwxu``, ``w-x``: x 1, w 2, u 4, r 8 as in the MMU's access masks; how many letters from bit 8
        up."""
        begin = p
        value = 0
        while p < end:
            c = self.text[p]
            if c == 120:
                value |= 1
            elif c == 119:
                value |= 2
            elif c == 117:
                value |= 4
            elif c == 114:
                value |= 8
            elif c != 45:
                break
            p += 1
        if p == begin or p - begin > 4 or not self._ends(p, end):
            return -1
        self.matched = value | ((p - begin) << 8)
        return p

    def _flags(self, p, end):
        """``P|W|U``: the sum of the flags named."""
        value = 0
        while True:
            stop = p
            while stop < end and self.text[stop] > 32 and self.text[stop] != 124:
                stop += 1
            word = self._lookup(PAGE_FAULT_FLAGS, p, stop)
            if word >= 0:
                value |= self.word_value[word]
            else:
                done = self._hex(p, stop)
                if done != stop or p == stop or self.text[p] != 48:
                    return -1
                value |= self.matched
            p = stop
            if p < end and self.text[p] == 124:
                p += 1
            else:
                break
        self.matched = value
        return p

    def _skip_blanks(self, i, end):
        while i < end and self.text[i] <= 32:
            i += 1
        return i
