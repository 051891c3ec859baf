"""Instructions that write control registers and EFER, on a :class:`~worldswitch.kvm.machine.Machine`.

Whether a write exits is asked of :mod:`~worldswitch.kvm.ownership`, whether it is refused of
:mod:`~worldswitch.kvm.validity` or the processor, what follows of :mod:`~worldswitch.kvm.control_registers`; here it is
done.
"""

from __future__ import annotations

from typing import NoReturn

from worldswitch.kvm.cet import CET_MSRS, exists, refuses
from worldswitch.kvm.control_registers import After, Flush, MmuWork, Outcome, write
from worldswitch.kvm.intercepts import Reason, cr_exit, instruction_exit, msr_exit, short_cr0_write_exit
from worldswitch.kvm.machine import GP, GuestFault, Machine, NotModelled, keeps_global, pcid_of
from worldswitch.kvm.policy import Policy, Vendor
from worldswitch.kvm.roles import shadow_root_role
from worldswitch.kvm.rules import rule
from worldswitch.kvm.validity import refuses_cr0, refuses_cr4, reserved
from worldswitch.x86 import control
from worldswitch.x86.exits import ISA_VMX
from worldswitch.x86.msrs import MSRS, canonical, refuses_cet
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask

NOFLUSH = 1 << 63
_ET, _PG, _TS = bit_mask(CR0, "ET"), bit_mask(CR0, "PG"), bit_mask(CR0, "TS")
_KNOWN_CR0 = bit_mask(CR0, "PE", "MP", "EM", "TS", "ET", "NE", "WP", "AM", "NW", "CD", "PG")
_MACHINE_STATUS = 0xF
_PGE, _PCIDE, _SMEP = bit_mask(CR4, "PGE"), bit_mask(CR4, "PCIDE"), bit_mask(CR4, "SMEP")
_NXE, _LME, _LMA = bit_mask(EFER, "NXE"), bit_mask(EFER, "LME"), bit_mask(EFER, "LMA")
_KNOWN_EFER = {
    Vendor.INTEL: bit_mask(EFER, "SCE", "LME", "LMA", "NXE"),
    Vendor.AMD: bit_mask(EFER, "SCE", "LME", "LMA", "NXE", "SVME", "FFXSR"),
}


def write_cr(m: Machine, cr: int, value: int) -> None:
    """MOV to CR0, CR4 or CR8.

    Raises:
        GuestFault: #GP.
        NotModelled: The guest leaves 64-bit mode.
    """
    if cr == 8:
        _write_cr8(m, value)
        return
    outcome, refused = _judged(m, cr, value)
    if outcome.reason is None:
        if refused:
            raise GuestFault(GP)
        _set_by_processor(m, cr, value)
    else:
        _intercepted(m, outcome.reason, cr, value, refused, outcome)


def _judged(m: Machine, cr: int, value: int) -> tuple[Outcome, bool]:
    """What a write leads to, and whether KVM, or the processor where KVM does not see it, refuses it."""
    key = (cr, value, m.cr0, m.cr4, m.cr3 & control.PCID, m.efer)
    found = m.judged.get(key)
    if found is None:
        outcome = write(m.policy, cr, m.cr0 if cr == CR0 else m.cr4, value)
        if outcome.exits:
            refused = refuses_cr0(m.policy, m.now, value) if cr == CR0 else refuses_cr4(m.policy, m.now, value)
        elif cr == CR0:
            refused = control.refuses_cr0(m.now, value)
        else:
            refused = control.refuses_cr4(m.now, value, reserved(m.policy))
        found = m.judged[key] = (outcome, refused)
    return found


def _set_by_processor(m: Machine, cr: int, value: int) -> None:
    if m.pae and control.loads_pdptes(cr, m.cr0 if cr == CR0 else m.cr4, value):
        m.processor_loads_pdptes(m.cr3)
    if cr == CR0:
        m.cr0 = value | _ET
    else:
        if (m.cr4 ^ value) & _PGE:
            m.tlb.flush_all()
        m.cr4 = value
    m.mode_changed()


def _intercepted(m: Machine, reason: Reason, cr: int, value: int, refused: bool, outcome: Outcome) -> None:
    old = m.cr4
    m.exit(reason, _qualification(reason, cr, write=True))
    _show_cr_write(m, cr, value)
    loads = m.pae and control.loads_pdptes(cr, m.cr0 if cr == CR0 else old, value)
    if refused or (loads and not load_pdptes(m.policy, m, m.cr3)):
        _refuse(m, exited=True)
    if cr == CR0:
        if (m.cr0 ^ value) & _PG:
            raise NotModelled("the guest turns paging on or off, and the model follows programs that leave it as it is")
        m.cr0 = value & _KNOWN_CR0 | _ET
    else:
        m.cr4 = value
    m.mode_changed()
    _after(m, After(outcome.mmu, outcome.flush))
    if cr == CR4 and (old ^ value) & (_PGE | _PCIDE | _SMEP):
        m.tlb.flush_all()
    m.enter()


