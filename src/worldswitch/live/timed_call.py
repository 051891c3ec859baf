"""System calls that many workers make at the same moment, each timed by itself.

Workers are forked processes, or threads of one, that leave the interpreter for good: a few machine instructions go
round a list of system calls. At each gated one they wait until a moment that is the same for all, and read the clock
before and after, with nothing else in between. So neither the interpreter nor its lock is in what is measured; nor are
the mappings of its files, which a worker gives up first, because what KVM_CREATE_VM takes grows with the mappings of
the process: for the MMU notifier it locks each of them (mm_take_all_locks, mm/mmap.c). Who opens the gate sleeps when
the moment comes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from worldswitch.errors import MissingError

IOCTL, CLOSE, POLL, GETPID, SCHED_SETAFFINITY, GETTID, _FUTEX = 16, 3, 7, 39, 203, 186, 202
"""System call numbers: arch/x86/entry/syscalls/syscall_64.tbl."""
_FUTEX_WAKE, _EVERYONE = 1, 0x7FFFFFFF
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10

CODE = bytes.fromhex(
    "4989fc"  # mov r12, rdi
    "498b5c2410"  # mov rbx, [r12+16]
    "488b3b"  # unmap: mov rdi, [rbx]
    "4885ff"  # test rdi, rdi
    "7411"  # je threads
    "488b7308"  # mov rsi, [rbx+8]
    "b80b000000"  # mov eax, 11                           munmap
    "0f05"  # syscall
    "4883c310"  # add rbx, 16
    "ebe7"  # jmp unmap
    "498b5c2418"  # threads: mov rbx, [r12+24]            who runs as a thread beside it
    "4885db"  # test rbx, rbx
    "7427"  # je start
    "bf000f0500"  # mov edi, 331520                       CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM
    "4889e6"  # mov rsi, rsp                              nobody uses a stack
    "31d2"  # xor edx, edx
    "4531d2"  # xor r10d, r10d
    "4531c0"  # xor r8d, r8d
    "b838000000"  # mov eax, 56                           clone
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "0f88f3000000"  # js failed
    "7505"  # jne start
    "4989dc"  # mov r12, rbx
    "ebcf"  # jmp threads
    "498b5c2408"  # start: mov rbx, [r12+8]
    "4531ed"  # xor r13d, r13d
    "48833b00"  # step: cmp qword [rbx], 0                gated?
    "7456"  # je call
    "418d4501"  # lea eax, [r13+1]
    "898390000000"  # mov [rbx+144], eax                  ready
    "498b3c24"  # wait: mov rdi, [r12]
    "44392f"  # cmp [rdi], r13d                           has the gate moved on?
    "7511"  # jne opened
    "31f6"  # xor esi, esi
    "4489ea"  # mov edx, r13d
    "4531d2"  # xor r10d, r10d
    "b8ca000000"  # mov eax, 202                          futex: FUTEX_WAIT
    "0f05"  # syscall
    "ebe6"  # jmp wait
    "48c7434800000000"  # opened: mov qword [rbx+72], 0
    "bf01000000"  # go: mov edi, 1
    "488d7350"  # lea rsi, [rbx+80]
    "b8e4000000"  # mov eax, 228                          clock_gettime
    "0f05"  # syscall
    "4869435000ca9a3b"  # imul rax, [rbx+80], 1000000000
    "48034358"  # add rax, [rbx+88]
    "498b3c24"  # mov rdi, [r12]
    "483b4708"  # cmp rax, [rdi+8]                        is it time?
    "7304"  # jae call
    "f390"  # pause
    "ebd6"  # jmp go
    "488b4308"  # call: mov rax, [rbx+8]
    "488b7b10"  # mov rdi, [rbx+16]
    "488b7318"  # mov rsi, [rbx+24]
    "488b5320"  # mov rdx, [rbx+32]
    "4c8b5328"  # mov r10, [rbx+40]
    "4c8b4330"  # mov r8, [rbx+48]
    "4c8b4b38"  # mov r9, [rbx+56]
    "0f05"  # syscall
    "4883f8fc"  # cmp rax, -4                             EINTR
    "7506"  # jne called
    "48ff4348"  # inc qword [rbx+72]
    "ebd6"  # jmp call
    "48894340"  # called: mov [rbx+64], rax
    "bf01000000"  # mov edi, 1
    "488d7360"  # lea rsi, [rbx+96]
    "b8e4000000"  # mov eax, 228                          clock_gettime
    "0f05"  # syscall
    "488b4340"  # mov rax, [rbx+64]
    "483d00f0ffff"  # cmp rax, -4096
    "773e"  # ja failed
    "488b5370"  # mov rdx, [rbx+112]
    "488902"  # mov [rdx], rax
    "488b5378"  # mov rdx, [rbx+120]
    "488902"  # mov [rdx], rax
    "488b9380000000"  # mov rdx, [rbx+128]
    "488902"  # mov [rdx], rax
    "488b9388000000"  # mov rdx, [rbx+136]
    "488902"  # mov [rdx], rax
    "48833b00"  # cmp qword [rbx], 0                      gated?
    "740a"  # je next
    "41ffc5"  # inc r13d
    "4489ab94000000"  # mov [rbx+148], r13d               done
    "488b9b98000000"  # next: mov rbx, [rbx+152]
    "e91cffffff"  # jmp step
    "49895c2428"  # failed: mov [r12+40], rbx
    "4989442420"  # mov [r12+32], rax
    "b822000000"  # halt: mov eax, 34                     pause
    "0f05"  # syscall
    "ebf7"  # jmp halt
)
"""void work(struct worker *), System V x86-64; does not return. Processors keep the order of stores: who sees done sees
the answer, who sees the error sees the step."""

# The gate is a 32-bit word, how often it was opened, and after 8 bytes the moment to go, CLOCK_MONOTONIC.
_WORKER = struct.Struct("<4QqQ16x")
"""struct worker: gate, first step, list of mappings to give up, next worker (a thread of the same process); the error
and the step it was in."""
_STEP = struct.Struct("<8Q8x8x16x16x4Q2IQ")
"""struct step: whether it is gated; number and arguments of the call; then its answer; where the result goes; how often
the gate had opened when the worker got ready for it, and was done; the next step."""
_ANSWER = struct.Struct("<qQ4Q")
"""The answer: result, interruptions, seconds and nanoseconds before and after."""
_ARGUMENTS_AT, _ANSWER_AT, _READY_AT, _DONE_AT, _ERROR_AT, _SCRATCH_AT = 16, 64, 144, 148, 32, 48
_GATE_SIZE = 64
_WORD_MASK = 0xFFFFFFFF
_LEAD_NS = 300_000
"""From the opening to the moment: sleepers wake one after another, over tens of microseconds, and some CPUs slowly."""

_C = ctypes.CDLL(None, use_errno=True)
_syscall = _C.syscall
_syscall.restype = ctypes.c_long
_mmap = _C.mmap
_mmap.restype = ctypes.c_size_t
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_MAP_FAILED = (1 << 64) - 1
_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class At(NamedTuple):
    """An address: *offset* bytes into the worker's own data."""

    offset: int


