"""Gains that were published, with who published them; what a fix gains here is told from these or from the model.

The figures of KERNEXEC guests are those of ``costs/published.toml``, which the field kit does not carry; a test holds
the two together.
"""

from __future__ import annotations

from typing import NamedTuple

from worldswitch.host.finding import Amount, Gain

STICKY = "kvm list, thread 'Add never option to allow sticky disabling of nx_huge_pages', June 2023"
CREATE_WITH_THREAD_MS = (23.567, 76.709, 109.109)
CREATE_WITHOUT_MS = (0.518, 0.495, 0.513)
"""KVM_CREATE_VM of a single kvmtool VM, three runs each, by strace -T."""

JAILED = "https://github.com/firecracker-microvm/firecracker/issues/2129"
CREATE_JAILED_MS, CREATE_FREE_MS = 27.335, 0.352
"""KVM_CREATE_VM on 5.4: in the jailer's cgroups, and in none."""

DYNMODS = "https://github.com/vm0-ai/vm0/issues/32719"
MOVE_MS = (7.58, 11.64)
MOVE_FAVORED_MS = (0.37, 0.49)
"""Spawning after a move between cgroups, medians of the cohorts."""
FORK_US = 39.0
"""What fork, exit and wait took more with favordynmods, one after the other: 177.6 us instead of 138.6."""

RT_SPIKE = "https://github.com/redhat-performance/tuned/pull/363"
RT_SPIKE_US = 100.0
"""oslat: what one zap of split pages adds on all isolated CPUs, 'about'."""

THP = "https://github.com/firecracker-microvm/firecracker/pull/6003"
THP_BOOT = 22.8
THP_BOOT_NESTED = 54.5
"""Per cent of a guest's boot, on m8i.metal-48xl and nested on m8i.16xlarge."""

NESTED = "kvm list, 'VMX optimizations', June 2019 (nested CPUID exit: 14,886 before, 13,142 after)"
NESTED_EXIT_CYCLES = (13142.0, 14886.0)
BARE = "kvm list, S. Christopherson, 2021 (bare VM-exit and entry: about 1,500, with an MSR switched over 2,000)"
BARE_EXIT_CYCLES = (1500.0, 2000.0)

L1TF = "Documentation/admin-guide/hw-vuln/l1tf.rst"
L1D_FLUSH_PERCENT = (1.0, 50.0)
"""How much slower flushing the L1 data cache at VM entry was seen to make guests."""


class Ssdd(NamedTuple):
    """Seconds of one benchmark, ``ssdd 10 50000`` in a KERNEXEC guest: as it was, and after what is proposed."""

    table: str
    before: float
    after: float
    source: str


LINES_MAIL = "Message-ID 026dcbfe-a306-85c3-600e-17cae3d3b7c5"
SERIES_MAIL = "Message-ID 20230322013731.102955-1"
AMD_MAIL = "Message-ID ccad240e-d604-60e2-b12d-c7c3ca530887"
CET_MAIL = "Message-ID 4114d399-8649-41de-97bf-3b63f29ec7e8"

CR0_WP = {
    ("5.10", "legacy"): Ssdd("5.10.177", 10.37, 4.88, LINES_MAIL),
    ("5.10", "tdp"): Ssdd("5.10.177", 88.7, 4.92, LINES_MAIL),
    ("5.15", "legacy"): Ssdd("5.15.106", 9.94, 4.81, LINES_MAIL),
    ("5.15", "tdp"): Ssdd("5.15.106", 66.1, 4.79, LINES_MAIL),
    ("6.1", "legacy"): Ssdd("6.1.23", 7.65, 3.36, LINES_MAIL),
    ("6.1", "tdp"): Ssdd("6.1.23", 8.23, 3.36, LINES_MAIL),
    ("6.2", "legacy"): Ssdd("6.2.10", 7.61, 3.37, LINES_MAIL),
    ("6.2", "tdp"): Ssdd("6.2.10", 7.98, 3.41, LINES_MAIL),
}
"""By stable line and MMU: before the patches that let the guest own CR0.WP, and after."""
CR0_WP_AMD = Ssdd("amd-2023", 5.8, 4.12, AMD_MAIL)
"""On an AMD host, before and after the roots were kept."""
CET = Ssdd("cet-2025", 2.4647, 1.5648, CET_MAIL)
"""Before and after the guest owned CR4.CET."""
TDP_TO_LEGACY = {
    "5.10": Ssdd("5.10.177", 88.7, 10.37, LINES_MAIL),
    "5.15": Ssdd("5.15.106", 66.1, 9.94, LINES_MAIL),
}
"""By stable line: with the TDP MMU, and with the legacy one."""
SHADOW = (Ssdd("next-2023-03", 70.3, 8.43, SERIES_MAIL), Ssdd("next-2023-03", 67.8, 3.51, SERIES_MAIL))
"""Shadow paging and EPT with the legacy MMU: before the patches, and after."""


