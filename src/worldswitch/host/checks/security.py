"""What keeps one guest's data from another, and what a guest can reach of KVM that only tests have a use for."""

from __future__ import annotations

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import boot, by_hand, parameter
from worldswitch.host.checks.terms import (
    CRITICAL,
    INFO,
    NOTICE,
    WARNING,
    boot_words_of,
    by,
    fine,
    integer,
    kvm_works,
    unreadable,
    vendor_module,
)
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    BootParameter,
    Change,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    Write,
    check,
    unknown_gain,
)

FOLDER = "/sys/devices/system/cpu/vulnerabilities"
SMT = "/sys/devices/system/cpu/smt"
SAFER = Gain("No speed: it costs some.", unknown="what a mitigation costs depends on how often guests exit")

OFF = {
    "mitigations": ("off", "no_guest_host", "no_guest_guest"),
    "nospectre_v1": ("",), "nospectre_v2": ("",), "spectre_v2": ("off",), "spectre_v2_user": ("off",),
    "spec_store_bypass_disable": ("off",), "nospec_store_bypass_disable": ("",), "pti": ("off",), "nopti": ("",),
    "l1tf": ("off",), "kvm_intel.vmentry_l1d_flush": ("never",),
    "mds": ("off",), "tsx_async_abort": ("off",), "mmio_stale_data": ("off",), "srbds": ("off",),
    "gather_data_sampling": ("off",), "reg_file_data_sampling": ("off",), "retbleed": ("off",),
    "spec_rstack_overflow": ("off",), "spectre_bhi": ("off",), "indirect_target_selection": ("off",),
    "tsa": ("off",), "vmscape": ("off",),
}  # fmt: skip
"""Parameters of the command line that give up a mitigation, and the words that do (kernel-parameters.txt)."""

GUESTS_CARE = (
    "spectre_v2", "l1tf", "mds", "tsx_async_abort", "mmio_stale_data", "srbds", "gather_data_sampling",
    "reg_file_data_sampling", "retbleed", "spec_rstack_overflow", "indirect_target_selection", "tsa", "vmscape",
)  # fmt: skip
"""Vulnerabilities by which a guest reads what is not its own; the kernel's own words for them are files."""


@check(
    id="mitigations-off",
    rule="Documentation/admin-guide/kernel-parameters.txt, mitigations",
    about="mitigations that the command line gives up",
)
def mitigations_off(host: Host, profile: Profile) -> Found:
    """Speed bought with the guests' secrets; only hosts of trusted guests may."""
    if host.text("/proc/cmdline") is None:
        return unreadable(host, "mitigations-off", "/proc/cmdline", "whether mitigations are switched off")
    found = [
        given
        for name, words in OFF.items()
        for given in boot_words_of(host, name)
        if any(word in words for word in given.partition("=")[2].split(","))
    ]
    if not found:
        return fine(host, "mitigations-off", "the command line gives up no mitigation", "/proc/cmdline")
    text = " ".join(found)
    return Finding(
        "mitigations-off",
        by(profile, WARNING, realtime=NOTICE, hardened=CRITICAL),
        f"the command line gives up mitigations: {text}",
        (Evidence("/proc/cmdline", text),),
        SAFER,
        Change(
            "Take them from the kernel's command line; after a reboot.",
            tuple(BootParameter(one, remove=True) for one in found),
            True,
        ),
        Change("Add them to the command line again.", tuple(BootParameter(one) for one in found), True),
        "Exits become dearer. Whoever trusts every guest may leave it so.",
    )


@check(
    id="vulnerable",
    rule="Documentation/admin-guide/hw-vuln/index.rst",
    about="vulnerabilities that guests can use, in the kernel's own words",
)
def vulnerable(host: Host, profile: Profile) -> Found:
    """Mostly missing microcode, or switched off by hand (mitigations-off tells)."""
    known = {name: host.vulnerability(name) for name in GUESTS_CARE}
    if not any(known.values()):
        return unreadable(host, "vulnerable", f"{FOLDER}/spectre_v2", "which vulnerabilities the processor has")
    found = [
        name for name, text in known.items() if text and (text.startswith("Vulnerable") or "VMX: vulnerable" in text)
    ]
    if not found:
        paths = [f"{FOLDER}/{name}" for name, text in known.items() if text]
        return fine(host, "vulnerable", "no vulnerability that guests could use is open", *paths[:3])
    microcode = any("icrocode" in (known[name] or "") for name in found)
    cure = "Install the newest microcode and firmware, and a newer kernel" if microcode else "Switch the mitigations on"
    if microcode and host.hypervisor:
        cure = "Have the hypervisor below brought up to date, which is where a VM's microcode is from"
    fix, undo = by_hand(f"{cure}; the files name what is missing.", "Go back to the microcode and kernel that run now.")
    return Finding(
        "vulnerable",
        by(profile, WARNING, realtime=NOTICE, hardened=CRITICAL),
        f"the kernel says Vulnerable of what guests could use: {', '.join(found)}",
        tuple(host.evidence(f"{FOLDER}/{name}") for name in found),
        SAFER,
        fix,
        undo,
        "Exits become dearer. Whoever trusts every guest may leave it so.",
    )


