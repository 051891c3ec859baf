"""What the processor does for KVM unless a parameter of the vendor's module says no."""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.host.checks.changes import parameter
from worldswitch.host.checks.terms import INFO, NOTICE, OK, WARNING, by, fine, integer, vendor_module
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    Amount,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    Severity,
    check,
    unknown_gain,
)

CPUINFO = "/proc/cpuinfo"
_PML = Gain(
    "Nearly one exit less for each page a guest writes while it is logged.",
    "1 - 1 / entries of the log",
    (("entries of the log", "512", "Intel SDM volume 3, Page-Modification Logging"),),
    "published: Intel SDM volume 3, Page-Modification Logging",
    Amount(1 - 1 / 512, 1 - 1 / 512, 1, "exits per page written while logged"),
)


class Feature(NamedTuple):
    """A help of the processor's that a module's parameter can switch off.

    Attributes:
        id: Of the check.
        parameter: Of the vendor's module; *flag* is the word of /proc/cpuinfo (flags or vmx flags) that shows it.
        off: What is so without it, for the title.
        severity: Default, faas, realtime, hardened.
        gain: Of switching it on.
        risk: Of switching it on.
        rule: The source.
    """

    id: str
    module: str
    parameter: str
    flag: str
    off: str
    severity: tuple[Severity, Severity, Severity, Severity]
    gain: Gain
    rule: str
    risk: str = "None known; it may have been switched off to find a fault."


_LOAD = unknown_gain("it depends on the guests' load, and no table was published")

FEATURES = (
    Feature(
        "unrestricted-guest", "kvm_intel", "unrestricted_guest", "unrestricted_guest",
        "guests in real mode or without paging are emulated or run in virtual-8086 mode; firmware boots slowly",
        (NOTICE, NOTICE, INFO, NOTICE), _LOAD, "arch/x86/kvm/vmx/vmx.c, enable_unrestricted_guest",
    ),
    Feature(
        "vpid", "kvm_intel", "vpid", "vpid", "every VM entry and exit flushes the TLB",
        (WARNING, WARNING, WARNING, WARNING), _LOAD, "Intel SDM volume 3, Virtual-Processor Identifiers",
    ),
    Feature(
        "apicv", "kvm_intel", "enable_apicv", "apicv",
        "guests exit to end interrupts and get them by exits of their own",
        (NOTICE, NOTICE, WARNING, NOTICE), _LOAD, "arch/x86/kvm/vmx/vmx.c, enable_apicv",
    ),
    Feature(
        "flexpriority", "kvm_intel", "flexpriority", "flexpriority", "guests exit for each access to their APIC's TPR",
        (NOTICE, NOTICE, NOTICE, NOTICE), _LOAD,
        "Documentation/admin-guide/kernel-parameters.txt, kvm-intel.flexpriority",
    ),
    Feature(
        "vnmi", "kvm_intel", "vnmi", "vnmi", "KVM tracks by guesses whether a guest may take an NMI",
        (NOTICE, INFO, NOTICE, NOTICE), _LOAD, "arch/x86/kvm/vmx/vmx.c, enable_vnmi",
    ),
    Feature(
        "preemption-timer", "kvm_intel", "preemption_timer", "preemption_timer",
        "a guest's timer is a timer of the host, whose interrupt ends the guest's run",
        (NOTICE, NOTICE, WARNING, NOTICE), _LOAD, "arch/x86/kvm/vmx/vmx.c, enable_preemption_timer",
    ),
    Feature(
        "pml", "kvm_intel", "pml", "pml", "while a guest is logged, it exits for the first write to each page",
        (NOTICE, NOTICE, INFO, NOTICE), _PML, "arch/x86/kvm/vmx/vmx.c, enable_pml",
        "None known; pages that a guest's log holds are marked dirty a little later.",
    ),
    Feature(
        "nrips", "kvm_amd", "nrips", "nrip_save", "KVM decodes instructions to find out where the next one is",
        (NOTICE, NOTICE, NOTICE, NOTICE), _LOAD, "arch/x86/kvm/svm/svm.c, nrips",
    ),
)  # fmt: skip
"""One check each; see :class:`Feature`."""


def _examine(feature: Feature, host: Host, profile: Profile) -> Found:
    if vendor_module(host) != feature.module:
        return None
    on = host.switch(feature.module, feature.parameter)
    able = feature.flag in host.cpu.flags | host.cpu.vmx_flags
    if on is None or not able:
        return None
    path = host.parameter_path(feature.module, feature.parameter)
    if on:
        return fine(host, feature.id, f"{feature.module}.{feature.parameter} is on", path)
    fix, undo = parameter(
        host, feature.module, feature.parameter, "1", "0", live=False, to="to let the processor do it"
    )
    default, faas, realtime, hardened = feature.severity
    return Finding(
        feature.id,
        by(profile, default, faas=faas, realtime=realtime, hardened=hardened),
        f"{feature.module}.{feature.parameter} is off although the processor has it: {feature.off}",
        (host.evidence(path), Evidence(CPUINFO, f"flags: {feature.flag}")),
        feature.gain,
        fix,
        undo,
        feature.risk,
    )


