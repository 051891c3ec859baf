"""How guest memory is mapped, who owns the guest's control registers, and what each write of them costs here."""

from __future__ import annotations

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import another_kernel, parameter
from worldswitch.host.checks.terms import (
    INFO,
    NOTICE,
    OK,
    WARNING,
    by,
    fine,
    kernel_evidence,
    two_dimensional,
    unreadable,
    vendor_module,
)
from worldswitch.host.facts import Host
from worldswitch.host.finding import Amount, Evidence, Finding, Found, Gain, Profile, check, unknown_gain

CPUINFO = "/proc/cpuinfo"
_NEWER = "Boot 6.4 or newer, or 6.1.50 or newer of 6.1."


def mmu(host: Host) -> str:
    """``tdp``, ``legacy`` or ``shadow``; empty if not known."""
    paging = two_dimensional(host)
    if paging is None:
        return ""
    if not paging:
        return "shadow"
    return "tdp" if host.switch("kvm", "tdp_mmu") else "legacy"


def line(host: Host) -> str:
    """The stable line of the kernel, ``6.1``; empty if not known."""
    return f"{host.kernel.version.major}.{host.kernel.version.minor}" if host.kernel else ""


@check(
    id="two-dimensional-paging",
    rule="Documentation/admin-guide/kernel-parameters.txt, kvm-intel.ept and kvm-amd.npt",
    about="EPT or NPT is used, if the processor has it",
)
def two_dimensional_paging(host: Host, profile: Profile) -> Found:
    """Shadow paging where the processor could do better costs more than anything else here."""
    module = vendor_module(host)
    if module is None:
        return None
    name = "ept" if module == "kvm_intel" else "npt"
    path, on = host.parameter_path(module, name), two_dimensional(host)
    if on is None:
        return unreadable(host, "two-dimensional-paging", path, f"whether {name.upper()} is used")
    if on:
        return fine(host, "two-dimensional-paging", f"{name.upper()} is used", path)
    able = name in host.cpu.flags or name in host.cpu.vmx_flags
    seen = (host.evidence(path), Evidence(CPUINFO, f"{name}: {'there' if able else 'not among the flags'}"))
    if not able:
        title = f"the processor shows no {name.upper()}: guests run under shadow paging"
        return Finding("two-dimensional-paging", WARNING, title, seen, unknown_gain("it takes another processor"))
    fix, undo = parameter(host, module, name, "1", "0", live=False, to="to map guests by the processor's own tables")
    l1tf = (host.vulnerability("l1tf") or "Not affected") != "Not affected"
    if l1tf and profile is Profile.HARDENED:
        title = "EPT is switched off: guests run under shadow paging, which closes L1TF (l1tf.rst, Disabling EPT)"
        return Finding("two-dimensional-paging", INFO, title, seen, unknown_gain("this profile keeps it"))
    risk = "None known but for L1TF: without EPT KVM sees every page table of a guest (l1tf.rst, 5)." if l1tf else ""
    return Finding(
        "two-dimensional-paging",
        WARNING,
        f"{name.upper()} is switched off: guests run under shadow paging"
        + (", a known mitigation of L1TF" if l1tf else ""),
        seen,
        gains.shadow_to_tdp() if module == "kvm_intel" else unknown_gain("no figure for AMD was published"),
        fix,
        undo,
        risk or "None known.",
    )


@check(id="tdp-mmu", rule="tdp-roots-kept", about="the MMU behind EPT or NPT, and whether its roots survive")
def tdp_mmu(host: Host, profile: Profile) -> Found:
    """On before its roots were kept it is worse than the legacy MMU; off after that, nothing is won by it."""
    kernel, kind = host.kernel, mmu(host)
    if kernel is None or kind not in ("tdp", "legacy") or not kernel.has("tdp-mmu"):
        return None
    path = host.parameter_path("kvm", "tdp_mmu")
    if host.parameter("kvm", "tdp_mmu") is None:
        return unreadable(host, "tdp-mmu", path, "which MMU is used")
    seen = (host.evidence(path), *kernel_evidence(host))
    live = not kernel.has("tdp-mmu-fixed-at-load")
    if kind == "tdp" and not kernel.has("tdp-root-role-constant"):
        fix, undo = parameter(host, "kvm", "tdp_mmu", "0", "1", live=live, to="to use the legacy MMU for new VMs")
        published = gains.TDP_TO_LEGACY.get(line(host)) if vendor_module(host) == "kvm_intel" else None
        return Finding(
            "tdp-mmu",
            by(profile, NOTICE, hardened=WARNING),
            "this kernel's TDP MMU drops its page tables whenever a vCPU unloads its root, as for each CR0.WP write",
            seen,
            gains.times_faster(published) if published else unknown_gain("no figure for this line and vendor"),
            fix,
            undo,
            "The legacy MMU handles faults of one VM one after the other, so VMs of many vCPUs start slower.",
        )
    if kind == "legacy" and kernel.has("tdp-roots-kept"):
        fix, undo = parameter(host, "kvm", "tdp_mmu", "1", "0", live=live, to="to handle faults of one VM side by side")
        return Finding(
            "tdp-mmu",
            by(profile, NOTICE, faas=INFO),
            "the TDP MMU is switched off: faults of one VM are handled one after the other",
            seen,
            unknown_gain("it grows with the vCPUs of a VM, and no table was published"),
            fix,
            undo,
            "None known on this kernel; it was off for the roots it lost before 6.4 and 6.1.50.",
        )
    return Finding("tdp-mmu", OK, f"the {'TDP' if kind == 'tdp' else 'legacy'} MMU is right for this kernel", seen)


