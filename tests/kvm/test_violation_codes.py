"""What page faults, EPT violations and nested page faults say of the access that led to them.

violation_lab.toml: kvm_page_fault of Debian's 6.12.117 in the lab, of the same program and in the same order. Bochs
says more of an EPT violation than the processors modelled (bits 9 to 11, SDM volume 3, table 28-7, where they have
"advanced VM-exit information"), and has walks of the guest's tables as writes alone, not as reads and writes.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from worldswitch.guest import toml
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run

HERE = Path(__file__).parent
LAB = Host(huge_pages=False, decode_assists=False, next_rip=False)
RUNS = tomllib.loads((HERE / "violation_lab.toml").read_text())["run"]


@pytest.mark.parametrize("one", RUNS, ids=lambda one: f"{one['program']}-{one['cpu']}-{one['mmu']}")
def test_addresses_and_codes_are_those_recorded(one: dict[str, object]) -> None:
    program = toml.load(str(HERE / "programs" / f"{one['program']}.toml"))
    policy = Policy.of("6.12.117", str(one["cpu"]), str(one["mmu"]))
    found = run(program, policy, 6, host=LAB, record=True)
    rows = [row for name, row in found.rows or () if name == "kvm_page_fault"]
    ept = one["cpu"] == "intel" and one["mmu"] == "tdp"
    assert [
        f"{row['fault_address']:x} {_as_bochs(row['error_code']) if ept else row['error_code']:x}" for row in rows
    ] == [
        f"{address} {int(code, 16) & (0x1FF if ept else -1):x}"
        for address, code in map(str.split, one["faults"])  # type: ignore[call-overload]
    ]


def _as_bochs(code: int) -> int:
    return 0x82 if code == 0x83 else code


def test_old_kernels_show_32_bits_of_a_code() -> None:
    """Fact trace-page-fault-vcpu."""
    program = toml.load(str(HERE / "programs" / "violation.toml"))
    found = run(program, Policy.of("5.10", "amd"), 1, host=LAB, record=True)
    codes = {row["error_code"] for name, row in found.rows or () if name == "kvm_page_fault"}
    assert codes == {0x4, 0x6, 0x14}
