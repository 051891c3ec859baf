"""Shadow paging. Expected: arch/x86/kvm/mmu/paging_tmpl.h and mmu.c of 5.10.223, 6.1.190 and 7.2.13, read case by case,
and the recordings in tests/data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from worldswitch.guest.operations import (
    Fetch,
    Invlpg,
    Invpcid,
    Load,
    Operation,
    ReadEntry,
    Store,
    SwitchSpace,
    WriteCr,
    WriteEntry,
)
from worldswitch.guest.program import Pages, Program, Space, State, Vcpu
from worldswitch.guest.toml import loads
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.shadow_pages import loses, most_pages
from worldswitch.kvm.shadow_table import Leaf
from worldswitch.kvm.vcpu import Run, run
from worldswitch.x86.registers import CR4, bit_mask

VA, PA = 0x4000_0000, 0x200000
KERNELS = ["5.10", "6.1", "6.12", "7.2"]
NO_WP = State(cr0=0x80040033)


def _run(
    kernel: str,
    *body: Operation,
    setup: tuple[Operation, ...] = (),
    pages: tuple[Pages, ...] = (Pages(VA, PA),),
    spaces: tuple[Space, ...] = (),
    n: int = 1,
    state: State | None = None,
    cpu: str = "intel",
) -> Run:
    """What the body adds to the program without it: n passes."""
    program = Program(
        "test", "A test.", "pass", (Vcpu(body=body, setup=setup),), spaces or (Space("main", pages),),
        state=state or State(), memory=16 << 20,
    )  # fmt: skip
    policy = Policy.of(kernel, cpu, "shadow")
    none, whole = run(program, policy, 0), run(program, policy, n)
    names = set(none.counters) | set(whole.counters)
    counters = Counter({name: whole.counters.get(name, 0) - none.counters.get(name, 0) for name in names})
    reasons = {r: c - none.exits_by_reason.get(r, 0) for r, c in whole.exits_by_reason.items()}
    return Run(n, {r: c for r, c in reasons.items() if c}, counters, {}, whole.reports)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_first_touch_of_each_page_exits(kernel: str) -> None:
    got = _run(kernel, Store(VA, 4096, 16), pages=(Pages(VA, PA, count=16),), n=32)
    assert got.exits_by_reason == {"EXCEPTION_NMI": 16}
    assert got.counters["pf_fixed"] == 16


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_read_then_a_write_is_two_faults_since_the_write_sets_dirty(kernel: str) -> None:
    look, load = ReadEntry("main", VA), Load(VA)
    got, without = _run(kernel, load, look, Store(VA), look), _run(kernel, load, look, look)
    report = got.reports[0]
    assert report is not None
    assert [value & 0x60 for value in report.values.values()] == [0x20, 0x60]
    assert got.counters["pf_fixed"] - without.counters["pf_fixed"] == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_level_1_table_is_written_freely_until_a_flush(kernel: str) -> None:
    """Rule shadow-unsync."""
    write, off = Store(VA), WriteEntry("main", VA, clear=("W",))
    got = _run(kernel, write, off, n=1)
    once = got.exits_by_reason["EXCEPTION_NMI"]
    again = _run(kernel, write, off, off, off, off)
    assert again.exits_by_reason == {"EXCEPTION_NMI": once}, "further writes to the table are not seen"
    assert again.counters["mmu_unsync"] == 1 and again.counters["insn_emulation"] == 0
    flushed = _run(kernel, write, off, Invlpg(VA), write)
    assert flushed.reports[0] is not None and flushed.reports[0].faults == 1, "after INVLPG the page is read-only"
    stale = _run(kernel, write, off, write)
    assert stale.reports[0] is not None and stale.reports[0].faults == 0, "before it, it is not"


@pytest.mark.parametrize("kernel", KERNELS)
def test_writes_to_an_upper_table_are_emulated(kernel: str) -> None:
    got = _run(kernel, Load(VA), WriteEntry("main", VA, 2, clear=("U",)), Load(VA))
    assert got.counters["insn_emulation"] == got.counters["mmu_pte_write"] == got.counters["pf_emulate"] == 1
    assert got.counters["mmu_pde_zapped"] == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_third_write_in_a_row_zaps_an_upper_table(kernel: str) -> None:
    """Rule write-flooding."""
    flip = WriteEntry("main", VA, 2, toggle=("U",))
    # The page directory of VA alone: it translates neither the code nor the tables.
    assert _run(kernel, Load(VA), flip, flip).counters["mmu_flooded"] == 0
    thrice = _run(kernel, Load(VA), flip, flip, flip)
    assert thrice.counters["mmu_flooded"] == 1
    used = _run(kernel, Load(VA), flip, flip, Invlpg(VA), Load(VA), flip, flip)
    assert used.counters["mmu_flooded"] == 0, "a use between starts the count anew"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_read_only_user_page_flips_while_wp_is_clear(kernel: str) -> None:
    """Rule shadow-wp-clear."""
    pages = (Pages(VA, PA, flags=("U",)),)
    user, write = Load(VA, user=True), Store(VA)
    got = _run(kernel, user, write, pages=pages, state=NO_WP, n=10)
    faults = got.exits_by_reason["EXCEPTION_NMI"]
    more = _run(kernel, user, write, pages=pages, state=NO_WP, n=20)
    assert more.exits_by_reason["EXCEPTION_NMI"] - faults == 20, "each access takes from the other"
    quiet = _run(kernel, write, pages=pages, state=NO_WP, n=20)
    assert quiet.exits_by_reason["EXCEPTION_NMI"] < 5
    assert all(r is not None and r.faults == 0 for r in (*got.reports, *quiet.reports))


def test_under_smep_such_a_page_is_not_executable_for_the_supervisor() -> None:
    state = State(cr0=NO_WP.cr0, cr4=bit_mask(CR4, "PAE", "SMEP"))
    for kernel in KERNELS:
        got = _run(kernel, Store(VA), Fetch(VA), pages=(Pages(VA, PA, flags=("U",)),), state=state)
        report = got.reports[0]
        assert report is not None and [(f.vector, f.error_code) for f in report.log] == [(14, 0x11)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_neighbours_that_were_accessed_are_mapped(kernel: str) -> None:
    """Rule shadow-prefetch."""
    # Fetches fill the pages they reach, so that the host has them in memory; all push on the same page of the stack.
    walk = Fetch(VA, 4096, 8)
    accessed, fresh = (Pages(VA, PA, count=8, flags=("W", "A", "D")),), (Pages(VA, PA, count=8),)
    ahead, each = (_run(kernel, walk, pages=pages, n=8).exits_by_reason for pages in (accessed, fresh))
    assert each["EXCEPTION_NMI"] - ahead["EXCEPTION_NMI"] == 7
    # Loads fill nothing: the host has none of the pages.
    load = Load(VA, 4096, 8)
    assert _run(kernel, load, pages=accessed, n=8).exits_by_reason == {"EXCEPTION_NMI": 8}


def test_each_value_of_wp_has_its_own_pages() -> None:
    for kernel in KERNELS:
        off, on = WriteCr(0, clear=("WP",)), WriteCr(0, set=("WP",))
        got = _run(kernel, off, Load(VA), on, Load(VA), n=10)
        assert got.exits_by_reason["CR_ACCESS"] == 20
        assert got.counters["root_loads"] == got.counters["mmu_resets"] == 20
        pages = got.exits_by_reason["EXCEPTION_NMI"]
        assert _run(kernel, off, Load(VA), on, Load(VA), n=20).exits_by_reason["EXCEPTION_NMI"] == pages


SPACES = tuple(Space(f"space{i}", (Pages(VA, PA),)) for i in range(6))


def _switches(count: int) -> list[Operation]:
    return [step for i in (*range(1, count), 0) for step in (SwitchSpace(f"space{i}"), Load(VA))]


@pytest.mark.parametrize(
    ("kernel", "count", "loads", "flushes"),
    [
        # Up to four spaces are at hand, of five none is; 6.1 flushes by request in any case, 5.10 by loading the root.
        ("5.10", 2, 0, 2),
        ("5.10", 4, 0, 4),
        ("5.10", 5, 5, 0),
        ("6.1", 2, 0, 2),
        ("6.1", 4, 0, 4),
        ("6.1", 5, 5, 5),
        ("7.2", 5, 5, 5),
    ],
)
def test_cr3_writes_find_their_roots(kernel: str, count: int, loads: int, flushes: int) -> None:
    """Rule cr3-write-shadow."""
    ten = _run(kernel, *_switches(count), spaces=SPACES[:count], n=10)
    twenty = _run(kernel, *_switches(count), spaces=SPACES[:count], n=20)
    assert twenty.exits_by_reason["CR_ACCESS"] - ten.exits_by_reason["CR_ACCESS"] == 10 * count
    assert twenty.counters["root_loads"] - ten.counters["root_loads"] == 10 * loads
    assert twenty.counters["tlb_flush"] - ten.counters["tlb_flush"] == 10 * flushes


def test_invpcid_of_all_contexts() -> None:
    """Rule invpcid-shadow."""
    old, new = (_run(kernel, Invpcid(2), n=10) for kernel in ("5.10", "6.1"))
    assert old.exits_by_reason == new.exits_by_reason == {"INVPCID": 10}
    assert (old.counters["root_loads"], new.counters["root_loads"]) == (10, 0)
    assert (old.counters["tlb_flush"], new.counters["tlb_flush"]) == (0, 10)


def test_a_guest_fault_is_injected_and_counted() -> None:
    for kernel in KERNELS:
        got = _run(kernel, Load(VA), pages=(Pages(VA, PA, present=False),), n=5)
        assert got.counters["pf_guest"] == 5
        assert got.reports[0] is not None and got.reports[0].faults == 5


def test_invlpg_flushes_if_something_was_lost() -> None:
    """Rule shadow-invlpg."""
    # The second pair of writes gives back what the first took; the table is out of step from the first on.
    off, on = WriteEntry("main", VA, clear=("W",)), WriteEntry("main", VA, set=("W",))
    body = (off, Invlpg(VA), on, Invlpg(VA), Store(VA))
    for kernel, each in (("5.10", 2), ("6.1", 2), ("6.12", 1), ("7.2", 1)):
        ten, twenty = (_run(kernel, *body, n=n).counters["tlb_flush"] for n in (10, 20))
        assert twenty - ten == 10 * each, kernel


def test_the_oldest_pages_make_room() -> None:
    """Rule shadow-page-limit."""
    assert [most_pages(frames) for frames in (512, 3250, 1 << 20)] == [64, 65, 20971]
    # Each space takes three pages of its own for each value of WP: twelve of them are more than 81.
    spaces = tuple(Space(f"space{i}", (Pages(VA, PA),)) for i in range(12))
    body = [step for i in (*range(1, 12), 0) for step in (SwitchSpace(f"space{i}"), Load(VA))]
    flips = (WriteCr(0, toggle=("WP",)), *body)
    few, many = (_run("6.12", *steps, spaces=spaces, n=10).counters for steps in (body, flips))
    assert few["mmu_recycled"] == 0 and many["mmu_recycled"] > 0
    assert many["mmu_shadow_zapped"] == many["mmu_recycled"]
    assert many["mmu_shadow_pages"] <= most_pages(16 << 20 >> 12)


@pytest.mark.parametrize(
    ("kernel", "clears", "writes"), [("5.10", True, True), ("6.12", True, True), ("7.2", False, True)]
)
def test_what_a_changed_entry_flushes(kernel: str, clears: bool, writes: bool) -> None:
    """Rule shadow-update-flush."""
    policy, full = Policy.of(kernel, mmu="shadow"), Leaf(1, 7, accessed=True, dirty=True)
    assert loses(policy, full, Leaf(1, 7, dirty=True)) is clears
    assert loses(policy, full, Leaf(1, 7, accessed=True)) is clears
    assert loses(policy, full, Leaf(1, 5, accessed=True, dirty=True)) is writes
    assert not loses(policy, Leaf(1, 5, accessed=True, dirty=True), full)
    assert not loses(policy, full, Leaf(1, 3, accessed=True, dirty=True))  # the right of CPL 3


RECORDED = Path(__file__).parents[1] / "data/conform"


@pytest.mark.parametrize(
    ("name", "kernel", "exits"),
    [
        ("5.10-sync", "5.10.223", {"PF excp": 52, "write_cr3": 12, "write_cr4": 12, "hlt": 1}),
        (
            "6.1-floods",
            "6.1.176",
            {"PF excp": 1298, "write_cr3": 459, "write_cr4": 95, "cr0_sel_write": 421, "hlt": 39, "io": 440},
        ),
    ],
)
def test_random_programs_exit_as_they_were_recorded_to(name: str, kernel: str, exits: Mapping[str, int]) -> None:
    """Exits by reason in the lab. The first: a shadow page found for a new link, with a table below out of step, has
    5.10 sync before it enters (kvm_mmu_get_page, KVM_REQ_MMU_SYNC). The second: the switch to a root clears what was
    counted of writes to its table (kvm_mmu_new_pgd), so it is never zapped."""
    program = loads((RECORDED / f"{name}.toml").read_text())
    host = Host(huge_pages=False, decode_assists=False, next_rip=False)
    got = run(program, Policy.of(kernel, "amd", "shadow", []), host=host)
    assert got.exits_by_reason == exits
    assert got.counters.get("mmu_flooded", 0) == 0
