"""Writes to registers on the whole machine. Expected: kvm_set_cr0, kvm_set_cr4, set_efer; SDM volume 3, chapter 4."""

from __future__ import annotations

import pytest

from worldswitch.guest.operations import (
    Clts,
    Invpcid,
    Lmsw,
    Load,
    Operation,
    ReadCr,
    ReadMsr,
    Store,
    SwitchSpace,
    WriteCr,
    WriteMsr,
)
from worldswitch.guest.program import Pages, Program, Space, State, Vcpu
from worldswitch.kvm.control_registers import After, Flush, MmuWork
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.register_writes import efer_written
from worldswitch.kvm.vcpu import Run, run
from worldswitch.x86.registers import CR0, CR4, EFER, bit_mask

VA, PA = 0x4000_0000, 0x200000
EVERY = [
    (k, cpu, mmu) for k in ("5.10", "6.1", "6.12", "7.2") for cpu in ("intel", "amd") for mmu in ("default", "shadow")
]


def _program(*body: Operation, state: State | None = None, flags: tuple[str, ...] = ()) -> Program:
    pages = (Pages(VA, PA, flags=flags),)
    return Program("test", "A test.", "pass", (Vcpu(body=body),), (Space("main", pages),), state=state or State())


def _faults(got: Run) -> list[tuple[int, int]]:
    assert got.reports[0] is not None
    return [(fault.vector, fault.error_code) for fault in got.reports[0].log]


def _value(got: Run, index: int) -> int:
    assert got.reports[0] is not None
    return got.reports[0].values[f"vcpu 0 body {index}"]


def test_a_change_of_nx_resets_the_mmu() -> None:
    """Rule efer-after-write."""
    policy, nx = Policy.of("6.12"), bit_mask(EFER, "NXE")
    assert efer_written(policy, 0xD00, 0xD00 ^ nx) == After(MmuWork.FULL_RESET, Flush.NONE)
    assert efer_written(policy, 0xD00, 0xD01) == After(MmuWork.NOTHING, Flush.NONE)
    off, on = WriteMsr(EFER, 0x500), WriteMsr(EFER, 0xD00)
    assert run(_program(off, on), policy, 5).counters["mmu_resets"] == 10


@pytest.mark.parametrize(("kernel", "cpu", "mmu"), EVERY)
def test_wp_decides_at_once_for_the_next_write(kernel: str, cpu: str, mmu: str) -> None:
    """kvm-unit-tests' x86/access.c, toggle_cr0_wp: the stale value must decide nothing."""
    off, on, store = WriteCr(0, clear=("WP",)), WriteCr(0, set=("WP",)), Store(VA, value=1)
    nx_off, nx_on = WriteMsr(EFER, 0x500), WriteMsr(EFER, 0xD00)
    got = run(_program(off, nx_off, nx_on, on, store, on, nx_off, nx_on, off, store), Policy.of(kernel, cpu, mmu), 1)
    assert _faults(got) == [(14, 3)]


@pytest.mark.parametrize(("kernel", "cpu", "mmu"), EVERY)
def test_the_guest_sees_what_it_wrote_or_gets_gp(kernel: str, cpu: str, mmu: str) -> None:
    refused = State().cr0 | bit_mask(CR0, "NW")
    body = (WriteCr(0, toggle=("AM", "MP")), ReadCr(0, keep=True), WriteCr(0, value=refused), ReadCr(0, keep=True))
    got = run(_program(*body), Policy.of(kernel, cpu, mmu), 1)
    expected = State().cr0 ^ bit_mask(CR0, "AM", "MP")
    assert [_value(got, 1), _value(got, 3)] == [expected, expected]
    assert _faults(got) == [(13, 0)]


@pytest.mark.parametrize(("kernel", "cpu", "mmu"), EVERY)
def test_reserved_bits_of_cr8_exit_first(kernel: str, cpu: str, mmu: str) -> None:
    """Rule cr8-refused: the exit goes before the #GP (SDM volume 3, "Relative Priority of Faults and VM Exits"), which
    is KVM's; handle_cr of vmx.c passes on a byte, cr_interception of svm.c the whole."""
    policy = Policy.of(kernel, cpu, mmu)
    got = run(_program(WriteCr(8, value=5), WriteCr(8, value=16), WriteCr(8, value=0x100), ReadCr(8, True)), policy, 1)
    assert _faults(got) == [(13, 0)] if cpu == "intel" else [(13, 0), (13, 0)]
    assert _value(got, 3) == (0 if cpu == "intel" else 5)
    assert got.exits_by_reason["CR_ACCESS" if cpu == "intel" else "write_cr8"] == (4 if cpu == "intel" else 3)