@check(id="cr0-wp", rule="cr0-guest-owned", about="what a guest's write of CR0.WP costs, as hardened guests make them")
def cr0_wp(host: Host, profile: Profile) -> Found:
    """Matters to guests with KERNEXEC or the like; others write CR0.WP while booting only."""
    kernel, kind, module = host.kernel, mmu(host), vendor_module(host)
    if kernel is None or kind not in ("tdp", "legacy") or module is None:
        return None
    seen = kernel_evidence(host)
    if module == "kvm_intel":
        if kernel.has("cr0-wp-owned"):
            return Finding("cr0-wp", OK, "guests own CR0.WP: writing it costs no exit", seen)
        published = gains.CR0_WP.get((line(host), kind))
        title = "every guest write of CR0.WP exits"
        if not kernel.has("cr0-wp-init-only"):
            title += " and unloads the MMU's roots"
        gain = gains.times_faster(published) if published else _one_exit()
        severity = by(profile, INFO, hardened=WARNING)
        return Finding(
            "cr0-wp",
            severity,
            title,
            seen,
            gain,
            *another_kernel(_NEWER),
            risk="Another kernel differs in more than this.",
        )
    if kernel.has("cr0-wp-init-only"):
        title = "every guest write of CR0.WP exits, as SVM has no mask for it; the roots stay"
        return Finding("cr0-wp", by(profile, OK, hardened=INFO), title, seen, rule="svm-cr0-intercept")
    return Finding(
        "cr0-wp",
        by(profile, INFO, hardened=WARNING),
        "every guest write of CR0.WP exits and unloads the MMU's roots",
        seen,
        gains.times_faster(gains.CR0_WP_AMD),
        *another_kernel("Boot 6.4 or newer, or 6.1.29 or newer of 6.1, which keep the roots; the exit stays on AMD."),
        risk="Another kernel differs in more than this.",
        rule="cr0-after-write",
    )


def _one_exit() -> Gain:
    return Gain(
        "No exit for a write of CR0.WP.",
        "exits here - exits with the guest as its owner",
        (("here", "1", "rule cr0-guest-owned"), ("owned", "0", "rule cr0-guest-owned")),
        "model",
        Amount(1, 1, 1, "exits per CR0.WP write"),
    )


@check(id="cr4-cet", rule="cr4-guest-owned", about="whether guests can use CET, and what a write of CR4.CET costs")
def cr4_cet(host: Host, profile: Profile) -> Found:
    """Only where the processor has CET; which /proc/cpuinfo tells by ibt and user_shstk."""
    kernel, module = host.kernel, vendor_module(host)
    able = sorted(host.cpu.flags & {"ibt", "user_shstk", "shstk"})
    if kernel is None or module is None or not able:
        return None
    seen = (Evidence(CPUINFO, f"flags: {' '.join(able)}"), *kernel_evidence(host))
    if not kernel.has("cet-virtualized"):
        severity = by(profile, INFO, hardened=NOTICE)
        title = "the processor has CET, but this kernel offers it to no guest"
        gain = Gain("No speed: guests can protect their control flow.", unknown="it is no matter of time")
        risk = "Guests with CET lose some speed themselves; another kernel differs in more than this."
        change = another_kernel("Boot 6.18 or newer.")
        return Finding("cr4-cet", severity, title, seen, gain, *change, risk=risk, rule="cet-virtualized")
    if module == "kvm_intel" and host.switch("kvm_intel", "cet") is False:
        fix, undo = parameter(host, "kvm_intel", "cet", "1", "0", live=False, to="to offer CET to guests")
        path = host.parameter_path("kvm_intel", "cet")
        title = "kvm_intel.cet is off: guests are not offered CET"
        gain = Gain("No speed: guests can protect their control flow.", unknown="it is no matter of time")
        severity = by(profile, INFO, hardened=NOTICE)
        risk = "VMs with CET cannot be moved to hosts without it."
        return Finding(
            "cr4-cet", severity, title, (host.evidence(path), *seen), gain, fix, undo, risk, "cet-virtualized"
        )
    if module == "kvm_amd":
        title = "guests may use CET; every write of CR4 exits, as SVM has no mask for it"
        return Finding("cr4-cet", by(profile, OK, hardened=INFO), title, seen, rule="svm-cr4-intercept")
    if kernel.has("cr4-cet-owned"):
        return Finding("cr4-cet", OK, "guests own CR4.CET: writing it costs no exit", seen)
    return Finding(
        "cr4-cet",
        by(profile, INFO, hardened=WARNING),
        "every guest write of CR4.CET exits",
        seen,
        gains.times_faster(gains.CET, "CR4.CET"),
        *another_kernel("Boot a kernel where the guest owns CR4.CET, as 6.18 does."),
        risk="Another kernel differs in more than this.",
    )


@check(
    id="eager-page-split",
    rule="Documentation/admin-guide/kernel-parameters.txt, kvm.eager_page_split",
    about="whether dirty logging splits huge pages ahead of the guest's writes",
)
def eager_page_split(host: Host, profile: Profile) -> Found:
    """Matters to live migration, and to snapshots by dirty log; needs the TDP MMU."""
    path, on = host.parameter_path("kvm", "eager_page_split"), host.switch("kvm", "eager_page_split")
    if on is None or mmu(host) != "tdp":
        return None
    if on:
        return fine(host, "eager-page-split", "dirty logging splits huge pages ahead of the guest's writes", path)
    fix, undo = parameter(host, "kvm", "eager_page_split", "1", "0", live=True, to="to split before the guest writes")
    return Finding(
        "eager-page-split",
        by(profile, INFO, faas=NOTICE),
        "dirty logging splits huge pages while the guest waits for its write",
        (host.evidence(path),),
        unknown_gain("it depends on how much a guest writes while it is migrated"),
        fix,
        undo,
        "Reads lose huge pages too while a guest is logged; guests that write little are better off without.",
    )
