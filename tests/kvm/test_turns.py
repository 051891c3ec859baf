"""Several vCPUs of one VM: what is each one's own, what they share, and in which order they act."""

from __future__ import annotations

import numpy as np
import pytest

from worldswitch.errors import UsageError
from worldswitch.guest import library
from worldswitch.guest.operations import Invlpg, Load, Meet, Operation, Repeat, Store, WriteCr, WriteEntry
from worldswitch.guest.program import Pages, Program, Space, Vcpu
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import Run, run

VA, OTHER, PA = 0x400000, 0x800000, 0x200000
SPACE = Space("main", (Pages(VA, PA, count=64), Pages(OTHER, PA + 0x40000, count=64)))
CELLS = [
    ("5.10", "intel", "tdp"),
    ("5.10", "amd", "legacy"),
    ("5.10", "amd", "shadow"),
    ("6.1", "intel", "shadow"),
    ("6.2.10", "intel", "tdp"),
    ("6.12", "amd", "default"),
    ("7.2", "intel", "default"),
    ("7.2", "amd", "shadow"),
]
WP = (WriteCr(0, clear=("WP",)), WriteCr(0, set=("WP",)))
MEET = (Meet(),)


def _program(*vcpus: Vcpu) -> Program:
    return Program("several", "Several vCPUs.", "pass", vcpus, spaces=(SPACE,))


def _alternating(one: tuple[Operation, ...], other: tuple[Operation, ...]) -> Program:
    """The first vCPU acts while the second waits, then the other way round."""
    first, second = (Store(VA), Store(OTHER)), (*MEET, Store(VA), Store(OTHER))
    return _program(Vcpu((*one, Meet(), Meet()), setup=(*first, Meet())), Vcpu((Meet(), *other, Meet()), setup=second))


PROGRAMS = {
    "toggles": _program(Vcpu(WP), Vcpu((*WP, *WP)), Vcpu((WriteCr(0, toggle=("AM",)),))),
    "roots": _alternating((*WP, Store(VA, 4096, 32)), (*WP, Load(VA, 4096, 16))),
    "tables": _alternating(
        (WriteEntry("main", VA, toggle=("W",)), Invlpg(VA), Load(VA)), (Invlpg(VA), Store(VA), Store(OTHER, 4096, 8))
    ),
    "repeats": _program(
        Vcpu((Repeat(20, (*WP, Repeat(2, (Meet(), Store(VA, 4096, 8))))),)),
        Vcpu((Repeat(40, (Meet(), Load(OTHER, 4096, 16))),)),
    ),
    "ssdd": library.program("ssdd:pairs=3,vcpus=2"),
}


def _more(program: Program, policy: Policy, n: int = 20) -> dict[str, int]:
    """By how much *n* passes raise each counter and each reason."""
    none, found = (run(program, policy, passes) for passes in (0, n))
    after, before = ({**one.counters, **one.exits_by_reason} for one in (found, none))
    return {name: value - before.get(name, 0) for name, value in after.items()}


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
@pytest.mark.parametrize("name", PROGRAMS)
def test_recurring_passes_are_counted_as_if_executed(name: str, cell: tuple[str, str, str]) -> None:
    policy = Policy.of(*cell)
    short, whole = (run(PROGRAMS[name], policy, 300, whole=whole) for whole in (False, True))
    assert (short.executed < 300, whole.executed) == (True, 300)
    for part in ("exits_by_reason", "counters", "userspace_exits", "reports"):
        assert getattr(short, part) == getattr(whole, part), part


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_the_same_program_gives_the_same_trace(cell: tuple[str, str, str]) -> None:
    one, other = (run(PROGRAMS["roots"], Policy.of(*cell), 5, record=True) for _ in range(2))
    assert one.rows == other.rows


def test_registers_are_each_vcpus_own() -> None:
    """Three vCPUs change CR0 2, 4 and 1 times a pass; on AMD each such write exits."""
    assert _more(PROGRAMS["toggles"], Policy.of("6.12", "amd"))["cr0_sel_write"] == 7 * 20


