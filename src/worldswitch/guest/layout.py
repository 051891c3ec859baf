"""Where a program's own code, tables, stack and results lie: in low memory, and in a window of every address space.

The window maps the guest-physical memory from 0 to ``OWN_MEMORY`` at the same offsets, for CPL 0 (but for the stubs
that run at CPL 3).
"""

from __future__ import annotations

from worldswitch.guest.program import Mode

OWN_MEMORY = 2 << 20
"""Guest-physical memory below this address is the program's own."""
WINDOW_SIZE = OWN_MEMORY
BARRIER = 0x1000
"""Where vCPUs that meet count themselves, as an offset in the window."""
WINDOWS = {Mode.LONG: 0xFFFF_FFFF_FFC0_0000, Mode.PAE: 0xFFC0_0000, Mode.FLAT: 0}
"""Virtual address of the window in each mode; without paging it is where the memory is.
Its low 32 bits, sign-extended, are all of it, so that code reaches what lies there without a base register."""
