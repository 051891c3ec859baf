"""The files the doctor reads, all of them, and what it keeps of each: nothing else is looked at or put in a snapshot.

No host name, address, serial number, environment or user is in any of them, or it is left out here, where the file is
read. What a snapshot holds is thus what the checks saw.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, Optional

Keep = Callable[[str], str]


class Allowed(NamedTuple):
    """Files that may be read.

    Attributes:
        pattern: An absolute path, each part of which may hold ``*``; ``{release}`` is the kernel's release.
        why: What is learned from them.
        keep: What is kept of the text; all of it if None.
        known: Names a ``*`` may stand for; any if None.
    """

    pattern: str
    why: str
    keep: Optional[Keep] = None  # noqa: UP045 - evaluated by Python 3.9
    known: Optional[re.Pattern[str]] = None  # noqa: UP045


MODULES = re.compile(
    r"kvm|kvm_\w+|vhost(_\w+)?|vfio(_\w+)?|irqbypass|ccp|iommufd|intel_idle|haltpoll|cpuidle_haltpoll|virtio_\w+|"
    r"vmw_\w+|hv_\w+|xen_\w+|tun|ksm|msr|intel_iommu|binfmt_misc|nf_conntrack|zram|zswap|rcupdate|rcutree|workqueue"
)
"""Modules the doctor has a word for."""
_BOOT = re.compile(
    r"(kvm|kvm_intel|kvm_amd|kvm_pvm|kvm-intel|kvm-amd|rcutree|rcupdate|workqueue|intel_idle|haltpoll|cpuidle_haltpoll|"
    r"cpuidle|intel_pstate|amd_pstate|vfio|vfio_iommu_type1|vhost|vhost_net|processor|zswap|clocksource)\.\w+|"
    r"mitigations|nosmt|smt|l1tf|mds|tsx|tsx_async_abort|mmio_stale_data|retbleed|spectre_\w+|nospectre_\w+|nospec\w*|"
    r"spec_\w+|srbds|gather_data_sampling|reg_file_data_sampling|indirect_target_selection|tsa|vmscape|nopti|pti|kpti|"
    r"isolcpus|nohz|nohz_full|rcu_nocbs|rcu_nocb_poll|irqaffinity|housekeeping|skew_tick|nowatchdog|nosoftlockup|"
    r"nmi_watchdog|idle|preempt|threadirqs|clocksource|tsc|notsc|no-kvmclock|no-kvmapf|no-steal-acc|nopv|nopvspin|"
    r"intel_iommu|amd_iommu|iommu|iommu\.\w+|intremap|hugepages|hugepagesz|default_hugepagesz|hugetlb_free_vmemmap|"
    r"transparent_hugepage|thp_anon|numa_balancing|cgroup_disable|cgroup_no_v1|cgroup_favordynmods|"
    r"systemd\.unified_cgroup_hierarchy|systemd\.legacy_systemd_cgroup_controller|nested|noapic|nox2apic|x2apic|"
    r"maxcpus|nr_cpus|nosmp|max_cstate|audit|apparmor|selinux|lockdown|page_poison|init_on_alloc|init_on_free|"
    r"slab_nomerge|split_lock_detect|hv_\w+|xen_\w+|mem_encrypt|nokaslr|psi|dis_ucode_ldr|mce|nosmap|nosmep|noxsave|"
    r"quiet|ro|rw|efi|nohugeiomap|page_reporting\.\w+|nohlt|highres|lapic|pcie_aspm"
)
_CONFIG = re.compile(
    r"CONFIG_(KVM\w*|HAVE_KVM\w*|VIRTUALIZATION|HZ\w*|NO_HZ\w*|PREEMPT\w*|RCU\w*|TREE_RCU\w*|TASKS_RCU\w*|CGROUP\w*|"
    r"MEMCG\w*|CPUSETS|HUGETLB\w*|TRANSPARENT\w*|KSM|SMP|SCHED_\w+|MITIGATION\w*|CPU_MITIGATIONS|SPECULATION\w*|"
    r"RETPOLINE|CALL_DEPTH_TRACKING|X86_\w+|AMD_MEM_ENCRYPT|INTEL_TDX_\w+|INTEL_IOMMU\w*|AMD_IOMMU\w*|IOMMUFD|VFIO\w*|"
    r"VHOST\w*|PARAVIRT\w*|HYPERV\w*|XEN\w*|NUMA\w*|LRU_GEN\w*|DEBUG_FS\w*|DEBUG_PREEMPT|LOCKDEP|PROVE_LOCKING|KASAN|"
    r"KCSAN|UBSAN|DEBUG_PAGEALLOC|DEBUG_VM\w*|FTRACE|KPROBES|BPF_SYSCALL|PERF_EVENTS|HIGH_RES_TIMERS|IRQ_\w+|"
    r"CPU_ISOLATION|CPU_IDLE\w*|HALTPOLL\w*|SECURITY_LOCKDOWN_LSM|SLAB_FREELIST\w*|GRKERNSEC\w*|PAX\w*|PGTABLE_LEVELS|"
    r"MODULES|MODULE_UNLOAD|IKCONFIG\w*|LOCALVERSION_AUTO|TSC\w*)"
)
_CPU_KEYS = frozenset(
    (
        "processor", "vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags", "vmx flags",
        "bugs", "address sizes", "siblings", "cpu cores",
    )
)  # fmt: skip
_MOUNTED = frozenset(("cgroup", "cgroup2", "hugetlbfs", "debugfs", "tracefs", "securityfs"))
_PUBLIC_PLACES = ("/sys/", "/dev/", "/proc/", "/cgroup")
_OS_KEYS = frozenset(
    ("ID", "ID_LIKE", "NAME", "PRETTY_NAME", "VERSION", "VERSION_ID", "VERSION_CODENAME", "VARIANT_ID", "PLATFORM_ID")
)


def keep_boot_parameters(text: str) -> str:
    """The command line with unknown parameters as ``*``: values hold keys and addresses, names whose product runs."""
    kept = []
    for word in boot_words(text):
        if word == "--":
            break  # the rest is for init
        name, equals, value = word.partition("=")
        if _BOOT.fullmatch(name):
            kept.append(_quoted(f"{name}{equals}{value}"))
        else:
            kept.append("*")
    return " ".join(kept)


def boot_words(text: str) -> list[str]:
    """The words of a command line as the kernel parts them: blanks within double quotes do not part, quotes go."""
    words, word, quoted, started = [], "", False, False
    for character in text:
        if character == '"':
            quoted, started = not quoted, True
        elif character.isspace() and not quoted:
            if started:
                words.append(word)
            word, started = "", False
        else:
            word, started = word + character, True
    return [*words, word] if started else words


def _quoted(word: str) -> str:
    return f'"{word}"' if any(character.isspace() for character in word) or not word else word


def keep_config(text: str) -> str:
    """The options of the kernel's configuration that decide about KVM."""
    lines = []
    for line in text.splitlines():
        found = re.match(r"(?:# )?(CONFIG_\w+)(?:=| is not set)", line)
        if found and _CONFIG.fullmatch(found[1]):
            lines.append(line)
    return "\n".join(lines) + "\n"


