"""A KVM that answers as no KVM here does: exits, errors and capabilities by script."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterable

from worldswitch.live import ioctl

SIZE = 3 * mmap.PAGESIZE


def supported(vendor: bytes = b"GenuineIntel", **leaf7: int) -> bytes:
    """struct kvm_cpuid2 with leaves 0, 7 and 0x80000001 (NX and LM)."""
    ebx, edx, ecx = struct.unpack("<3I", vendor)
    entries = [(0, 0, 0, 0xD, ebx, ecx, edx), (7, 0, 1, 0, leaf7.get("ebx", 0), leaf7.get("ecx", 0), 0)]
    entries.append((0x80000001, 0, 0, 0, 0, 0, 1 << 20 | 1 << 29))
    return struct.pack("<II", len(entries), 0) + b"".join(ioctl.CPUID_ENTRY.pack(*entry) for entry in entries)


class FakeDevice:
    """Each call of KVM_RUN takes the next of *runs*: minus errno, or an exit's name and the bytes of its union.

    Attributes:
        rip: What KVM_GET_REGS says.
        refuse: ioctl number -> errno it fails with.
        calls: Numbers of all ioctls, in order.
        unions: The union of kvm_run as each KVM_RUN found it.
    """

    def __init__(
        self,
        runs: Iterable[int | tuple[str, bytes]] = (),
        *,
        version: int = 12,
        rip: int = 0,
        refuse: dict[int, int] | None = None,
        capabilities: dict[int, int] | None = None,
        cpuid: bytes = b"",
        open_error: int = 0,
    ) -> None:
        self.runs = list(runs)
        self.version, self.rip, self.refuse = version, rip, refuse or {}
        self.capabilities = capabilities or {}
        self.cpuid = cpuid or supported()
        self.open_error = open_error
        self.calls: list[int] = []
        self.buffers: list[tuple[int, bytes]] = []
        self.shared: mmap.mmap | None = None
        self.opened: list[int] = []
        self.unions: list[bytes] = []

    def _fd(self) -> int:
        self.opened.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        return self.opened[-1]

    def open(self) -> int:
        if self.open_error:
            raise OSError(self.open_error, os.strerror(self.open_error))
        return self._fd()

    def close(self, fd: int) -> None:
        self.opened.remove(fd)
        os.close(fd)

    def map(self, fd: int, size: int) -> mmap.mmap:
        self.shared = mmap.mmap(-1, size)
        return self.shared

    def ioctl(self, fd: int, request: int, arg: int = 0) -> int:
        self.calls.append(request)
        if request in self.refuse:
            return -self.refuse[request]
        if request == ioctl.RUN:
            return self._run()
        if request in (ioctl.CREATE_VM, ioctl.CREATE_VCPU):
            return self._fd()
        if request == ioctl.GET_STATS_FD:
            return -errno.ENOTTY
        fixed = {ioctl.GET_API_VERSION: self.version, ioctl.GET_VCPU_MMAP_SIZE: SIZE, ioctl.GET_TSC_KHZ: 1_000_000}
        return self.capabilities.get(arg, 0) if request == ioctl.CHECK_EXTENSION else fixed.get(request, 0)

    def exchange(self, fd: int, request: int, data: bytearray) -> int:
        self.calls.append(request)
        self.buffers.append((request, bytes(data)))
        if request in self.refuse:
            raise OSError(self.refuse[request], os.strerror(self.refuse[request]))
        if request == ioctl.GET_SUPPORTED_CPUID:
            data[: len(self.cpuid)] = self.cpuid
        elif request == ioctl.GET_REGS:
            struct.pack_into("<Q", data, 128, self.rip)
        return 0

    def _run(self) -> int:
        if self.shared is not None:
            self.unions.append(self.shared[ioctl.UNION : ioctl.UNION + 96])
        step = self.runs.pop(0)
        if isinstance(step, int):
            return step
        name, union = step
        assert self.shared is not None
        self.shared[ioctl.EXIT_REASON : ioctl.EXIT_REASON + 4] = ioctl.EXIT_NUMBERS[name].to_bytes(4, "little")
        self.shared[ioctl.UNION : ioctl.UNION + len(union)] = union
        return 0
