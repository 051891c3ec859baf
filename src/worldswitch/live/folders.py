"""KVM's statistics of all VMs of a host, read from debugfs again and again.

A VM's folder is ``<thread>-<fd>``, after who called KVM_CREATE_VM and what it got. It has the statistics of its vCPUs
summed, and a folder for each vCPU (virt/kvm/kvm_main.c, kvm_create_vm_debugfs). A statistics file can be read once: it
is opened without seeking (simple_attr_open, kvm_debugfs_open), so pread(2) fails and a second read is its end. And
while it is open the VM it is of cannot be freed. So folders are kept open here, and files for some microseconds.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from worldswitch.errors import printable
from worldswitch.live.permissions import ROOT, read
from worldswitch.live.statsfd import DEBUGFS, INSTANTS, RENAMED

STAND_INS = {"pf_taken": "pf_fixed"}
"""Statistic -> what is read in its place where a kernel does not have it."""
HISTOGRAM = "_hist"
_NOT_NUMBERS = frozenset(("mmu_rmaps_stat",))
_LONGEST = 64


class Reading(NamedTuple):
    """The statistics of one VM at one moment.

    Attributes:
        name: Of its folder; *inode* tells it from a later VM of the same name.
        pid: Its process; *process* is that one's name.
        at_ns: When it was read, CLOCK_MONOTONIC.
        counters: Statistic by its newer name -> value, of all vCPUs together; states among them.
        vcpus: vCPU -> the same, of those whose statistics can be read one by one.
        vcpu_count: How many vCPUs there are, None where that is not known.
        reasons: (vCPU or None, exit reason) -> how often since tracing began; None if exits are not traced.
    """

    name: str
    inode: int
    pid: int
    process: str
    at_ns: int
    counters: Mapping[str, int]
    vcpus: Mapping[int, Mapping[str, int]]
    vcpu_count: int | None
    reasons: Mapping[tuple[int | None, str], int] | None = None


class Lack(NamedTuple):
    """Something that cannot be shown: *what*, *why*, and what to do about it."""

    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.remedy}"


class _Folder:
    """The open folder of a VM."""

    def __init__(self, top: int, name: str, inode: int, root: Path) -> None:
        self.fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
        self.name, self.inode = name, inode
        thread = name.partition("-")[0]
        self.pid = process_of(int(thread), root)
        self.process = printable(read(root / f"proc/{self.pid}/comm") or "?")
        self.vcpus: dict[int, int | None] = {}
        self.age = 0

    def names(self) -> list[str]:
        return os.listdir(self.fd)  # noqa: PTH208 (by file descriptor)

    def count_vcpus(self) -> None:
        """Find vCPUs, which a VMM makes after the VM, and perhaps more of them later."""
        self.vcpus = {int(name[4:]): None for name in self.names() if name[:4] == "vcpu" and name[4:].isdecimal()}

    def close(self) -> None:
        os.close(self.fd)


class Folders:
    """The folders of debugfs below *root*; at each reading those of gone VMs are closed, those of new ones opened."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._top: int | None = None
        self._open: dict[tuple[str, int], _Folder] = {}
        self._files: tuple[tuple[str, str], ...] | None = None
        self._some: tuple[Collection[str], tuple[tuple[str, str], ...]] | None = None
        self.lacks: tuple[Lack, ...] = ()

    def read(self, wanted: Collection[str], whole: Collection[str] = ()) -> list[Reading]:
        """Every VM's statistics now, by name.

        Args:
            wanted: The statistics to read, by their newer names.
            whole: Names of VMs of which all are read.
        """
        top = self._folder()
        if top is None:
            self._drop(set(self._open))
            return []
        there = dict(_vms(top))
        self._drop({key for key in self._open if there.get(key[0]) != key[1]})
        found = []
        for key in sorted(there.items(), key=lambda one: _order(one[0])):
            reading = self._reading(top, key, wanted, key[0] in whole)
            if reading is not None:
                found.append(reading)
        return found

    def close(self) -> None:
        """Close everything."""
        self._drop(set(self._open))
        if self._top is not None:
            os.close(self._top)
            self._top = None

    def _folder(self) -> int | None:
        """The folder of all, opened anew as long as it is not there: debugfs or kvm may come later."""
        if self._top is not None:
            return self._top
        try:
            self._top = os.open(self._root / DEBUGFS, os.O_RDONLY | os.O_DIRECTORY)
            self.lacks = ()
        except OSError as error:
            self.lacks = (_no_folder(error, self._root),)
        return self._top

    def _reading(self, top: int, key: tuple[str, int], wanted: Collection[str], whole: bool) -> Reading | None:
        folder = self._open.get(key)
        try:
            if folder is None:
                folder = self._open[key] = _Folder(top, *key, self._root)
            if folder.age % 8 < 2:
                folder.count_vcpus()
            folder.age += 1
            if self._files is None:
                self._look(folder)
            assert self._files is not None
            counters = {}
            for name, now in self._files if whole else self._chosen(wanted):
                value = _value(name, folder.fd)
                if value is not None:
                    counters[now] = value
            at_ns = time.monotonic_ns()
        except OSError:
            # It has gone in between.
            self._drop({key})
            return None
        if self._files and not counters:
            return None
        return Reading(
            folder.name, folder.inode, folder.pid, folder.process, at_ns, counters, {}, len(folder.vcpus)
        )  # fmt: skip

    def _chosen(self, wanted: Collection[str]) -> tuple[tuple[str, str], ...]:
        """The files of the statistics wanted, and those that stand in for one this kernel does not have."""
        if self._some is None or self._some[0] is not wanted:
            assert self._files is not None
            known = {now for _, now in self._files}
            names = {*wanted, *(old for new, old in STAND_INS.items() if new in wanted and new not in known)}
            self._some = wanted, tuple(one for one in self._files if one[1] in names)
        return self._some[1]

    def _look(self, folder: _Folder) -> None:
        """Which files there are, the same for each VM, and which of them this user may open."""
        readable, closed = [], []
        for name in sorted(folder.names()):
            if name.endswith(HISTOGRAM) or name in _NOT_NUMBERS:
                continue
            try:
                if _value(name, folder.fd) is not None:
                    readable.append(name)
            except PermissionError:
                closed.append(name)
            except IsADirectoryError:
                continue
        self._files = tuple((name, RENAMED.get(name, name)) for name in readable)
        self._some = None
        self.lacks = (_closed(closed, readable, self._root),) if closed else ()

    def _drop(self, keys: Collection[tuple[str, int]]) -> None:
        for key in keys:
            folder = self._open.pop(key, None)
            if folder is not None:
                folder.close()