class Call(NamedTuple):
    """A system call of a list.

    Attributes:
        gated: It waits for the gate and is timed; others are made as soon as they are reached.
        gives: What gets its result: (place of a call in the list, which argument of it), four at most.
    """

    number: int
    args: tuple[int | At, ...] = ()
    gated: bool = False
    gives: tuple[tuple[int, int], ...] = ()


class Timed(NamedTuple):
    """A call that was made.

    Attributes:
        result: What the kernel returned.
        eintr: How often it was interrupted (EINTR) and made again, while the clock ran on.
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


class Failed(NamedTuple):
    """A call that failed, which its worker stopped at: its place in the list (None: no thread could be made), errno."""

    place: int | None
    number: int


class Crew:
    """*workers* that go round the list *calls* until they are killed, and the gate they wait at.

    Args:
        data_size: Bytes each worker has for what its calls point to; they start at a page.
        once: Calls made before the first round; none of them is gated.

    Raises:
        MissingError: This system lets no process run code of its own making.

    Attributes:
        opened: How often the gate was.
    """

    def __init__(self, workers: int, calls: Sequence[Call], data_size: int = 0, once: Sequence[Call] = ()) -> None:
        self.workers = workers
        self.opened = 0
        self._data_size = -(-data_size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._worker_size = _WORKER.size + _STEP.size * (len(once) + len(calls))
        self._calls_at = _WORKER.size + _STEP.size * len(once)
        self._heads_at = self._data_size * workers + _GATE_SIZE
        self._memory = mmap.mmap(-1, self._heads_at + self._worker_size * workers)
        self._base = _address(self._memory)
        for worker in range(workers):
            self._write_worker(worker, once, calls)
        self._code = _executable()

    def close(self) -> None:
        """Give the memory back. Nobody may be at work any more."""
        self._memory.close()
        _C.munmap(ctypes.c_void_p(self._code), ctypes.c_size_t(mmap.PAGESIZE))

    def address(self, worker: int, offset: int = 0) -> int:
        """Where the data of a worker lie."""
        return self._base + self._data_size * worker + offset

    def write(self, worker: int, offset: int, data: bytes) -> None:
        """Put something into the data of a worker."""
        at = self._data_size * worker + offset
        self._memory[at : at + len(data)] = data

    def enter(self, worker: int, threads: int = 1) -> None:
        """Become this worker, and with *threads* those after it too; in a process forked for that. Does not return."""
        for number in range(worker, worker + threads - 1):
            struct.pack_into("<Q", self._memory, self._head(number) + 24, self._base + self._head(number + 1))
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 (as little as can be)
            ranges = list(_files_mapped(maps.read(), (self._base, self._code)))
        unwanted = ctypes.create_string_buffer(b"".join(struct.pack("<2Q", *one) for one in ranges) + bytes(16))
        struct.pack_into("<Q", self._memory, self._head(worker) + 16, ctypes.addressof(unwanted))
        _WORK(self._code)(self._base + self._head(worker))

    def open(self) -> None:
        """Let everybody who waits make the call, at one moment shortly after this."""
        self.opened += 1
        moment = time.monotonic_ns() + _LEAD_NS
        gate = self._data_size * self.workers
        struct.pack_into("<Q", self._memory, gate + 8, moment)
        struct.pack_into("<I", self._memory, gate, self.opened & _WORD_MASK)
        # Not private: the waiters are other processes.
        _syscall(_FUTEX, ctypes.c_void_p(self._base + gate), _FUTEX_WAKE, _EVERYONE, None, None, 0)

    def ready(self, place: int) -> bool:
        """Whether every worker has come to this call, a gated one, and waits for the gate to open once more."""
        return self._all(place, _READY_AT, self.opened + 1)

    def done(self, place: int) -> bool:
        """Whether every worker has made this call since the gate opened last."""
        return self._all(place, _DONE_AT, self.opened)

    def failed(self) -> Failed | None:
        """The first worker's failure, if one has failed."""
        for worker in range(self.workers):
            number, step = struct.unpack_from("<qQ", self._memory, self._head(worker) + _ERROR_AT)
            if number:
                place, rest = divmod(step - self._base - self._head(worker) - self._calls_at, _STEP.size)
                inside = not rest and 0 <= place < (self._worker_size - self._calls_at) // _STEP.size
                return Failed(place if inside else None, -number)
        return None

    def timed(self, worker: int, place: int) -> Timed:
        """What a worker's last call at this place of the list gave."""
        result, eintr, s0, n0, s1, n1 = _ANSWER.unpack_from(self._memory, self._step(worker, place) + _ANSWER_AT)
        return Timed(result, eintr, s0 * 10**9 + n0, s1 * 10**9 + n1)

    def _write_worker(self, worker: int, once: Sequence[Call], calls: Sequence[Call]) -> None:
        head = self._head(worker)
        first = head + _WORKER.size
        gate = self._base + self._data_size * self.workers
        _WORKER.pack_into(self._memory, head, gate, self._base + first, 0, 0, 0, 0)
        every = (*once, *calls)
        for place, call in enumerate(every):
            args = [self.address(worker, one.offset) if isinstance(one, At) else one for one in call.args]
            gives = [
                self._base + self._step(worker, other) + _ARGUMENTS_AT + 8 * argument for other, argument in call.gives
            ]
            last = place == len(every) - 1
            following = self._step(worker, 0) if last else first + _STEP.size * (place + 1)
            _STEP.pack_into(
                self._memory,
                first + _STEP.size * place,
                call.gated,
                call.number,
                *(args + [0] * 6)[:6],
                *(gives + [self._base + head + _SCRATCH_AT] * 4)[:4],
                0,
                0,
                self._base + following,
            )

    def _head(self, worker: int) -> int:
        return self._heads_at + self._worker_size * worker

    def _step(self, worker: int, place: int) -> int:
        return self._head(worker) + self._calls_at + _STEP.size * place

    def _all(self, place: int, at: int, count: int) -> bool:
        wanted = struct.pack("<I", count & _WORD_MASK)
        places = (self._step(worker, place) + at for worker in range(self.workers))
        return all(self._memory[place : place + 4] == wanted for place in places)