@pytest.mark.parametrize("kernel", ["5.10", "6.12", "7.2"])
def test_refused_cr3_and_invpcid_exit_first(kernel: str) -> None:
    """Seen in 6.12.117 and 7.2.13 on Bochs: with bit 63 set but no PCIDE kvm_set_cr3 refuses, and of a PCID without
    PCIDE kvm_handle_invpcid does, each after the exit; with EPT the processor refuses alone."""
    toggle = (WriteCr(4, set=("PCIDE",)), WriteCr(4, clear=("PCIDE",)))
    body = (*toggle, SwitchSpace("main", noflush=True), Invpcid(1, pcid=3), Invpcid(1))
    shadow = run(_program(*body), Policy.of(kernel, "intel", "shadow"), 1)
    assert _faults(shadow) == [(13, 0), (13, 0)]
    assert (shadow.exits_by_reason["CR_ACCESS"], shadow.exits_by_reason["INVPCID"]) == (3, 2)
    direct = run(_program(*body), Policy.of(kernel, "intel"), 1)
    assert _faults(direct) == [(13, 0), (13, 0)]
    assert direct.exits_by_reason["CR_ACCESS"] == 2
    assert "INVPCID" not in direct.exits_by_reason


def test_sysenter_takes_any_address_on_amd() -> None:
    """svm_set_msr keeps 32 bits; __kvm_set_msr makes the address canonical where it sees it at all."""
    body = (WriteMsr(0x175, 1 << 63), WriteMsr(0x176, 1 << 63))
    for kernel in ("5.10", "6.12"):
        assert _faults(run(_program(*body), Policy.of(kernel, "amd"), 1)) == []
        assert _faults(run(_program(*body), Policy.of(kernel), 1)) == [(13, 0), (13, 0)]


@pytest.mark.parametrize(("cr4", "refused"), [(0x20, [True, True]), (0x1020, [False, True])])
def test_five_level_paging_has_wider_addresses(cr4: int, refused: list[bool]) -> None:
    """56 bits of address and their sign are canonical under CR4.LA57 (SDM volume 1, 3.3.7.1), 57 are not."""
    for address, expected in zip((1 << 55, 1 << 56), refused, strict=True):
        body = (WriteMsr(0xC0000082, address), Invpcid(0, va=address))
        got = run(_program(*body, state=State(cr4=cr4)), Policy.of("6.12", "intel"), 1)
        assert _faults(got) == [(13, 0), (13, 0)] * expected


def test_a_kept_read_that_faults_leaves_the_zero_that_was_there() -> None:
    """The result area is zero at first, and a read that faults stores nothing into it."""
    got = run(_program(Load(VA + 0x1000, keep=True)), Policy.of("6.12"), 1)
    assert _value(got, 0) == 0


def test_lmsw_and_clts_change_their_bits() -> None:
    for kernel, cpu, mmu in EVERY:
        got = run(_program(Lmsw(0xF), ReadCr(0, True), Clts(), ReadCr(0, True)), Policy.of(kernel, cpu, mmu), 1)
        assert _value(got, 1) == State().cr0 | 0xF
        assert _value(got, 3) == (State().cr0 | 0xF) & ~8


def test_a_refused_write_exits_and_leaves_all_as_it_was() -> None:
    without_wp = State(cr4=bit_mask(CR4, "PAE", "CET"))
    for kernel, cpu, exits in (("7.2", "intel", 0), ("7.2", "amd", 1)):
        got = run(_program(WriteCr(0, clear=("WP",)), ReadCr(4, True), state=without_wp), Policy.of(kernel, cpu), 1)
        assert _faults(got) == [(13, 0)]
        assert sum(count for reason, count in got.exits_by_reason.items() if "cr0" in reason.lower()) == exits


def test_decode_assists_spare_the_emulator() -> None:
    policy = Policy.of("6.12", "amd")
    program = _program(WriteCr(0, toggle=("WP",)))
    assert run(program, policy, 10).counters.get("insn_emulation", 0) == 0
    assert run(program, policy, 10, host=Host(decode_assists=False)).counters["insn_emulation"] == 10


def test_a_load_of_cr3_forgets_what_was_not_global() -> None:
    """The table is changed behind the processor's back: only what it forgot shows."""
    from worldswitch.guest.operations import WriteEntry

    drop = WriteEntry("main", VA, clear=("P",))
    program = _program(Load(VA), drop, Load(VA), SwitchSpace("main"), Load(VA))
    assert _faults(run(program, Policy.of("6.12"), 1)) == [(14, 0)]
    pge = State(cr4=bit_mask(CR4, "PAE", "PGE"))
    kept = _program(
        Load(VA), drop, SwitchSpace("main"), Load(VA), WriteCr(4, clear=("PGE",)), Load(VA), state=pge, flags=("G",)
    )
    for cpu in ("intel", "amd"):
        assert len(_faults(run(kept, Policy.of("6.12", cpu), 1))) == 1


def test_model_specific_registers() -> None:
    policy = Policy.of("6.12")
    got = run(
        _program(WriteMsr(0x277, 0x0007040600070406), WriteMsr(0x277, 0x2), ReadMsr(0xC0000080, keep=True)), policy, 1
    )
    assert _faults(got) == [(13, 0)]
    assert _value(got, 2) == 0xD00
    assert got.exits_by_reason["MSR_WRITE"] == 2 and got.exits_by_reason["MSR_READ"] == 1