def _vms(top: int) -> Iterator[tuple[str, int]]:
    with os.scandir(top) as entries:
        for entry in entries:
            thread, dash, number = entry.name.partition("-")
            if dash and thread.isdecimal() and number.isdecimal():
                yield entry.name, entry.inode()


def _order(name: str) -> tuple[int, int]:
    thread, _, number = name.partition("-")
    return int(thread), int(number)


def _value(name: str, folder: int) -> int | None:
    """The number in a file; None if it holds none."""
    fd = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return int(os.read(fd, _LONGEST))
    except ValueError:
        return None
    finally:
        os.close(fd)


def process_of(thread: int, root: Path) -> int:
    """The process of a thread; the thread's own number where it has ended or cannot be seen."""
    for line in (read(root / f"proc/{thread}/status") or "").splitlines():
        if line.startswith("Tgid:"):
            with suppress(ValueError):
                return int(line.split()[1])
    return thread


def _no_folder(error: OSError, root: Path) -> Lack:
    what = "VMs and their statistics"
    if error.errno in (errno.EACCES, errno.EPERM):
        return Lack(what, f"this user may not read /{DEBUGFS}", "run as root: sudo wsw top")
    if not (root / "sys/module/kvm").exists() and not (root / "dev/kvm").exists():
        return Lack(what, "the kvm module is not loaded", "load it: modprobe kvm_intel, or kvm_amd")
    if not any((root / "sys/kernel/debug").glob("*")):
        return Lack(what, "debugfs is not mounted", "as root: mount -t debugfs none /sys/kernel/debug")
    return Lack(what, f"/{DEBUGFS} is not there ({error.strerror})", "a kernel with CONFIG_DEBUG_FS has it")


def _closed(closed: Collection[str], readable: Collection[str], root: Path) -> Lack:
    """Root, and still refused: debugfs_locked_down (fs/debugfs/file.c) opens no file whose mode lets it be written."""
    states = ", ".join(sorted(INSTANTS.intersection(readable))[:4]) or "nothing"
    level = re.search(r"\[(integrity|confidentiality)\]", read(root / "sys/kernel/security/lockdown") or "")
    why = (
        f"kernel lockdown ({level[1]}) opens no file of debugfs that could be written"
        if level
        else "opening them was refused (EPERM), as kernels under lockdown do"
    )
    return Lack(
        f"{len(closed)} of KVM's counters in debugfs",
        f"{why}, which leaves {states}",
        "boot without lockdown (it comes with Secure Boot), or use a VMM that keeps KVM's statistics open, "
        "such as QEMU 8.1 or newer",
    )
