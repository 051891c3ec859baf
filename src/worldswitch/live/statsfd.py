"""KVM's statistics of a VM: through KVM_GET_STATS_FD, or from debugfs where a kernel (5.10) lacks it.

Sources: Documentation/virt/kvm/api.rst, section 4.133 (KVM_GET_STATS_FD); include/uapi/linux/kvm.h,
struct kvm_stats_header and kvm_stats_desc; virt/kvm/kvm_main.c, kvm_create_vm_debugfs.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from worldswitch.errors import MissingError
from worldswitch.live.device import Vcpu, Vm
from worldswitch.live.permissions import ROOT, read

_HEADER = struct.Struct("<6I")
_DESCRIPTOR = struct.Struct("<IhHII")
_CUMULATIVE, _INSTANT = 0, 1
_BOOLEAN = 4
_MOST_BYTES = 1 << 20

DEBUGFS = "sys/kernel/debug/kvm"
RENAMED = {
    "irq_window": "irq_window_exits",
    "nmi_window": "nmi_window_exits",
    "request_irq": "request_irq_exits",
    "largepages": "pages_2m",
    "nx_largepages_splitted": "nx_lpage_splits",
}
"""What Linux before 5.13 calls some statistics in debugfs -> the later name. ``largepages`` counts 1 GiB pages too,
which memory like that of our own guests never is."""
INSTANTS = frozenset(
    (
        "mmu_unsync", "mmu_shadow_pages", "pages_4k", "pages_2m", "pages_1g", "nx_lpage_splits", "max_mmu_rmap_size",
        "max_mmu_page_hash_collisions", "guest_mode", "blocking",
    )
)  # fmt: skip
"""Statistics that are a state, not a count, by name: debugfs does not say which they are."""
_FLAGS = frozenset(("guest_mode", "blocking"))


class Statistic(NamedTuple):
    """One statistic of a statistics file.

    Attributes:
        offset: In the file.
        words: How many 64-bit words; more than one is a histogram.
        cumulative: It only grows; else it is a state (or a peak) that can be read at any time.
        boolean: It is 0 or 1.
    """

    name: str
    offset: int
    words: int
    cumulative: bool
    boolean: bool


def layout(fd: int) -> tuple[Statistic, ...]:
    """The statistics in a statistics file.

    Raises:
        MissingError: The file is not of the form api.rst describes.
    """
    try:
        _flags, name_size, count, _id, descriptors, data = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        size = _DESCRIPTOR.size + name_size
        if count * size > _MOST_BYTES:
            raise ValueError(f"it describes {count} statistics")
        table = os.pread(fd, count * size, descriptors)
        found = []
        for at in range(0, count * size, size):
            flags, _exponent, words, offset, _bucket = _DESCRIPTOR.unpack_from(table, at)
            name = table[at + _DESCRIPTOR.size : at + size].split(b"\0")[0].decode("ascii")
            found.append(Statistic(name, data + offset, words, flags & 15 == _CUMULATIVE, flags >> 4 & 15 == _BOOLEAN))
    except (OSError, struct.error, ValueError) as error:
        raise MissingError(f"the statistics of this KVM cannot be read: {error}") from None
    return tuple(found)


class StatisticsFile:
    """An open statistics file; reads its plain values at once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.plain = [one for one in layout(fd) if one.words == 1 and not one.boolean]
        self.start = min((one.offset for one in self.plain), default=0)
        self.size = max((one.offset for one in self.plain), default=0) + 8 - self.start
        self._wanted: frozenset[str] | None = frozenset()
        self._places: list[tuple[str, int, int]] = []

    def read(self, wanted: frozenset[str] | None = None) -> dict[str, int]:
        """All of them now, or those *wanted*."""
        if wanted is not self._wanted:
            self._wanted = wanted
            self._places = [
                (one.name, one.offset - self.start, one.offset - self.start + 8)
                for one in self.plain
                if wanted is None or one.name in wanted
            ]
        data = os.pread(self.fd, self.size, self.start)
        number = int.from_bytes
        return {name: number(data[begin:end], "little") for name, begin, end in self._places}