def _refuse(m: Machine, exited: bool) -> NoReturn:
    """#GP: injected by KVM if the instruction *exited*, else the processor's."""
    if exited:
        m.inject(GP, 0)
    raise GuestFault(GP)


def _qualification(reason: Reason, cr: int, write: bool) -> int:
    """VMX: register, direction and RAX; SVM: MOV to CR, from RAX."""
    if reason[0] == ISA_VMX:
        return cr | (0 if write else 1 << 4)
    return 1 << 63


def _show_cr_write(m: Machine, cr: int, value: int) -> None:
    """kvm_cr where KVM is told what the instruction is; else its emulator runs it."""
    if m.policy.vendor is Vendor.AMD and not m.host.decode_assists:
        m.emulated_instruction()
    elif m.events is not None:
        m.event("kvm_cr", {"rw": 1, "cr": cr, "val": value})


def _after(m: Machine, after: After) -> None:
    if after.mmu in (MmuWork.UNLOAD, MmuWork.FULL_RESET):
        m.unload(reset=after.mmu is MmuWork.FULL_RESET)
    m.flush(after.flush)


def _write_cr8(m: Machine, value: int) -> None:
    reason = cr_exit(m.policy, 8, True, m.cr0)
    if reason is None:
        if value >> 4:
            raise GuestFault(GP)
    else:
        m.exit(reason, _qualification(reason, 8, write=True))
        _show_cr_write(m, 8, value)
        if cr8_refused(m.policy, value):
            _refuse(m, exited=True)
        value &= 0xF
        if value < m.cr8:
            m.to_userspace("SET_TPR")
        m.enter()
    m.cr8 = value


@rule(
    id="cr8-refused",
    sentence="KVM refuses a value of CR8 with a bit above the fourth set; under VMX it looks at the low byte only.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "set_cr8 refuses reserved bits. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_register_writes.py::test_reserved_bits_of_cr8_exit_first",
)
def cr8_refused(policy: Policy, value: int) -> bool:
    """Whether an intercepted write to CR8 gets #GP (vmx.c, handle_cr; x86.c, kvm_set_cr8)."""
    return bool((value & 0xFF if policy.vendor is Vendor.INTEL else value) >> 4)


def read_cr(m: Machine, cr: int) -> int:
    """MOV from CR0, CR2, CR3, CR4 or CR8."""
    value = {0: m.cr0, 2: m.cr2, 3: m.cr3, 4: m.cr4, 8: m.cr8}[cr]
    reason = cr_exit(m.policy, cr, False, m.cr0)
    if reason is not None:
        m.exit(reason, _qualification(reason, cr, write=False))
        if m.policy.vendor is Vendor.AMD and not m.host.decode_assists:
            m.emulated_instruction()
        else:
            m.event("kvm_cr", {"rw": 0, "cr": cr, "val": value})
        m.enter()
    return value


def clts(m: Machine) -> None:
    """CLTS."""
    _short_write(m, m.cr0 & ~_TS, lmsw=False)


def lmsw(m: Machine, value: int) -> None:
    """LMSW: the low four bits, of which PE can be set only."""
    _short_write(m, m.cr0 & ~(_MACHINE_STATUS & ~1) | value & _MACHINE_STATUS, lmsw=True)


def _short_write(m: Machine, new: int, lmsw: bool) -> None:
    reason = short_cr0_write_exit(m.policy, m.cr0 ^ new, m.cr0, lmsw, m.host.lmsw_exits)
    if reason is not None:
        after = write(m.policy, CR0, m.cr0, new)
        m.exit(reason, 3 << 4 if lmsw else 2 << 4)
        if m.policy.vendor is Vendor.AMD:
            m.emulated_instruction()
        else:
            m.event("kvm_cr", {"rw": 1, "cr": 0, "val": new})
        m.cr0 = new
        _after(m, After(after.mmu, after.flush))
        m.enter()
    m.cr0 = new


# ---- CR3 and what flushes


def write_cr3(m: Machine, value: int) -> None:
    """MOV to CR3.

    Raises:
        GuestFault: #GP.
    """
    with_pcid = bool(m.cr4 & _PCIDE)
    noflush = bool(value & NOFLUSH) and with_pcid
    new = value & ~NOFLUSH if with_pcid else value
    refused = bool(new >> m.controls.maxphyaddr)
    reason = cr_exit(m.policy, 3, True, m.cr0)
    if reason is not None:
        m.exit(reason, _qualification(reason, 3, write=True))
        _show_cr_write(m, 3, value)
    if refused:
        _refuse(m, exited=reason is not None)
    if reason is not None:
        if not set_cr3(m.policy, m, new, noflush):
            _refuse(m, exited=True)
    elif m.pae:
        m.processor_loads_pdptes(new)
    m.cr3 = new
    m.tlb.load(pcid_of(new) if with_pcid else 0, noflush, keeps_global(m.cr4))
    if reason is not None:
        m.enter()