def keep_processors(text: str) -> str:
    """What the first processor is, and of the others that they are there."""
    lines = []
    for number, block in enumerate(text.split("\n\n")):
        for line in block.splitlines():
            key = line.partition(":")[0].strip()
            if key == "processor" or (number == 0 and key in _CPU_KEYS):
                lines.append(line)
        if number == 0:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def keep_mounts(text: str) -> str:
    """The mounts of kernel file systems, without paths that name containers or people."""
    lines = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, super_fields = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(super_fields) < 3 or super_fields[0] not in _MOUNTED:
            continue
        place = fields[4] if fields[4].startswith(_PUBLIC_PLACES) else "/*"
        options = ",".join(_public_options(super_fields[2]))
        lines.append(f"0 0 0:0 / {place} {fields[5]} - {super_fields[0]} {super_fields[0]} {options}")
    return "\n".join(lines) + "\n"


def keep_old_mounts(text: str) -> str:
    """As :func:`keep_mounts`, of ``/proc/mounts``."""
    lines = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4 and fields[2] in _MOUNTED:
            place = fields[1] if fields[1].startswith(_PUBLIC_PLACES) else "/*"
            lines.append(f"{fields[2]} {place} {fields[2]} {','.join(_public_options(fields[3]))} 0 0")
    return "\n".join(lines) + "\n"


