"""CR0 and CR4 of a guest's guest (L2) under VMX: who owns a bit, who sees a write, and what each of them reads.

Each register has two masks there: the one L1 asked for in its own control structure (vmcs12) and the one KVM (L0) runs
L2 with (vmcs02). Read in vmx/nested.c and vmx/vmx.c of 5.10.223 to 7.2.13 and held against what kvm-unit-tests'
x86/vmx_tests.c asks for; no L2 was run for it, so these rules are marked *unverified*. :func:`entered`, :func:`write`
and :func:`left` follow L2 through them all; :func:`worldswitch.kvm.vcpu.run` has no nested guests.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from worldswitch.errors import UsageError
from worldswitch.kvm.ownership import owned
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.kvm.rules import rule
from worldswitch.kvm.validity import refuses_cr0, refuses_cr4, reserved
from worldswitch.x86 import control
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, CR4, bit_mask

_NOT_RUN = "read in the source and held against kvm-unit-tests' expectations; no nested guest was run"
_PE, _TS = bit_mask(CR0, "PE"), bit_mask(CR0, "TS")
_LMSW = bit_mask(CR0, "MP", "EM", "TS")


class Vmcs12(NamedTuple):
    """What L1 says about one register of L2: its value, L1's guest/host mask and its read shadow."""

    guest: int
    mask: int = 0
    shadow: int = 0


@dataclass(frozen=True, slots=True)
class Vmcs02:
    """One register of L2 as the processor has it.

    Attributes:
        register: 0 or 4.
        guest: The value L2 runs with.
        owned: Bits whose change does not exit.
        shadow: What L2 reads of all others.
    """

    register: int
    guest: int
    owned: int
    shadow: int

    @property
    def read(self) -> int:
        """What L2 reads (SDM volume 3, "Guest/Host Masks and Read Shadows for CR0 and CR4")."""
        return self.guest & self.owned | self.shadow & ~self.owned


class Sees(enum.Enum):
    """Who sees a write of L2."""

    NOBODY = "nobody"  # no exit
    L0 = "L0"  # KVM handles it and resumes L2
    L1 = "L1"  # KVM reflects the exit
    REFUSED = "#GP"  # L2 gets it, from KVM or from the processor


class Written(NamedTuple):
    """What a write of L2 led to; *now* is as before where it was refused or went to L1."""

    seen_by: Sees
    now: Vmcs02


@rule(
    id="nested-owned",
    sentence="L2 owns the bits that L1 would own if it ran there itself, less those L1 wants to see.",
    source='Since Linux commit fe3ef05c7572 ("KVM: nVMX: Prepare vmcs02 from vmcs01 and vmcs12") (v3.1), the mask that '
    "L2 runs with joins what L0 and L1 want to see. Before that, there were no nested guests under VMX.",
    since="5.4",
    unverified=_NOT_RUN,
    tested="tests/kvm/test_nested.py::test_what_l2_owns",
)
def owned_by_l2(owned_by_l1: int, vmcs12: Vmcs12) -> int:
    """Bits of a register that L2 changes without an exit (prepare_vmcs02, set_cr4_guest_host_mask)."""
    return owned_by_l1 & ~vmcs12.mask


@rule(
    id="nested-read-shadow",
    sentence="L2 reads L1's read shadow where L1 masks a bit, and the value L1 gave it elsewhere.",
    source='Since Linux commit fe3ef05c7572 ("KVM: nVMX: Prepare vmcs02 from vmcs01 and vmcs12") (v3.1), L2 reads what '
    "L1's mask and read shadow say. Before that, there were no nested guests under VMX.",
    since="5.4",
    unverified=_NOT_RUN,
    tested="tests/kvm/test_nested.py::test_cr_shadowing",
)
def read_shadow(vmcs12: Vmcs12) -> int:
    """The read shadow that L2 is entered with (nested_read_cr0, nested_read_cr4)."""
    return vmcs12.guest & ~vmcs12.mask | vmcs12.shadow & vmcs12.mask


@rule(
    id="nested-cr-exit-to-l1",
    sentence="A MOV to CR0 or CR4 of L2 that exits goes to L1 if it differs from L1's read shadow in a bit L1 masks; "
    "CLTS if L1 masks TS and shows it set; LMSW if it differs in MP, EM or TS, or would set PE.",
    source='Since Linux commit 644d711aa0e1 ("KVM: nVMX: Deciding if L0 or L1 should handle an L2 exit") (v3.1), KVM '
    "decides by L1's mask and read shadow. Before that, there were no nested guests under VMX.",
    since="5.4",
    unverified=_NOT_RUN,
    tested="tests/kvm/test_nested.py::test_exits_that_go_to_l1",
)
def goes_to_l1(vmcs12: Vmcs12, value: int, word: str = "mov") -> bool:
    """Whether L1 gets the exit of a write of *value* by *word* (mov, clts, lmsw): nested_vmx_exit_handled_cr."""
    if word == "clts":
        return bool(vmcs12.mask & vmcs12.shadow & _TS)
    differs = vmcs12.mask & (value ^ vmcs12.shadow)
    if word == "lmsw":
        return bool(differs & _LMSW or (differs & _PE and value & _PE))
    return bool(differs)


