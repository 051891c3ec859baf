"""/dev/kvm: the device, a VM and a vCPU as context managers over their file descriptors.

Calls that may wait in the kernel (KVM_CREATE_VM, KVM_RUN) go through the C library's ioctl: from Python 3.14 on
``fcntl.ioctl`` hides EINTR and tries again by itself, so a signal could not end a guest.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Protocol

from worldswitch.live import ioctl
from worldswitch.live.errors import DEVICE, NoCapabilityError, NoKvmError, cannot_create, cannot_open
from worldswitch.x86.features import CpuidEntry

_MAX_CPUID = 256
"""KVM_MAX_CPUID_ENTRIES (arch/x86/include/asm/kvm_host.h) since Linux 5.6's 256; 80 before."""

_C = ctypes.CDLL(None, use_errno=True)
_ioctl = _C.ioctl
_ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_long)
_ioctl.restype = ctypes.c_int


class KvmDevice(Protocol):
    """The calls to the kernel, so that tests can answer as a KVM nobody has here."""

    def open(self) -> int:
        """A file descriptor of /dev/kvm; OSError if there is none."""

    def ioctl(self, fd: int, request: int, arg: int = 0, /) -> int:
        """What the ioctl returns; minus errno where it fails."""

    def exchange(self, fd: int, request: int, data: bytearray, /) -> int:
        """The ioctl with *data* as its argument, which it may change; OSError where it fails."""

    def map(self, fd: int, size: int, /) -> mmap.mmap:
        """The first *size* bytes of *fd*, shared."""

    def close(self, fd: int, /) -> None:
        """Close it."""


class HostDevice:
    """The real one."""

    def open(self) -> int:
        return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)

    def ioctl(self, fd: int, request: int, arg: int = 0, /) -> int:
        result: int = _ioctl(fd, request, arg)
        return result if result >= 0 else -ctypes.get_errno()

    def exchange(self, fd: int, request: int, data: bytearray, /) -> int:
        while True:
            try:
                result: int = fcntl.ioctl(fd, request, data)
                return result
            except InterruptedError:
                continue

    def map(self, fd: int, size: int, /) -> mmap.mmap:
        return mmap.mmap(fd, size)

    def close(self, fd: int, /) -> None:
        os.close(fd)


class Created(NamedTuple):
    """A new file descriptor, and how often the call was interrupted (EINTR) and made again."""

    fd: int
    eintr: int


