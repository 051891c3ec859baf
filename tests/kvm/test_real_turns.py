"""Programs of two vCPUs on the model against real kvm_amd, whose vCPUs run at the same time (smp_lab.toml).

Where they meet between what they do to each other, the order in which they do it is fixed there too.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from worldswitch.guest import library, toml
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run

HERE = Path(__file__).parent
LAB = Host(huge_pages=False, decode_assists=False, next_rip=False)
RUNS = tomllib.loads((HERE / "smp_lab.toml").read_text())["run"]
FOUND = {(one["kernel"], one["mmu"], name): found for one in RUNS for name, found in one["programs"].items()}
MEMORY = ("npf", "PF excp")
AT_ONCE = 4
"""Page tables that both vCPUs reach when they are entered, at the same moment: who faults there, and whether both do,
differs from run to run, with passes and without."""


@pytest.mark.parametrize(("kernel", "mmu", "name"), FOUND)
def test_it_counts_what_real_kvm_counted(kernel: str, mmu: str, name: str) -> None:
    found: dict[str, Any] = FOUND[kernel, mmu, name]
    program = library.program(name) if ":" in name else toml.load(str(HERE / "programs" / f"smp-{name}.toml"))
    none, whole = (run(program, Policy.of(kernel, "amd", mmu), n, host=LAB) for n in (0, 20))
    reasons = {r: count - none.exits_by_reason.get(r, 0) for r, count in whole.exits_by_reason.items()}
    for reason in {*reasons, *found["exits"]}:
        differ = abs(reasons.get(reason, 0) - found["exits"].get(reason, 0))
        assert differ <= (AT_ONCE if reason in MEMORY else 0), reason
    faults = sum(report.faults for report in whole.reports if report)
    # In its set-up the second vCPU stores to the page that the first makes read-only in its first pass, or before.
    assert found["faults"] - faults in ((0, 1) if name == "tables" else (0,))
