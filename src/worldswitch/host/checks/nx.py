"""The iTLB multihit mitigation: whether it is on where it has to be, and what it costs where it need not be."""

from __future__ import annotations

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import another_kernel, boot, parameter
from worldswitch.host.checks.terms import (
    CRITICAL,
    INFO,
    NOTICE,
    WARNING,
    by,
    fine,
    integer,
    kvm_works,
    multihit,
    two_dimensional,
    unreadable,
)
from worldswitch.host.facts import Host
from worldswitch.host.finding import NO_GAIN, Finding, Found, Gain, Profile, check, unknown_gain

PARAMETER, RATIO, PERIOD = "nx_huge_pages", "nx_huge_pages_recovery_ratio", "nx_huge_pages_recovery_period_ms"
VULNERABILITY = "/sys/devices/system/cpu/vulnerabilities/itlb_multihit"
SHORTEST_PERIOD_MS = 1000
"""What KVM itself would choose at the least (mmu.c, calc_nx_huge_pages_recovery_period)."""


@check(
    id="nx-huge-pages",
    rule="nx-huge-pages-active",
    about="kvm.nx_huge_pages against the processor and the kernel",
)
def nx_huge_pages(host: Host, profile: Profile) -> Found:
    """Off on a processor with the bug is a weakness; forced on one without it, a cost."""
    if not kvm_works(host):
        return None
    path, value, bug = host.parameter_path("kvm", PARAMETER), host.parameter("kvm", PARAMETER), multihit(host)
    if value is None:
        return unreadable(host, "nx-huge-pages", path, "whether huge pages may be executed")
    if bug is None:
        return unreadable(host, "nx-huge-pages", VULNERABILITY, "whether the processor has the iTLB multihit bug")
    misread = _never_not_understood(host, bug)
    if misread is not None:
        return misread
    if value in ("never", "N", "0"):
        if bug and two_dimensional(host) is not True:
            title = "the mitigation is off, and under shadow paging guests cannot reach the bug"
            return fine(host, "nx-huge-pages", title, path, VULNERABILITY)
        if bug:
            return _off_with_bug(host, profile, value)
        return fine(host, "nx-huge-pages", "the mitigation is off, and the processor needs none", path, VULNERABILITY)
    if not bug and value in ("Y", "1"):
        return _forced(host, profile)
    if value not in ("Y", "1"):
        return fine(host, "nx-huge-pages", f"KVM has still to choose ({value})", path, VULNERABILITY)
    title = "huge pages are not executable, as this processor needs it"
    return fine(host, "nx-huge-pages", title, path, VULNERABILITY)


def _off_with_bug(host: Host, profile: Profile, value: str) -> Finding:
    off = "mitigations=off" in [f"mitigations={given.split(',')[0]}" for given in host.cmdline.get("mitigations", ())]
    new = "force" if off else "auto"
    sticky = value == "never"
    fix, undo = parameter(
        host, "kvm", PARAMETER, new, "never" if sticky else "off", live=not sticky, to="to split huge pages on fetches"
    )
    return Finding(
        "nx-huge-pages",
        by(profile, WARNING, realtime=NOTICE, hardened=CRITICAL),
        "the processor has the iTLB multihit bug, and guests may execute huge pages: one of them can hang this host",
        (host.evidence(host.parameter_path("kvm", PARAMETER)), host.evidence(VULNERABILITY)),
        Gain("No speed: a guest can no longer raise a machine check.", unknown="it is no matter of time"),
        fix,
        undo,
        "Code in huge pages is split into 4 KiB pages; writing the parameter zaps all mappings of all VMs once. "
        "Whoever trusts every guest may leave it off (multihit.rst).",
    )


def _forced(host: Host, profile: Profile) -> Finding:
    path = host.parameter_path("kvm", PARAMETER)
    seen = (host.evidence(path), host.evidence(VULNERABILITY))
    title = "huge pages are split on fetches although the processor does not have the bug (nx_huge_pages=force)"
    if profile is Profile.HARDENED:
        # A mitigation is not given up here, needed or not.
        gain = unknown_gain("this profile keeps it")
        return Finding("nx-huge-pages", INFO, title, seen, gain)
    fix, undo = parameter(host, "kvm", PARAMETER, "auto", "force", live=True, to="to split only where the bug is")
    gain = (
        gains.rt_spike() if profile is Profile.REALTIME else unknown_gain("it depends on how much of a guest is code")
    )
    return Finding(
        "nx-huge-pages",
        by(profile, NOTICE, realtime=WARNING),
        title,
        seen,
        gain,
        fix,
        undo,
        "Writing it zaps all mappings of all VMs once, which fault them in again; on a processor that turns out "
        "to have the bug, auto keeps the mitigation.",
    )