def test_memory_that_one_vcpu_had_mapped_is_mapped_for_all() -> None:
    """Two-dimensional tables are the VM's: the second reader of a page has no violation."""
    policy, pages = Policy.of("6.12"), (Repeat(32, (Load(VA, 4096, 32),)),)
    alone, both = _program(Vcpu(pages)), _program(Vcpu((*pages, Meet())), Vcpu((Meet(), *pages)))
    # 32 pages and the three tables that lead to them; with two vCPUs the page where they meet is one more.
    first, second = (_more(program, policy, 1)["EPT_VIOLATION"] for program in (alone, both))
    assert (first, second) == (35, 36)


def test_a_root_is_freed_with_its_last_user() -> None:
    """5.10 with the TDP MMU: tables of CR0.WP set outlive the switch of one vCPU while another one has them loaded.

    Those of WP clear have one user and are built anew; so each pass of two vCPUs costs less than two vCPUs alone.
    """
    policy = Policy.of("5.10", mmu="tdp")
    toggle = (*WP, Load(VA, 4096, 16))
    alone = _more(_program(Vcpu(toggle, setup=(Store(VA),))), policy)
    both = _more(_alternating(toggle, ()), policy)
    assert alone["CR_ACCESS"] == both["CR_ACCESS"] == 40
    assert alone["EPT_VIOLATION"] > 20 * 10
    # Code, root and lower tables of the program while WP is clear; then the pages read, once.
    assert both["EPT_VIOLATION"] < alone["EPT_VIOLATION"] - 20 * 5


def test_what_a_vcpu_unmaps_all_flush() -> None:
    """Shadow paging: an entry that loses its right to write has every vCPU flush (kvm_flush_remote_tlbs)."""
    policy = Policy.of("6.12", mmu="shadow")
    change = (WriteEntry("main", VA, toggle=("W",)), Invlpg(VA), Store(VA))
    alone = _more(_program(Vcpu(change, setup=(Store(VA),))), policy)
    both = _more(_alternating(change, ()), policy)
    assert both["remote_tlb_flush_requests"] == alone["remote_tlb_flush_requests"] > 0
    assert both["tlb_flush"] == 2 * alone["tlb_flush"]


def test_who_meets_goes_on_when_all_are_there() -> None:
    first = Vcpu((Store(VA, value=7), Meet(), Meet(), Load(VA, keep=True)))
    second = Vcpu((Meet(), Load(VA, keep=True), Store(VA, value=9), Meet()))
    found = run(_program(first, second), Policy.of("6.12"), 3)
    assert [list(report.values.values()) for report in found.reports if report] == [[9], [7]]


def test_each_vcpu_reports_its_own_faults() -> None:
    found = run(_program(Vcpu((Load(0x10000000),)), Vcpu((Load(VA),))), Policy.of("6.12"), 4)
    first, second = found.reports
    assert first is not None and second is not None
    assert (first.faults, first.log[0].operation, second.faults) == (4, "vcpu 0 body 0", 0)


def test_each_vcpu_is_a_thread_of_the_trace() -> None:
    found: Run = run(_program(Vcpu(WP), Vcpu(WP)), Policy.of("5.10", "amd"), 3, record=True)
    exits = found.trace().table("kvm_exit")
    assert set(np.unique(exits["vcpu_id"])) == {0, 1}
    assert (exits["tid"] == 1 + exits["vcpu_id"]).all()
    assert (exits["pid"] == 1).all()


def test_passes_come_in_the_order_of_the_vcpus() -> None:
    found = run(_program(Vcpu(WP), Vcpu(WP)), Policy.of("6.12", "amd"), 3, record=True)
    assert found.rows is not None
    writes = [row["vcpu_id"] for name, row in found.rows if name == "kvm_exit" and row["exit_reason"] == 0x65]
    assert writes == [0, 0, 1, 1] * 3


@pytest.mark.parametrize("vcpus", [2, 5, 10])
def test_ssdd_makes_the_same_steps_on_any_number_of_vcpus(vcpus: int) -> None:
    """Of the counts per step only those of memory depend on who shares it."""
    policy = Policy.of("6.12", "amd")
    one, several = (_more(library.program(f"ssdd:pairs=10,vcpus={count}"), policy) for count in (1, vcpus))
    for reason, count in {"cr0_sel_write": 16, "DB excp": 1, "read_dr6": 1}.items():
        assert one[reason] == several[reason] == count * 10 * 20


def test_ssdd_gives_no_vcpu_nothing_to_do() -> None:
    with pytest.raises(UsageError, match=r"vcpus .* 3 is not from 1 to 2"):
        library.program("ssdd:pairs=2,vcpus=3")