class Statistics(Protocol):
    """The statistics of one VM, its vCPUs' summed."""

    source: str
    """``"KVM_GET_STATS_FD"`` or ``"debugfs"``."""
    instants: frozenset[str]
    """Which of them are states, not counts."""

    def read(self) -> dict[str, int]:
        """All of them now; histograms and flags are left out."""

    def close(self) -> None:
        """Close the files."""


class _Binary:
    source = "KVM_GET_STATS_FD"

    def __init__(self, fds: Sequence[int]) -> None:
        self._files: list[StatisticsFile] = []
        self._fds = fds
        try:
            self._files = [StatisticsFile(fd) for fd in fds]
        except BaseException:
            self.close()
            raise
        self.instants = frozenset(one.name for file in self._files for one in file.plain if not one.cumulative)

    def read(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for file in self._files:
            for name, value in file.read().items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = ()


class _Debugfs:
    source = "debugfs"
    instants = INSTANTS

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> dict[str, int]:
        return {name: value for name, value in of_folder(self.folder).items() if name not in _FLAGS}

    def close(self) -> None:
        pass


def of_folder(folder: Path) -> dict[str, int]:
    """The statistics in a folder of debugfs, by their names in newer kernels; what is no single number is left out."""
    found = {}
    for path in folder.iterdir():
        text = read(path) if path.is_file() else None
        if text is not None and text.lstrip("-").isdecimal():
            found[RENAMED.get(path.name, path.name)] = int(text)
    return found


class open_statistics:
    """The statistics of *vm* and its *vcpus*, open as long as the ``with`` lasts; None where there are none.

    There are none before Linux 5.14 unless debugfs is mounted and readable, which takes root.
    """

    def __init__(self, vm: Vm, vcpus: Sequence[Vcpu] = (), root: Path = ROOT) -> None:
        self._vm, self._vcpus, self._root = vm, vcpus, root
        self._found: Statistics | None = None

    def __enter__(self) -> Statistics | None:
        fds: list[int] = []
        for owner in (self._vm, *self._vcpus):
            fd = owner.stats_fd()
            if fd is None:
                break
            fds.append(fd)
        else:
            self._found = _Binary(fds)
            return self._found
        for fd in fds:
            os.close(fd)
        folder = self._root / DEBUGFS / self._vm.name
        with contextlib.suppress(OSError):
            if of_folder(folder):
                self._found = _Debugfs(folder)
        return self._found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._found is not None:
            self._found.close()


def delta(before: dict[str, int], after: dict[str, int], instants: frozenset[str]) -> dict[str, int]:
    """What was counted between two readings; a state is as it was at the second."""
    return {name: value if name in instants else value - before.get(name, 0) for name, value in after.items()}


def of_process(pid: int, root: Path = ROOT) -> dict[str, dict[str, int]]:
    """The statistics of each VM of a running process, from debugfs: the VM's name there -> its statistics.

    Raises:
        MissingError: debugfs cannot be read, or the process has no VM.
    """
    top = root / DEBUGFS
    try:
        folders = sorted(path for path in top.iterdir() if path.is_dir())
    except OSError as error:
        remedy = "run as root" if isinstance(error, PermissionError) else "mount -t debugfs none /sys/kernel/debug"
        raise MissingError(
            f"/{DEBUGFS} cannot be read ({error.strerror}), so a VM's statistics cannot; {remedy}"
        ) from None
    # The folder is named by the thread that made the VM.
    threads = _threads(pid, root)
    found = {}
    for folder in folders:
        owner = folder.name.partition("-")[0]
        if owner.isdecimal() and int(owner) in threads:
            with contextlib.suppress(OSError):
                found[folder.name] = of_folder(folder)
    if not found:
        names = ", ".join(folder.name.partition("-")[0] for folder in folders if "-" in folder.name) or "none"
        raise MissingError(f"KVM keeps no statistics of a VM of process {pid}; it does for {names}")
    return found


def _threads(pid: int, root: Path) -> set[int]:
    try:
        return {pid} | {int(path.name) for path in (root / f"proc/{pid}/task").iterdir()}
    except OSError:
        return {pid}
