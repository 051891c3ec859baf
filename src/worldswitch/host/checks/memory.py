"""The host's memory as guests get it: huge pages, same-page merging, NUMA, swap."""

from __future__ import annotations

from worldswitch.host.checks import gains
from worldswitch.host.checks.changes import Pair, by_hand, sysctl, sysfs
from worldswitch.host.checks.terms import INFO, NOTICE, OK, WARNING, by, fine, integer, unreadable, vendor_module
from worldswitch.host.facts import Host
from worldswitch.host.finding import (
    Amount,
    ByHand,
    Change,
    Evidence,
    Finding,
    Found,
    Gain,
    Profile,
    check,
    unknown_gain,
)

THP = "/sys/kernel/mm/transparent_hugepage"
KSM = "/sys/kernel/mm/ksm"
PAGE = 4096


@check(
    id="thp",
    rule="Documentation/admin-guide/mm/transhuge.rst",
    about="transparent huge pages for guest memory",
)
def thp(host: Host, profile: Profile) -> Found:
    """Never is a loss unless guests get reserved pages; always is a source of stalls for real-time guests."""
    path, value = f"{THP}/enabled", host.thp("enabled")
    if value is None:
        if host.config("TRANSPARENT_HUGEPAGE") == "n" or host.why(path) == "not there":
            return None
        return unreadable(host, "thp", path, "whether guest memory gets huge pages")
    reserved = any(pool.total for pool in host.hugepages)
    if value == "always" and profile is Profile.REALTIME:
        new = "never" if reserved else "madvise"
        fix, undo = sysfs(f"{path}", new, "always", name="thp", to="to keep khugepaged away from guests")
        return Finding(
            "thp",
            WARNING,
            "khugepaged collapses pages of any process, and each vCPU that uses them stops meanwhile",
            (host.evidence(path),),
            unknown_gain("no figure for guests was published"),
            fix,
            undo,
            "Memory that is not of reserved huge pages gets small ones.",
            "https://github.com/redhat-performance/tuned, profile network-latency",
        )
    if value == "never" and not reserved and profile is not Profile.REALTIME:
        fix, undo = sysfs(path, "madvise", "never", name="thp", to="so that VMMs that ask for them get huge pages")
        return Finding(
            "thp",
            by(profile, NOTICE, hardened=INFO),
            "guest memory never gets huge pages, neither transparent nor reserved ones",
            (host.evidence(path), host.evidence("/proc/meminfo", f"HugePages_Total: {_total(host)}")),
            gains.huge_pages(bool(host.hypervisor)),
            fix,
            undo,
            "A guest takes memory 2 MiB at a time; the VMM has to ask by madvise, as QEMU does.",
        )
    return fine(host, "thp", f"transparent huge pages are given: {value}", path)


def _total(host: Host) -> int:
    return sum(pool.total for pool in host.hugepages)


@check(
    id="thp-defrag",
    rule="Documentation/admin-guide/mm/transhuge.rst, defrag",
    about="whether a fault waits until memory for a huge page is made free",
)
def thp_defrag(host: Host, profile: Profile) -> Found:
    """``always`` lets the first touch of guest memory wait for reclaim and compaction."""
    path, value = f"{THP}/defrag", host.thp("defrag")
    if value is None or host.thp("enabled") == "never":
        return None
    if value != "always":
        return fine(host, "thp-defrag", f"faults wait for huge pages: {value}", path)
    new = "defer+madvise"
    fix, undo = sysfs(path, new, "always", name="thp-defrag", to="so that only who asks by madvise waits")
    return Finding(
        "thp-defrag",
        by(profile, INFO, faas=NOTICE, realtime=WARNING),
        "every fault may wait until memory is reclaimed and moved to make a huge page",
        (host.evidence(path),),
        unknown_gain("it depends on how fragmented the memory is"),
        fix,
        undo,
        "Memory of processes that do not ask gets huge pages later.",
    )


@check(
    id="huge-pages",
    rule="Documentation/admin-guide/mm/hugetlbpage.rst",
    about="reserved huge pages, and whether guests use them",
)
def huge_pages(host: Host, profile: Profile) -> Found:
    """Real-time guests want them; reserved and unused they are lost to everyone."""
    users = host.module_users.get(vendor_module(host) or "", 0)
    idle = [pool for pool in host.hugepages if pool.total and pool.free == pool.total]
    if idle and users:
        size = sum(pool.size * pool.total for pool in idle)
        seen = tuple(Evidence(pool.path, f"{pool.total}, of them {pool.free} free") for pool in idle)
        first = idle[0]
        gain = Gain(
            f"{size / 2**20:,.0f} MiB of memory for others.",
            "pages * size of one",
            tuple((f"pages of {pool.size // 1024} KiB", str(pool.total), pool.path) for pool in idle),
            "this host",
            Amount(size, size, size, "bytes of memory"),
        )
        return Finding(
            "huge-pages",
            by(profile, NOTICE),
            f"VMs run, but none of the {size / 2**20:,.0f} MiB of reserved huge pages is in use",
            (*seen, host.evidence("/proc/modules", f"{vendor_module(host)} has {users} users")),
            gain,
            *_unreserve(first.path, first.total),
            risk="VMs that are to start with them later find none; memory may be too fragmented to reserve them again.",
        )
    if profile is Profile.REALTIME and not any(pool.total for pool in host.hugepages):
        if not host.hugepages:
            return None
        fix, undo = by_hand(
            "Reserve huge pages for all guest memory (hugepagesz=1G hugepages=N), and let VMMs use them.",
            "Take the reservation back.",
        )
        seen = tuple(Evidence(pool.path, str(pool.total)) for pool in host.hugepages)
        title = "no huge pages are reserved: guest memory can be moved, merged and reclaimed under a real-time guest"
        gain = unknown_gain("it depends on the memory pressure of the host")
        return Finding("huge-pages", NOTICE, title, seen, gain, fix, undo, "Reserved memory is lost to all others.")
    used = [pool for pool in host.hugepages if pool.total]
    if not used:
        return None
    text = ", ".join(f"{pool.total - pool.free} of {pool.total} of {pool.size // 1024} KiB" for pool in used)
    return fine(host, "huge-pages", f"reserved huge pages in use: {text}", *(pool.path for pool in used))


