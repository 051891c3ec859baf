"""Hosts made of literal files for the tests of the checks: sound ones, to which a test does something."""

from __future__ import annotations

from worldswitch.host import checks as _checks  # noqa: F401 - registers them
from worldswitch.host import fs
from worldswitch.host.facts import Host
from worldswitch.host.finding import Finding, Profile, Severity, registered
from worldswitch.host.gather import gather

VULNERABILITIES = "/sys/devices/system/cpu/vulnerabilities"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,noexec,relatime - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
FLAGS = {
    "intel": ("vmx", "vnmi preemption_timer flexpriority apicv ept vpid unrestricted_guest ple pml"),
    "amd": ("svm npt nrip_save pausefilter avic x2avic", ""),
}
PARAMETERS = {
    "kvm": {
        "nx_huge_pages": "Y", "nx_huge_pages_recovery_ratio": "60", "nx_huge_pages_recovery_period_ms": "0",
        "tdp_mmu": "Y", "eager_page_split": "Y", "halt_poll_ns": "200000", "ignore_msrs": "N",
        "report_ignored_msrs": "Y", "min_timer_period_us": "200", "force_emulation_prefix": "0",
        "enable_vmware_backdoor": "N",
    },
    "kvm_intel": {
        "ept": "Y", "unrestricted_guest": "Y", "vpid": "Y", "enable_apicv": "Y", "flexpriority": "Y", "vnmi": "Y",
        "preemption_timer": "Y", "pml": "Y", "ple_gap": "128", "nested": "Y", "vmentry_l1d_flush": "not required",
    },
    "kvm_amd": {"npt": "Y", "nrips": "1", "avic": "Y", "pause_filter_count": "3000", "nested": "1"},
}  # fmt: skip


def machine(cpu: str = "intel", kernel: str = "6.12.117", bug: bool | None = None) -> dict[str, str | None]:
    """The files of a sound host of 8 CPUs; *bug* is iTLB multihit, which Intel's have unless said."""
    bug = cpu == "intel" if bug is None else bug
    module = f"kvm_{cpu}"
    flags, vmx = FLAGS[cpu]
    vendor = {"intel": "GenuineIntel", "amd": "AuthenticAMD"}[cpu]
    first = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: A processor\n"
        f"flags\t\t: fpu msr {flags}\nvmx flags\t: {vmx}\nbugs\t\t: {'itlb_multihit' if bug else 'spectre_v1'}\n\n"
    )
    files: dict[str, str | None] = {
        "/proc/sys/kernel/osrelease": kernel,
        "/proc/sys/kernel/version": "#1 SMP PREEMPT_DYNAMIC",
        "/proc/sys/kernel/pid_max": "4194304",
        "/proc/sys/kernel/threads-max": "1000000",
        "/proc/sys/kernel/numa_balancing": "0",
        "/proc/cmdline": "ro quiet",
        "/proc/cpuinfo": first + "".join(f"processor\t: {n}\n\n" for n in range(1, 8)),
        "/proc/meminfo": "MemTotal: 16777216 kB\nSwapTotal: 0 kB\n",
        "/etc/group": "kvm:x:108:",
        "/proc/misc": "232 kvm",
        "/proc/modules": f"{module} 1 0 - Live 0x0\nkvm 1 1 {module}, Live 0x0\n",
        "/proc/self/mountinfo": V2,
        f"/boot/config-{kernel}": "CONFIG_HZ=250\nCONFIG_KVM=m\nCONFIG_KVM_INTEL=m\nCONFIG_KVM_AMD=m\n"
        "CONFIG_NO_HZ_FULL=y\n# CONFIG_PROVE_LOCKING is not set\nCONFIG_KVM_GUEST=y\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
        "/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never",
        "/sys/kernel/mm/ksm/run": "0",
        "/sys/kernel/mm/ksm/pages_sharing": "0",
        "/sys/devices/system/cpu/smt/active": "0",
        "/sys/devices/system/cpu/smt/control": "off",
        "/sys/devices/system/node/online": "0",
        f"{VULNERABILITIES}/itlb_multihit": "KVM: Mitigation: Split huge pages" if bug else "Not affected",
        f"{VULNERABILITIES}/l1tf": "Not affected",
        f"{VULNERABILITIES}/spectre_v2": "Mitigation: Enhanced / Automatic IBRS",
    }
    for name in ("kvm", module):
        for parameter, value in PARAMETERS[name].items():
            files[f"/sys/module/{name}/parameters/{parameter}"] = value
    if not bug:
        files["/sys/module/kvm/parameters/nx_huge_pages"] = "N"
    return files


def changed(files: dict[str, str | None], *changes: tuple[str, str | None]) -> dict[str, str | None]:
    """*files* with some of them replaced, or gone (None). ``kvm.NAME`` and the like stand for a parameter's path."""
    result = dict(files)
    for name, text in changes:
        module, point, parameter = name.partition(".")
        path = f"/sys/module/{module}/parameters/{parameter}" if point and not name.startswith("/") else name
        result[path] = text
    return {path: text for path, text in result.items() if text is not None}


def findings(id: str, made: Host, profile: Profile = Profile.DEFAULT) -> list[Finding]:
    """What the check *id* says."""
    (one,) = [check for check in registered() if check.id == id]
    said = one.examine(made, profile)
    if said is None:
        return []
    return [said] if isinstance(said, Finding) else list(said)


def severities(id: str, made: Host) -> dict[str, Severity | None]:
    """By profile: the worst the check says; None if it says nothing."""
    return {
        profile.value: max((one.severity for one in findings(id, made, profile)), default=None) for profile in Profile
    }


DEVICE = fs.Device("char", 0o660, 0, 108)


class Files:
    """Literal files as :mod:`worldswitch.host.fs` gives them."""

    name, notes = "a made host", ()

    def __init__(self, files: dict[str, str | None], device: fs.Device | None) -> None:
        self.files = {path: text for path, text in files.items() if text is not None}
        self.only_device = device

    def read(self, path: str, limit: int = fs.READ_LIMIT) -> bytes:
        if path not in self.files:
            raise fs.NotRead(fs.ABSENT)
        return f"{self.files[path]}\n".encode()

    def names(self, folder: str) -> tuple[str, ...]:
        before = f"{folder.rstrip('/')}/"
        return tuple(sorted({path[len(before) :].split("/")[0] for path in self.files if path.startswith(before)}))

    def device(self, path: str) -> fs.Device:
        if path != "/dev/kvm" or self.only_device is None:
            raise fs.NotRead(fs.ABSENT)
        return self.only_device

    def told(self) -> dict[str, str]:
        return {}


def made(files: dict[str, str | None], device: fs.Device | None = DEVICE) -> Host:
    """The host of *files*, with the node /dev/kvm *device*."""
    return gather(Files(files, device))