@check(
    id="smt",
    rule="Documentation/admin-guide/hw-vuln/l1tf.rst, SMT control",
    about="sibling threads that share a core's caches with a guest",
)
def smt(host: Host, profile: Profile) -> Found:
    """A leak where the processor has L1TF, MDS or their like; a neighbour with deadlines' time in any case."""
    if host.smt_active is None:
        return None
    path = f"{SMT}/active"
    if not host.smt_active:
        return fine(host, "smt", "no core runs two threads", path, f"{SMT}/control")
    leaks = [
        name
        for name in GUESTS_CARE
        if "SMT vulnerable" in (host.vulnerability(name) or "") or "VMX: vulnerable" in (host.vulnerability(name) or "")
    ]
    if not leaks and profile not in (Profile.REALTIME, Profile.HARDENED):
        return fine(host, "smt", "cores run two threads each, and no known vulnerability needs them off", path)
    if leaks:
        title = f"guests on one core can read each other's and the host's data by {', '.join(leaks)}"
        severity = by(profile, NOTICE, faas=WARNING, realtime=WARNING, hardened=CRITICAL)
    else:
        title = "cores run two threads each: siblings share caches and execution units"
        severity = by(profile, INFO, realtime=NOTICE, hardened=NOTICE)
    fix = Change(
        "Switch SMT off, now and at each boot.", (Write(f"{SMT}/control", "off"), BootParameter("nosmt")), False
    )
    undo = Change("Switch SMT on again.", (Write(f"{SMT}/control", "on"), BootParameter("nosmt", remove=True)))
    seen = [host.evidence(path), host.evidence(f"{SMT}/control")]
    seen += [host.evidence(f"{FOLDER}/{name}") for name in leaks]
    return Finding(
        "smt",
        severity,
        title,
        tuple(seen),
        SAFER if profile is not Profile.REALTIME else unknown_gain("it depends on what the sibling does"),
        fix,
        undo,
        "Half of the logical CPUs go away; core scheduling, or whole cores per guest, is milder.",
    )


@check(
    id="l1d-flush",
    rule="Documentation/admin-guide/hw-vuln/l1tf.rst, L1D flush on VMENTER",
    about="whether the L1 data cache is flushed before a guest runs",
)
def l1d_flush(host: Host, profile: Profile) -> Found:
    """Only on processors with L1TF: never is open, cond the kernel's choice, always the documented maximum."""
    text = host.vulnerability("l1tf")
    if vendor_module(host) != "kvm_intel" or text is None or "VMX:" not in text:
        return None
    path, mode = f"{FOLDER}/l1tf", text.partition("VMX: ")[2].partition(",")[0]
    if mode in ("cache flushes", "flush not necessary", "EPT disabled"):
        return fine(host, "l1d-flush", f"L1TF: {mode}", path)
    if mode == "conditional cache flushes" and profile is not Profile.HARDENED:
        return fine(
            host, "l1d-flush", "the L1 data cache is flushed where code ran that could leave secrets in it", path
        )
    hardened = profile is Profile.HARDENED
    new, old = ("always" if hardened else "cond"), ("cond" if mode.startswith("conditional") else "never")
    fix, undo = parameter(host, "kvm_intel", "vmentry_l1d_flush", new, old, live=True, to="to flush before guests run")
    if old == "never":
        title, severity = (
            "a guest can read the host's memory from the L1 data cache (L1TF): it is never flushed",
            WARNING,
        )
        severity = by(profile, WARNING, realtime=NOTICE, hardened=CRITICAL)
    else:
        title, severity = (
            "the L1 data cache is flushed before some VM entries only; l1tf=full means all of them",
            NOTICE,
        )
    low, high = gains.L1D_FLUSH_PERCENT
    gain = Gain(f"No speed: it costs a guest {low:.0f} to {high:.0f} % (l1tf.rst).", unknown="it is a cost, no gain")
    risk = f"Guests that exit often run {low:.0f} to {high:.0f} % slower."
    seen = (host.evidence(path), host.evidence(host.parameter_path("kvm_intel", "vmentry_l1d_flush")))
    return Finding("l1d-flush", severity, title, seen, gain, fix, undo, risk)


