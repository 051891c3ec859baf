"""System calls that many workers make at the same moment, each timed by itself.

Between the clock readings is nothing but the system call: a few machine instructions wait at a gate until a moment that
is the same for all, make the call and read the clock again, outside the interpreter and its lock. So threads really run
at once, and what is measured is what a C program would measure. Who opens the gate sleeps when the moment comes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import platform
import struct
import time
from typing import NamedTuple

IOCTL, CLOSE, POLL, _FUTEX = 16, 3, 7, 202
"""System call numbers: arch/x86/entry/syscalls/syscall_64.tbl."""
_FUTEX_WAIT, _FUTEX_WAKE, _EVERYONE = 0, 1, 0x7FFFFFFF
_MOST_RETRIES = 100_000
"""A call that is interrupted more often has something wrong with it."""

CODE = bytes.fromhex(
    "53"  # push rbx
    "4889fb"  # mov rbx, rdi                the shot
    "8b5318"  # mov edx, [rbx+24]
    "8d4201"  # lea eax, [rdx+1]
    "894308"  # mov [rbx+8], eax            ready
    "488b3b"  # wait: mov rdi, [rbx]
    "3917"  # cmp [rdi], edx                has the gate moved on?
    "750e"  # jne go
    "31f6"  # xor esi, esi                  FUTEX_WAIT while it is edx
    "4531d2"  # xor r10d, r10d              without timeout
    "b8ca000000"  # mov eax, 202
    "0f05"  # syscall
    "ebeb"  # jmp wait
    "bf01000000"  # go: mov edi, 1          CLOCK_MONOTONIC
    "488d7358"  # lea rsi, [rbx+88]
    "ff5310"  # call qword [rbx+16]
    "4869435800ca9a3b"  # imul rax, [rbx+88], 1000000000
    "48034360"  # add rax, [rbx+96]
    "488b3b"  # mov rdi, [rbx]
    "483b4708"  # cmp rax, [rdi+8]          is it time?
    "7304"  # jae again
    "f390"  # pause
    "ebdb"  # jmp go
    "488b4320"  # again: mov rax, [rbx+32]
    "488b7b28"  # mov rdi, [rbx+40]
    "488b7330"  # mov rsi, [rbx+48]
    "488b5338"  # mov rdx, [rbx+56]
    "0f05"  # syscall
    "4883f8fc"  # cmp rax, -4               EINTR
    "750a"  # jne done
    "48ff4350"  # inc qword [rbx+80]
    "48ff4b40"  # dec qword [rbx+64]
    "75de"  # jnz again
    "48894348"  # done: mov [rbx+72], rax
    "bf01000000"  # mov edi, 1
    "488d7368"  # lea rsi, [rbx+104]
    "ff5310"  # call qword [rbx+16]
    "8b4308"  # mov eax, [rbx+8]
    "89430c"  # mov [rbx+12], eax           done
    "5b"  # pop rbx
    "c3"  # ret
)
"""void fire(struct shot *), System V x86-64. Processors keep the order of stores: who sees done sees the answer."""

# struct shot: where the gate is; the count of this call, told when ready and when done; where clock_gettime is, the
# gate's value to wait behind, the call's number and arguments, retries left; result, interruptions,
# the clock before and after.
_PLACE, _ORDER, _ANSWER = struct.Struct("<Q"), struct.Struct("<7Q"), struct.Struct("<qQ4Q")
_READY_AT, _DONE_AT, _ORDER_AT, _ANSWER_AT, _SHOT_SIZE = 8, 12, 16, 72, 128
_GATE_AT, _MOMENT_AT, _SHOTS_AT = 0, 8, 128
_LEAD_NS = 300_000
"""From the opening to the moment: sleepers wake one after another, over tens of microseconds, and some CPUs slowly."""
_WORD, _MOMENT = struct.Struct("<I"), struct.Struct("<Q")
_WORD_MASK = 0xFFFFFFFF

_C = ctypes.CDLL(None, use_errno=True)
_syscall = _C.syscall
_syscall.restype = ctypes.c_long
_FIRE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Call(NamedTuple):
    """A system call by number, with three arguments."""

    number: int
    a: int = 0
    b: int = 0
    c: int = 0


class Timed(NamedTuple):
    """A call that was made.

    Attributes:
        result: What the kernel returned; minus errno where it failed.
        eintr: How often it was interrupted and made again, while the clock ran on.
        start_ns, end_ns: CLOCK_MONOTONIC, the same for all processes.
    """

    result: int
    eintr: int
    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


class Gate:
    """A gate that *workers*, threads or forked processes, wait at until it opens; each then makes the call it brought.

    Args:
        kinds: How many kinds of calls a worker makes; the last one of each is kept.
        machine_code: Make calls from machine code. Where the system forbids that (PaX MPROTECT, SELinux execmem), or
            this is false, the interpreter makes them, and its own time is in the figures.

    Attributes:
        exact: Calls are made from machine code.
        opened: How often it was.
    """

    def __init__(self, workers: int, kinds: int = 1, machine_code: bool = True) -> None:
        self.workers = workers
        self.opened = 0
        self._kinds = kinds
        self._memory = mmap.mmap(-1, _SHOTS_AT + _SHOT_SIZE * workers * kinds)
        self._base = _address(self._memory)
        self._clock = ctypes.cast(_C.clock_gettime, ctypes.c_void_p).value or 0
        self._code = _executable() if machine_code else None
        self._fire = self._fire_interpreted if self._code is None else _FIRE(_address(self._code))
        self.exact = self._code is not None

    def close(self) -> None:
        """Give the memory back. Nobody may be at the gate."""
        self._memory.close()
        if self._code is not None:
            self._code.close()

    def fire(self, worker: int, kind: int, passed: int, call: Call) -> Timed:
        """Sleep until the gate has opened more than *passed* times, then make *call* at the moment the opener set."""
        at = self._shot(worker, kind)
        _PLACE.pack_into(self._memory, at, self._base + _GATE_AT)
        seen = passed & _WORD_MASK
        _ORDER.pack_into(self._memory, at + _ORDER_AT, self._clock, seen, *call, _MOST_RETRIES)
        _ANSWER.pack_into(self._memory, at + _ANSWER_AT, 0, 0, 0, 0, 0, 0)
        self._fire(self._base + at)
        return self.timed(worker, kind)

    def open(self) -> None:
        """Let everybody who waits make the call, at one moment shortly after this."""
        self.opened += 1
        _MOMENT.pack_into(self._memory, _MOMENT_AT, time.monotonic_ns() + _LEAD_NS)
        _WORD.pack_into(self._memory, _GATE_AT, self.opened & _WORD_MASK)
        _futex(self._base + _GATE_AT, _FUTEX_WAKE, _EVERYONE)

    def ready(self, kind: int) -> bool:
        """Whether every worker has brought a call of this kind, and waits for the gate to open once more."""
        return self._all(kind, _READY_AT, self.opened + 1)

    def done(self, kind: int) -> bool:
        """Whether every worker has made the call it brought when the gate opened last."""
        return self._all(kind, _DONE_AT, self.opened)

    def timed(self, worker: int, kind: int) -> Timed:
        """What a worker's last call of this kind gave."""
        result, eintr, s0, n0, s1, n1 = _ANSWER.unpack_from(self._memory, self._shot(worker, kind) + _ANSWER_AT)
        return Timed(result, eintr, s0 * 10**9 + n0, s1 * 10**9 + n1)

    def _shot(self, worker: int, kind: int) -> int:
        return _SHOTS_AT + _SHOT_SIZE * (worker * self._kinds + kind)

    def _word(self, at: int) -> int:
        value: int = _WORD.unpack_from(self._memory, at)[0]
        return value

    def _all(self, kind: int, at: int, count: int) -> bool:
        wanted = count & _WORD_MASK
        return all(self._word(self._shot(worker, kind) + at) == wanted for worker in range(self.workers))

    def _fire_interpreted(self, address: int) -> None:
        """The same as the machine code does."""
        at = address - self._base
        _, seen, number, *args, retries = _ORDER.unpack_from(self._memory, at + _ORDER_AT)
        call = [ctypes.c_ulong(arg) for arg in (number, *args)]
        eintr, clock = 0, time.monotonic_ns
        _WORD.pack_into(self._memory, at + _READY_AT, (seen + 1) & _WORD_MASK)
        while self._word(_GATE_AT) == seen:
            _futex(self._base + _GATE_AT, _FUTEX_WAIT, seen)
        moment = _MOMENT.unpack_from(self._memory, _MOMENT_AT)[0]
        while (start := clock()) < moment:
            pass
        result = _syscall(*call)
        while result < 0 and ctypes.get_errno() == errno.EINTR and eintr < retries:
            eintr += 1
            result = _syscall(*call)
        end = clock()
        answer = -ctypes.get_errno() if result < 0 else result
        _ANSWER.pack_into(self._memory, at + _ANSWER_AT, answer, eintr, *divmod(start, 10**9), *divmod(end, 10**9))
        _WORD.pack_into(self._memory, at + _DONE_AT, (seen + 1) & _WORD_MASK)


def _futex(address: int, operation: int, value: int) -> None:
    # Not private: the waiters may be other processes.
    _syscall(_FUTEX, ctypes.c_void_p(address), operation, ctypes.c_uint(value), None, None, 0)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _executable() -> mmap.mmap | None:
    """The code in memory that may be executed; None where the system or the processor does not let us."""
    if platform.machine() != "x86_64":
        return None
    try:
        page = mmap.mmap(
            -1,
            mmap.PAGESIZE,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
        )
    except OSError:
        return None
    page.write(CODE)
    return page
