"""The bodies of KVM's events, as the kernels print them.

The lines follow TP_printk of arch/x86/kvm/trace.h, arch/x86/kvm/mmu/mmutrace.h and include/trace/events/kvm.h of the
version named, and libtraceevent's plugins/plugin_kvm.c; expected values are what those formats were given.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from texts import HEAD, SCANNERS, one, read
from worldswitch.trace.readers.textforms import FORMS

LINES = [
    # event, body, columns
    ("kvm_entry", "vcpu 3", {"vcpu_id": 3, "rip": 0}),
    ("kvm_entry", "vcpu 3, rip 0xfff0", {"vcpu_id": 3, "rip": 0xFFF0}),
    ("kvm_entry", "vcpu 3 rip 0xfff0", {"vcpu_id": 3, "rip": 0xFFF0}),
    ("kvm_entry", "vcpu 3, rip 0x1[immediate exit]", {"rip": 1, "immediate_exit": True}),
    (
        "kvm_entry",
        "vcpu 0, rip 0x1000 intr_info 0x80000b0e error_code 0x00000004",
        {"rip": 0x1000, "intr_info": 0x80000B0E, "error_code": 4},
    ),
    (
        "kvm_exit",  # 5.10 to 6.12
        "vcpu 1 reason CR_ACCESS rip 0x10002 info1 0x0000000000000200 info2 0x0000000000000001 intr_info 0x00000002"
        " error_code 0x00000003",
        {
            "exit_reason": 28,
            "guest_rip": 0x10002,
            "isa": 1,
            "info1": 0x200,
            "info2": 1,
            "intr_info": 2,
            "error_code": 3,
            "vcpu_id": 1,
        },
    ),
    (
        "kvm_exit",  # 6.14 and later
        "vcpu 1 reason npf rip 0x1 info1 0x1 info2 0x2 intr_info 0x0 error_code 0x0 requests 0x0000000000000010",
        {"exit_reason": 0x400, "isa": 2, "requests": 0x10},
    ),
    (
        "kvm_exit",
        "reason EPT_VIOLATION rip 0xfff0 info 784 80000001",
        {"exit_reason": 48, "info1": 0x784, "info2": 0x80000001},
    ),
    ("kvm_exit", "reason EXTERNAL_INTERRUPT rip 0x100", {"exit_reason": 1, "info1": 0, "guest_rip": 0x100}),
    (
        "kvm_exit",
        "vcpu 1 reason npf rip 0xfd11d info 100000014 fd000",
        {"vcpu_id": 1, "info1": 0x100000014, "info2": 0xFD000},
    ),
    (
        "kvm_exit",
        "vcpu 0 reason DR_ACCESS info1 0x0000000000000216",
        {"exit_reason": 29, "info1": 0x216, "guest_rip": 0},
    ),
    (
        "kvm_exit",
        "[FAILED TO PARSE] exit_reason=10 guest_rip=0x1000 isa=1 info1=16 info2=0 vcpu_id=2",
        {"exit_reason": 10, "guest_rip": 0x1000, "isa": 1, "info1": 16, "vcpu_id": 2},
    ),
    (
        "kvm_nested_vmexit",  # before 5.9
        "rip: 0x0000000000401000 reason: EPT_VIOLATION ext_inf1: 0x0000000000000181 ext_inf2: 0x0000000000000002"
        " ext_int: 0x00000003 ext_int_err: 0x00000004",
        {
            "guest_rip": 0x401000,
            "exit_reason": 48,
            "info1": 0x181,
            "info2": 2,
            "intr_info": 3,
            "error_code": 4,
        },
    ),
    (
        "kvm_nested_vmexit",  # libtraceevent
        "rip 400433 reason EXIT_NPF info1 200000006 info2 641000 int_info 0 int_info_err 0",
        {"guest_rip": 0x400433, "exit_reason": 0x400, "isa": 2, "info2": 0x641000},
    ),
    (
        "kvm_nested_vmexit",  # libtraceevent before it knew the new layout
        'CAN\'T FIND FIELD "rip"<CANT FIND FIELD exit_code>vcpu 0 reason npf rip 0x400433 info1 0x0000000200000006'
        " info2 0x0000000000641000 intr_info 0x00000000 error_code 0x00000000",
        {"guest_rip": 0x400433, "exit_reason": 0x400, "info1": 0x200000006},
    ),
    (
        "kvm_nested_vmexit_inject",
        "reason: TRIPLE_FAULT ext_inf1: 0x0000000000000001 ext_inf2: 0x0000000000000002 ext_int: 0x00000003"
        " ext_int_err: 0x00000004",
        {
            "exit_code": 2,
            "exit_info1": 1,
            "exit_info2": 2,
            "exit_int_info": 3,
            "exit_int_info_err": 4,
            "isa": 1,
        },
    ),
    (
        "kvm_nested_vmenter",
        "rip: 0x0000000000008002 vmcs: 0x0000000000007000 nested_rip: 0x0000000000000001 int_ctl: 0x00000002 event_inj:"
        " 0x00000003 nested_ept=n guest_cr3: 0x0000000000002000",
        {
            "rip": 0x8002,
            "vmcb": 0x7000,
            "nested_rip": 1,
            "int_ctl": 2,
            "event_inj": 3,
            "tdp_enabled": False,
            "isa": 1,
        },
    ),
    (
        "kvm_hypercall",
        "nr 0x5 a0 0x1 a1 0x2 a2 0x3 a3 0xffffffffffffffff",
        {"nr": 5, "a3": 0xFFFFFFFFFFFFFFFF},
    ),
    (
        "kvm_hv_hypercall",
        "code 0x5c fast cnt 0x1 idx 0x2 in 0x3 out 0x4",
        {"code": 0x5C, "fast": True, "rep_cnt": 1},
    ),
    (
        "kvm_hv_hypercall",
        "code 0x5c slow var_cnt 0x7 rep_cnt 0x1 idx 0x2 in 0x3 out 0x4",
        {"fast": False, "var_cnt": 7, "rep_cnt": 1, "rep_idx": 2, "ingpa": 3, "outgpa": 4},
    ),
    (
        "kvm_pio",
        "pio_write at 0x3f8 size 1 count 1 val 0x41 ",
        {"rw": 1, "port": 0x3F8, "size": 1, "count": 1, "val": 0x41},
    ),
    ("kvm_pio", "pio_read at 0xe9 size 1 count 4 val 0x32 (...)", {"rw": 0, "count": 4, "val": 0x32}),
    ("kvm_pio", "pio_read at 0xc13e size 2 count 1", {"port": 0xC13E, "size": 2}),
    (
        "kvm_mmio",
        "mmio write len 4 gpa 0xfee000b0 val 0x0",
        {"type": 2, "len": 4, "gpa": 0xFEE000B0, "val": 0},
    ),
    ("kvm_mmio", "mmio unsatisfied-read len 8 gpa 0x1 val 0x0", {"type": 0, "len": 8}),
    ("kvm_fast_mmio", "fast mmio at gpa 0xfe003000", {"gpa": 0xFE003000}),
    (
        "kvm_cpuid",
        "func 40000000 idx 0 rax 16 rbx 756e6547 rcx 6c65746e rdx 49656e69, cpuid entry found",
        {
            "function": 0x40000000,
            "index": 0,
            "rax": 0x16,
            "rbx": 0x756E6547,
            "found": True,
            "used_max_basic": False,
        },
    ),
    (
        "kvm_cpuid",
        "func 1 idx 0 rax 0 rbx 0 rcx 0 rdx 0, cpuid entry not found, used max basic",
        {"found": False, "used_max_basic": True},
    ),
    (
        "kvm_msr",
        "msr_write 6e0 = 0x1fb1e5ac1f9",
        {"write": 1, "ecx": 0x6E0, "data": 0x1FB1E5AC1F9, "exception": 0},
    ),
    ("kvm_msr", "msr_read ce = 0x0 (#GP)", {"write": 0, "ecx": 0xCE, "exception": 1}),
    ("kvm_cr", "cr_write 0 = 0x80010033", {"rw": 1, "cr": 0, "val": 0x80010033}),
    ("kvm_cr", "cr_read 8 = 0xf", {"rw": 0, "cr": 8, "val": 15}),
    ("kvm_inj_virq", "irq 236", {"vector": 236}),
    ("kvm_inj_virq", "IRQ 0xec [reinjected]", {"vector": 0xEC, "reinjected": True}),
    ("kvm_inj_virq", "Soft/INTn 0x80", {"vector": 0x80, "soft": True}),
    ("kvm_inj_exception", "#PF (0x11)", {"exception": 14, "has_error": 1, "error_code": 0x11}),
    ("kvm_inj_exception", "#DB [reinjected]", {"exception": 1, "has_error": 0, "reinjected": True}),
    ("kvm_inj_exception", "#UD (0x0)", {"exception": 6, "has_error": 0, "error_code": 0}),
    ("kvm_page_fault", "address febd0000 error_code 181", {"fault_address": 0xFEBD0000, "error_code": 0x181}),
    (
        "kvm_page_fault",
        "vcpu 3 rip 0x7f80ed32638b address 0x00000003f7369712 error_code 0x181",
        {"vcpu_id": 3, "guest_rip": 0x7F80ED32638B, "fault_address": 0x3F7369712, "error_code": 0x181},
    ),
    (
        "kvm_emulate_insn",
        "0:101a:0f 22 c0 (prot64)",
        {
            "csbase": 0,
            "rip": 0x101A,
            "len": 3,
            "insn": [0x0F, 0x22, 0xC0, *[0] * 12],
            "flags": 9,
            "failed": 0,
        },
    ),
    (
        "kvm_emulate_insn",
        "ffff0000:fff0:ea 5b e0 00 f0 (real) failed",
        {"csbase": 0xFFFF0000, "len": 5, "flags": 0, "failed": 1},
    ),
    ("kvm_emulate_insn", "0:fd11d: (prot32)", {"rip": 0xFD11D, "len": 0, "flags": 5}),
    ("kvm_emulate_insn", "0:fffff802987d6169: f3 a5 FAIL", {"len": 2, "failed": 1}),
    (
        "kvm_emulate_insn",
        "0:1:66 2e 0f 1f 84 00 00 00 00 00 aa bb cc dd ee (vm16)",
        {"len": 15, "flags": 3, "insn": [*bytes.fromhex("662e0f1f840000000000aabbccddee")]},
    ),
    ("kvm_userspace_exit", "reason KVM_EXIT_HLT (5)", {"reason": 5, "errno": 0}),
    ("kvm_userspace_exit", "reason restart (4)", {"reason": 0, "errno": -4}),
    ("kvm_userspace_exit", "reason error (14)", {"errno": -14}),
    ("kvm_userspace_exit", "reason 0x27 (39)", {"reason": 39}),
    ("kvm_fpu", "unload", {"load": 0}),
    ("kvm_vcpu_wakeup", "wait time 12345 ns, polling valid", {"ns": 12345, "waited": True, "valid": True}),
    (
        "kvm_halt_poll_ns",
        "vcpu 0: halt_poll_ns 10000 (grow 0)",
        {"vcpu_id": 0, "new": 10000, "old": 0, "grow": True},
    ),
    ("kvm_set_irq", "gsi 24 level 1 source -2", {"gsi": 24, "level": 1, "irq_source_id": -2}),
    ("kvm_ack_irq", "irqchip PIC slave pin 12", {"irqchip": 1, "pin": 12}),
    ("kvm_ack_irq", "irqchip IOAPIC pin 11", {"irqchip": 2, "pin": 11}),
    (
        "kvm_apic_accept_irq",
        "apicid 3 vec 236 (Fixed|edge)",
        {"apicid": 3, "vec": 236, "delivery_mode": 0, "level": False},
    ),
    ("kvm_apic", "apic_write APIC_EOI = 0x0", {"rw": 1, "reg": 0xB0, "val": 0}),
    ("kvm_apic", "apic_read APIC_ICR = 0xffffffffff", {"rw": 0, "reg": 0x300, "val": 0xFFFFFFFFFF}),
    ("kvm_eoi", "apicid 0 vector 236", {"apicid": 0, "vector": 236}),
    (
        "kvm_write_tsc_offset",
        "vcpu=0 prev=0 next=18446744073709551615",
        {"next_tsc_offset": 0xFFFFFFFFFFFFFFFF},
    ),
    (
        "kvm_update_master_clock",
        "masterclock 1 hostclock tsc offsetmatched 1",
        {"use_master_clock": True, "host_clock": 1},
    ),
    ("kvm_wait_lapic_expire", "vcpu 1: delta -12 (early)", {"vcpu_id": 1, "delta": -12}),
    (
        "kvm_unmap_hva_range",
        "mmu notifier unmap range: 0x000000004a9000 -- 0x000000004aa000",
        {"start": 0x4A9000, "end": 0x4AA000},
    ),
    (
        "kvm_apicv_inhibit_changed",
        "set reason=2, inhibits=0x4 HYPERV|ABSENT",
        {"set": True, "reason": 2, "inhibits": 4},
    ),
    # kvmmmu
    (
        "kvm_mmu_get_page",
        "sp gen 1 gfn fee l4 8-byte q0 direct wux !nxe ad root 2 sync existing",
        {
            "mmu_valid_gen": 1,
            "gfn": 0xFEE,
            "level": 4,
            "direct": True,
            "access": 7,
            "efer_nx": False,
            "root_count": 2,
            "unsync": False,
            "created": False,
        },
    ),
    (
        "kvm_mmu_get_page",
        "sp gen 0 gfn 0 l1 4-byte q3 r-u- invalid nxe !ad root 0 unsync new",
        {"access": 12, "invalid": True, "unsync": True, "created": True},
    ),
    (
        "kvm_mmu_get_page",
        "existing sp gfn 3a22e 1/4 q3 direct --x !pge !nxe root 6 sync",
        {"gfn": 0x3A22E, "level": 1, "access": 1, "root_count": 6},
    ),
    (
        "kvm_mmu_prepare_zap_page",
        "1 q0 direct wux pae !nxe !wp root 0 sync",
        {"level": 1, "access": 7, "cr0_wp": False},
    ),
    (
        "kvm_mmu_set_spte",
        "gfn 0 spte 6000001033f77 (rwxu) level 1 at 1023ab000",
        {"r": True, "x": True, "u": 1, "sptep": 0x1023AB000},
    ),
    ("kvm_mmu_set_spte", "gfn 0 spte 77 (rw-) level 2 at 10", {"x": False, "u": -1, "level": 2}),
    ("kvm_mmu_spte_requested", "gfn 2 pfn 2e58 level 1", {"gfn": 2, "pfn": 0x2E58, "level": 1}),
    (
        "kvm_tdp_mmu_spte_changed",
        "as id 0 gfn 0 level 4 old_spte 8000000000000000 new_spte 2fee9907",
        {"old_spte": 1 << 63, "new_spte": 0x2FEE9907, "level": 4, "as_id": 0},
    ),
    ("kvm_mmu_split_huge_page", "gfn 200 spte 1 level 2 errno -12", {"level": 2, "errno": -12}),
    (
        "kvm_mmu_zap_all_fast",
        "kvm-mmu-valid-gen 1 used_pages 2a",
        {"mmu_valid_gen": 1, "mmu_used_pages": 0x2A},
    ),
    ("kvm_mmu_pagetable_walk", "addr ffff81 pferr 13 P|W|F", {"addr": 0xFFFF81, "pferr": 0x13}),
    (
        "fast_page_fault",
        "vcpu 0 gva fe000 error_code W|U sptep 00000000a1b2c3d4 old 0 new 7 spurious 0 fixed 1",
        {
            "cr2_or_gpa": 0xFE000,
            "error_code": 6,
            "sptep": 0xA1B2C3D4,
            "new_spte": 7,
            "spurious": False,
            "fixed": True,
        },
    ),
    (
        "fast_page_fault",
        "vcpu 0 gva fe000 error_code  sptep 0x1 old 0x1 new 0 spurious 0 fixed 0",
        {"error_code": 0},
    ),
    (
        "mark_mmio_spte",
        "sptep:00000000deadbeef gfn fee00 access 6 gen 3",
        {"gfn": 0xFEE00, "access": 6, "gen": 3},
    ),
    ("check_mmio_spte", "spte 1 kvm_gen 2 spte-gen 3 valid 0", {"spte": 1, "kvm_gen": 2, "spte_gen": 3}),
]


@pytest.mark.parametrize("scanner", SCANNERS)
@pytest.mark.parametrize(("event", "body", "columns"), LINES, ids=[f"{event}: {body[:40]}" for event, body, _ in LINES])
def test_each_form_gives_the_kernels_fields(event, body, columns, scanner):
    found = one(event, body, scanner=scanner)
    assert {name: found[name] for name in columns} == columns


def test_columns_nobody_showed_do_not_exist():
    assert "requests" not in one("kvm_exit", LINES[5][1])
    assert "vcpu_id" not in one("kvm_page_fault", "address febd0000 error_code 181")


def test_columns_have_the_types_of_the_recordings():
    trace, _ = read(f"{HEAD}kvm_exit: {LINES[5][1]}\n")
    table = trace.table("kvm_exit")
    # tests/data/vmx-5.10-ept/kvm_exit.format
    dtypes = {
        "exit_reason": "u4",
        "guest_rip": "u8",
        "isa": "u4",
        "info1": "u8",
        "info2": "u8",
        "intr_info": "u4",
    }
    assert {name: table[name].dtype.str[1:] for name in dtypes} == dtypes


@pytest.mark.parametrize("event", sorted(FORMS))
def test_every_form_compiles_and_survives_nonsense(event):
    trace, source = read(f"{HEAD}{event}: nonsense\n{HEAD}{event}: \n")
    assert source.meta.malformed == 2
    assert len(trace) == 2


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_cr_values_of_any_size(val, vcpu, cr):
    assert one("kvm_cr", f"cr_write {cr:x} = {val:#x}")["val"] == val
    assert one("kvm_entry", f"vcpu {vcpu}, rip {val:#x}") | {"rip": val, "vcpu_id": vcpu} == one(
        "kvm_entry", f"vcpu {vcpu}, rip {val:#x}"
    )


@pytest.mark.parametrize("number", ["0x1" + "0" * 16, "9" * 40, "0xg", "0x", "-"])
def test_numbers_that_do_not_fit_make_a_body_unparsable(number):
    _, source = read(f"{HEAD}kvm_cr: cr_write 0 = {number}\n")
    assert source.meta.malformed == 1
