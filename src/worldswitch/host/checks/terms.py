"""What several checks ask of a host, and how they say it by profile."""

from __future__ import annotations

from worldswitch.host.facts import Host
from worldswitch.host.finding import Evidence, Finding, Profile, Severity

OK, UNKNOWN, INFO, NOTICE, WARNING, CRITICAL = Severity

VENDOR_FLAGS = {"kvm_intel": "vmx", "kvm_amd": "svm"}
"""The vendors' modules, and the processor's flag that each of them needs."""


def by(
    profile: Profile,
    default: Severity,
    *,
    faas: Severity | None = None,
    realtime: Severity | None = None,
    hardened: Severity | None = None,
) -> Severity:
    """The severity for *profile*: that of its own name, or else the default one."""
    own = {Profile.FAAS: faas, Profile.REALTIME: realtime, Profile.HARDENED: hardened}.get(profile)
    return default if own is None else own


def vendor_module(host: Host) -> str | None:
    """``kvm_intel`` or ``kvm_amd``, whichever is there and fits the processor; None if neither does.

    Where both are built in, both have a folder in /sys/module, and the processor's flags decide.
    """
    for module, flag in VENDOR_FLAGS.items():
        if module in host.modules and (flag in host.cpu.flags or not host.cpu.flags):
            return module
    return None


def kvm_works(host: Host) -> bool:
    """The vendor's module is there; checks of its parameters have nothing to say otherwise."""
    return vendor_module(host) is not None


def built_in(host: Host, module: str) -> bool:
    """*module* is part of the kernel, so that it can be neither unloaded nor given options by modprobe."""
    name = {"kvm": "KVM", "kvm_intel": "KVM_INTEL", "kvm_amd": "KVM_AMD"}.get(module, "")
    config = host.config(name) if name else None
    if config is not None:
        return config == "y"
    return bool(host.module_users) and module in host.modules and module not in host.module_users


def multihit(host: Host) -> bool | None:
    """Whether the processor has the iTLB multihit bug; None if nothing says so.

    The vulnerability file decides, then the bugs of /proc/cpuinfo. AMD's and Hygon's processors never have it
    (arch/x86/kernel/cpu/common.c, cpu_vuln_whitelist).
    """
    text = host.vulnerability("itlb_multihit")
    if text:
        return text != "Not affected"
    if host.cpu.bugs:
        return "itlb_multihit" in host.cpu.bugs
    return False if host.cpu.vendor == "amd" else None


def unreadable(host: Host, id: str, path: str, what: str) -> Finding:
    """That *what* could not be told, since *path* could not be read."""
    return Finding(id, UNKNOWN, f"it cannot be told {what}", (host.evidence(path),))


def fine(host: Host, id: str, title: str, *paths: str) -> Finding:
    """That something was looked at in *paths*, and is as it should be."""
    return Finding(id, OK, title, tuple(host.evidence(path) for path in paths))


def kernel_evidence(host: Host) -> tuple[Evidence, ...]:
    """The kernel's release, and what that was read as."""
    release = host.evidence("/proc/sys/kernel/osrelease")
    if host.kernel is None:
        return (release,)
    how = f" (Linux {host.kernel}: {host.kernel_how})" if host.kernel_how else ""
    return (Evidence(release.path, release.value + how),)


def integer(text: str | None) -> int | None:
    """The number *text* is, None if it is none."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
