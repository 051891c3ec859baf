"""KVM's binary statistics of other processes' vCPUs: through the files that a VMM keeps open.

KVM_GET_STATS_FD answers only the process a VM belongs to (kvm_vm_ioctl compares its mm). But a VMM may keep such files
open, as QEMU does for each vCPU since 8.1 (accel/kvm/kvm-all.c, kvm_vcpu_stats_fd), and pidfd_getfd(2) duplicates them
for whom may trace the process. They are the only source that has each vCPU by itself. They keep their VM from being
freed, so each is closed as soon as the process has closed its own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from worldswitch.errors import MissingError
from worldswitch.live.permissions import ROOT
from worldswitch.live.statsfd import StatisticsFile

_PIDFD_GETFD = 438
"""arch/x86/entry/syscalls/syscall_64.tbl."""
_VM, _VCPU, _OWNER = "anon_inode:kvm-vm-stats", "anon_inode:kvm-vcpu-stats", "anon_inode:kvm-vm"
_C = ctypes.CDLL(None, use_errno=True)
_C.syscall.restype = ctypes.c_long


class Held(NamedTuple):
    """What a process's open statistics say: of its VM, and of each vCPU."""

    vm: Mapping[str, int]
    vcpus: Mapping[int, Mapping[str, int]]


class _Copy:
    """A duplicate of a file of another process, as long as that has it."""

    def __init__(self, pid: int, fd: int, pidfd: int, target: str) -> None:
        self.link = f"/proc/{pid}/fd/{fd}"
        self.target = target
        self.fd = _C.syscall(_PIDFD_GETFD, pidfd, fd, 0)
        if self.fd < 0:
            raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            self.file = StatisticsFile(self.fd)
        except MissingError:
            os.close(self.fd)
            raise

    @property
    def vcpu(self) -> int | None:
        """Whose it is; None for the VM's."""
        number = self.target.removeprefix(_VCPU).strip(":")
        return int(number) if number.isdecimal() else None

    def still_there(self) -> bool:
        with suppress(OSError):
            return os.readlink(self.link) == self.target  # noqa: PTH115 (hot)
        return False

    def close(self) -> None:
        os.close(self.fd)


class HeldStatistics:
    """The statistics files that some processes hold open, duplicated once."""

    def __init__(self, root: Path = ROOT) -> None:
        self._live = root == ROOT
        self._copies: dict[int, list[_Copy]] = {}
        self.refused: set[int] = set()
        """Processes that hold such files, which this user may not duplicate."""
        self.several: set[int] = set()
        """Processes that hold such files and have several VMs."""

    def look(self, pid: int) -> None:
        """Find the files a process holds; nothing where it has several VMs, for its files do not say of which."""
        self.forget(pid)
        if not self._live:
            return
        targets = _links(pid)
        ours = [(fd, target) for fd, target in targets.items() if target.startswith((_VM, _VCPU))]
        if not ours:
            return
        if sum(target == _OWNER for target in targets.values()) > 1:
            self.several.add(pid)
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return
        copies: list[_Copy] = []
        try:
            for fd, target in ours:
                with suppress(MissingError):
                    copies.append(_Copy(pid, fd, pidfd, target))
        except OSError:
            self.refused.add(pid)
        finally:
            os.close(pidfd)
        if copies:
            self._copies[pid] = copies

    def read(self, pid: int, wanted: frozenset[str] | None = None) -> Held | None:
        """What a process's files say now, or only the statistics *wanted*; None where it holds none, or no longer."""
        copies = self._copies.get(pid)
        if copies is None:
            return None
        vm: Mapping[str, int] = {}
        vcpus = {}
        for copy in copies:
            with suppress(OSError):
                values = copy.file.read(wanted)
                if copy.vcpu is None:
                    vm = values
                else:
                    vcpus[copy.vcpu] = values
        return Held(vm, vcpus)

    def sweep(self) -> None:
        """Close what its process has closed; a VM that has ended is freed by it."""
        for pid in [pid for pid, copies in self._copies.items() if not all(copy.still_there() for copy in copies)]:
            self.forget(pid)

    def forget(self, pid: int) -> None:
        """Close what was of this process."""
        self.refused.discard(pid)
        self.several.discard(pid)
        for copy in self._copies.pop(pid, ()):
            copy.close()

    def keep_only(self, pids: set[int]) -> None:
        """Close what is of any other process."""
        for pid in set(self._copies) - pids:
            self.forget(pid)
        self.refused &= pids
        self.several &= pids

    def close(self) -> None:
        """Close everything."""
        self.keep_only(set())


def _links(pid: int) -> dict[int, str]:
    """Open file -> what it is, as far as this user may see."""
    found = {}
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 (hot)
            with suppress(OSError):
                found[int(name)] = os.readlink(f"{folder}/{name}")  # noqa: PTH115
    return found