def times_faster(measured: Ssdd, toggled: str = "CR0.WP") -> Gain:
    """The gain that one published pair of times shows, of a guest that has *toggled* a bit all the time."""
    factor = measured.before / measured.after
    return Gain(
        f"{factor:.1f} times as fast where a guest toggles {toggled} all the time, as measured with just that change "
        "(ssdd in a KERNEXEC guest); nothing elsewhere.",
        "before / after",
        _seconds(measured),
        f"published: {measured.source}",
        Amount(factor, factor, factor, "times as fast, ssdd in a KERNEXEC guest"),
    )


def shadow_to_tdp() -> Gain:
    """What two-dimensional paging gained in a guest that switches and toggles much."""
    old, new = (one.before / one.after for one in SHADOW)
    return Gain(
        f"{old:.0f} to {new:.0f} times as fast in a guest that switches processes all the time; less in others.",
        "before / after",
        _seconds(SHADOW[0]) + _seconds(SHADOW[1]),
        f"published: {SERIES_MAIL}",
        Amount(old, (old + new) / 2, new, "times as fast, ssdd in a KERNEXEC guest"),
    )


def nested_exit() -> Gain:
    """What each exit takes less without a hypervisor below."""
    low, high = NESTED_EXIT_CYCLES[0] - BARE_EXIT_CYCLES[1], NESTED_EXIT_CYCLES[1] - BARE_EXIT_CYCLES[0]
    return Gain(
        f"Each exit of a guest takes {low:,.0f} to {high:,.0f} cycles less on bare metal, as measured under VMX.",
        "nested - bare",
        (("nested", "13,142 to 14,886 cycles", NESTED), ("bare", "1,500 to 2,000 cycles", BARE)),
        f"published: {NESTED}; {BARE}",
        Amount(low, (low + high) / 2, high, "cycles per exit"),
    )


def rt_spike() -> Gain:
    """What real-time hosts gain if nothing zaps split pages."""
    return Gain(
        f"Interruptions of about {RT_SPIKE_US:.0f} us of all vCPUs at once, one at each recovery, go away.",
        "one zap lets the vCPUs fault",
        (("zap", f"about {RT_SPIKE_US:.0f} us by oslat", RT_SPIKE),),
        f"published: {RT_SPIKE}",
        Amount(RT_SPIKE_US, RT_SPIKE_US, RT_SPIKE_US, "us of the longest interruption"),
    )


def huge_pages(nested: bool) -> Gain:
    """What huge pages gained when a guest boots."""
    percent = THP_BOOT_NESTED if nested else THP_BOOT
    where = "nested on m8i.16xlarge" if nested else "on m8i.metal-48xl"
    return Gain(
        f"A guest boots in {percent:.1f} % less time, as measured {where}; less where memory is touched once.",
        "1 - with / without",
        (("with / without", f"{1 - percent / 100:.3f}", THP),),
        f"published: {THP}",
        Amount(percent, percent, percent, "% of a guest's boot"),
    )


def _seconds(measured: Ssdd) -> tuple[tuple[str, str, str], ...]:
    where = f"table {measured.table}, {measured.source}"
    return (("before", f"{measured.before} s", where), ("after", f"{measured.after} s", where))