def _unreserve(path: str, number: int) -> Pair:
    fix = Change("Reserve fewer, once it is sure that nobody waits for them.", (ByHand(f"echo 0 > {path}"),))
    return Pair(fix, Change("Reserve them again.", (ByHand(f"echo {number} > {path}"),)))


@check(id="ksm", rule="Documentation/admin-guide/mm/ksm.rst", about="merging of equal pages of guests")
def ksm(host: Host, profile: Profile) -> Found:
    """It saves memory, tells neighbours which pages are equal, and write faults pay for it."""
    path, run = f"{KSM}/run", host.ksm("run")
    if run is None:
        return None
    if run != 1:
        return fine(host, "ksm", "equal pages of guests are not merged", path)
    merged = host.ksm("pages_sharing") or 0
    seen = (host.evidence(path), Evidence(f"{KSM}/pages_sharing", str(merged)))
    if profile is Profile.DEFAULT:
        saved = f"saves {merged * PAGE / 2**20:,.0f} MiB here" if merged else "has found nothing to merge here"
        severity = INFO if merged else NOTICE
        title = f"equal pages of guests are merged, which {saved}; by timing a write a guest can tell what others hold"
        fix, undo = sysfs(path, "0" if not merged else "2", "1", name="ksm", to="to merge no more")
        risk = f"Pages are merged no more; 2 unmerges them, which takes {merged * PAGE / 2**20:,.0f} MiB."
        return Finding("ksm", severity, title, seen, unknown_gain(_WRITES), fix, undo, risk)
    fix, undo = sysfs(path, "2", "1", name="ksm", to="to merge no more and unmerge what is")
    need = merged * PAGE / 2**20
    return Finding(
        "ksm",
        WARNING,
        "equal pages of guests are merged: by timing a write a guest can tell what others hold, and the write waits",
        seen,
        unknown_gain(_WRITES),
        fix,
        undo,
        f"Unmerging takes {need:,.0f} MiB at once; ksmtuned or a like service may switch it on again.",
        "https://github.com/firecracker-microvm/firecracker, docs/prod-host-setup.md",
    )


_WRITES = "it depends on how often guests write to merged pages"


@check(
    id="numa-balancing",
    rule="Documentation/admin-guide/sysctl/kernel.rst, numa_balancing",
    about="pages of guests unmapped to see which node uses them",
)
def numa_balancing(host: Host, profile: Profile) -> Found:
    """Each sample unmaps guest pages, so that vCPUs fault; pinned guests get nothing for it."""
    path, value = "/proc/sys/kernel/numa_balancing", integer(host.text("/proc/sys/kernel/numa_balancing"))
    if value is None or host.nodes < 2:
        return None
    if profile is not Profile.REALTIME or not value:
        state = "on" if value else "off"
        return fine(host, "numa-balancing", f"automatic NUMA balancing is {state}", path)
    fix, undo = sysctl("kernel.numa_balancing", "0", str(value), to="to leave pinned guests' memory mapped")
    title = "NUMA balancing unmaps guest memory again and again, and vCPUs fault on it"
    seen = (host.evidence(path),)
    gain = unknown_gain("no figure for guests was published")
    risk = "Processes that are not pinned keep memory on far nodes."
    return Finding("numa-balancing", WARNING, title, seen, gain, fix, undo, risk)


@check(
    id="swap",
    rule="https://github.com/firecracker-microvm/firecracker, docs/prod-host-setup.md",
    about="guest memory that can go to a disk",
)
def swap(host: Host, profile: Profile) -> Found:
    """Matters where guests have secrets or deadlines."""
    total = host.memory.get("SwapTotal")
    if total is None or profile not in (Profile.HARDENED, Profile.REALTIME):
        return None
    seen = (Evidence("/proc/meminfo", f"SwapTotal: {total // 1024} kB"),)
    if not total:
        return Finding("swap", OK, "there is no swap", seen)
    fix, undo = by_hand(
        "Switch swap off (swapoff -a, and its lines in /etc/fstab), encrypt it, or have VMMs lock guest memory.",
        "Switch swap on again (swapon -a).",
    )
    title = "guest memory can be written to swap, and is read back while the guest waits"
    if profile is Profile.HARDENED:
        title = "guest memory can be written to swap, and stays on the disk after the guest is gone"
    gain = unknown_gain("it depends on the memory pressure of the host")
    return Finding(
        "swap", NOTICE, title, seen, gain, fix, undo, "Without swap memory can run out; processes are killed then."
    )
