"""The kernel itself: what it is, whether it is cared for, what its own line has fixed since, how it was built."""

from __future__ import annotations

from worldswitch.host.checks.changes import another_kernel
from worldswitch.host.checks.terms import (
    INFO,
    NOTICE,
    OK,
    UNKNOWN,
    WARNING,
    by,
    kernel_evidence,
    kvm_works,
    vendor_module,
)
from worldswitch.host.facts import Host
from worldswitch.host.finding import Amount, Evidence, Finding, Found, Gain, Profile, check, unknown_gain
from worldswitch.kvm import facts

RELEASES = "https://www.kernel.org/category/releases.html"
LONGTERM = ("5.10", "5.15", "6.1", "6.6", "6.12", "6.18")
"""Lines that kernel.org maintained for longer; 5.4 ended in December 2025."""
SPEED = (
    "cr0-wp-owned", "cr0-wp-init-only", "tdp-roots-kept", "nx-never", "nx-recovery-vhost-task", "nx-recovery-lazy",
    "tdp-root-role-constant", "cr4-pge-flush-only", "cr4-cet-owned",
)  # fmt: skip
"""Facts that make VM creation or guests' control registers cheaper."""
SAFETY = ("nx-recovery-retry", "cr0-wp-lazy-refresh", "sregs-cr0-checked")
DEBUG = ("PROVE_LOCKING", "KASAN", "KCSAN")


@check(id="kernel-known", rule="Documentation/process/stable-kernel-rules.rst", about="which upstream kernel this is")
def kernel_known(host: Host, profile: Profile) -> Found:
    """What is not known of a kernel is not guessed: checks that depend on it say so."""
    if host.kernel is None:
        seen = Evidence("/proc/sys/kernel/osrelease", host.release or host.why("/proc/sys/kernel/osrelease"))
        title = f"which upstream kernel this is cannot be told: {host.kernel_why}"
        return Finding("kernel-known", UNKNOWN, title, (seen,))
    return Finding("kernel-known", OK, f"this is Linux {host.kernel}", kernel_evidence(host))


@check(id="kernel-maintained", rule=RELEASES, about="whether kernel.org still maintains the kernel's line")
def kernel_maintained(host: Host, profile: Profile) -> Found:
    """Told of lines that are neither long-term nor the newest known, unless the distribution maintains them."""
    if host.kernel is None:
        return None
    version = host.kernel.version
    newest = max(facts.parse_version(text) for text in facts.lines().values()).line
    line = f"{version.major}.{version.minor}"
    # The two newest lines may be the ones that are maintained now.
    if line in LONGTERM or version.rc or version.line >= (newest[0], max(newest[1] - 1, 0)):
        return Finding(
            "kernel-maintained",
            OK,
            f"{line} is maintained for longer, or too new to have been dropped",
            kernel_evidence(host),
        )
    if host.os_release.get("ID") in ("ubuntu", "amzn", "ol", "rhel", "sles"):
        return None  # these maintain lines of their own
    return Finding(
        "kernel-maintained",
        by(profile, NOTICE, faas=WARNING, hardened=WARNING),
        f"kernel.org no longer maintains {line}: holes in KVM found since are not fixed in it",
        kernel_evidence(host),
        Gain("No speed: known holes are closed.", unknown="it is no matter of time"),
        *another_kernel("Boot a kernel of a line that is maintained, such as 6.12 or 6.18."),
        risk="Another kernel differs in more than this.",
    )


@check(
    id="kernel-fixes",
    rule="https://www.kernel.org/doc/html/latest/process/stable-kernel-rules.html",
    about="what newer versions of the same stable line do better for KVM",
)
def kernel_fixes(host: Host, profile: Profile) -> Found:
    """By the facts, so that nothing is asked for but what was read in a changelog or source."""
    kernel = host.kernel
    if kernel is None or kernel.changes or not kvm_works(host):
        return None
    line = f"{kernel.version.major}.{kernel.version.minor}"
    if line not in facts.lines():
        return None
    newest = facts.kernel(line)
    if newest.version <= kernel.version:
        return Finding("kernel-fixes", OK, f"no newer {line} is known", kernel_evidence(host))
    amd = vendor_module(host) == "kvm_amd"
    wanted = [name for name in (*SPEED, *SAFETY) if not (amd and name in ("cr0-wp-owned", "cr4-cet-owned"))]
    gained = [one.fact for one in facts.diff(kernel, newest) if one.gained and one.fact.id in wanted]
    if not gained:
        title = f"newer {line} kernels change nothing here that KVM's speed depends on"
        return Finding("kernel-fixes", OK, title, kernel_evidence(host))
    first = max(facts.parse_version(fact.backports[line]) for fact in gained if line in fact.backports)
    speed = [fact for fact in gained if fact.id in SPEED]
    return Finding(
        "kernel-fixes",
        by(profile, NOTICE, faas=WARNING, hardened=WARNING) if speed else by(profile, INFO, hardened=NOTICE),
        f"{first} of the same line brings KVM what this kernel lacks: {', '.join(fact.id for fact in gained)}",
        kernel_evidence(host),
        Gain(
            _sentence("; ".join(fact.sentence for fact in gained)),
            "facts of the newer kernel - facts of this one",
            tuple((fact.id, fact.backports.get(line, ""), fact.source) for fact in gained),
            "model",
            Amount(len(gained), len(gained), len(gained), "fixes"),
        ),
        *another_kernel(f"Boot {first} or newer of {line}."),
        risk="A newer stable kernel changes more than this.",
        rule=gained[0].id,
    )


@check(id="debug-kernel", rule="lib/Kconfig.debug", about="a kernel built for finding faults")
def debug_kernel(host: Host, profile: Profile) -> Found:
    """Lock checking and the sanitizers slow down every exit."""
    found = [name for name in DEBUG if host.config(name) == "y"]
    if not host.config_path:
        return None
    if not found:
        unset = (Evidence(host.config_path, f"CONFIG_{DEBUG[0]} is not set"),)
        return Finding("debug-kernel", OK, "the kernel is not built for finding faults", unset)
    title = f"the kernel is built for finding faults ({', '.join(found)}): all it does takes longer, exits too"
    seen = tuple(Evidence(host.config_path, f"CONFIG_{name}=y") for name in found)
    gain = unknown_gain("it depends on the options, and no table for KVM was published")
    change = another_kernel("Boot the distribution's usual kernel.")
    severity = by(profile, WARNING, hardened=INFO)
    return Finding("debug-kernel", severity, title, seen, gain, *change, risk="Faults are found later.")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