def _public_options(text: str) -> list[str]:
    named = ("pagesize=", "mode=", "name=systemd")
    return [one for one in text.split(",") if re.fullmatch(r"[a-z_0-9]+", one) or one.startswith(named)]


def keep_modules(text: str) -> str:
    """Of the known modules name and users; no sizes and addresses."""
    lines = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and MODULES.fullmatch(fields[0]):
            users = ",".join(one for one in fields[3].split(",") if MODULES.fullmatch(one))
            lines.append(f"{fields[0]} 0 {fields[2]} {users or '-'}{',' if users else ''} Live 0x0")
    return "\n".join(lines) + "\n"


def keep_builder_out(text: str) -> str:
    """``/proc/version`` without who built it, where."""
    return re.sub(r"\([^()@]*@[^()]*\)", "(*)", text, count=1)


def keep_os(text: str) -> str:
    """What the distribution is called."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.partition("=")[0] in _OS_KEYS)


def keep_kvm_group(text: str) -> str:
    """The group kvm, without its members."""
    found = re.search(r"^kvm:[^:\n]*:(\d{1,10}):", text, re.MULTILINE)
    return f"kvm:x:{found[1]}:\n" if found else ""


def keep_kvm_options(text: str) -> str:
    """Lines of modprobe's configuration about KVM's modules."""
    pattern = re.compile(r"\s*(options|blacklist|softdep|install)\s+kvm[-\w]*(\s+[\w.=,: -]*)?")
    return "".join(f"{line}\n" for line in text.splitlines() if pattern.fullmatch(line))


def keep_kvm_device(text: str) -> str:
    """Whether the misc device kvm is registered."""
    return "".join(f"{line}\n" for line in text.splitlines() if re.fullmatch(r"\s*\d+ kvm", line))


def keep_number(text: str) -> str:
    """The text if it is a number, and nothing otherwise."""
    return text if re.fullmatch(r"\s*-?\d{1,20}\s*", text) else ""


_CPU = "/sys/devices/system/cpu"
_MM = "/sys/kernel/mm"
MODULES_FOLDER = "/sys/module"
RELEASE = "/proc/sys/kernel/osrelease"

ALLOWED = (
    Allowed(RELEASE, "the kernel's release"),
    Allowed("/proc/sys/kernel/version", "its build: preemption model, Debian's own version"),
    Allowed("/proc/version", "the same where there is no /proc/sys", keep_builder_out),
    Allowed("/proc/version_signature", "the upstream version of Ubuntu's kernels"),
    Allowed("/proc/cmdline", "parameters of the kernel; unknown ones as *", keep_boot_parameters),
    Allowed("/proc/cpuinfo", "the processor: one of them, and how many", keep_processors),
    Allowed("/proc/meminfo", "memory and huge pages"),
    Allowed("/proc/modules", "which of KVM's modules are loaded and used", keep_modules),
    Allowed("/proc/misc", "whether the device kvm is registered", keep_kvm_device),
    Allowed("/proc/self/mountinfo", "cgroup mounts and their options", keep_mounts),
    Allowed("/proc/1/mountinfo", "the same", keep_mounts),
    Allowed("/proc/mounts", "the same where there is no mountinfo", keep_old_mounts),
    Allowed("/proc/cgroups", "controllers of cgroup v1"),
    Allowed("/proc/sys/kernel/sched_rt_runtime_us", "how long a real-time task may run", keep_number),
    Allowed("/proc/sys/kernel/nmi_watchdog", "interruptions of a real-time task", keep_number),
    Allowed("/proc/sys/kernel/watchdog", "interruptions of a real-time task", keep_number),
    Allowed("/proc/sys/kernel/timer_migration", "interruptions of a real-time task", keep_number),
    Allowed("/proc/sys/kernel/numa_balancing", "moving of a guest's pages", keep_number),
    Allowed("/proc/sys/kernel/pid_max", "how many threads VMs may have", keep_number),
    Allowed("/proc/sys/kernel/threads-max", "how many threads VMs may have", keep_number),
    Allowed("/proc/irq/default_smp_affinity", "whether devices interrupt isolated processors"),
    Allowed("/proc/sys/kernel/split_lock_mitigate", "delay of split locks", keep_number),
    Allowed("/proc/sys/vm/*", "huge pages, compaction, stat", keep_number,
            re.compile(r"nr_hugepages|nr_overcommit_hugepages|compaction_proactiveness|stat_interval|overcommit_memory|"
                       r"swappiness|max_map_count")),
    Allowed("/proc/config.gz", "how the kernel was configured", keep_config),
    Allowed("/boot/config-{release}", "how the kernel was configured", keep_config),
    Allowed("/lib/modules/{release}/config", "how the kernel was configured", keep_config),
    Allowed("/usr/lib/modules/{release}/config", "how the kernel was configured", keep_config),
    Allowed("/sys/module/*/parameters/*", "settings of KVM's modules", None,
            re.compile(r"kvm(_\w+)?|vhost(_\w+)?|vfio_iommu_type1|intel_idle|haltpoll|cpuidle_haltpoll")),
    Allowed("/sys/module/rcupdate/parameters/*", "how long a grace period takes", keep_number,
            re.compile("rcu_expedited|rcu_normal|rcu_normal_after_boot")),
    Allowed(f"{_CPU}/vulnerabilities/*", "what the processor suffers from, and what is done about it"),
    Allowed(f"{_CPU}/smt/*", "whether threads share cores", None, re.compile("active|control")),
    Allowed(f"{_CPU}/*", "which processors there are, and which are isolated", None,
            re.compile("isolated|nohz_full|online|possible|present")),
    Allowed(f"{_CPU}/cpu0/cpufreq/*", "how the clock rate is chosen", None,
            re.compile("scaling_governor|scaling_driver|energy_performance_preference")),
    Allowed(f"{_CPU}/cpu0/cpuidle/*/latency", "how long idle processors take to wake up", keep_number),
    Allowed(f"{_CPU}/cpu0/cpuidle/*/disable", "idle states that are not used", keep_number),
    Allowed(f"{_CPU}/cpuidle/*", "how idle processors wait", None, re.compile("current_\\w+|available_governors")),
    Allowed("/sys/devices/system/clocksource/clocksource0/*", "the clock of host and guests", None,
            re.compile("current_clocksource|available_clocksource")),
    Allowed("/sys/devices/system/node/online", "NUMA nodes"),
    Allowed(f"{_MM}/transparent_hugepage/*", "transparent huge pages", None,
            re.compile("enabled|defrag|shmem_enabled|use_zero_page")),
    Allowed(f"{_MM}/transparent_hugepage/khugepaged/*", "how they are made later", keep_number),
    Allowed(f"{_MM}/hugepages/*/nr_hugepages", "reserved huge pages", keep_number, re.compile(r"hugepages-\d+kB")),
    Allowed(f"{_MM}/hugepages/*/free_hugepages", "which of them are free", keep_number,
            re.compile(r"hugepages-\d+kB")),
    Allowed(f"{_MM}/hugepages/*/nr_overcommit_hugepages", "how many more there may be", keep_number,
            re.compile(r"hugepages-\d+kB")),
    Allowed(f"{_MM}/ksm/*", "merging of equal pages", keep_number),
    Allowed("/sys/kernel/realtime", "whether this is a PREEMPT_RT kernel", keep_number),
    Allowed("/sys/kernel/security/lockdown", "whether the kernel is locked down"),
    Allowed("/sys/kernel/debug/kvm/*", "KVM's statistics, all VMs together (for root)", keep_number,
            re.compile("[a-z][a-z0-9_]*")),
    Allowed("/sys/class/dmi/id/*", "whether this is a virtual machine; no serial numbers", None,
            re.compile("sys_vendor|product_name|bios_vendor")),
    Allowed("/sys/hypervisor/type", "whether this is a virtual machine"),
    Allowed("/sys/fs/cgroup/cgroup.controllers", "controllers of cgroup v2"),
    Allowed("/etc/os-release", "the distribution", keep_os),
    Allowed("/usr/lib/os-release", "the distribution", keep_os),
    Allowed("/etc/group", "the number of the group kvm", keep_kvm_group),
    Allowed("/etc/modprobe.d/*", "settings of KVM's modules at the next boot", keep_kvm_options,
            re.compile(r".+\.conf")),
)  # fmt: skip
"""All that is read, in this order. A ``known`` pattern holds for the first ``*``."""

DEVICES = ("/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vfio/vfio")
"""Device nodes whose owner and mode are looked at; none is opened."""
FOLDERS = {MODULES_FOLDER: MODULES}
"""Folders whose names alone are looked at, and which of them."""
