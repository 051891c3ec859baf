"""What KVM's events look like as text: one small grammar per event, for kernels 4.x to 7.x.

The kernel prints an event by its TP_printk format (arch/x86/kvm/trace.h, arch/x86/kvm/mmu/mmutrace.h,
include/trace/events/kvm.h); trace-cmd prints some of them its own way (libtraceevent's kvm plugin). Both
are here.

Notation of a template::

    {name}        a decimal number             {name:x}      hexadecimal, with or without 0x
    {name:-}      a decimal number, negated    {name:a|b}    one of these words: 0, 1, ...; a=7: 7
    {name=1}      sets a constant              {name:reason} an exit reason: isa << 32 | number
    {name:rwxu}   permission letters           {name:pferr}  page-fault flags: P|W|U|RSVD|F
    {name:bytes}  hex bytes up to "("          {*}           any one word
    « »           may be missing               a space       any run of blanks

Columns are ``name:dtype``; ``?`` marks one that exists only where a text shows it. Where a column is not
among a template's names it follows from them (:mod:`worldswitch.trace.readers.textcolumns`). Pages of the
MMU print pieces of their role, never the role itself, so their columns are the members of ``union
kvm_mmu_page_role``.
"""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    """Columns and templates of one event."""

    columns: str
    templates: tuple[str, ...]


