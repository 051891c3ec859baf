"""What several checks ask of a host, and how they say it by profile."""

from __future__ import annotations

from worldswitch.host.allowed import boot_words
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


def software_module(host: Host) -> str | None:
    """A module other than the vendors' that stands on kvm, such as ``kvm_pvm``; None if the vendor's does, or none."""
    others = sorted(name for name in host.modules if name.startswith("kvm_") and name not in VENDOR_FLAGS)
    return others[0] if others and vendor_module(host) is None else None


def kvm_works(host: Host) -> bool:
    """KVM can run guests here, in hardware or in software; checks of its parameters have nothing to say otherwise."""
    return vendor_module(host) is not None or software_module(host) is not None


def two_dimensional(host: Host) -> bool | None:
    """EPT or NPT is in use; None if the parameter cannot be read, or no vendor's module is there."""
    module = vendor_module(host)
    return host.switch(module, "ept" if module == "kvm_intel" else "npt") if module else None


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


def boot_words_of(host: Host, name: str) -> list[str]:
    """The words of the command line that set *name*, as they are written; for names ``-`` and ``_`` are the same."""
    wanted = name.replace("-", "_")
    words = boot_words(host.text("/proc/cmdline") or "")
    return [word for word in words if word.partition("=")[0].replace("-", "_") == wanted]


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
