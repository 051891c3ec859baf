"""The kvmmmu events of a run on the model are those that kernels recorded: svm-*-lab and vmx-*-lab in tests/data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldswitch.guest import library
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run
from worldswitch.record.trace import Trace
from worldswitch.trace.readers import open_source

DATA = Path(__file__).parents[1] / "data"
EVENTS = (
    "kvm_mmu_get_page",
    "kvm_mmu_spte_requested",
    "kvm_mmu_set_spte",
    "kvm_tdp_mmu_spte_changed",
    "fast_page_fault",
)
OF_THE_HOST = {"pfn", "spte", "sptep", "old_spte", "new_spte"}
SEEN = {"kvm_track_tsc", "kvm_userspace_exit"}
N = 75

Row = tuple[str, tuple[tuple[str, Any], ...]]


def rows(trace: Trace, *also: str) -> list[Row]:
    """The events, in order, without the fields that hold addresses of the host."""
    found: list[Row] = []
    for batch in trace.batches():
        at = [0] * len(batch.events)
        for number in batch.order.tolist():
            name, place = batch.events[number], at[number]
            at[number] += 1
            if name in EVENTS or name in also:
                columns = sorted(batch.tables[number].items())
                values = [(key, column[place].item()) for key, column in columns if key not in OF_THE_HOST]
                found.append((name, tuple(map(_comparable, values))))
    return found


def _comparable(field: tuple[str, Any]) -> tuple[str, Any]:
    """Walks of the guest's tables are reads and writes where EPT has A and D (SDM 29.2.1, note on bits 0 and 1 of the
    qualification); Bochs, under which vmx-5.10-lab was recorded, has them as writes alone."""
    name, value = field
    if name == "cr2_or_gpa":
        return name, value >> 12  # what follows MOV to CR0 is fetched where it lies, by the model with what comes next
    return (name, 6) if name == "error_code" and value == 2 else field


def recorded(folder: str) -> list[list[Row]]:
    """Each VM's events, from its making to its end, without what is said when it goes."""
    vms: list[list[Row]] = []
    going = True
    for row in rows(Trace.read(open_source(DATA / folder / "wp.perf.data.zst")), *SEEN):
        if row[0] in SEEN:
            going = row[0] == "kvm_userspace_exit"
            if not going:
                vms.append([])
        elif not going:
            vms[-1].append(row)
    return vms


@pytest.mark.parametrize("cpu", ["intel", "amd"])
@pytest.mark.parametrize(
    ("kernel", "version"), [("5.10", "5.10.223"), ("6.1", "6.1.176"), ("6.12", "6.12.117"), ("7.2", "7.2.13")]
)
def test_events_are_those_of_the_recording(cpu: str, kernel: str, version: str) -> None:
    """Rule tdp-role-word. Eight VMs, four with 75 writes and four with none: all events and fields, in order."""
    host = Host(decode_assists=False, next_rip=False, huge_pages=False)
    vms = recorded(f"{'vmx' if cpu == 'intel' else 'svm'}-{kernel}-lab")
    modelled = []
    for n in (0, N):
        got = run(library.program("recorded-wp"), Policy.of(version, cpu), n, host=host, record=True)
        modelled += [rows(got.trace())] * 4
    assert sorted(vms) == sorted(modelled)


def test_no_events_are_made_where_none_are_kept() -> None:
    got = run(library.program("recorded-wp"), Policy.of("6.12", "intel"), 2)
    assert got.rows is None
