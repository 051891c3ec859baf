"""A guest's memory: anonymous memory of this process, given to a VM as slots."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from worldswitch.errors import MissingError, UsageError
from worldswitch.guest.image import Image, Region
from worldswitch.live.device import Vm

HUGE = 2 << 20
_NORESERVE = 0x4000
_POPULATE_WRITE = 23
"""MAP_NORESERVE and MADV_POPULATE_WRITE (Linux 5.14): include/uapi/asm-generic/mman-common.h."""
_VMMCALL = b"\x0f\x01\xd9"


class _Piece(NamedTuple):
    gpa: int
    size: int
    backing: mmap.mmap
    offset: int
    address: int


class GuestMemory:
    """The memory of one VM; freed by :meth:`close`, which must come after the VM's own.

    Memory of a huge region is aligned as the guest sees it and the kernel is asked for huge pages; that of the others
    never gets them, whatever the host's setting, so that counts do not depend on it.

    Args:
        regions: As in an image.
        prefault: Let the kernel back all of it now instead of at the guest's first touch.

    Raises:
        MissingError: The host has too little memory.
    """

    def __init__(self, regions: Iterable[Region], *, prefault: bool = False) -> None:
        self._pieces: list[_Piece] = []
        try:
            for region in regions:
                self._pieces.append(_provide(region, prefault))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GuestMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free it all."""
        while self._pieces:
            self._pieces.pop().backing.close()

    def give(self, vm: Vm) -> None:
        """Make each region a memory slot of *vm*.

        Raises:
            MissingError: KVM refuses one.
        """
        for slot, piece in enumerate(self._pieces):
            try:
                vm.set_memory(slot, piece.gpa, piece.size, piece.address)
            except OSError as error:
                raise MissingError(
                    f"KVM refuses guest memory at {piece.gpa:#x} ({piece.size:#x} bytes) as slot {slot}: "
                    f"{error.strerror}"
                ) from None

    def load(self, image: Image, *, amd: bool) -> None:
        """Put the image's segments in place, with its VMCALLs made VMMCALLs where *amd*.

        Raises:
            UsageError: A segment lies outside the memory.
        """
        for segment in image.segments:
            self.write(segment.gpa, segment.data)
        for gpa in image.vmcalls if amd else ():
            self.write(gpa, _VMMCALL)

    def read(self, gpa: int, size: int) -> bytes:
        """*size* bytes at *gpa*. Raises UsageError outside the memory."""
        backing, at = self._find(gpa, size)
        return backing[at : at + size]

    def write(self, gpa: int, data: bytes) -> None:
        """Put *data* at *gpa*. Raises UsageError outside the memory."""
        backing, at = self._find(gpa, len(data))
        backing[at : at + len(data)] = data

    def _find(self, gpa: int, size: int) -> tuple[mmap.mmap, int]:
        for piece in self._pieces:
            if piece.gpa <= gpa and gpa + size <= piece.gpa + piece.size:
                return piece.backing, piece.offset + gpa - piece.gpa
        have = ", ".join(f"{p.gpa:#x}-{p.gpa + p.size - 1:#x}" for p in self._pieces) or "none"
        raise UsageError(f"{size} bytes at {gpa:#x} lie outside the guest's memory ({have})")


def _provide(region: Region, prefault: bool) -> _Piece:
    room = region.size + (HUGE if region.huge else 0)
    try:
        backing = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise MissingError(f"the host has no {region.size >> 20} MiB for the guest's memory: {error}") from None
    # The object that holds the mapping open for ctypes is gone at the end of the line, so close() works.
    start = ctypes.addressof(ctypes.c_char.from_buffer(backing))
    offset = (region.gpa - start) % HUGE if region.huge else 0
    advice = mmap.MADV_HUGEPAGE if region.huge else mmap.MADV_NOHUGEPAGE
    # EINVAL from a kernel without huge pages.
    with contextlib.suppress(OSError):
        backing.madvise(advice, offset, region.size)
    if prefault:
        _touch(backing, offset, region.size)
    return _Piece(region.gpa, region.size, backing, offset, start + offset)


def _touch(backing: mmap.mmap, offset: int, size: int) -> None:
    try:
        backing.madvise(_POPULATE_WRITE, offset, size)
    except OSError:
        for at in range(offset, offset + size, mmap.PAGESIZE):
            backing[at] = 0


def copies(memory: GuestMemory, ranges: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """Address -> its bytes, for each (address, size)."""
    return {gpa: memory.read(gpa, size) for gpa, size in ranges}