class _Open:
    """Something with a file descriptor to close; with a KVM that is still open."""

    def __init__(self, device: KvmDevice, fd: int) -> None:
        self.device = device
        self.fd = fd

    def close(self) -> None:
        """Close the file descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.device.close(fd)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self, request: int, arg: int, what: str) -> Created:
        call, eintr = self.device.ioctl, 0
        while (fd := call(self.fd, request, arg)) == -errno.EINTR:
            eintr += 1
        if fd < 0:
            raise cannot_create(-fd, what)
        return Created(fd, eintr)

    def check_extension(self, capability: int) -> int:
        """KVM_CHECK_EXTENSION: 0 if KVM lacks the capability, else 1 or more."""
        return max(0, self.device.ioctl(self.fd, ioctl.CHECK_EXTENSION, capability))

    def stats_fd(self) -> int | None:
        """A file descriptor of the binary statistics, to be closed by the caller; None before Linux 5.14."""
        fd = self.device.ioctl(self.fd, ioctl.GET_STATS_FD)
        return fd if fd >= 0 else None


class Kvm(_Open):
    """/dev/kvm, open.

    Raises:
        NoKvmError: It is not there, not ours to open, or speaks another API version.
    """

    def __init__(self, device: KvmDevice | None = None) -> None:
        device = device or HostDevice()
        try:
            super().__init__(device, device.open())
        except OSError as error:
            raise cannot_open(error.errno or 0) from None
        version = device.ioctl(self.fd, ioctl.GET_API_VERSION)
        if version != ioctl.API_VERSION:
            self.close()
            said = f"version {version}" if version >= 0 else os.strerror(-version)
            raise NoKvmError(f"{DEVICE} answers KVM_GET_API_VERSION with {said}, not {ioctl.API_VERSION}; it is no KVM")

    def __enter__(self) -> Kvm:
        return self

    def create_vm_fd(self, kind: int = 0) -> Created:
        """KVM_CREATE_VM and nothing else; the caller closes the file descriptor.

        Raises:
            NoKvmError: KVM cannot; the message says why.
        """
        return self._create(ioctl.CREATE_VM, kind, "a VM")

    def create_vm(self, kind: int = 0) -> Vm:
        """A new VM without memory and vCPUs. Raises NoKvmError as :meth:`create_vm_fd`."""
        return Vm(self, *self.create_vm_fd(kind))

    def mmap_size(self) -> int:
        """KVM_GET_VCPU_MMAP_SIZE: bytes of a vCPU's shared area."""
        size = self.device.ioctl(self.fd, ioctl.GET_VCPU_MMAP_SIZE)
        if size < mmap.PAGESIZE:
            raise NoKvmError(f"KVM_GET_VCPU_MMAP_SIZE answers {size}, less than a page")
        return size

    def supported_cpuid(self) -> tuple[CpuidEntry, ...]:
        """KVM_GET_SUPPORTED_CPUID: what this processor and this KVM can offer a guest."""
        for room in (_MAX_CPUID, 4 * _MAX_CPUID, 80):
            data = bytearray(ioctl.CPUID_HEAD.size + room * ioctl.CPUID_ENTRY.size)
            ioctl.CPUID_HEAD.pack_into(data, 0, room, 0)
            try:
                self.device.exchange(self.fd, ioctl.GET_SUPPORTED_CPUID, data)
            except OSError as error:
                refused = error
                continue
            count = ioctl.CPUID_HEAD.unpack_from(data)[0]
            end = ioctl.CPUID_HEAD.size + count * ioctl.CPUID_ENTRY.size
            return tuple(map(CpuidEntry._make, ioctl.CPUID_ENTRY.iter_unpack(data[ioctl.CPUID_HEAD.size : end])))
        raise NoCapabilityError(
            f"KVM_GET_SUPPORTED_CPUID fails: {refused.strerror}; this KVM cannot describe a guest's CPU"
        )


class Vm(_Open):
    """A VM.

    Attributes:
        kvm: Where it was made.
        eintr: How often KVM_CREATE_VM was interrupted and made again.
        name: ``<thread>-<fd>``, as debugfs names its folder (kvm_create_vm_debugfs, virt/kvm/kvm_main.c).
    """

    def __init__(self, kvm: Kvm, fd: int, eintr: int = 0) -> None:
        super().__init__(kvm.device, fd)
        self.kvm = kvm
        self.eintr = eintr
        self.name = f"{threading.get_native_id()}-{fd}"

    def __enter__(self) -> Vm:
        return self

    def set_memory(self, slot: int, gpa: int, size: int, address: int, flags: int = 0) -> None:
        """KVM_SET_USER_MEMORY_REGION: guest-physical *gpa* is the process's memory at *address*.

        Raises:
            OSError: KVM refuses: a slot that overlaps another, or is not made of whole pages.
        """
        self.device.exchange(
            self.fd, ioctl.SET_USER_MEMORY_REGION, bytearray(ioctl.REGION.pack(slot, flags, gpa, size, address))
        )

    def enable_cap(self, capability: int, *args: int, flags: int = 0) -> None:
        """KVM_ENABLE_CAP. Raises OSError where KVM refuses."""
        values = (*args, 0, 0, 0, 0)[:4]
        self.device.exchange(self.fd, ioctl.ENABLE_CAP, bytearray(ioctl.ENABLE.pack(capability, flags, *values)))

    def reserve_for_real_mode(self, identity_map: int = 0xFFFBC000, tss: int = 0xFFFBD000) -> None:
        """Give KVM the four pages it needs on Intel processors without unrestricted guest (api.rst, 4.20 and 4.21)."""
        if self.check_extension(ioctl.CAPABILITIES["SET_IDENTITY_MAP_ADDR"]):
            self.device.exchange(self.fd, ioctl.SET_IDENTITY_MAP_ADDR, bytearray(identity_map.to_bytes(8, "little")))
        if self.check_extension(ioctl.CAPABILITIES["SET_TSS_ADDR"]):
            self.device.ioctl(self.fd, ioctl.SET_TSS_ADDR, tss)

    def create_vcpu(self, number: int = 0) -> Vcpu:
        """KVM_CREATE_VCPU.

        Raises:
            NoKvmError: KVM cannot; the message says why.
        """
        fd = self._create(ioctl.CREATE_VCPU, number, f"vCPU {number}").fd
        try:
            shared = self.device.map(fd, self.kvm.mmap_size())
        except BaseException:
            self.device.close(fd)
            raise
        return Vcpu(self.device, fd, number, shared)