@check(
    id="exit-barriers",
    rule="Documentation/admin-guide/hw-vuln/srso.rst",
    about="barriers that mitigations put into each exit, where a cheaper one protects as well",
)
def exit_barriers(host: Host, profile: Profile) -> Found:
    """Told where the command line chose IBPB against SRSO; the kernel's own choice, Safe RET, protects as well."""
    text = host.vulnerability("spec_rstack_overflow")
    if text is None or profile is Profile.HARDENED:
        return None
    chosen = "ibpb" in host.cmdline.get("spec_rstack_overflow", ())
    path = f"{FOLDER}/spec_rstack_overflow"
    if not text.startswith("Mitigation"):
        return None  # vulnerable tells, or there is nothing to tell
    if text != "Mitigation: IBPB" or not chosen:
        return fine(host, "exit-barriers", f"against SRSO the kernel does: {text}", path)
    fix, undo = boot("spec_rstack_overflow=ibpb", remove=True, why="so that the kernel takes Safe RET")
    return Finding(
        "exit-barriers",
        NOTICE,
        "the command line puts an IBPB into each exit and kernel entry against SRSO, where Safe RET protects as well",
        (host.evidence(path), Evidence("/proc/cmdline", "spec_rstack_overflow=ibpb")),
        unknown_gain("no figure for guests was published by kernel and processor"),
        fix,
        undo,
        "Safe RET needs current microcode to protect user space too; the same file then says whether it does.",
    )


@check(
    id="ignore-msrs",
    rule="Documentation/admin-guide/kernel-parameters.txt, kvm.ignore_msrs",
    about="whether guests are told of MSRs that do not exist",
)
def ignore_msrs(host: Host, profile: Profile) -> Found:
    """Guests that read 0 for what is not there behave oddly; some systems do not start otherwise."""
    on, path = host.switch("kvm", "ignore_msrs"), host.parameter_path("kvm", "ignore_msrs")
    if on is None:
        return None
    if not on:
        return fine(
            host, "ignore-msrs", "a guest's access to an MSR that does not exist is a fault, as on hardware", path
        )
    fix, undo = parameter(host, "kvm", "ignore_msrs", "0", "1", live=True, to="to let guests fault as on hardware")
    quiet = host.switch("kvm", "report_ignored_msrs") is False
    title = "guests read 0 from MSRs that do not exist" + (", and no log tells of it" if quiet else "")
    seen = [host.evidence(path)]
    if quiet:
        seen.append(host.evidence(host.parameter_path("kvm", "report_ignored_msrs")))
    return Finding(
        "ignore-msrs",
        by(profile, NOTICE, hardened=WARNING),
        title,
        tuple(seen),
        Gain("No speed: guests see what the processor would do.", unknown="it is no matter of time"),
        fix,
        undo,
        "Some guests (macOS, a few drivers of Windows) crash without it.",
    )


TESTS_ONLY = (
    ("force_emulation_prefix", "a guest can have any instruction emulated by KVM, for tests of its emulator"),
    ("enable_vmware_backdoor", "guests get VMware's I/O port and, for that, exits on general protection faults"),
)


@check(
    id="test-switches",
    rule="arch/x86/kvm/x86.c, force_emulation_prefix and enable_vmware_backdoor",
    about="switches of KVM's that widen what guests can reach, for tests or old guests",
)
def test_switches(host: Host, profile: Profile) -> Found:
    """Off by default; whoever switched them on knows why, or forgot."""
    if not kvm_works(host):
        return None
    found = []
    for name, what in TESTS_ONLY:
        value = host.parameter("kvm", name)
        if value is None or value in ("0", "N"):
            continue
        # 5.10 has force_emulation_prefix as a bool that is read only; the backdoor is read only on all kernels.
        live = name == "force_emulation_prefix" and (integer(value) is not None)
        fix, undo = parameter(host, "kvm", name, "0", value, live=live, to="as it is by default")
        found.append(
            Finding(
                f"test-switches.{name}",
                by(profile, NOTICE, hardened=WARNING),
                f"kvm.{name} is on: {what}",
                (host.evidence(host.parameter_path("kvm", name)),),
                Gain("No speed: less of KVM is within a guest's reach.", unknown="it is no matter of time"),
                fix,
                undo,
                "Guests or tests that need it stop working.",
            )
        )
    if found:
        return found
    if host.parameter("kvm", "force_emulation_prefix") is None:
        return None
    paths = [host.parameter_path("kvm", name) for name, _ in TESTS_ONLY]
    return fine(host, "test-switches", "KVM's switches for tests are off", *paths)
