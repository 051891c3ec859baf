"""The executable KVM against real kvm_amd and kvm_intel: shipped programs on the kernels of lab_counts.toml.

Exits by reason, KVM's own statistics and guest faults.
"""

from __future__ import annotations

import tomllib
import zlib
from pathlib import Path
from typing import Any

import pytest

from worldswitch.guest import library
from worldswitch.guest.assemble import assemble
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run

LAB = Host(huge_pages=False, decode_assists=False, next_rip=False)
RUNS = tomllib.loads((Path(__file__).parent / "lab_counts.toml").read_text())["run"]
FOUND = {
    (one["kernel"], one["cpu"], one["mmu"], spec): found for one in RUNS for spec, found in one["programs"].items()
}

# On 6.12 one of 20 first accesses to DR6 exited twice, in each of these recordings and in no other: KVM intercepts
# debug registers anew after any exit, so after a timer's between two accesses.
TWICE = {("6.12.117", "tdp", "single-step"), ("6.12.117", "tdp", "ssdd"), ("6.12.117", "shadow", "single-step")}


@pytest.mark.parametrize(("kernel", "cpu", "mmu", "spec"), FOUND)
def test_it_counts_what_real_kvm_counted(kernel: str, cpu: str, mmu: str, spec: str) -> None:
    found: dict[str, Any] = FOUND[kernel, cpu, mmu, spec]
    program = library.program(spec)
    image = assemble(program)
    if zlib.crc32(b"".join(segment.data for segment in image.segments)) != found["image"]:
        pytest.skip(f"{spec} was recorded with another image; record lab_counts.toml anew")
    policy = Policy.of(kernel, cpu, mmu)
    none, whole = (run(program, policy, n, host=LAB, image=image) for n in (0, 20))
    reasons = {r: count - none.exits_by_reason.get(r, 0) for r, count in whole.exits_by_reason.items()}
    expected = dict(found["exits"])
    if cpu == "amd" and (kernel, mmu, spec.partition(":")[0]) in TWICE:
        expected["read_dr6"] -= 1
    assert {r: count for r, count in reasons.items() if count} == expected
    for name, value in found["stats"].items():
        got = whole.counters.get(name, 0) - none.counters.get(name, 0)
        assert got == value, name
    report = whole.reports[0]
    assert (report.faults if report else 0) == found["faults"]