class Vcpu(_Open):
    """A vCPU.

    Attributes:
        number: Its id.
        run: struct kvm_run, shared with KVM; offsets and layouts in :mod:`worldswitch.live.ioctl`.
    """

    def __init__(self, device: KvmDevice, fd: int, number: int, run: mmap.mmap) -> None:
        super().__init__(device, fd)
        self.number = number
        self.run = run

    def __enter__(self) -> Vcpu:
        return self

    def close(self) -> None:
        self.run.close()
        super().close()

    def set_cpuid(self, entries: Iterable[CpuidEntry]) -> None:
        """KVM_SET_CPUID2. Raises OSError where KVM refuses."""
        packed = b"".join(ioctl.CPUID_ENTRY.pack(*entry) for entry in entries)
        head = ioctl.CPUID_HEAD.pack(len(packed) // ioctl.CPUID_ENTRY.size, 0)
        self.device.exchange(self.fd, ioctl.SET_CPUID2, bytearray(head + packed))

    def registers(self) -> dict[str, int]:
        """KVM_GET_REGS, by the names of :data:`worldswitch.live.ioctl.REGISTERS`."""
        data = bytearray(ioctl.REGS.size)
        self.device.exchange(self.fd, ioctl.GET_REGS, data)
        return dict(zip(ioctl.REGISTERS, ioctl.REGS.unpack(data)))  # noqa: B905 (Python 3.9)

    def set_registers(self, values: dict[str, int]) -> None:
        """KVM_SET_REGS: all others become 0, and RFLAGS 2."""
        wanted = {"rflags": 2, **values}
        self.device.exchange(
            self.fd, ioctl.SET_REGS, bytearray(ioctl.REGS.pack(*(wanted.get(name, 0) for name in ioctl.REGISTERS)))
        )

    def special_registers(self) -> bytearray:
        """KVM_GET_SREGS: struct kvm_sregs."""
        data = bytearray(ioctl.SREGS_SIZE)
        self.device.exchange(self.fd, ioctl.GET_SREGS, data)
        return data

    def set_special_registers(self, data: bytearray) -> None:
        """KVM_SET_SREGS. Raises OSError where KVM refuses the state."""
        self.device.exchange(self.fd, ioctl.SET_SREGS, data)

    def tsc_khz(self) -> int | None:
        """KVM_GET_TSC_KHZ: the guest's TSC frequency; None where KVM does not know it."""
        khz = self.device.ioctl(self.fd, ioctl.GET_TSC_KHZ)
        return khz if khz > 0 else None

    def translate(self, linear: int) -> int | None:
        """KVM_TRANSLATE: the guest-physical address of a linear one, None if nothing is mapped there."""
        data = bytearray(ioctl.TRANSLATION.size)
        ioctl.TRANSLATION.pack_into(data, 0, linear, 0, 0, 0, 0)
        self.device.exchange(self.fd, ioctl.TRANSLATE, data)
        _, physical, valid, _, _ = ioctl.TRANSLATION.unpack(data)
        return physical if valid else None

    def enter(self) -> int:
        """KVM_RUN: 0 after an exit to userspace (its reason is in :attr:`run`), minus errno where it failed."""
        return self.device.ioctl(self.fd, ioctl.RUN)