def _register(feature: Feature) -> None:
    @check(id=feature.id, rule=feature.rule, about=f"{feature.module}.{feature.parameter}")
    def examine(host: Host, profile: Profile) -> Found:
        return _examine(feature, host, profile)


for _feature in FEATURES:
    _register(_feature)


@check(id="avic", rule="arch/x86/kvm/svm/avic.c, avic_hardware_setup", about="kvm_amd.avic, AMD's virtual APIC")
def avic(host: Host, profile: Profile) -> Found:
    """Off unless asked for on most kernels; recommended where the processor has x2AVIC, as kernels that choose do."""
    if vendor_module(host) != "kvm_amd" or "avic" not in host.cpu.flags:
        return None
    path, on = host.parameter_path("kvm_amd", "avic"), host.switch("kvm_amd", "avic")
    if on is None:
        return None
    if on:
        return fine(host, "avic", "kvm_amd.avic is on", path)
    x2avic = "x2avic" in host.cpu.flags
    seen = (host.evidence(path), Evidence(CPUINFO, f"flags: avic{' x2avic' if x2avic else ''}"))
    title = "kvm_amd.avic is off: guests get interrupts and send them by exits"
    if not x2avic:
        title += "; without x2AVIC it would not serve guests in x2APIC mode either"
        return Finding("avic", by(profile, OK, realtime=INFO), title, seen)
    fix, undo = parameter(host, "kvm_amd", "avic", "1", "0", live=False, to="to deliver interrupts without exits")
    return Finding(
        "avic",
        by(profile, INFO, faas=NOTICE, realtime=WARNING),
        title,
        seen,
        _LOAD,
        fix,
        undo,
        "Nested guests and some devices switch it off for their VM; old kernels had faults in it, try it on one host.",
    )


@check(
    id="pause-loop-exits",
    rule="arch/x86/kvm/vmx/vmx.c, ple_gap",
    about="whether vCPUs that spin are interrupted, so that the one they wait for can run",
)
def pause_loop_exits(host: Host, profile: Profile) -> Found:
    """Wanted where vCPUs share CPUs, of no use where each has its own."""
    module = vendor_module(host)
    name = "ple_gap" if module == "kvm_intel" else "pause_filter_count"
    flag = "ple" if module == "kvm_intel" else "pausefilter"
    if module is None or flag not in host.cpu.flags | host.cpu.vmx_flags:
        return None
    value, path = integer(host.parameter(module, name)), host.parameter_path(module, name)
    if value is None:
        return None
    alone = profile is Profile.REALTIME
    seen = (host.evidence(path),)
    if bool(value) != alone:
        title = "vCPUs that spin are interrupted" if value else "vCPUs that spin go on spinning, with a CPU each"
        return fine(host, "pause-loop-exits", title, path)
    if alone:
        fix, undo = parameter(host, module, name, "0", str(value), live=False, to="as no other vCPU waits for the CPU")
        title = "pinned vCPUs exit when they spin, though nobody else wants their CPU"
        risk = "Where vCPUs share a CPU after all, one that spins keeps the one it waits for from running."
        return Finding("pause-loop-exits", INFO, title, seen, _LOAD, fix, undo, risk)
    usual = "128" if module == "kvm_intel" else "3000"
    fix, undo = parameter(host, module, name, usual, "0", live=False, to="to give the CPU to whom a spinner waits for")
    title = "vCPUs that spin are never interrupted: where vCPUs share CPUs, lock holders wait for spinners"
    return Finding(
        "pause-loop-exits", NOTICE, title, seen, _LOAD, fix, undo, "Guests with a CPU each exit now and then."
    )


def nested_parameter(host: Host) -> bool | None:
    """Whether guests may be hypervisors; None if not known."""
    module = vendor_module(host)
    return host.switch(module, "nested") if module else None


@check(
    id="nested",
    rule="Documentation/virt/kvm/x86/running-nested-guests.rst",
    about="whether guests may run guests of their own",
)
def nested(host: Host, profile: Profile) -> Found:
    """On by default; for hostile guests it is one of the largest pieces of KVM that they can reach."""
    on, module = nested_parameter(host), vendor_module(host)
    if on is None or module is None:
        return None
    path = host.parameter_path(module, "nested")
    if not on:
        return fine(host, "nested", "guests cannot run guests of their own", path)
    if profile not in (Profile.HARDENED, Profile.FAAS):
        return fine(host, "nested", "guests may run guests of their own, if their VMM lets them", path)
    fix, undo = parameter(host, module, "nested", "0", "1", live=False, to="to keep its code from guests")
    return Finding(
        "nested",
        by(profile, INFO, hardened=NOTICE),
        "guests may run guests of their own: the code for it is within their reach, unless the VMM hides vmx and svm",
        (host.evidence(path),),
        Gain("No speed: less of KVM is within a guest's reach.", unknown="it is no matter of time"),
        fix,
        undo,
        "Guests that are hypervisors stop working.",
    )
