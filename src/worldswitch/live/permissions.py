"""What recording needs and this host or this user may lack, each with what to do about it."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path("/")

_PERFMON, _SYS_ADMIN, _IPC_LOCK = 38, 21, 14
"""Numbers of capabilities: include/uapi/linux/capability.h."""

_INSTALL = (
    ({"ubuntu"}, "sudo apt install linux-tools-$(uname -r)"),
    ({"debian"}, "sudo apt install linux-perf"),
    ({"fedora", "rhel", "centos", "amzn"}, "sudo dnf install perf"),
    ({"suse", "opensuse"}, "sudo zypper install perf"),
    ({"arch"}, "sudo pacman -S perf"),
    ({"alpine"}, "sudo apk add perf"),
)


def read(path: Path) -> str | None:
    """The stripped text of a small file, None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def capable(number: int, root: Path = ROOT) -> bool:
    """Whether this process has a capability, by ``CapEff`` of ``/proc/self/status``."""
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", read(root / "proc/self/status") or "", re.MULTILINE)
    return bool(found and int(found[1], 16) >> number & 1)


def paranoid(root: Path = ROOT) -> int:
    """``kernel.perf_event_paranoid``; 2, the kernel's default, where it cannot be read."""
    text = read(root / "proc/sys/kernel/perf_event_paranoid") or ""
    return int(text) if re.fullmatch(r"-?\d{1,3}", text) else 2


def may_lock(root: Path = ROOT) -> bool:
    """Whether perf may have buffers larger than ``kernel.perf_event_mlock_kb`` (kernel/events/core.c, perf_mmap)."""
    return capable(_IPC_LOCK, root) or paranoid(root) <= -1


def perf_refused(root: Path = ROOT) -> str | None:
    """Why the kernel will not give this user tracepoint data through perf, and the remedy; None if it will.

    Raw tracepoint samples need CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8) or perf_event_paranoid at -1
    (Documentation/admin-guide/sysctl/kernel.rst, kernel/trace/trace_event_perf.c).
    """
    level = paranoid(root)
    if level <= -1 or capable(_PERFMON, root) or capable(_SYS_ADMIN, root):
        return None
    return (
        f"kernel.perf_event_paranoid is {level}, and only -1 lets a user without CAP_PERFMON record KVM's events; "
        "run as root, or: sudo sysctl -w kernel.perf_event_paranoid=-1"
    )


def locked_down(root: Path = ROOT) -> str | None:
    """Why kernel lockdown forbids tracing, None if it does not (kernel_lockdown(7))."""
    if "[confidentiality]" in (read(root / "sys/kernel/security/lockdown") or ""):
        return (
            "kernel lockdown is at confidentiality, which closes tracefs and perf; boot with lockdown=integrity, "
            "or without Secure Boot's lockdown, to trace this host"
        )
    return None


def no_tracefs(found: Path | None, root: Path = ROOT) -> str:
    """Why tracefs cannot be read, and the remedy. *found* is where it is mounted, if anywhere."""
    if found is None:
        if "tracefs" not in (read(root / "proc/filesystems") or "tracefs"):
            return "this kernel has no tracefs (CONFIG_TRACING is off), so nothing can record its events"
        return "tracefs is not mounted; as root: mount -t tracefs nodev /sys/kernel/tracing"
    return (
        f"{found} cannot be read by this user; run as root, or let your group in: sudo mount -o "
        f"remount,mode=750,gid=$(id -g) {found} && sudo sysctl -w kernel.perf_event_paranoid=-1"
    )


def no_kvm_events(root: Path = ROOT) -> str:
    """Why tracefs has no KVM events, and the remedy."""
    if (root / "sys/module/kvm").exists():
        return "KVM is loaded but this kernel has no kvm trace events; it was built without CONFIG_TRACING"
    return f"there are no kvm events: {no_kvm_module(root)}"


def no_kvm_module(root: Path = ROOT) -> str:
    """Why the kvm module is not loaded, and the remedy."""
    cpuinfo = read(root / "proc/cpuinfo") or ""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    module = "kvm_intel" if "vmx" in words else "kvm_amd" if "svm" in words else None
    if module:
        return f"the kvm module is not loaded; as root: modprobe {module}"
    return (
        "the kvm module is not loaded and this processor shows neither vmx nor svm, so no VM can run here; switch on "
        "virtualization in the firmware, or nested virtualization if this is a VM itself"
    )


def how_to_get_perf(root: Path = ROOT) -> str:
    """The command that installs perf on this distribution."""
    words = set(re.findall(r"^ID(?:_LIKE)?=[\"']?([^\"'\n]*)", read(root / "etc/os-release") or "", re.MULTILINE))
    ids = {part for word in words for part in word.replace("-", " ").split()}
    for names, command in _INSTALL:
        if names & ids:
            return command
    return "install the package that holds perf: linux-perf, linux-tools or perf"


def slow_clock(root: Path = ROOT) -> bool:
    """Whether reading CLOCK_MONOTONIC costs about a microsecond: the clock source is a device, not the TSC."""
    source = read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    return source in {"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"}


def buffer_bytes(root: Path = ROOT) -> int:
    """Ring buffer per CPU: 8 MiB, less where all CPUs' together would take over 1/16 of the memory; a power of two.

    100,000 exits a second of some 500 bytes each, all their events together, fill 8 MiB in 170 ms, which a recorder
    that has to wait for a CPU needs; perf's own 512 KiB are full after 10 ms. Never below 512 KiB.
    """
    found = re.search(r"^MemTotal:\s+(\d{1,15}) kB", read(root / "proc/meminfo") or "", re.MULTILINE)
    memory = int(found[1]) * 1024 if found else 1 << 32
    size = 8 << 20
    while size > 512 << 10 and size * (os.cpu_count() or 1) > memory // 16:
        size //= 2
    return size


def host_lines(root: Path = ROOT) -> list[str]:
    """Host, kernel, CPU as the header lines ``perf script --header`` prints, which the text reader understands."""
    model = re.search(r"^model name\s*:\s*(.+)$", read(root / "proc/cpuinfo") or "", re.MULTILINE)
    uname = os.uname()
    lines = [
        f"# hostname : {uname.nodename}",
        f"# os release : {uname.release}",
        f"# nrcpus online : {os.cpu_count() or 1}",
    ]
    return lines + ([f"# cpudesc : {model[1].strip()}"] if model else [])