def _never_not_understood(host: Host, bug: bool) -> Finding | None:
    """5.10's ``never`` means off: for the boolean parser its first letter is n."""
    asked = [name for name in ("kvm.nx_huge_pages",) if "never" in host.cmdline.get(name, ())]
    if not asked or host.kernel is None or host.kernel.has("nx-never") or bug:
        return None
    return Finding(
        "nx-huge-pages",
        NOTICE,
        "this kernel reads nx_huge_pages=never as off: each VM gets its recovery thread all the same",
        (host.evidence("/proc/cmdline"), host.evidence(host.parameter_path("kvm", PARAMETER))),
        unknown_gain("what the thread costs on this kernel is told by nx-recovery-thread"),
        *another_kernel("Boot a kernel that knows never: 6.1.53 or newer of 6.1, 6.4.16, or 6.5 and newer."),
        risk="Another kernel differs in more than this.",
        rule="nx-never",
    )


@check(
    id="itlb-multihit",
    rule="Documentation/admin-guide/hw-vuln/multihit.rst",
    about="what the kernel itself says of the iTLB multihit bug",
)
def itlb_multihit(host: Host, profile: Profile) -> Found:
    """Its own words, where kvm's parameter does not tell the same."""
    text = host.vulnerability("itlb_multihit")
    if text is None:
        return unreadable(host, "itlb-multihit", VULNERABILITY, "what the kernel says of the iTLB multihit bug")
    if text == "KVM: Vulnerable":
        if host.parameter("kvm", PARAMETER) is not None:
            return None  # nx-huge-pages tells
        return Finding(
            "itlb-multihit",
            by(profile, WARNING, realtime=NOTICE, hardened=CRITICAL),
            "the kernel says that guests can use the iTLB multihit bug",
            (host.evidence(VULNERABILITY),),
            Gain("No speed: a guest can no longer raise a machine check.", unknown="it is no matter of time"),
            *boot("kvm.nx_huge_pages=force", why="since the parameter cannot be read here"),
            risk="Code in huge pages is split into 4 KiB pages.",
        )
    at_load = host.kernel is not None and host.kernel.has("virt-at-load")
    if text == "KVM: Mitigation: VMX disabled" and kvm_works(host) and at_load:
        title = "VMX is off on the CPU that answered, so loading KVM did not switch it on (kvm.enable_virt_at_load=0)"
        return Finding("itlb-multihit", INFO, title, (host.evidence(VULNERABILITY),), NO_GAIN)
    return fine(host, "itlb-multihit", "the kernel reports no exposure to the iTLB multihit bug", VULNERABILITY)


@check(
    id="nx-recovery",
    rule="nx-recovery-period",
    about="how often split pages are zapped so that they can be huge again",
)
def nx_recovery(host: Host, profile: Profile) -> Found:
    """Recovery interrupts all vCPUs at once; a period below KVM's own choice is a leftover of a test."""
    if not kvm_works(host) or host.parameter("kvm", PARAMETER) not in ("Y", "1"):
        return None
    path = host.parameter_path("kvm", RATIO)
    ratio, period = integer(host.parameter("kvm", RATIO)), integer(host.parameter("kvm", PERIOD))
    if ratio is None:
        return unreadable(host, "nx-recovery", path, "how often split pages are recovered")
    seen = [host.evidence(path)]
    if period is not None:
        seen.append(host.evidence(host.parameter_path("kvm", PERIOD)))
    if profile is Profile.REALTIME and ratio:
        fix, undo = parameter(host, "kvm", RATIO, "0", str(ratio), live=True, to="to leave split pages split")
        return Finding(
            "nx-recovery",
            WARNING,
            f"each period 1/{ratio} of the split pages is zapped, and all vCPUs that use them fault at once",
            tuple(seen),
            gains.rt_spike(),
            fix,
            undo,
            "What is once split stays in 4 KiB pages for the VM's life, so guests miss the TLB more.",
        )
    if ratio and period is not None and 0 < period < SHORTEST_PERIOD_MS:
        fix, undo = parameter(host, "kvm", PERIOD, "0", str(period), live=True, to="to derive it from the ratio")
        return Finding(
            "nx-recovery",
            NOTICE,
            f"split pages are recovered each {period} ms, oftener than KVM would choose, and then split again",
            tuple(seen),
            unknown_gain("it depends on how much code the guests run from huge pages"),
            fix,
            undo,
            "Split pages stay small for about an hour.",
        )
    title = "split pages are left alone" if not ratio else "split pages become huge again after about an hour"
    return fine(host, "nx-recovery", title, *(one.path for one in seen))
