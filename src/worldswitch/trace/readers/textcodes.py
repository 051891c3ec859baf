"""Numbers that the scanner of texts and those who feed it agree on."""

from __future__ import annotations

# Why Scanner.scan() returned.
END = 0
FULL = 1
NEW_EVENT = 2
NEW_REASON = 3
ODD = 4
# What one line was, besides the above.
TAKEN = 10
OTHER = 11

# Entries of Scanner.programs below 1.
NOT_WANTED = -1
AS_TEXT = -2

# Word classes; each enumeration of a template gets the next number.
EVENTS = 0
REASONS = 1
PAGE_FAULT_FLAGS = 2
FIRST_ENUM = 3

# Operations of a compiled template: three int32 each, (operation, a, b).
OP_END = 0
OP_LITERAL = 1
OP_HEX = 2
OP_DECIMAL = 3
OP_NEGATED = 4
OP_WORD = 5
OP_REASON = 6
OP_CONSTANT = 7
OP_OPTIONAL = 8
OP_OPTIONAL_END = 9
OP_SKIP_WORD = 10
OP_BYTES = 11
OP_LETTERS = 12
OP_FLAGS = 13

MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF
TID_SLOTS = 1 << 16
BODY_ROOM = 64
"""No event has more values than this."""
LONGEST_US = 10**15
"""Microseconds that fit an int64 as nanoseconds, and 31 years."""

HASH_START = 2166136261
HASH_STEP = 16777619
"""FNV-1a of 32 bits."""
