"""What of the host, beside kernel and module parameters, decides which faults and exits there are.

These are no facts about a kernel: a run states them.
"""

from __future__ import annotations

from dataclasses import dataclass

from worldswitch.kvm.nx import NxHost, auto
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.kvm.rules import rule


@dataclass(frozen=True, slots=True)
class Host:
    """The conditions of a run.

    Attributes:
        huge_pages: Memory that asks for huge pages of the host is backed by them, 2 MiB each.
        itlb_multihit: The processor has the bug that ``nx_huge_pages=auto`` looks for; None: Intel's have it.
        accessed_bits: EPT or NPT have accessed and dirty bits.
        decode_assists: SVM only: an intercepted MOV to CR names its register, so that KVM need not emulate it.
        next_rip: SVM only: an exit says where the next instruction is, so that KVM need not emulate to get there.
        lmsw_exits: SVM only: LMSW exits whatever it writes, as the APM has it; QEMU's only if it changes more than TS
            and MP.
        exitintinfo_cleared: SVM only: EXITINTINFO is 0 after an exit that no event's delivery led to; QEMU leaves the
            type of the last event there.
        other_vcpus: Other vCPUs of the VM, not followed here, have the root loaded of a kernel that runs with CR0.WP
            set, so that what this one drops of it stays (control_registers.py, roots_after_reset).
    """

    huge_pages: bool = True
    itlb_multihit: bool | None = None
    accessed_bits: bool = True
    decode_assists: bool = True
    next_rip: bool = True
    other_vcpus: bool = False
    lmsw_exits: bool = True
    exitintinfo_cleared: bool = True


@rule(
    id="nx-huge-pages-active",
    sentence="Huge pages are mapped without the right to execute where nx_huge_pages is force, or auto and the "
    "processor has the iTLB multihit bug.",
    depends=("nx-huge-pages",),
    tested="tests/kvm/test_tdp.py::test_where_huge_pages_are_not_executable",
)
def nx_active(policy: Policy, host: Host) -> bool:
    """Whether the mitigation is on (mmu.c, set_nx_huge_pages)."""
    if policy.nx_huge_pages != "auto" or not policy.has("nx-huge-pages"):
        return policy.nx_huge_pages == "force"
    return auto(NxHost(policy.vendor is Vendor.INTEL if host.itlb_multihit is None else host.itlb_multihit))