_EXIT = "exit_reason:u4 guest_rip:u8 isa:u4 info1:u8 info2:u8 intr_info:u4 error_code:u4 vcpu_id:u4 requests:u8?"
_EXIT_FORMS = (
    "«vcpu {vcpu_id} »reason {exit_reason:reason}« FAILED_VMENTRY{failed=1}»« 0x{flags:x}»"
    "« rip {guest_rip:x}»"
    "« info {info1:x} {info2:x}»« info1 {info1:x}»« info2 {info2:x}»« intr_info {intr_info:x}»"
    "« error_code {error_code:x}»« requests {requests:x}»",
    "«vcpu {vcpu_id} »reason UNKNOWN ({exit_reason}) rip {guest_rip:x}« info {info1:x} {info2:x}»",
    "rip: {guest_rip:x} reason: {exit_reason:reason} ext_inf1: {info1:x} ext_inf2: {info2:x}"
    " ext_int: {intr_info:x}"
    " ext_int_err: {error_code:x}",
    "rip {guest_rip:x} reason {exit_reason:reason} info1 {info1:x} info2 {info2:x} int_info {intr_info:x}"
    " int_info_err {error_code:x}",
)
_INJECT = "exit_code:u4 exit_info1:u8 exit_info2:u8 exit_int_info:u4 exit_int_info_err:u4 isa:u4"
_INJECT_FORMS = (
    "reason: {exit_code:reason}« FAILED_VMENTRY{failed=1}» ext_inf1: {exit_info1:x} ext_inf2: {exit_info2:x}"
    " ext_int: {exit_int_info:x} ext_int_err: {exit_int_info_err:x}",
    "reason {exit_code:reason} info1 {exit_info1:x} info2 {exit_info2:x} int_info {exit_int_info:x}"
    " int_info_err {exit_int_info_err:x}",
)
_PAGE = (
    "mmu_valid_gen:u1? gfn:u8 level:u1 quadrant:u1 direct:b access:u1 invalid:b efer_nx:b ad_disabled:b?"
    " cr0_wp:b?"
    " root_count:u4 unsync:b"
)
_PAGE_FORMS = (
    "sp gen {mmu_valid_gen:x} gfn {gfn:x} l{level} {gpte_bytes}-byte q{quadrant}« direct{direct=1}»"
    " {access:rwxu}"
    "« invalid{invalid=1}»« !nxe{nxe_off=1}»« nxe»« !ad{ad_disabled=1}»« ad{ad_disabled=0}» root {root_count}"
    "« sync»« unsync{unsync=1}»",
    "«sp »«gfn {gfn:x} »{level}«/{glevels}» q{quadrant}« direct{direct=1}» {access:rwxu}« invalid{invalid=1}»"
    "« !pae»« pae»« !pge»« pge»« !nxe{nxe_off=1}»« nxe»« !wp{cr0_wp=0}»« wp{cr0_wp=1}» root {root_count}"
    "« sync»« unsync{unsync=1}»",
)
_GOT_PAGE_FORMS = (
    *(f"{form} {{created:existing|new}}" for form in _PAGE_FORMS[:1]),
    *(f"{{created:existing|new}} {form}" for form in _PAGE_FORMS[1:]),
)
_GVA_GFN = Form("gva:u8 gfn:u8", ("gva = {gva:x}, gfn = {gfn:x}",))
_TOKEN = Form("token:u8 gva:u8", ("token {token:x} gva {gva:x}",))
_RANGE = "start:u8 end:u8"
_EOI = Form("apicid:u4 vector:i4", ("apicid {apicid:x} vector {vector}",))
_DELIVERY = "Fixed|LowPrio|SMI|Res3|NMI|INIT|SIPI|ExtINT"
_ACCEPT = Form(
    "apicid:u4 vec:u1 delivery_mode:u1 level:b",
    (f"apicid {{apicid:x}} vec {{vec}} ({{delivery_mode:{_DELIVERY}}}|{{level:edge|level}})",),
)
_APIC_REGISTERS = (
    "APIC_ID=0x20|APIC_LVR=0x30|APIC_TASKPRI=0x80|APIC_ARBPRI=0x90|APIC_PROCPRI=0xA0|APIC_EOI=0xB0|APIC_RRR=0xC0"
    "|APIC_LDR=0xD0|APIC_DFR=0xE0|APIC_SPIV=0xF0|APIC_ISR=0x100|APIC_TMR=0x180|APIC_IRR=0x200|APIC_ESR=0x280"
    "|APIC_ICR=0x300|APIC_ICR2=0x310|APIC_LVTT=0x320|APIC_LVTTHMR=0x330|APIC_LVTPC=0x340|APIC_LVT0=0x350"
    "|APIC_LVT1=0x360|APIC_LVTERR=0x370|APIC_TMICT=0x380|APIC_TMCCT=0x390|APIC_TDCR=0x3E0|APIC_SELF_IPI=0x3F0"
    "|APIC_EFEAT=0x400|APIC_ECTRL=0x410"
)
"""Offsets of the local APIC's registers: SDM volume 3, table 12-1; APM volume 2, table 16-2."""
_SMM = Form("vcpu_id:u4 smbase:u8 entering:b", ("vcpu {vcpu_id}: {entering:leaving|entering} SMM, smbase {smbase:x}",))
_VMGEXIT = Form(
    "vcpu_id:u4 exit_reason:u8 info1:u8 info2:u8",
    ("vcpu {vcpu_id}, exit_reason {exit_reason:x}, exit_info1 {info1:x}, exit_info2 {info2:x}",),
)
_STIMER = Form("vcpu_id:i4 timer_index:i4", ("vcpu_id {vcpu_id} timer {timer_index}",))

