"""The kvmmmu events of shadow paging on the model are those that kernels recorded: shadow-events in tests/data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from worldswitch.guest import library
from worldswitch.kvm.host import Host
from worldswitch.kvm.permissions import U_RIGHT, W_RIGHT, X_RIGHT
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import PageRole
from worldswitch.kvm.shadow_events import ShadowTrace, shadow_role_word
from worldswitch.kvm.shadow_pages import Pages
from worldswitch.kvm.vcpu import run
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import open_source
from worldswitch.x86.access import Controls
from worldswitch.x86.memory import Memory

DATA = Path(__file__).parents[1] / "data" / "shadow-events"
OF_THE_HOST = {"pfn", "spte", "sptep"}
PROGRAMS = ("cr0-wp", "page-touch:pages=8", "entry-write", "context-switch:touch=true", "wp-fault", "user")
N = 6
VERSIONS = {"5.10": "5.10.223", "6.1": "6.1.176", "6.12": "6.12.117", "7.2": "7.2.13"}
RECORDINGS = ("amd-5.10", "amd-6.1", "amd-6.12", "amd-7.2", "intel-6.1", "intel-7.2")
OF_WALKS = {
    "kvm_mmu_pagetable_walk", "kvm_mmu_paging_element", "kvm_mmu_set_accessed_bit", "kvm_mmu_set_dirty_bit",
    "kvm_mmu_walker_error",
}  # fmt: skip

Row = tuple[str, dict[str, Any]]


def rows(trace: Trace) -> list[Row]:
    """The events of kvmmmu and those that part VMs, in order, without the fields that hold addresses of the host."""
    found: list[Row] = []
    for batch in trace.batches():
        at = [0] * len(batch.events)
        for number in batch.order.tolist():
            name, place = batch.events[number], at[number]
            at[number] += 1
            if name.startswith("kvm_mmu"):
                columns = batch.tables[number].items()
                found.append((name, {key: _shown(key, column[place]) for key, column in columns}))
                for key in OF_THE_HOST & found[-1][1].keys():
                    del found[-1][1][key]
            elif name == "kvm_track_tsc":
                found.append((name, {}))
    return found


def _shown(field: str, value: Any) -> int:
    """What follows MOV to CR0 is fetched where it lies, by the model with what comes next: the page is the same."""
    return int(value) >> 12 if field == "addr" else int(value)


@cache
def recorded(name: str) -> list[list[Row]]:
    """The events of each VM from its making until it leaves: of each program first with no passes, then with N."""
    vms: list[list[Row]] = []
    for row in rows(Trace.read(open_source(DATA / f"{name}.perf.data.zst"))):
        if row[0] == "kvm_track_tsc":
            vms.append([])
        else:
            vms[-1].append(row)
    assert len(vms) == 2 * len(PROGRAMS)
    return vms


def modelled(name: str, program: str, n: int) -> list[Row]:
    cpu, kernel = name.split("-")
    host = Host(decode_assists=False, next_rip=False, huge_pages=False)
    policy = Policy.of(VERSIONS[kernel], cpu, mmu="shadow")
    return rows(run(library.program(program), policy, n, host=host, record=True).trace())


def mapping(events: list[Row]) -> list[Row]:
    return [row for row in events if row[0] not in OF_WALKS]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", RECORDINGS)
def test_events_are_those_of_the_recording(name: str, program: str) -> None:
    """Rule shadow-role-word. Pages looked up, entries set and tables that go out of step: all fields, in order."""
    first = 2 * PROGRAMS.index(program)
    for vm, n in zip(recorded(name)[first : first + 2], (0, N), strict=True):
        assert mapping(modelled(name, program, n)) == mapping(vm)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        (name, program)
        for name in RECORDINGS
        for program in PROGRAMS
        if program != "wp-fault" or not name.endswith(("-5.10", "-6.1"))
    ],
)
def test_walks_are_those_of_the_recording(name: str, program: str) -> None:
    """Of page faults and of instructions that KVM's emulator fetches: what a walk reads, marks and meets.

    Not those of wp-fault on 5.10 and 6.1: before 6.12 KVM walks once more for a page fault while an event is delivered
    (kvm_mmu_unprotect_page_virt), of which the model does not know.
    """
    first = 2 * PROGRAMS.index(program)
    for vm, n in zip(recorded(name)[first : first + 2], (0, N), strict=True):
        assert modelled(name, program, n) == vm


@pytest.mark.parametrize(
    ("kernel", "supervisor", "zapped"),
    [("5.10.223", 0x3313, 0x3B13), ("6.12.117", 0x3303, 0x3B03), ("7.2.13", 0x6B03, 0x7B03)],
)
def test_a_role_word_has_the_bits_of_the_union(kernel: str, supervisor: int, zapped: int) -> None:
    """asm/kvm_host.h, union kvm_mmu_page_role: level 4 bits, 1, 2, direct, rights 3 (7.2: 4), invalid, NX, WP."""
    role = PageRole(True, True, False, False, 3, access=W_RIGHT | X_RIGHT)
    policy = Policy.of(kernel, "intel", mmu="shadow")
    assert shadow_role_word(policy, role) == supervisor
    assert shadow_role_word(policy, role, valid=False) == zapped
    assert shadow_role_word(policy, role._replace(access=W_RIGHT | X_RIGHT | U_RIGHT)) == supervisor | U_RIGHT << 8


def test_a_page_out_of_step_that_is_zapped_says_so_before_it_is_in_step() -> None:
    """mmu.c of 6.12, __kvm_mmu_prepare_zap_page: the event comes first, then kvm_unlink_unsync_page has its own."""
    policy = Policy.of("6.12.117", "amd", mmu="shadow")
    events: list[Row] = []
    pages = Pages(policy, Memory(1 << 20), Controls, lambda: None, lambda _: None, ShadowTrace(policy, events))
    page = pages.get(3, PageRole(True, True, False, False, 1))
    pages.mark_unsync(page)
    pages.zap(page)
    assert [(name, row["unsync"]) for name, row in events] == [
        ("kvm_mmu_get_page", False),
        ("kvm_mmu_unsync_page", False),
        ("kvm_mmu_prepare_zap_page", True),
        ("kvm_mmu_sync_page", True),
    ]