@rule(
    id="pae-pdptes",
    sentence="KVM reads the four PDPTEs of PAE paging for intercepted writes of CR3, and of CR0 and CR4 bits that "
    "have a processor load them, and refuses the write for a reserved bit in a present one; under shadow paging "
    "others than before drop the current root, on old kernels not.",
    depends=("pae-roots-follow-pdptes",),
    tested="tests/kvm/test_pae.py::test_reserved_bits_of_pdptes",
)
def load_pdptes(policy: Policy, m: Machine, cr3: int) -> bool:
    """Have KVM read the PDPTEs at *cr3*; False if the write is refused (x86.c, load_pdptrs)."""
    before = m.pdptes
    if not m.load_pdptes(cr3):
        return False
    if m.shadow is not None and m.pdptes != before and policy.has("pae-roots-follow-pdptes"):
        m.shadow.roots.free_current()
    return True


@rule(
    id="cr3-write-shadow",
    sentence="An intercepted CR3 write switches to the root at hand or loads one; unless it says not to flush, roots "
    "of its PCID are brought in step and flushed, on old kernels only where a root was at hand.",
    depends=("cr3-flush-by-pcid",),
    source='Since Linux commit 956bf3531fba ("kvm: x86: Skip shadow page resync on CR3 switch when indicated by '
    'guest") '
    "(v4.19), bit 63 of CR3 spares the resynchronization. Before that, each switch made it.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_cr3_writes_find_their_roots",
)
def set_cr3(policy: Policy, m: Machine, new: int, noflush: bool) -> bool:
    """What KVM does with a CR3 value under shadow paging (x86.c, kvm_set_cr3 and kvm_invalidate_pcid).

    Returns:
        Whether it takes the value: with PAE paging the PDPTEs there decide.
    """
    shadow = m.shadow
    assert shadow is not None
    same, by_pcid = new == m.cr3, policy.has("cr3-flush-by-pcid")
    if m.pae:
        before = m.pdptes
        if not load_pdptes(policy, m, new):
            return False
        # Old kernels take other PDPTEs for another CR3.
        same = same and (m.pdptes == before or policy.has("pae-roots-follow-pdptes"))
    at_hand = same or shadow.switch(new, shadow_root_role(policy, m.now))
    if noflush or not (at_hand or by_pcid):
        return True
    m.request("sync")
    m.request("current")
    if by_pcid and m.cr4 & _PCIDE:
        shadow.roots.free_previous(lambda root: pcid_of(root.pgd) == pcid_of(new))
    return True


def invlpg(m: Machine, va: int) -> None:
    """INVLPG."""
    reason = instruction_exit(m.policy, "invlpg")
    if reason is not None:
        m.exit(reason, va)
        if m.policy.vendor is Vendor.AMD and not m.host.decode_assists:
            m.emulated_instruction()
        m.stats["invlpg"] += 1
        if m.shadow is not None:  # without paging there is nothing that could be out of step
            m.shadow.invalidate(va)
    m.tlb.forget(va)
    if reason is not None:
        m.enter()


def invpcid(m: Machine, kind: int, pcid: int, va: int) -> None:
    """INVPCID.

    Raises:
        GuestFault: #GP.
    """
    needs_pcide = kind in (0, 1) and pcid and not m.cr4 & _PCIDE
    refused = kind > 3 or pcid >> 12 or needs_pcide or (kind == 0 and not canonical(va, m.linear_bits))
    reason = instruction_exit(m.policy, "invpcid")
    if reason is not None:
        m.exit(reason)
    if refused:
        _refuse(m, exited=reason is not None)
    if reason is not None:
        invpcid_shadow(m.policy, m, kind, pcid, va)
    if kind == 0:
        m.tlb.forget_va(va, pcid)
    elif kind == 1:
        m.tlb.forget_pcid(pcid)
    else:
        m.tlb.flush_all()
    if reason is not None:
        m.enter()


