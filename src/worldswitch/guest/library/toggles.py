"""Programs that change one bit of a control register and put it back.

The value written is the one written last with the bit changed, so that no register is read in the loop, and CR0.ET
stays set: an operand without it exits whatever the host owns (Intel SDM volume 3, "Guest/Host Masks and Read Shadows
for CR0 and CR4").
"""

from __future__ import annotations

from typing import Any

from worldswitch.guest.library.registry import shipped
from worldswitch.guest.operations import WriteCr
from worldswitch.guest.program import State, Vcpu
from worldswitch.x86.registers import CR4, bit_mask


def _toggle(cr: int, bit: str, single: bool, state: State | None = None) -> dict[str, Any]:
    """One pass changes *bit* and puts it back, or with *single* changes it once."""
    state = state or State()
    is_set = (state.cr0 if cr == 0 else state.cr4) & bit_mask(cr, bit)
    on, off = WriteCr(cr, set=(bit,)), WriteCr(cr, clear=(bit,))
    if single:
        return {"unit": "write", "state": state, "vcpus": (Vcpu(body=(WriteCr(cr, toggle=(bit,)),)),)}
    return {"unit": "pair", "state": state, "vcpus": (Vcpu(body=(off, on) if is_set else (on, off)),)}


@shipped("cr0-wp")
def cr0_wp(*, single: bool = False) -> dict[str, Any]:
    """Clears CR0.WP and sets it again, as a hardened kernel does around each write to its read-only data.

    Expect: 0 exits per pair on Intel with EPT from 6.4 on (and 6.1 stable), 2 on 5.10, 2 with shadow paging, 2 on AMD.

    Source: Linux commit fb509f76acc8 ("KVM: VMX: Make CR0.WP a guest owned bit"); the toggle is that of kvm-unit-tests'
    x86/vmexit.c, but with the other bits kept.
    """
    return _toggle(0, "WP", single)


@shipped("cr0-am")
def cr0_am(*, single: bool = False) -> dict[str, Any]:
    """Clears CR0.AM and sets it again: a bit that no KVM lets the guest own.

    Expect: 2 exits per pair on every host.

    Source: vmx_l1_guest_owned_cr0_bits() in arch/x86/kvm/vmx/vmx.h; init_vmcb() in arch/x86/kvm/svm/svm.c.
    """
    return _toggle(0, "AM", single)


@shipped("cr0-ts")
def cr0_ts(*, single: bool = False) -> dict[str, Any]:
    """Sets CR0.TS and clears it again, as kernels with lazy switching of the FPU did.

    Expect: 0 exits per pair on Intel with and without EPT, and 0 on AMD, whose selective intercept leaves TS out.

    Source: KVM_POSSIBLE_CR0_GUEST_BITS in arch/x86/kvm/kvm_cache_regs.h; AMD APM volume 2, section 15.12 (selective
    CR0 writes).
    """
    return _toggle(0, "TS", single)


@shipped("cr4-pge")
def cr4_pge(*, single: bool = False) -> dict[str, Any]:
    """Clears CR4.PGE and sets it again, as kernels do to flush global TLB entries.

    Expect: 0 exits per pair on Intel with EPT, 2 without it and on AMD, where 5.10 also rebuilds its roots.

    Source: kvm-unit-tests' x86/vmexit.c; kvm_post_set_cr4() in arch/x86/kvm.
    """
    return _toggle(4, "PGE", single, State(cr4=bit_mask(CR4, "PAE", "PGE")))


@shipped("cr4-tsd")
def cr4_tsd(*, single: bool = False) -> dict[str, Any]:
    """Sets CR4.TSD and clears it again, as prctl(PR_SET_TSC) does on a switch between tasks.

    Expect: 0 exits per pair on Intel, 2 on AMD.

    Source: KVM_POSSIBLE_CR4_GUEST_BITS in arch/x86/kvm/kvm_cache_regs.h.
    """
    return _toggle(4, "TSD", single)


@shipped("cr4-fsgsbase")
def cr4_fsgsbase(*, single: bool = False) -> dict[str, Any]:
    """Sets CR4.FSGSBASE and clears it again.

    Expect: 0 exits per pair on Intel, 2 on AMD.

    Source: KVM_POSSIBLE_CR4_GUEST_BITS in arch/x86/kvm/kvm_cache_regs.h.
    """
    return _toggle(4, "FSGSBASE", single)


@shipped("cr4-smep")
def cr4_smep(*, single: bool = False) -> dict[str, Any]:
    """Sets CR4.SMEP and clears it again.

    Expect: 2 exits per pair on every host; from 6.1 on one flush of the TLB, for setting it. With the TDP MMU of
    kernels without the fact tdp-roots-kept, 10 page faults more, for the tables that were dropped.

    Source: KVM_MMU_CR4_ROLE_BITS and kvm_post_set_cr4() in arch/x86/kvm.
    """
    return _toggle(4, "SMEP", single)


@shipped("cr4-smap")
def cr4_smap(*, single: bool = False) -> dict[str, Any]:
    """Sets CR4.SMAP and clears it again.

    Expect: 2 exits per pair on every host. With the TDP MMU of kernels without the fact tdp-roots-kept, 10 page faults
    more, for the tables that were dropped.

    Source: KVM_MMU_CR4_ROLE_BITS in arch/x86/kvm/mmu.h.
    """
    return _toggle(4, "SMAP", single)


@shipped("cr4-pke")
def cr4_pke(*, single: bool = False) -> dict[str, Any]:
    """Sets CR4.PKE and clears it again.

    Expect: 2 exits per pair on every host that offers protection keys, which none does with shadow paging. With the TDP
    MMU of kernels without the fact tdp-roots-kept, 10 page faults more, for the tables that were dropped.

    Source: KVM_MMU_CR4_ROLE_BITS in arch/x86/kvm/mmu.h.
    """
    return _toggle(4, "PKE", single)


@shipped("cr4-cet")
def cr4_cet(*, single: bool = False) -> dict[str, Any]:
    """Sets CR4.CET and clears it again, with CR0.WP set throughout, as the processor demands.

    Expect: 0 exits per pair on Intel with EPT from 6.18 on, 2 where CET is offered on AMD.

    Source: Linux commit d292035fb5d2 ("KVM: VMX: Make CR4.CET a guest owned bit").
    """
    return _toggle(4, "CET", single)


@shipped("cr0-wp+cet", "cr0-wp-cet")
def cr0_wp_cet() -> dict[str, Any]:
    """Opens and closes a hardened kernel's read-only data with shadow stacks: CET off, WP off, WP on, CET on.

    Expect: 0 exits per pair on Intel with EPT where both bits are the guest's (6.18), 2 where only WP is, 4 on AMD.

    Source: Intel SDM volume 3, section 2.5 (CR4.CET needs CR0.WP, so this order); Linux commits fb509f76acc8,
    d292035fb5d2.
    """
    cet_off, wp_off = WriteCr(4, clear=("CET",)), WriteCr(0, clear=("WP",))
    wp_on, cet_on = WriteCr(0, set=("WP",)), WriteCr(4, set=("CET",))
    state = State(cr4=bit_mask(CR4, "PAE", "CET"))
    return {"unit": "pair", "state": state, "vcpus": (Vcpu(body=(cet_off, wp_off, wp_on, cet_on)),)}
