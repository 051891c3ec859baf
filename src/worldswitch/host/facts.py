"""What was read of a host, and what it says: every value is told from the text of a named file.

A :class:`Host` is made by :func:`worldswitch.host.gather.gather`. Values are parsed when they are asked for; what is
not known is None or empty, and ``why(path)`` says why a file was not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.host import parse
from worldswitch.host.allowed import MODULES_FOLDER, RELEASE
from worldswitch.host.finding import Evidence
from worldswitch.host.fs import ABSENT

if TYPE_CHECKING:
    from worldswitch.host.fs import Device
    from worldswitch.host.kernel import KernelTold, PolicyTold
    from worldswitch.host.parse import Cpu, Mount
    from worldswitch.kvm.facts import Kernel
    from worldswitch.kvm.policy import Policy

_CPU = "/sys/devices/system/cpu"
_MM = "/sys/kernel/mm"
_HUGE = re.compile(rf"{_MM}/hugepages/hugepages-(\d{{1,12}})kB/nr_hugepages")
_DEBUG = "/sys/kernel/debug/kvm"
_HYPERVISORS = {
    "KVM": "KVM", "QEMU": "KVM", "VMware": "VMware", "VirtualBox": "VirtualBox", "Microsoft": "Hyper-V",
    "Xen": "Xen", "Amazon EC2": "KVM", "Google": "KVM", "Bochs": "Bochs", "Parallels": "Parallels",
}  # fmt: skip


class Unreadable(NamedTuple):
    """A file or folder of the allow-list that was not read, and why, in a few words."""

    path: str
    why: str


class HugePages(NamedTuple):
    """Reserved huge pages of one size (bytes): how many there are, and how many of these are free."""

    size: int
    total: int
    free: int
    path: str


@dataclass(frozen=True)
class Host:
    """A host as far as it was read.

    Attributes:
        name: What its files are called: ``this host``, a folder, a snapshot.
        files: Path -> text, of the allow-list and masked by it.
        devices: Device node -> what it is like.
        folders: Folder -> names in it, of those that are known.
        unreadable: What was not read, sorted.
        notes: What was odd about the whole.
    """

    name: str
    files: Mapping[str, str]
    devices: Mapping[str, Device]
    folders: Mapping[str, tuple[str, ...]]
    unreadable: tuple[Unreadable, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self, path: str) -> str | None:
        """What a file says, without blanks at its ends."""
        found = self.files.get(path)
        return None if found is None else found.strip()

    def number(self, path: str) -> int | None:
        """What a file says, if that is a whole number that is not negative."""
        return parse.number(self.files.get(path))

    def why(self, path: str) -> str:
        """Why a file was not read; empty if it was."""
        if path in self.files or path in self.devices:
            return ""
        while path and path not in self._failed:
            path = path.rpartition("/")[0]  # perhaps its folder could not be listed
        return self._failed.get(path, ABSENT)

    def evidence(self, path: str, value: str | None = None) -> Evidence:
        """A file and *value*, by default its first line, or why it was not read."""
        if value is None:
            text = self.text(path)
            value = (text.splitlines() or ["(empty)"])[0] if text is not None else self.why(path) or "there"
        return Evidence(path, value)

    def names(self, folder: str) -> tuple[str, ...]:
        """Names of the files that were read in a folder, or of those that are known in it."""
        before = f"{folder.rstrip('/')}/"
        under = {path[len(before) :].partition("/")[0] for path in self.files if path.startswith(before)}
        return tuple(sorted(under | set(self.folders.get(folder, ()))))

    @property
    def missing(self) -> tuple[Unreadable, ...]:
        """What is there but was not read."""
        return tuple(one for one in self.unreadable if one.why != ABSENT)

    # ---- the kernel

    @property
    def release(self) -> str:
        """As ``uname -r``; empty if not known."""
        found = re.match(r"Linux version (\S+)", self.text("/proc/version") or "")
        return self.text(RELEASE) or (found[1] if found else "")

    @property
    def version(self) -> str:
        """As ``uname -v``: build, preemption model, and Debian's own version; empty if not known."""
        text = self.text("/proc/version") or ""
        return self.text("/proc/sys/kernel/version") or text[text.find("#") :] if "#" in text else ""

    @property
    def kernel(self) -> Kernel | None:
        """The facts of its KVM; None if it can't be told which they are."""
        return self._kernel.kernel

    @property
    def kernel_how(self) -> str:
        """How the facts were told; empty if they were not."""
        return self._kernel.how

    @property
    def kernel_why(self) -> str:
        """Why the facts are not known; empty if they are."""
        return self._kernel.why

    @property
    def policy(self) -> Policy | None:
        """Kernel, processor and parameters as KVM's rules take them; None if they can't be told."""
        return self._policy.policy

    @property
    def policy_why(self) -> str:
        """Why there is no policy; empty if there is one."""
        return self._policy.why

    @property
    def config_path(self) -> str:
        """The file that holds the kernel's configuration; empty if none was read."""
        names = ("/proc/config.gz", *(f"{place.format(self.release)}" for place in _CONFIGS))
        return next((path for path in names if path in self.files), "")

    def config(self, name: str) -> str | None:
        """A CONFIG_ option: ``y``, ``m``, ``n`` or its value; None where the configuration is not known.

        An option that the configuration does not mention is ``n``.
        """
        if not self.config_path:
            return None
        return self._config.get(name if name.startswith("CONFIG_") else f"CONFIG_{name}", "n")

    @cached_property
    def cmdline(self) -> Mapping[str, tuple[str, ...]]:
        """Boot parameter -> values, with ``_`` for ``-``; ``""`` of a bare word, ``*`` of one that was masked."""
        return parse.boot_parameters(self.files.get("/proc/cmdline", ""))

    @property
    def preempt_rt(self) -> bool | None:
        """Whether the kernel is PREEMPT_RT; None if not known."""
        if self.text("/sys/kernel/realtime") == "1" or "PREEMPT_RT" in self.version.split():
            return True
        option = self.config("PREEMPT_RT")
        if option is not None:
            return option == "y"
        return False if self.version else None

    @cached_property
    def os_release(self) -> Mapping[str, str]:
        """Variables of os-release."""
        return parse.os_release(self.files.get("/etc/os-release") or self.files.get("/usr/lib/os-release") or "")

    # ---- processors and memory

    @cached_property
    def cpu(self) -> Cpu:
        """The first processor, and how many there are."""
        return parse.cpu(self.files.get("/proc/cpuinfo", ""))

    def cpus(self, name: str) -> str | None:
        """A list such as ``0-3``: ``isolated``, ``nohz_full``, ``online``, ``possible`` or ``present``."""
        return self.text(f"{_CPU}/{name}")

    def vulnerability(self, name: str) -> str | None:
        """What the kernel says of a vulnerability of the processor, such as ``itlb_multihit``."""
        return self.text(f"{_CPU}/vulnerabilities/{name}")

    @property
    def smt_active(self) -> bool | None:
        """Whether threads share a core."""
        return parse.switch(self.files.get(f"{_CPU}/smt/active"))

    @property
    def smt_control(self) -> str | None:
        """``on``, ``off``, ``forceoff``, ``notsupported`` or ``notimplemented``."""
        return self.text(f"{_CPU}/smt/control")

    @property
    def nodes(self) -> int:
        """NUMA nodes; 0 if not known."""
        return parse.cpu_list(self.files.get("/sys/devices/system/node/online"))

    @cached_property
    def memory(self) -> Mapping[str, int]:
        """``/proc/meminfo`` in bytes; what has no unit as it is."""
        return parse.meminfo(self.files.get("/proc/meminfo", ""))

    def thp(self, name: str) -> str | None:
        """The chosen value of a setting of transparent huge pages."""
        return parse.chosen(self.files.get(f"{_MM}/transparent_hugepage/{name}"))

    @cached_property
    def hugepages(self) -> tuple[HugePages, ...]:
        """Reserved huge pages of each size, the smallest first."""
        found = []
        for path in self.files:
            size = _HUGE.fullmatch(path)
            total = self.number(path) if size else None
            if size and total is not None:
                free = self.number(path.replace("/nr_", "/free_"))
                found.append(HugePages(int(size[1]) << 10, total, free or 0, path))
        return tuple(sorted(found))

    def ksm(self, name: str) -> int | None:
        """A setting or count of KSM."""
        return self.number(f"{_MM}/ksm/{name}")

    @property
    def clocksource(self) -> str | None:
        """The one in use."""
        return self.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")

    @property
    def clocksources(self) -> tuple[str, ...]:
        """Those that could be."""
        return tuple((self.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or "").split())

    # ---- KVM

    @property
    def modules(self) -> frozenset[str]:
        """Modules that are loaded or built in, of those the doctor knows."""
        return frozenset(self.folders.get(MODULES_FOLDER, ())) | frozenset(self.module_users)

    @cached_property
    def module_users(self) -> Mapping[str, int]:
        """Module -> how many use it; built-in ones are not in it."""
        return parse.module_users(self.files.get("/proc/modules", ""))

    def parameter_path(self, module: str, name: str) -> str:
        """The file of a module's parameter."""
        return f"{MODULES_FOLDER}/{module}/parameters/{name}"

    def parameter(self, module: str, name: str) -> str | None:
        """A module's parameter as it reads."""
        return self.text(self.parameter_path(module, name))

    def switch(self, module: str, name: str) -> bool | None:
        """A module's parameter as a boolean; None if it is not there or says something else."""
        return parse.switch(self.files.get(self.parameter_path(module, name)))

    def device(self, path: str = "/dev/kvm") -> Device | None:
        """What a device node is like."""
        found = self.devices.get(path)
        if found is None:
            return None
        return found._replace(group="root" if found.gid == 0 else "kvm" if found.gid == self.kvm_group else "")

    @property
    def kvm_group(self) -> int | None:
        """The number of the group kvm."""
        fields = (self.text("/etc/group") or "").split(":")
        return parse.number(fields[2]) if len(fields) > 2 else None

    @cached_property
    def debug_kvm(self) -> Mapping[str, int]:
        """KVM's statistics, of all VMs together."""
        before = f"{_DEBUG}/"
        counts = ((path[len(before) :], self.number(path)) for path in self.files if path.startswith(before))
        return {name: count for name, count in counts if count is not None}

    # ---- cgroups

    @property
    def mounts_path(self) -> str:
        """The file the mounts were read from; the first that could be, if none was."""
        paths = ("/proc/self/mountinfo", "/proc/1/mountinfo", "/proc/mounts")
        return next((path for path in paths if path in self.files), paths[0])

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        """Mounted file systems of the kernel's own."""
        text = self.files.get(self.mounts_path, "")
        return parse.mountinfo(text) if self.mounts_path.endswith("info") else parse.mounts(text)

    @property
    def cgroup_version(self) -> int | str | None:
        """1, 2 or ``hybrid``; None where no cgroup is mounted or no mounts were read."""
        one, two = ({mount for mount in self.mounts if mount.fstype == kind} for kind in ("cgroup", "cgroup2"))
        return "hybrid" if one and two else 1 if one else 2 if two else None

    @cached_property
    def favordynmods(self) -> bool | None:
        """Whether a cgroup hierarchy is mounted with it; None where none is mounted."""
        found = [mount.options for mount in self.mounts if mount.fstype in ("cgroup", "cgroup2")]
        return any("favordynmods" in options for options in found) if found else None

    # ---- around

    @cached_property
    def dmi(self) -> Mapping[str, str]:
        """``sys_vendor``, ``product_name`` and ``bios_vendor`` of the firmware, as far as read."""
        before = "/sys/class/dmi/id/"
        return {path[len(before) :]: text.strip() for path, text in self.files.items() if path.startswith(before)}

    @property
    def hypervisor(self) -> str:
        """What this host is a guest of, such as ``KVM``; ``unknown`` if only that it is one; empty if it is none."""
        kind = self.text("/sys/hypervisor/type")
        if kind:
            return kind.capitalize()
        if "hypervisor" not in self.cpu.flags:
            return ""
        told = " ".join(self.dmi.values())
        return next((name for word, name in _HYPERVISORS.items() if word in told), "unknown")

    # ---- kept

    @cached_property
    def _failed(self) -> Mapping[str, str]:
        return dict(self.unreadable)

    @cached_property
    def _config(self) -> Mapping[str, str]:
        return parse.config(self.files.get(self.config_path, ""))

    @cached_property
    def _kernel(self) -> KernelTold:
        from worldswitch.host.kernel import kernel_of

        return kernel_of(self)

    @cached_property
    def _policy(self) -> PolicyTold:
        from worldswitch.host.kernel import policy_of

        return policy_of(self)


_CONFIGS = ("/boot/config-{}", "/lib/modules/{}/config", "/usr/lib/modules/{}/config")