@rule(
    id="invpcid-shadow",
    sentence="An intercepted INVPCID of one address or PCID synchronizes what belongs to it; of all contexts it "
    "flushes as a guest flush does, on old kernels it unloads all roots.",
    depends=("invpcid-all-flush-only", "cr3-flush-by-pcid"),
    source='Since Linux commit eb4b248e152d ("kvm: vmx: Support INVPCID in shadow paging mode") (v4.13), guests have '
    "INVPCID under shadow paging. Before that, it was hidden from them.",
    since="5.4",
    tested="tests/kvm/test_shadow.py::test_invpcid_of_all_contexts",
)
def invpcid_shadow(policy: Policy, m: Machine, kind: int, pcid: int, va: int) -> None:
    """What KVM does with INVPCID (x86.c, kvm_handle_invpcid)."""
    shadow = m.shadow
    if shadow is None:
        raise NotModelled("the guest uses INVPCID without paging, which the model does not follow")
    mine = pcid == pcid_of(m.cr3)
    if kind == 0:
        m.stats["invlpg"] += 1
        if mine:
            shadow.invalidate(va)
    elif kind == 1:
        if mine:
            m.request("sync")
            m.request("current")
        shadow.roots.free_previous(lambda root: pcid_of(root.pgd) == pcid)
    elif policy.has("invpcid-all-flush-only"):
        m.flush(Flush.GUEST)
    else:
        m.unload()


# ---- model-specific registers


def write_msr(m: Machine, msr: int, value: int) -> None:
    """WRMSR.

    Raises:
        GuestFault: #GP.
    """
    reason = msr_exit(m.policy, msr, True)
    refused = _refuses(m, msr, value, by_kvm=reason is not None)
    if reason is not None:
        m.exit(reason)
        if m.events is not None:
            m.event("kvm_msr", {"write": 1, "ecx": msr, "data": value, "exception": refused})
    if refused:
        _refuse(m, exited=reason is not None)
    if msr == EFER:
        _after(m, efer_written(m.policy, m.efer, value))
        m.efer = value & ~_LMA | m.efer & _LMA
        m.mode_changed()
    elif msr in _SYSENTER and not canonical(value, m.linear_bits):
        m.msrs.pop(msr, None)  # what is left of it is the processor's choice
    else:
        m.msrs[msr] = value
    if reason is not None:
        m.skip_instruction()


def read_msr(m: Machine, msr: int) -> int | None:
    """RDMSR: the value, None where the model does not know it.

    Raises:
        GuestFault: #GP.
    """
    reason = msr_exit(m.policy, msr, False)
    unknown = not _exists(m.policy, msr)
    if reason is not None:
        m.exit(reason)
        m.event("kvm_msr", {"write": 0, "ecx": msr, "data": m.msrs.get(msr, 0), "exception": unknown})
    if unknown:
        _refuse(m, exited=reason is not None)
    if reason is not None:
        m.skip_instruction()
    return m.efer if msr == EFER else m.msrs.get(msr, 0 if msr in CET_MSRS else None)


@rule(
    id="efer-after-write",
    sentence="A write to EFER that changes NX resets the MMU.",
    source='Since Linux commit 6aa8b732ca01 ("[PATCH] kvm: userspace interface") (v2.6.20), '
    "set_efer judges the value and has the MMU take note. Before that, there was no KVM.",
    since="5.4",
    tested="tests/kvm/test_register_writes.py::test_a_change_of_nx_resets_the_mmu",
)
def efer_written(policy: Policy, old: int, new: int) -> After:  # noqa: ARG001 - the same on every kernel
    """What KVM does after a write to EFER (x86.c, set_efer)."""
    return After(MmuWork.FULL_RESET if (old ^ new) & _NXE else MmuWork.NOTHING, Flush.NONE)


_KNOWN_MSRS = frozenset(MSRS.values())
_ADDRESSES = frozenset(
    MSRS[name] for name in ("FS_BASE", "GS_BASE", "KERNEL_GS_BASE", "LSTAR", "CSTAR", "SYSENTER_ESP", "SYSENTER_EIP")
)
_SYSENTER = frozenset((MSRS["SYSENTER_ESP"], MSRS["SYSENTER_EIP"]))
_MEMORY_TYPES = frozenset((0, 1, 4, 5, 6, 7))


def _exists(policy: Policy, msr: int) -> bool:
    return msr in _KNOWN_MSRS and (msr not in CET_MSRS or exists(policy.cet, msr))


def _refuses(m: Machine, msr: int, value: int, by_kvm: bool) -> bool:
    """Whether WRMSR is #GP: *by_kvm*, or by the processor where KVM does not see it."""
    if not _exists(m.policy, msr):
        return True
    if msr in CET_MSRS:
        bits = m.linear_bits
        if by_kvm:
            return refuses(m.policy.cet, msr, value, bits)
        return refuses_cet(msr, value, m.policy.vendor is Vendor.INTEL, bits)
    if msr == EFER:
        return bool(value & ~_KNOWN_EFER[m.policy.vendor] or (value ^ m.efer) & _LME)
    if msr == MSRS["PAT"]:
        return any(value >> shift & 0xFF not in _MEMORY_TYPES for shift in range(0, 64, 8))
    if msr in _SYSENTER and m.policy.vendor is Vendor.AMD:
        return False  # 32 bits wide there; KVM makes what it intercepts canonical
    return msr in _ADDRESSES and not canonical(value, m.linear_bits)
