"""32-bit guests with paging off: the model against real KVM (flat_lab.toml), and what selects their tables.

Not in the recording: LMSW that changes nothing, for which QEMU's processor does not exit; and flat-more
on 5.10 under shadow paging, where the guest hung once it had set CR4.SMEP, which was not looked into.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from worldswitch.guest import toml
from worldswitch.guest.operations import Load, Store, WriteCr
from worldswitch.guest.program import Mode, Program, State, Vcpu
from worldswitch.kvm.host import Host
from worldswitch.kvm.machine import NotModelled
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.roles import direct_root_role
from worldswitch.kvm.vcpu import run
from worldswitch.x86.control import Registers
from worldswitch.x86.registers import CR0, CR4, bit_mask

HERE = Path(__file__).parent
LAB = Host(huge_pages=False, decode_assists=False, next_rip=False)
RUNS = tomllib.loads((HERE / "flat_lab.toml").read_text())["run"]
FOUND = {
    (one["kernel"], one["cpu"], one["mmu"], name): found for one in RUNS for name, found in one["programs"].items()
}


@pytest.mark.parametrize(("kernel", "cpu", "mmu", "name"), FOUND)
def test_it_counts_what_real_kvm_counted(kernel: str, cpu: str, mmu: str, name: str) -> None:
    found: dict[str, Any] = FOUND[kernel, cpu, mmu, name]
    program, policy = toml.load(str(HERE / "programs" / f"{name}.toml")), Policy.of(kernel, cpu, mmu)
    none, whole = (run(program, policy, n, host=LAB) for n in (0, 20))
    reasons = {r: count - none.exits_by_reason.get(r, 0) for r, count in whole.exits_by_reason.items()}
    assert {r: count for r, count in reasons.items() if count} == found["exits"]
    for statistic, value in found["stats"].items():
        assert whole.counters[statistic] - none.counters.get(statistic, 0) == value, statistic


@pytest.mark.parametrize("cell", [("5.10", "amd", "shadow"), ("6.12", "intel", "default"), ("7.2", "intel", "shadow")])
def test_recurring_passes_are_counted_as_if_executed(cell: tuple[str, str, str]) -> None:
    program, policy = toml.load(str(HERE / "programs" / "flat-wp.toml")), Policy.of(*cell)
    short, whole = (run(program, policy, 300, whole=whole) for whole in (False, True))
    assert short.executed < 300
    assert (short.counters, short.exits_by_reason) == (whole.counters, whole.exits_by_reason)


def test_sets_of_direct_tables() -> None:
    """paging-off-role: old kernels have CR0.WP and EFER.NX in it whatever the paging; later ones nothing.

    The recording says so too: on 5.10 flat-wp makes six tables, four roots among them, on 6.12 one.
    """
    wp, smep = bit_mask(CR0, "WP"), bit_mask(CR4, "SMEP")
    old, new = Policy.of("5.10", mmu="shadow"), Policy.of("6.12", mmu="shadow")
    off, on = Registers(1, 0, 0, 0, False), Registers(1 | wp, 0, smep, 0, False)
    assert direct_root_role(new, off) == direct_root_role(new, on) == ()
    assert direct_root_role(old, off) != direct_root_role(old, on)
    assert direct_root_role(old, on) == direct_root_role(old, on._replace(cr4=0)), "with WP set SMEP does not count"
    assert direct_root_role(old, off) != direct_root_role(old, off._replace(cr4=smep))


@pytest.mark.parametrize("mmu", ["default", "shadow"])
def test_the_guest_reads_what_it_wrote(mmu: str) -> None:
    body = (Store(0x201234, value=77, size=4), Load(0x201234, size=4, keep=True, user=True))
    found = run(_flat(*body), Policy.of("6.12", mmu=mmu), 3)
    assert [list(report.values.values()) for report in found.reports if report] == [[77]]


def test_memory_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(NotModelled, match="has no memory"):
        run(_flat(Load(0x7FFF0000, size=4)), Policy.of("6.12"), 1)


def _flat(*body: Load | Store | WriteCr) -> Program:
    return Program("flat", "x", "pass", (Vcpu(body=body),), (), mode=Mode.FLAT, state=State(0x50033, 0, 0))