_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .{4} [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ ([0-9]+)", re.MULTILINE)


def _files_mapped(maps: str, keep: Sequence[int]) -> list[tuple[int, int]]:
    """Address and length of the mappings of files in /proc/PID/maps, but those that hold an address to *keep*.

    The others stay: the stack, the vDSO, and what the C library told the kernel of (its rseq area, for one).
    """
    found = []
    for low, high, inode in _MAPPING.findall(maps):
        begin, end = int(low, 16), int(high, 16)
        if int(inode) and not any(begin <= address < end for address in keep):
            found.append((begin, end - begin))
    return found


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _executable() -> int:
    """Where the code is, in a page that may be executed."""
    if platform.machine() != "x86_64":
        raise MissingError(f"calls are timed by x86-64 code, and this is {platform.machine()}")
    for attempt in (_of_file, _anonymous):
        try:
            return attempt()
        except OSError as error:
            refused = error
    raise MissingError(
        f"this system lets no process run code of its own making ({os.strerror(refused.errno or 0)}), which timing "
        "calls needs; allow it for a while: sysctl vm.memfd_noexec=0, or SELinux's execmem"
    )


def _of_file() -> int:
    """A file in memory, written, then mapped: for systems where no page may be both (PaX MPROTECT)."""
    try:
        handle = os.memfd_create("wsw-timed-call", _MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Linux before 6.3 knows no MFD_EXEC
            raise
        handle = os.memfd_create("wsw-timed-call", _MFD_CLOEXEC)
    try:
        os.write(handle, CODE)
        return _map(mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, handle)
    finally:
        os.close(handle)


def _anonymous() -> int:
    place = _map(mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    ctypes.memmove(place, CODE, len(CODE))
    return place


def _map(protection: int, flags: int, handle: int) -> int:
    # Python's mmap does not tell the address of what it may not write.
    place: int = _mmap(None, mmap.PAGESIZE, protection, flags, handle, 0)
    if place == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return place