@rule(
    id="nested-effective-value",
    sentence="Of a write of L2 that KVM handles the bits L1 masks keep the value L1 gave them; L2 reads the whole.",
    source='Since Linux commit fe3ef05c7572 ("KVM: nVMX: Prepare vmcs02 from vmcs01 and vmcs12") (v3.1), L1 can keep '
    "bits of CR0 and CR4 from its guest. Before that, there were no nested guests under VMX.",
    since="5.4",
    unverified=_NOT_RUN + "; the commit that brought this part was not looked up",
    tested="tests/kvm/test_nested.py::test_a_write_that_l0_handles",
)
def effective(vmcs12: Vmcs12, value: int) -> int:
    """The value KVM sets where it handles a write of *value* (handle_set_cr0, handle_set_cr4)."""
    return value & ~vmcs12.mask | vmcs12.guest & vmcs12.mask


@rule(
    id="nested-write-back",
    sentence="On an exit to L1, L1 finds of L2's register what L2 set where L2 owns the bit, what L1 gave it where L1 "
    "masks it, and what L2 believes elsewhere.",
    source='Since Linux commit 4704d0befb07 ("KVM: nVMX: Exiting from L2 to L1") (v3.1), the fields of vmcs12 are '
    "written back at an exit. Before that, there were no nested guests under VMX.",
    since="5.4",
    unverified=_NOT_RUN,
    tested="tests/kvm/test_nested.py::test_cr_shadowing",
)
def written_back(vmcs12: Vmcs12, now: Vmcs02) -> int:
    """Guest CR0 or CR4 of vmcs12 after an exit to L1 (vmcs12_guest_cr0, vmcs12_guest_cr4)."""
    own = now.owned & ~vmcs12.mask
    return now.guest & own | vmcs12.guest & vmcs12.mask | now.shadow & ~(vmcs12.mask | own)


@rule(
    id="nested-return",
    sentence="Back in L1, L1 owns the bits again that it owned before, whatever it masked for L2.",
    source='Since Linux commit 4704d0befb07 ("KVM: nVMX: Exiting from L2 to L1") (v3.1), the host state of vmcs12 is '
    "loaded at an exit. Before that, there were no nested guests under VMX.",
    since="5.4",
    unverified=_NOT_RUN,
    tested="tests/kvm/test_nested.py::test_back_in_l1",
)
def returned(policy: Policy, register: int, host: int) -> Vmcs02:
    """L1's own register, *host* the value vmcs12 has for it (load_vmcs12_host_state)."""
    return Vmcs02(register, host, _owned_by_l1(policy, register), host)


def entered(policy: Policy, register: int, vmcs12: Vmcs12) -> Vmcs02:
    """L2's register as it is entered with what L1 asks for.

    Raises:
        UsageError: SVM, or another register than CR0 and CR4.
    """
    mine = owned_by_l2(_owned_by_l1(policy, register), vmcs12)
    return Vmcs02(register, vmcs12.guest, mine, read_shadow(vmcs12))


def write(policy: Policy, vmcs12: Vmcs12, now: Vmcs02, value: int, others: Registers) -> Written:
    """A MOV of *value* to the register by L2.

    Args:
        now: The register before.
        others: L2's registers as KVM has them; the one written is taken from *now*.
    """
    l2 = others._replace(cr0=now.guest) if now.register == CR0 else others._replace(cr4=now.guest)
    if not (value ^ now.shadow) & ~now.owned:
        new = now.guest & ~now.owned | value & now.owned
        if _processor_refuses(policy, now.register, l2, new):
            return Written(Sees.REFUSED, now)
        return Written(Sees.NOBODY, replace(now, guest=new))
    if goes_to_l1(vmcs12, value):
        return Written(Sees.L1, now)
    new = effective(vmcs12, value)
    if refuses_cr0(policy, l2, new) if now.register == CR0 else refuses_cr4(policy, l2, new):
        return Written(Sees.REFUSED, now)
    return Written(Sees.L0, replace(now, guest=new, shadow=value))


def left(policy: Policy, vmcs12: Vmcs12, now: Vmcs02, host: int) -> tuple[Vmcs12, Vmcs02]:
    """What L1 finds after an exit to it: its vmcs12, and its own register, *host* the value vmcs12 has for that."""
    return vmcs12._replace(guest=written_back(vmcs12, now)), returned(policy, now.register, host)


def _processor_refuses(policy: Policy, register: int, now: Registers, new: int) -> bool:
    return control.refuses_cr0(now, new) if register == CR0 else control.refuses_cr4(now, new, reserved(policy))


def _owned_by_l1(policy: Policy, register: int) -> int:
    if policy.vendor is not Vendor.INTEL:
        raise UsageError("nested control registers are known of VMX only; SVM has no guest/host masks")
    if register not in (CR0, CR4):
        raise UsageError(f"nested masks are of CR0 and CR4, not of CR{register}")
    mine = owned(policy)
    return mine.cr0 if register == CR0 else mine.cr4
