"""What KVM itself has counted since the VMs of now were started (/sys/kernel/debug/kvm)."""

from __future__ import annotations

from worldswitch.host.checks.changes import by_hand
from worldswitch.host.checks.nx import PARAMETER
from worldswitch.host.checks.terms import INFO, NOTICE, OK, WARNING, by
from worldswitch.host.facts import Host
from worldswitch.host.finding import Amount, Evidence, Finding, Found, Gain, Profile, check, unknown_gain

FOLDER = "/sys/kernel/debug/kvm"
HUGE = 512
ENOUGH_PAGES = 1 << 18
"""1 GiB of 4 KiB pages: less is not worth a word."""


def _counted(host: Host, *names: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"{FOLDER}/{name}", str(host.debug_kvm[name])) for name in names if name in host.debug_kvm)


@check(
    id="split-pages",
    rule="nx-huge-pages-active",
    about="huge pages that the iTLB mitigation has split, as counted",
)
def split_pages(host: Host, profile: Profile) -> Found:
    """A count of tables that stand where a huge page could; trusted VMs may opt out, one by one."""
    name = "nx_lpage_splits" if "nx_lpage_splits" in host.debug_kvm else "nx_largepages_splitted"
    splits = host.debug_kvm.get(name)
    huge = host.debug_kvm.get("pages_2m", host.debug_kvm.get("largepages"))
    if splits is None or huge is None or host.parameter("kvm", PARAMETER) not in ("Y", "1"):
        return None
    seen = _counted(host, name, "pages_2m", "largepages")
    if not splits or splits < huge:
        title = f"{splits} huge pages are split, {huge} are not"
        return Finding("split-pages", OK, title, seen)
    title = f"{splits} huge pages are split for code in them, more than the {huge} that are left"
    if profile is Profile.HARDENED or host.kernel is None or not host.kernel.has("nx-opt-out"):
        return Finding("split-pages", INFO, title, seen, unknown_gain("the mitigation is kept"))
    fix, undo = by_hand(
        "Let the VMM of guests that are trusted, and of these only, opt out by KVM_CAP_VM_DISABLE_NX_HUGE_PAGES "
        "(it needs CAP_SYS_BOOT), before their vCPUs are made.",
        "Start these VMs again without opting out.",
    )
    gain = Gain(
        f"{splits:,} tables of 4 KiB pages less, and so many huge pages back.",
        "split pages",
        (("split pages", str(splits), f"{FOLDER}/{name}"),),
        "this host",
        Amount(0, splits, splits, "huge pages"),
    )
    risk = "A guest that has opted out can hang the host if the processor has the bug."
    severity = by(profile, INFO, realtime=NOTICE)
    return Finding("split-pages", severity, title, seen, gain, fix, undo, risk, "nx-opt-out")


@check(
    id="page-sizes",
    rule="Documentation/admin-guide/mm/transhuge.rst",
    about="guest memory mapped in small pages, as counted",
)
def page_sizes(host: Host, profile: Profile) -> Found:
    """A guest's first touch of each mapping is an exit, and each TLB miss walks two tables."""
    small, two, one = (host.debug_kvm.get(name) for name in ("pages_4k", "pages_2m", "pages_1g"))
    if small is None or two is None:
        return None
    large = two * HUGE + (one or 0) * HUGE * HUGE
    if not small + large:
        return None
    seen = _counted(host, "pages_4k", "pages_2m", "pages_1g")
    if small < ENOUGH_PAGES or small <= large:
        share = small / (small + large)
        return Finding("page-sizes", OK, f"{share:.0%} of mapped guest memory is in 4 KiB pages", seen)
    gibibytes = small / ENOUGH_PAGES
    fewer = small - small // HUGE
    fix, undo = by_hand(
        "Back guest memory by huge pages: madvise in the VMM with transparent ones (see thp), or reserved ones.",
        "Start the VMs without them.",
    )
    return Finding(
        "page-sizes",
        by(profile, NOTICE),
        f"{gibibytes:,.0f} GiB of guest memory are mapped in 4 KiB pages, {large / ENOUGH_PAGES:,.0f} GiB in larger",
        seen,
        Gain(
            f"Up to {fewer:,} page-fault exits less until the same memory is mapped.",
            "small pages - small pages / 512",
            (("small pages", str(small), f"{FOLDER}/pages_4k"),),
            "this host",
            Amount(0, fewer, fewer, "page-fault exits"),
        ),
        fix,
        undo,
        "A guest takes memory 2 MiB at a time; while it is logged for migration its pages are split anyway.",
    )


@check(
    id="shadow-pages-recycled",
    rule="shadow-page-limit",
    about="shadow pages thrown away for want of room, as counted",
)
def shadow_pages_recycled(host: Host, profile: Profile) -> Found:
    """Under the legacy MMU and shadow paging a VM has a limit of table pages; at it, tables are thrown away."""
    recycled = host.debug_kvm.get("mmu_recycled")
    if recycled is None:
        return None
    seen = _counted(host, "mmu_recycled", "mmu_cache_miss")
    if not recycled:
        return Finding("shadow-pages-recycled", OK, "no table page was thrown away for want of room", seen)
    fix, undo = by_hand(
        "Have the VMM raise the limit (KVM_SET_NR_MMU_PAGES), or use larger pages, which need fewer tables.",
        "Start the VMs without that.",
    )
    title = f"{recycled:,} table pages were thrown away for want of room, to be made again by faults"
    gain = Gain(
        f"Up to {recycled:,} table pages not made twice.",
        "recycled",
        (("recycled", str(recycled), f"{FOLDER}/mmu_recycled"),),
        "this host",
        Amount(0, recycled, recycled, "table pages since the VMs were started"),
    )
    risk = "Tables take memory that counts for no guest."
    return Finding("shadow-pages-recycled", NOTICE, title, seen, gain, fix, undo, risk)


@check(
    id="emulation-failures",
    rule="arch/x86/kvm/x86.c, handle_emulation_failure",
    about="instructions that KVM could not emulate, as counted",
)
def emulation_failures(host: Host, profile: Profile) -> Found:
    """Guests get #UD or end with an internal error; a fault, or an attempt to find one."""
    failed = host.debug_kvm.get("insn_emulation_fail")
    if failed is None:
        return None
    seen = _counted(host, "insn_emulation_fail", "insn_emulation")
    if not failed:
        return Finding("emulation-failures", OK, "every instruction that had to be emulated was", seen)
    fix, undo = by_hand(
        "Find the guest and the instruction: wsw record, or the event kvm:kvm_emulate_insn with failed=1.",
        "Nothing was changed.",
    )
    title = f"{failed:,} instructions of guests could not be emulated"
    gain = unknown_gain("it is a fault, not a matter of time")
    severity = by(profile, NOTICE, hardened=WARNING)
    return Finding("emulation-failures", severity, title, seen, gain, fix, undo, "None: it only looks.")