FORMS: dict[str, Form] = {
    "kvm_entry": Form(
        "vcpu_id:u4 rip:u8 immediate_exit:b? intr_info:u4? error_code:u4?",
        (
            "vcpu {vcpu_id}«,»« rip {rip:x}»« intr_info {intr_info:x}»« error_code {error_code:x}»"
            "« »«[immediate exit]{immediate_exit=1}»",
        ),
    ),
    "kvm_exit": Form(_EXIT, _EXIT_FORMS),
    "kvm_nested_vmexit": Form(_EXIT, _EXIT_FORMS),
    "kvm_nested_vmexit_inject": Form(_INJECT, _INJECT_FORMS),
    "kvm_nested_intr_vmexit": Form("rip:u8", ("rip: {rip:x}",)),
    "kvm_nested_vmenter": Form(
        "rip:u8 vmcb:u8 nested_rip:u8 int_ctl:u4 event_inj:u4 tdp_enabled:b guest_pgd:u8 isa:u4",
        (
            "rip: {rip:x} {isa:|vmcs|vmcb}: {vmcb:x} nested_rip: {nested_rip:x} int_ctl: {int_ctl:x}"
            " event_inj: {event_inj:x} nested_«ept»«npt»={tdp_enabled:n|y} {*} {guest_pgd:x}",
        ),
    ),
    "kvm_nested_vmrun": Form(
        "rip:u8 vmcb:u8 nested_rip:u8 int_ctl:u4 event_inj:u4 npt:b",
        (
            "rip: {rip:x} vmcb: {vmcb:x} nrip: {nested_rip:x} int_ctl: {int_ctl:x} event_inj: {event_inj:x}"
            " npt: {npt:off|on}",
        ),
    ),
    "kvm_nested_intercepts": Form(
        "cr_read:u2 cr_write:u2 exceptions:u4 intercept1:u4 intercept2:u4 intercept3:u4",
        (
            "cr_read: {cr_read:x} cr_write: {cr_write:x} excp: {exceptions:x}"
            " intercepts: {intercept1:x} {intercept2:x} {intercept3:x}",
        ),
    ),
    "kvm_hypercall": Form("nr:u8 a0:u8 a1:u8 a2:u8 a3:u8", ("nr {nr:x} a0 {a0:x} a1 {a1:x} a2 {a2:x} a3 {a3:x}",)),
    "kvm_hv_hypercall": Form(
        "rep_cnt:u2 rep_idx:u2 ingpa:u8 outgpa:u8 code:u2 var_cnt:u2? fast:b",
        (
            "code {code:x} {fast:slow|fast}« var_cnt {var_cnt:x} rep_cnt {rep_cnt:x}»« cnt {rep_cnt:x}»"
            " idx {rep_idx:x} in {ingpa:x} out {outgpa:x}",
        ),
    ),
    "kvm_hv_hypercall_done": Form("result:u8", ("result {result:x}",)),
    "kvm_xen_hypercall": Form(
        "cpl:u1? nr:u8 a0:u8 a1:u8 a2:u8 a3:u8 a4:u8 a5:u8",
        ("«cpl {cpl} »nr {nr:x} a0 {a0:x} a1 {a1:x} a2 {a2:x} a3 {a3:x} a4 {a4:x} a5 {a5:x}",),
    ),
    "kvm_pio": Form(
        "rw:u4 port:u4 size:u4 count:u4 val:u4",
        ("pio_{rw:read|write} at {port:x} size {size} count {count}« val {val:x}»« (...)»",),
    ),
    "kvm_mmio": Form(
        "type:u4 len:u4 gpa:u8 val:u8",
        ("mmio {type:unsatisfied-read|read|write} len {len} gpa {gpa:x} val {val:x}",),
    ),
    "kvm_fast_mmio": Form("gpa:u8", ("fast mmio at gpa {gpa:x}",)),
    "vcpu_match_mmio": Form(
        "gva:u8 gpa:u8 write:b gpa_match:b",
        ("gva {gva:x} gpa {gpa:x} {write:Read|Write} {gpa_match:GVA|GPA}",),
    ),
    "kvm_cpuid": Form(
        "function:u4 index:u4 rax:u8 rbx:u8 rcx:u8 rdx:u8 found:b used_max_basic:b",
        (
            "func {function:x}« idx {index:x}» rax {rax:x} rbx {rbx:x} rcx {rcx:x} rdx {rdx:x}"
            "«, cpuid entry found{found=1}»«, cpuid entry not found»«, used max basic{used_max_basic=1}»",
        ),
    ),
    "kvm_msr": Form(
        "write:u4 ecx:u4 data:u8 exception:u1",
        ("msr_{write:read|write} {ecx:x} = {data:x}« (#GP){exception=1}»",),
    ),
    "kvm_cr": Form("rw:u4 cr:u4 val:u8", ("cr_{rw:read|write} {cr:x} = {val:x}",)),
    "kvm_inj_virq": Form(
        "vector:u4 soft:b? reinjected:b?",
        ("irq {vector}", "«IRQ »«Soft/INTn{soft=1} »{vector:x}« [reinjected]{reinjected=1}»"),
    ),
    "kvm_inj_exception": Form(
        "exception:u1 has_error:u1 error_code:u4 reinjected:b?",
        (
            "{exception:#DE|#DB||#BP|#OF|#BR|#UD|#NM|#DF||#TS|#NP|#SS|#GP|#PF||#MF|#AC|#MC|#XM|#VE|#CP}"
            "« ({error_code:x}{has_error=1})»« [reinjected]{reinjected=1}»",
            "{exception:x}« ({error_code:x}{has_error=1})»« [reinjected]{reinjected=1}»",
        ),
    ),
    "kvm_page_fault": Form(
        "vcpu_id:u4? guest_rip:u8? fault_address:u8 error_code:u8",
        ("«vcpu {vcpu_id} »«rip {guest_rip:x} »address {fault_address:x} error_code {error_code:x}",),
    ),
    "kvm_emulate_insn": Form(
        "rip:u8 csbase:u4 len:u1 insn:bytes flags:u1 failed:u1",
        (
            "{csbase:x}:{rip:x}:« »«{insn:bytes}»« ({flags:real|prot16||vm16||prot32||||prot64})»"
            "«({flags:real|prot16||vm16||prot32||||prot64})»"
            "« failed{failed=1}»"
            "« FAIL{failed=1}»",
            "{csbase:x}:{rip:x}:« »«{insn:bytes}»« ({flags:x})»«({flags:x})»« failed{failed=1}»",
        ),
    ),
    "kvm_userspace_exit": Form(
        "reason:u4 errno:i4",
        ("reason restart ({errno:-})", "reason error ({errno:-})", "reason {*} ({reason})"),
    ),
    "kvm_fpu": Form("load:u4", ("{load:unload|load}",)),
    "kvm_vcpu_wakeup": Form(
        "ns:u8 waited:b valid:b",
        ("{waited:poll|wait} time {ns} ns« , polling»«, polling» {valid:invalid|valid}",),
    ),
    "kvm_halt_poll_ns": Form(
        "grow:b vcpu_id:u4 new:u4 old:u4",
        ("vcpu {vcpu_id}: halt_poll_ns {new} ({grow:shrink|grow} {old})",),
    ),
    "kvm_set_irq": Form("gsi:u4 level:i4 irq_source_id:i4", ("gsi {gsi} level {level} source {irq_source_id}",)),
    "kvm_ack_irq": Form(
        "irqchip:u4 pin:u4",
        (
            "irqchip PIC master{irqchip=0} pin {pin}",
            "irqchip PIC slave{irqchip=1} pin {pin}",
            "irqchip IOAPIC{irqchip=2} pin {pin}",
        ),
    ),
    "kvm_apic": Form(
        "rw:u4 reg:u4 val:u8",
        (f"apic_{{rw:read|write}} {{reg:{_APIC_REGISTERS}}} = {{val:x}}", "apic_{rw:read|write} {reg:x} = {val:x}"),
    ),
    "kvm_apic_accept_irq": _ACCEPT,
    "kvm_apicv_accept_irq": _ACCEPT,
    "kvm_eoi": _EOI,
    "kvm_pv_eoi": _EOI,
    "kvm_pic_set_irq": Form(
        "chip:u1 pin:u1 level:b masked:b coalesced:b",
        ("chip {chip} pin {pin} ({level:edge|level}«|masked{masked=1}»)« (coalesced){coalesced=1}»",),
    ),
    "kvm_async_pf_completed": Form("address:u8 gva:u8", ("gva {gva:x} address {address:x}« pfn {pfn:x}»",)),
    "kvm_try_async_get_page": _GVA_GFN,
    "kvm_async_pf_doublefault": _GVA_GFN,
    "kvm_async_pf_repeated_fault": _GVA_GFN,
    "kvm_async_pf_not_present": _TOKEN,
    "kvm_async_pf_ready": _TOKEN,
    "kvm_apicv_inhibit_changed": Form(
        "reason:i4 set:b inhibits:u8", ("{set:cleared|set} reason={reason}, inhibits={inhibits:x}« {*}»",)
    ),
    "kvm_apicv_update_request": Form("activate:b bit:u8", ("{activate:deactivate|activate} bit={bit}",)),
    "kvm_avic_doorbell": Form("vcpuid:u4 apicid:u4", ("vcpuid={vcpuid}, apicid={apicid}",)),
    "kvm_avic_ga_log": Form("vmid:u4 vcpuid:u4", ("vmid={vmid}, vcpuid={vcpuid}",)),
    "kvm_avic_incomplete_ipi": Form(
        "vcpu:u4 icrh:u4 icrl:u4 id:u4 index:u4",
        ("vcpu={vcpu}, icrh:icrl={icrh:x}:{icrl:x}, id={id}, index={index}",),
    ),
    "kvm_hv_timer_state": Form("vcpu_id:u4 hv_timer_in_use:u4", ("vcpu_id {vcpu_id:x} hv_timer {hv_timer_in_use:x}",)),
    "kvm_hv_stimer_cleanup": _STIMER,
    "kvm_hv_stimer_callback": _STIMER,
    "kvm_hv_synic_set_msr": Form(
        "vcpu_id:i4 msr:u4 data:u8 host:b", ("vcpu_id {vcpu_id} msr {msr:x} data {data:x} host {host}",)
    ),
    "kvm_invlpga": Form("rip:u8 asid:u4 address:u8", ("rip: {rip:x} asid: {asid} address: {address:x}",)),
    "kvm_skinit": Form("rip:u8 slb:u4", ("rip: {rip:x} slb: {slb:x}",)),
    "kvm_enter_smm": _SMM,
    "kvm_smm_transition": _SMM,
    "kvm_ple_window_update": Form("vcpu_id:u4 new:u4 old:u4", ("vcpu {vcpu_id} old {old} new {new} ({*}",)),
    "kvm_pml_full": Form("vcpu_id:u4", ("vcpu {vcpu_id}: PML full",)),
    "kvm_dirty_ring_exit": Form("vcpu_id:i4", ("vcpu {vcpu_id}",)),
    "kvm_pv_tlb_flush": Form(
        "vcpu_id:u4 need_flush_tlb:b", ("vcpu {vcpu_id} need_flush_tlb {need_flush_tlb:false|true}",)
    ),
    "kvm_wait_lapic_expire": Form("vcpu_id:u4 delta:i8", ("vcpu {vcpu_id}: delta {delta} ({*}",)),
    "kvm_write_tsc_offset": Form(
        "vcpu_id:u4 previous_tsc_offset:u8 next_tsc_offset:u8",
        ("vcpu={vcpu_id} prev={previous_tsc_offset} next={next_tsc_offset}",),
    ),
    "kvm_update_master_clock": Form(
        "use_master_clock:b host_clock:u4 offset_matched:b",
        (
            "masterclock {use_master_clock} hostclock {host_clock:none|tsc} offsetmatched {offset_matched}",
            "masterclock {use_master_clock} hostclock {host_clock:x} offsetmatched {offset_matched}",
        ),
    ),
    "kvm_track_tsc": Form(
        "vcpu_id:u4 nr_vcpus_matched_tsc:u4 online_vcpus:u4 use_master_clock:b host_clock:u4",
        tuple(
            "vcpu_id {vcpu_id} masterclock {use_master_clock} offsetmatched {nr_vcpus_matched_tsc}"
            " nr_online {online_vcpus} hostclock " + clock
            for clock in ("{host_clock:none|tsc}", "{host_clock:x}")
        ),
    ),
    "kvm_unmap_hva_range": Form(_RANGE, ("mmu notifier unmap range: {start:x} -- {end:x}",)),
    "kvm_age_hva": Form(_RANGE, ("mmu notifier age hva: {start:x} -- {end:x}",)),
    "kvm_test_age_hva": Form("hva:u8", ("mmu notifier test age hva: {hva:x}",)),
    "kvm_set_spte_hva": Form("hva:u8", ("mmu notifier set pte hva: {hva:x}",)),
    "kvm_age_page": Form(
        "hva:u8 gfn:u8 level:u1? referenced:u1",
        ("hva {hva:x} gfn {gfn:x}« level {level}» {referenced:OLD|YOUNG}",),
    ),
    "kvm_rmp_fault": Form(
        "vcpu_id:u4 gpa:u8 pfn:u8 error_code:u8 rmp_level:i4 psmash_ret:i4",
        (
            "vcpu {vcpu_id} gpa {gpa:x} pfn {pfn:x} error_code {error_code:x} rmp_level {rmp_level}"
            " psmash_ret {psmash_ret}",
        ),
    ),
    "kvm_vmgexit_enter": _VMGEXIT,
    "kvm_vmgexit_exit": _VMGEXIT,
    "kvm_vmgexit_msr_protocol_enter": Form("vcpu_id:u4 ghcb_gpa:u8", ("vcpu {vcpu_id}, ghcb_gpa {ghcb_gpa:x}",)),
    "kvm_vmgexit_msr_protocol_exit": Form(
        "vcpu_id:u4 ghcb_gpa:u8 result:i4", ("vcpu {vcpu_id}, ghcb_gpa {ghcb_gpa:x}, result {result}",)
    ),
    # kvmmmu
    "kvm_mmu_get_page": Form(_PAGE + " created:b", _GOT_PAGE_FORMS),
    "kvm_mmu_sync_page": Form(_PAGE, _PAGE_FORMS),
    "kvm_mmu_unsync_page": Form(_PAGE, _PAGE_FORMS),
    "kvm_mmu_prepare_zap_page": Form(_PAGE, _PAGE_FORMS),
    "kvm_mmu_zap_all_fast": Form(
        "mmu_valid_gen:u1 mmu_used_pages:u4",
        ("kvm-mmu-valid-gen {mmu_valid_gen} used_pages {mmu_used_pages:x}",),
    ),
    "kvm_mmu_pagetable_walk": Form("addr:u8 pferr:u4", ("addr {addr:x} pferr {pferr:x}« {flags:pferr}»",)),
    "kvm_mmu_paging_element": Form("pte:u8 level:u4", ("pte {pte:x} level {level}",)),
    "kvm_mmu_set_accessed_bit": Form("gpa:u8", ("gpa {gpa:x}",)),
    "kvm_mmu_set_dirty_bit": Form("gpa:u8", ("gpa {gpa:x}",)),
    "kvm_mmu_walker_error": Form("pferr:u4", ("pferr {pferr:x}« {flags:pferr}»",)),
    "kvm_mmu_spte_requested": Form(
        "gfn:u8 pfn:u8 level:u1 access:u1?",
        ("gfn {gfn:x} pfn {pfn:x} level {level}« {access:rwxu}»« access {access:x}»",),
    ),
    "kvm_mmu_set_spte": Form(
        "gfn:u8 spte:u8 sptep:u8 level:u1 r:b x:b u:i1",
        ("gfn {gfn:x} spte {spte:x} ({rwxu:rwxu}) level {level} at {sptep:x}",),
    ),
    "kvm_tdp_mmu_spte_changed": Form(
        "gfn:u8 old_spte:u8 new_spte:u8 level:u1 as_id:u1",
        ("as id {as_id} gfn {gfn:x} level {level} old_spte {old_spte:x} new_spte {new_spte:x}",),
    ),
    "kvm_mmu_split_huge_page": Form(
        "gfn:u8 spte:u8 level:i4 errno:i4", ("gfn {gfn:x} spte {spte:x} level {level} errno {errno}",)
    ),
    "fast_page_fault": Form(
        "vcpu_id:i4 cr2_or_gpa:u8 error_code:u8 sptep:u8 old_spte:u8 new_spte:u8 spurious:b fixed:b",
        (
            "vcpu {vcpu_id} gva {cr2_or_gpa:x} error_code «{error_code:pferr} »sptep {sptep:x}"
            " old {old_spte:x} new {new_spte:x} spurious {spurious} fixed {fixed}",
        ),
    ),
    "mark_mmio_spte": Form(
        "sptep:u8 gfn:u8 access:u4 gen:u4", ("sptep:{sptep:x} gfn {gfn:x} access {access:x} gen {gen:x}",)
    ),
    "handle_mmio_page_fault": Form("addr:u8 gfn:u8 access:u4", ("addr:{addr:x} gfn {gfn:x} access {access:x}",)),
    "check_mmio_spte": Form(
        "kvm_gen:u4 spte_gen:u4 spte:u8",
        ("spte {spte:x} kvm_gen {kvm_gen:x} spte-gen {spte_gen:x} valid {valid}",),
    ),
}
"""Event name -> form. An event that is not here becomes a table with the one column ``text``."""
